"""The learner and an actor job as each sees the other, with stand-ins for what is between them."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import WeightStore
from scalable_agent_popart.distributed import actor_processes, keys
from scalable_agent_popart.distributed import learner_side as learner_module
from scalable_agent_popart.distributed.actor_side import RemoteQueue, RemoteWeights, run_actor_job
from scalable_agent_popart.distributed.handshake import differences, handshake
from scalable_agent_popart.distributed.learner_pb2 import StatusReply, WeightsReply
from scalable_agent_popart.distributed.learner_side import RemoteParts
from scalable_agent_popart.distributed.link import LearnerLink
from scalable_agent_popart.distributed.port import _MAX_LINE
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.suites import Suite
from tests.fakes.threads import running


def flags(**given: object) -> Config:
    return Config.from_flags({"level_name": "catch5", **given})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Stands in for the learner's port, whose `source` has the weights that jobs are shown."""
    port = mock.Mock(address="localhost:1")

    def make(*given: object) -> mock.Mock:
        (port.source,) = (each for each in given if isinstance(each, WeightStore))
        return port

    monkeypatch.setattr(learner_module, "LearnerPort", make)
    return port


def test_actor_jobs_are_shown_the_weights_of_each_update_and_then_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: mock.Mock
) -> None:
    monkeypatch.setattr(learner_module, "_FAREWELL_SECONDS", 0.0)
    config = flags(learner_address="localhost:1", batch_size=4, logdir=str(tmp_path))
    spec = factory.make_rollout_spec(config)
    learner, parts = factory.make_learner(config, spec), RemoteParts()
    parts.prepare(config)
    variables = learner.agent.trainable_variables
    with parts.make_actors(config, spec, learner) as actors:
        assert port.source.latest().version == 0  # An actor may ask before the first update.
        for version in (0, 1, 2):
            expected = variables[0].numpy()
            actors.publish(version)
            variables[0].assign_add(tf.ones_like(variables[0]))  # Nobody may see this yet.
            weights = port.source.latest()
            assert weights.version == version
            np.testing.assert_array_equal(weights.tensors[0], expected)
            assert len(weights.tensors) == len(variables)
        learner.frames.assign(10**12)
    assert [name for name, *_ in port.mock_calls] == ["start", "finish", "close", "raise_error"]


def test_a_learner_that_cannot_start_all_its_jobs_ends_what_it_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: mock.Mock
) -> None:
    job = mock.Mock()
    monkeypatch.setattr(actor_processes, "Program", mock.Mock(side_effect=[job, MemoryError]))
    config, parts = flags(actor_jobs=2, logdir=str(tmp_path)), RemoteParts()
    spec = factory.make_rollout_spec(config)
    parts.prepare(config)
    actors = parts.make_actors(config, spec, factory.make_learner(config, spec))
    with pytest.raises(MemoryError), actors:
        pass
    port.close.assert_called_once()
    job.child.kill.assert_called_once()
    assert not running("batches")


def test_a_learner_makes_keys_once_also_in_a_folder_that_is_there(tmp_path: Path) -> None:
    config = flags(learner_address="localhost:1", keys_dir=str(tmp_path))
    RemoteParts().prepare(config)
    made = keys.load(tmp_path, keys.LEARNER)
    RemoteParts().prepare(config)
    assert keys.load(tmp_path, keys.LEARNER) == made
    (tmp_path / "learner.key").unlink()
    with pytest.raises(UserError, match=r"learner\.key is missing"):
        RemoteParts().prepare(config)


class FakeLink:
    """A learner with the status that it is told to have, or that is not there."""

    def __init__(self) -> None:
        self.answer: StatusReply | None = StatusReply(free=100)
        self.version = 1  # Its weights have this one.
        self.fetched = 0
        self.max_taken = 2
        self.taken: list[int] = []
        self.turns: list[int] = []

    def call(
        self, method: str, request: Any, leaves: Sequence[np.ndarray] = ()
    ) -> StatusReply | WeightsReply | None:
        if self.answer is None:
            return None
        if method == "Weights":
            new = self.version != request.known_version
            self.fetched += new
            variables = [np.array(v, np.float32).tobytes() for v in ([1.0], [2.0, 3.0]) if new]
            return WeightsReply(version=self.version, variables=variables)
        self.turns.append(request.turn)
        if method == "Put":
            taken = leaves[0][: self.max_taken].tolist()
            self.taken += taken
            self.max_taken = 2 - self.max_taken  # None, every other time.
            self.answer.taken = len(taken)
        return self.answer


def actor_side() -> tuple[FakeLink, RemoteWeights, RemoteQueue]:
    link, over = FakeLink(), threading.Event()
    variables = [tf.Variable([0.0]), tf.Variable([[0.0, 0.0]])]
    weights = RemoteWeights(link, variables)  # type: ignore[arg-type]
    return link, weights, RemoteQueue(link, over, 8)  # type: ignore[arg-type]


def test_weights_are_fetched_once_and_again_only_if_they_are_others() -> None:
    link, weights, _ = actor_side()
    for _ in range(3):
        assert weights.latest().version == 1
    for tensor, expected in zip(weights.latest().tensors, ([1.0], [[2.0, 3.0]]), strict=True):
        np.testing.assert_array_equal(tensor, expected)
    assert link.fetched == 1
    link.answer = None
    assert weights.latest().version == 1, "the last ones serve while there is no learner"
    # A learner that was started again may have older ones.
    link.answer = StatusReply()
    for link.version in (5, 3):
        assert weights.latest().version == link.version
    assert link.fetched == 3


def test_tasks_in_another_order_make_a_short_line() -> None:
    spec = factory.make_rollout_spec(flags())
    agent = factory.make_agent(flags(), spec)
    games = flags(level_name="atari57", num_actors=57).suite.tasks
    orders = (games, games[1:] + games[:1])
    configs = [flags(level_name=",".join(order), num_actors=57) for order in orders]
    line = differences(*(handshake(each, agent, spec) for each in configs), "actor job 1")
    assert line.startswith("--level_name is amidar,assault,")
    assert "; task 0 is amidar at the learner and alien at actor job 1; task 1 is" in line
    assert line.endswith("; and 55 more differ")
    assert len(line) < _MAX_LINE


def give_weights(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    """Lets an actor job have weights, although there is no learner."""
    agent = factory.make_agent(config, factory.make_rollout_spec(config))
    weights = WeightsReply(variables=[v.numpy().tobytes() for v in agent.trainable_variables])
    monkeypatch.setattr(LearnerLink, "call", lambda *_: weights)


@pytest.mark.parametrize("plays", [False, True])
def test_a_job_that_reaches_no_learner_for_long_takes_the_run_for_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plays: bool
) -> None:
    where = {"learner_address": "localhost:1", "logdir": str(tmp_path)}
    config = flags(**where, job_name="actor", task=7, learner_timeout_hours=1e-9)
    if plays:
        give_weights(monkeypatch, config)
    assert run_actor_job(config) is None
    assert (
        "actor job 7 ends, as if the run were over: it reached no learner at localhost:1 for "
        "1e-09 hours (--learner_timeout_hours)"
    ) in caplog.messages


def test_all_environments_of_jobs_even_of_one_number_have_seeds_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def record(suite: Suite, task_ids: np.ndarray, seeds: list[int], options: object) -> None:
        seen.extend(seeds)
        raise ZeroDivisionError  # Ends the job.

    monkeypatch.setattr(Suite, "make_environments", record)
    given = {"num_actors": 12, "actor_threads": 3}
    config = flags(**given, learner_address="host:1", job_name="actor", task=7)
    give_weights(monkeypatch, config)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run_actor_job(config)
    assert len(set(seen)) == len(seen) == 2 * config.num_actors


def test_capacity_is_what_the_learner_has_free_and_none_without_one() -> None:
    link, _, queue = actor_side()
    assert queue.reserve(100, 0.0, turn=1) == 8
    link.answer = StatusReply(free=3)
    assert queue.reserve(8, 0.0, turn=1) == 3
    for answer in (None, StatusReply(free=0)):
        link.answer = answer
        assert queue.reserve(8, 0.01, turn=1) == 0
    assert not queue.closed
    link.answer = StatusReply(free=0, finished=True)
    assert queue.reserve(8, 60.0, turn=1) == 0
    assert queue.closed


def test_the_learner_is_asked_only_after_its_pause() -> None:
    link, _, queue = actor_side()
    link.answer = StatusReply(pause=0.5)
    for seconds, questions in ((0.0, 1), (0.0, 1), (0.01, 1), (1.0, 2)):
        assert queue.reserve(8, seconds, turn=1) == 0
        assert len(link.turns) == questions


def test_rollouts_that_were_not_taken_are_sent_again_in_their_order() -> None:
    link, _, queue = actor_side()
    rollouts = Rollout(np.arange(5), (), np.arange(5), np.arange(5), np.arange(5))
    assert queue.reserve(5, 0.0, turn=3) == 5
    link.answer.newest_turn = 7
    queue.put(rollouts)
    assert link.taken == [0, 1, 2, 3, 4]
    assert set(link.turns) == {3}
    assert queue.newest_turn == 7
    link.answer = None
    queue.put(rollouts)
    assert len(link.taken) == 5, "lost with the learner"
