"""Rollouts keep their order, task, state and weights from the environment to the sink."""

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from environments import Lockstep, StepOutput
from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.acting import actor
from scalable_agent_popart.acting.actor import run_actor
from scalable_agent_popart.acting.policy import Policy, Weights
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.agent.networks import ShallowTorso
from scalable_agent_popart.system.stage_clock import StageClock
from tests.fakes.counting_environment import OBSERVATION, CountingEnvironments, observed
from tests.fakes.programs import DEADLINE_SECONDS, wait_until
from tests.fakes.uneven_environments import UnevenEnvironments

NUM_ACTIONS = 3
UNROLL = 5


class ListSink:
    """Keeps copies of the rollouts put, takes so many every so many requests, and then closes."""

    def __init__(self, limit: int, capacity: int = 1000, every: int = 1):
        self.rollouts: list[rollouts.Rollout] = []
        self.closed = False
        self.newest_turn = 0
        self._limit = limit
        self._capacity = capacity
        self._requests = itertools.cycle(range(every))

    def reserve(self, count: int, seconds: float, turn: int) -> int:
        if next(self._requests):
            return 0
        self.newest_turn = max(self.newest_turn, turn)
        return min(count, self._capacity)

    def put(self, given: rollouts.Rollout) -> None:
        self.rollouts.append(tf.nest.map_structure(np.array, given))
        self.closed = len(self.rollouts) >= self._limit


def make_agent(use_lstm: bool = False, stacks: bool = False) -> tuple[Agent, rollouts.Rollout]:
    """An agent with variables, and the spec of its rollouts."""
    agent = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), use_lstm, OBSERVATION if stacks else None)
    spec = rollouts.rollout_spec(OBSERVATION, agent.initial_state(1), NUM_ACTIONS, UNROLL)
    agent.create_variables(spec)
    return agent, spec


def act(
    environments: CountingEnvironments | UnevenEnvironments,
    sink: ListSink | RolloutQueue,
    use_lstm: bool = False,
    stacks: bool = False,
    clock: StageClock | None = None,
) -> Agent:
    """Lets one actor play the environments; returns an agent with its weights."""
    agent, spec = make_agent(use_lstm, stacks)
    acting, _ = make_agent(use_lstm, stacks)
    weights, versions = [*map(tf.identity, agent.trainable_variables)], itertools.count(1)
    source = SimpleNamespace(latest=lambda: Weights(next(versions), weights))  # Always newer.
    policy = Policy(acting, source, 0, len(environments.task_ids))
    even = isinstance(environments, CountingEnvironments)
    pool = Lockstep(environments) if even else environments
    run_actor(pool, policy, sink, spec, clock or StageClock(), 0)
    assert environments.closed
    num_traces = policy._step.experimental_get_tracing_count()
    assert num_traces == 1, "for any number of environments"
    return agent


def by_environment(put: rollouts.Rollout) -> rollouts.Rollout:
    """Sorts rollouts that were put together by their environments."""
    order = np.argsort([observed(frames[0]).environment for frames in put.env_outputs.observation])
    return tf.nest.map_structure(lambda leaf: leaf[order], put)


def assert_learner_sees_the_same_logits(agent: Agent, made: rollouts.Rollout) -> None:
    """Ties together state at the first step, resets at episode ends, last action and reward."""
    batch = rollouts.time_major(tf.nest.map_structure(tf.constant, made))
    unroll = agent.unroll(batch.agent_outputs.action, batch.env_outputs, batch.agent_state)
    np.testing.assert_allclose(
        unroll.policy_logits[:-1], batch.agent_outputs.policy_logits[1:], atol=1e-5
    )


@pytest.mark.parametrize("recurrent", [False, True])
def test_rollouts_are_what_happened_with_the_weights_that_acted(recurrent: bool) -> None:
    sink, clock = ListSink(4), mock.create_autospec(StageClock, instance=True)
    environments = CountingEnvironments(np.array([1, 0, 1]))
    agent = act(environments, sink, recurrent, recurrent, clock)
    made = [by_environment(put) for put in sink.rollouts]
    for earlier, later in itertools.pairwise(made):  # They overlap by a step.
        last = tf.nest.map_structure(lambda t: t[:, -1], (earlier.env_outputs, earlier[3]))
        first = tf.nest.map_structure(lambda t: t[:, 0], (later.env_outputs, later[3]))
        tf.nest.map_structure(np.testing.assert_array_equal, last, first)
    steps = [observed(o).step for r in made for o in r.env_outputs.observation[0, 1:]]
    assert steps == list(range(1, 4 * UNROLL + 1)), "none lost, none twice"
    assert [r.policy_version.tolist() for r in made] == [[v] * 3 for v in (1, 2, 3, 4)]
    for rollout in made:
        assert_learner_sees_the_same_logits(agent, rollout)
        for n, t in np.ndindex(rollout.agent_outputs.action.shape):
            seen = observed(rollout.env_outputs.observation[n, t])
            assert seen.action == rollout.agent_outputs.action[n, t], "that led to this step"
    assert sum(int(np.sum(r.env_outputs.done[0, 1:-1])) for r in made) >= 2, "ends within rollouts"
    states = [rollout.agent_state for rollout in made]
    assert len(states[0]) == 3 * recurrent
    for i in range(3 * recurrent):
        assert not np.any(states[0][i])
        assert all(np.any(state[i]) for state in states[1:])
    rollout_stages = ["refresh", *["policy", "environment"] * UNROLL, "queue"]
    # The first step comes from a reset.
    finished = [call.args[0] for call in clock.finish.call_args_list]
    assert finished == ["environment", *(4 * rollout_stages)]
    clock.restart.assert_called_once()


def test_environments_need_not_wait_for_one_another() -> None:
    """Each one's rollouts stay whole and in order, and a lost one starts a new rollout."""
    pool, sink = UnevenEnvironments(np.array([1, 0, 1, 2])), ListSink(60, every=9)
    agent = act(pool, sink, use_lstm=True, stacks=True)
    at_once = [made for made in sink.rollouts if len(made.task_id) > 1]
    assert any(len(set(made.policy_version)) > 1 for made in at_once), "begun at different times"

    next_step: dict[int, int] = defaultdict(int)
    versions: dict[int, list[int]] = defaultdict(list)
    for made in sink.rollouts:
        assert_learner_sees_the_same_logits(agent, made)
        for n, task in enumerate(made.task_id):
            seen = [observed(o) for o in made.env_outputs.observation[n]]
            assert {s.task for s in seen} == {task}
            (number,) = {s.environment for s in seen}
            first = next_step[number]
            assert [s.step for s in seen] == list(range(first, first + UNROLL + 1))
            next_step[number] += UNROLL
            actions = made.agent_outputs.action[n]
            assert [s.action for s in seen[1:]] == actions[1:].tolist()
            assert first > 0 or not actions[0], "a lost environment leaves no last action"
            versions[number].append(int(made.policy_version[n]))
    assert sum(number >= 4 for number in next_step) >= 3, "some were lost"
    assert all(np.all(np.diff(list_) > 0) for list_ in versions.values())


def test_environments_that_are_behind_catch_up_while_the_sink_is_full() -> None:
    """Environments differ six-fold in speed, and yet have equal shares."""
    sink = ListSink(40, capacity=1, every=60)
    act(UnevenEnvironments(np.arange(4), lost=0.0), sink, stacks=True)
    counts = np.bincount([int(made.task_id[0]) for made in sink.rollouts])
    assert counts.sum() == 40
    assert counts.max() - counts.min() <= 2


def test_an_environment_that_is_late_catches_up_with_a_few_rollouts_of_many() -> None:
    pool = UnevenEnvironments(np.arange(2), lost=0.0)
    pool._chance = np.array([0.0, 1.0])

    class FullSink(ListSink):
        """Full after 30 rollouts, when the late one begins; closes once all wait."""

        def reserve(self, count: int, seconds: float, turn: int) -> int:
            if turn < self.newest_turn or len(self.rollouts) < 30:
                self.newest_turn = max(self.newest_turn, turn)
                return count
            pool._chance[0] = 1.0
            self.closed = seconds > 0
            return 0

    sink = FullSink(1000)
    act(pool, sink)
    caught_up = actor._MAX_TO_CATCH_UP - 1  # One behind is as good as level.
    assert [int(made.task_id[0]) for made in sink.rollouts] == [1] * 30 + [0] * caught_up


def test_an_actor_that_joins_others_late_has_missed_nothing() -> None:
    turns: list[int] = []

    class BusySink(ListSink):
        """Has taken 500 rollouts of each of the others' environments."""

        def reserve(self, count: int, seconds: float, turn: int) -> int:
            turns.append(turn)
            self.newest_turn = max(500, turn)
            return count

    act(CountingEnvironments(np.arange(2)), BusySink(3))
    assert turns == [1, 501, 502]


def requests(
    taken: list[int], waiting: list[int], grants: list[int], lockstep: bool = False
) -> list[tuple[int, float, int]]:
    """Returns what the sink is asked after so many rollouts of each, if it grants so many."""
    asked: list[tuple[int, float, int]] = []
    put: list[int] = []
    left = iter(grants)

    def reserve(count: int, seconds: float, turn: int) -> int:
        asked.append((count, seconds, turn))
        return next(left)

    sink = SimpleNamespace(closed=False, reserve=reserve, put=put.extend)
    buffer = SimpleNamespace(take=list)
    done = actor._hand_over(buffer, np.array(waiting), np.array(taken), sink, lockstep)
    assert done.tolist() == put == waiting[: sum(grants)]
    return asked


def test_the_sink_is_waited_for_only_if_nobody_can_go_on_and_knows_whose_turn_it_is() -> None:
    wait = actor._WAIT_SECONDS
    assert requests([0, 3, 3], [0, 1], [1, 0]) == [(1, 0.0, 1), (1, 0.0, 4)]
    for_one = [(2, wait, 2), (2, wait, 2), (1, 0.0, 2)]
    assert requests([1, 1], [0, 1], [0, 1, 0]) == for_one
    for_all = [(2, wait, 2), (1, wait, 2), (1, wait, 2)]
    assert requests([1, 1], [0, 1], [1, 0, 1], lockstep=True) == for_all


def test_the_first_batch_of_a_round_is_not_always_of_the_same_tasks() -> None:
    sink = ListSink(60, capacity=2)
    act(CountingEnvironments(np.arange(6)), sink)
    pairs = [put.task_id.tolist() for put in sink.rollouts]
    rounds = [pairs[i : i + 3] for i in range(0, 60, 3)]
    assert all(sorted(itertools.chain(*each)) == list(range(6)) for each in rounds)
    assert {task for first, *_ in rounds for task in first} == set(range(6))


def test_batches_mix_the_tasks_however_many_actors_play_each() -> None:
    """Copies of a game are neighbours in the pool, since one emulator steps them."""
    tasks = factory.deal_tasks(num_actors=32, num_tasks=4, num_threads=1)[0]
    sink = ListSink(8, capacity=8)
    act(CountingEnvironments(tasks), sink)
    for batch in sink.rollouts:
        assert np.bincount(batch.task_id).tolist() == [2, 2, 2, 2]
    for made in (sink.rollouts[:4], sink.rollouts[4:]):  # One of each environment.
        seen = [observed(frames[0]) for part in made for frames in part.env_outputs.observation]
        assert sorted(s.environment for s in seen) == list(range(32))
        assert [s.task for s in seen] == [task for part in made for task in part.task_id]


@contextlib.contextmanager
def acting(queue: RolloutQueue, *pools: CountingEnvironments) -> Iterator[None]:
    """Lets a thread play each pool, and closes the queue in the end."""
    threads = [threading.Thread(target=act, args=(pool, queue), daemon=True) for pool in pools]
    for thread in threads:
        thread.start()
    yield
    queue.close()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)


def test_threads_have_shares_of_a_full_queue_by_their_environments() -> None:
    """Turn and turn about, the largest thread would have half of the rollouts, not two thirds."""
    _, spec = make_agent()
    queue, sizes, counts = RolloutQueue(spec, 4), np.array([8, 2, 2]), np.zeros(3, np.int64)
    with acting(queue, *(CountingEnvironments(np.full(n, i)) for i, n in enumerate(sizes))):
        for _ in range(60):
            wait_until(lambda: queue.fill() == 1 and len(queue._waiting) == 3)
            counts += np.bincount(queue.get(4).task_id, minlength=3)
    # About 20 of each environment; turn and turn about, 15 and 30.
    assert np.ptp(counts / sizes) < 7


class PacedEnvironments(CountingEnvironments):
    """Environments whose every rollout takes as long as the learner needs for another batch."""

    def __init__(self, task_ids: np.ndarray):
        super().__init__(task_ids)
        self.batches_taken = threading.Semaphore(0)
        self.num_begun, self.waits = 0, False

    def receive(self) -> StepOutput:
        if self._step % UNROLL == 0:
            self.waits = True
            self.batches_taken.acquire(timeout=DEADLINE_SECONDS)
            self.waits, self.num_begun = False, self.num_begun + 1
        return super().receive()


def test_the_learner_learns_equally_often_from_threads_of_unequal_speed() -> None:
    """The slow thread could not make more than half of all rollouts, and makes its half."""
    _, spec = make_agent()
    queue, slow = RolloutQueue(spec, 4), PacedEnvironments(np.full(4, 1))
    counts = np.zeros(2, np.int64)
    with acting(queue, CountingEnvironments(np.full(4, 0)), slow):
        for num_batches in range(40):
            # The slow thread waits for this batch to be taken, or both wait for capacity.
            wait_until(
                lambda num=num_batches: (
                    queue.fill() == 1
                    and ((slow.waits and slow.num_begun == num) or len(queue._waiting) == 2)
                )
            )
            counts += np.bincount(queue.get(4).task_id, minlength=2)
            slow.batches_taken.release()
        slow.batches_taken.release()
    assert abs(counts[0] - counts[1]) <= 8, "two rollouts of each of four environments"
