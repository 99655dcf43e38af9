"""Actor threads of one process: their tasks, order, progress, measurements and errors."""

import threading
from collections import defaultdict

import numpy as np
import pytest

from environments import Lockstep, StepOutput, report
from scalable_agent_popart import factory
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system.stage_clock import shares
from scalable_agent_popart.training.local_actors import LocalActors
from tests.fakes.counting_environment import CountingEnvironments, observed
from tests.fakes.programs import wait_until
from tests.fakes.threads import running
from tests.unit.acting.actor_test import UNROLL, make_agent

FLAGS = {"level_name": "catch5", "num_actors": 12, "actor_threads": 3, "batch_size": 4}
CONFIG = Config.from_flags({**FLAGS, "unroll_length": UNROLL, "use_lstm": True})


def make_actors(
    monkeypatch: pytest.MonkeyPatch, first: type[CountingEnvironments] = CountingEnvironments
) -> LocalActors:
    """Actors that play counting environments, of one thread all but one of the class `first`."""
    numbers = iter(range(0, 1000, 50))
    kinds = iter([first])

    def make(config: Config, suite: object, task_ids: np.ndarray, *_: object, **__: object):
        kind = next(kinds, CountingEnvironments)
        one = CountingEnvironments(task_ids[:1], next(numbers))
        return Lockstep(one, kind(task_ids[1:], next(numbers)))

    monkeypatch.setattr(factory, "make_environments", make)
    _, spec = make_agent(use_lstm=True)
    return LocalActors(CONFIG, spec, factory.make_learner(CONFIG, spec))


def test_tasks_and_order_survive_threads_and_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = make_actors(monkeypatch)
    steps_seen: dict[int, list[list[int]]] = defaultdict(list)
    tasks_seen = set()
    taken = 0
    with actors:
        # One thread may be ready long before the other.
        while taken < 15 or (len(tasks_seen) < 5 and taken < 2000):
            batch = actors.next_batch()
            if batch is None:
                continue
            taken += 1
            for b in range(CONFIG.batch_size):
                seen = [observed(o) for o in batch.env_outputs.observation[:, b].numpy()]
                assert {s.task for s in seen} == {int(batch.task_id[b])}
                assert len({s.environment for s in seen}) == 1
                steps_seen[seen[0].environment].append([s.step for s in seen])
                tasks_seen.add(int(batch.task_id[b]))
        stages, load = shares(actors.threads.clocks), actors.feed.load()
        assert actors.feed.load()["learner_wait"] == 0, "nobody has waited since"
    assert set(stages) == {"refresh", "policy", "environment", "queue"}
    assert sum(stages.values()) == pytest.approx(1)
    assert 0 < load["learner_wait"] <= 1, "the first batch was waited for"
    assert 0 <= load["queue_fill"] <= 1
    policies = actors.threads.policies.values()
    assert max(policy._step.experimental_get_tracing_count() for policy in policies) == 1
    assert tasks_seen == set(range(5))
    for rollouts_seen in steps_seen.values():
        for k, steps in enumerate(rollouts_seen):
            assert steps == list(range(k * UNROLL, (k + 1) * UNROLL + 1))


def test_the_start_is_described_by_environments_and_rollouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, start = threading.Event(), threading.Event()

    class Slow(CountingEnvironments):
        def __init__(self, task_ids: np.ndarray, number: int):
            super().__init__(task_ids, number)
            report(len(task_ids))
            make.wait()

        def reset(self) -> StepOutput:
            start.wait()
            return super().reset()

    actors = make_actors(monkeypatch, Slow)
    assert actors.describe_start() == "making environments: 0 of 12"
    with actors:
        wait_until(lambda: actors.describe_start() == "making environments: 3 of 12")
        make.set()
        # All but the slow ones of the first thread.
        wait_until(lambda: actors.describe_start() == "9 of 12 environments ready")
        start.set()
        # Nobody takes batches, so the queue fills up.
        wait_until(lambda: actors.describe_start() == "4 of 4 rollouts")


def test_an_exception_of_an_actor_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(CountingEnvironments):
        def receive(self) -> StepOutput:
            raise RuntimeError("the emulator caught fire")

    actors = make_actors(monkeypatch, Broken)
    with pytest.raises(RuntimeError, match="the emulator caught fire"), actors:  # noqa: PT012
        while True:
            actors.next_batch()
    assert not running("actor-", "batches")


@pytest.mark.parametrize("name", ["actor-1", "batches"])
def test_threads_end_if_another_cannot_start(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError(f"no thread {name}")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    actors = make_actors(monkeypatch)
    with pytest.raises(RuntimeError, match=f"no thread {name}"), actors:
        pass
    assert not running("actor-", "batches")


def test_tasks_are_dealt_evenly_to_threads_and_jobs() -> None:
    for num_actors, num_tasks, num_threads in ((57, 57, 2), (12, 5, 3), (7, 1, 7), (9, 4, 1)):
        dealt = factory.deal_tasks(num_actors, num_tasks, num_threads)
        assert len(dealt) == num_threads
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        for tasks in dealt:  # Its tasks are as mixed as its size allows.
            assert len(set(tasks)) >= min(len(tasks), num_tasks // num_threads)
    for num_actors, num_tasks, num_jobs in ((12, 5, 1), (10, 57, 40), (57, 57, 3), (3, 5, 7)):
        jobs = [
            np.concatenate(factory.deal_tasks(num_actors, num_tasks, 2, job))
            for job in range(num_jobs)
        ]
        assert {len(tasks) for tasks in jobs} == {num_actors}
        counts = np.bincount(np.concatenate(jobs), minlength=num_tasks)
        assert counts.max() - counts.min() <= 1


def test_actor_threads_follow_the_machine_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, gpu, num_actors, asked, threads in (
        (2, False, 32, 0, 2),
        (64, False, 32, 0, 4),
        (64, True, 32, 0, 4),
        (8, False, 1, 0, 1),
        (8, True, 32, 3, 3),
    ):
        monkeypatch.setattr(factory.cores, "num_cores", lambda cores=cores: cores)
        monkeypatch.setattr(factory.hardware, "has_gpu", lambda gpu=gpu: gpu)
        given = {"level_name": "pong", "num_actors": num_actors, "actor_threads": asked}
        assert factory.num_actor_threads(Config.from_flags(given)) == threads
