"""Rollouts keep their order, task, state and weights from environment to learner."""

import itertools
import threading
from collections import defaultdict

import numpy as np
import pytest
import tensorflow as tf

from environments import Lockstep, StepOutput
from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.acting.actor import run_actor
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.acting.weights import Weights, WeightStore
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.config import Config
from scalable_agent_popart.suites import Suite
from scalable_agent_popart.system.stage_clock import StageClock, shares
from scalable_agent_popart.training.local_actors import LocalActors
from tests.fakes.counting_environment import OBSERVATION, CountingEnvironments, observed
from tests.fakes.programs import wait_until
from tests.fakes.uneven_environments import UnevenEnvironments

NUM_ACTIONS = 3
UNROLL = 5


class ListSink:
    """Keeps copies of what it is given, so many at a time, and closes after `limit` puts."""

    def __init__(self, limit: int, room: int = 1000):
        self.rollouts: list[rollouts.Rollout] = []
        self.closed = False
        self._limit = limit
        self._room = room

    def reserve(self, count: int, seconds: float, behind: bool) -> int:
        return min(count, self._room)

    def put(self, given: rollouts.Rollout) -> None:
        self.rollouts.append(tf.nest.map_structure(np.array, given))
        self.closed = len(self.rollouts) >= self._limit


class NarrowSink(ListSink):
    """Has room for one rollout now and then."""

    def __init__(self, limit: int, every: int):
        super().__init__(limit)
        self._every = every
        self._asked = 0

    def reserve(self, count: int, seconds: float, behind: bool) -> int:
        self._asked += 1
        return int(self._asked % self._every == 0)


class CountingSource:
    """Publishes a new version each time it is asked, with the same weights."""

    def __init__(self, agent: Agent):
        self._tensors = [tf.identity(variable) for variable in agent.trainable_variables]
        self._version = 0

    def latest(self) -> Weights:
        self._version += 1
        return Weights(self._version, self._tensors)


class CountingClock(StageClock):
    """Also keeps the stages in the order in which they were finished."""

    def __init__(self):
        super().__init__()
        self.finished: list[str] = []

    def finish(self, stage: str) -> None:
        super().finish(stage)
        self.finished.append(stage)


def make_agent(use_lstm: bool, stacks: bool = False) -> tuple[Agent, rollouts.Rollout]:
    """An agent with variables, and the spec of its rollouts."""
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm, OBSERVATION if stacks else None)
    spec = rollouts.rollout_spec(OBSERVATION, agent.initial_state(1), NUM_ACTIONS, UNROLL)
    example = rollouts.example_batch(spec)
    agent.unroll(example.agent_outputs.action, example.env_outputs, example.agent_state)
    return agent, spec


def act(
    num_rollouts: int,
    use_lstm: bool = True,
    stacks: bool = False,
    clock: StageClock | None = None,
) -> tuple[Agent, list[rollouts.Rollout]]:
    """Rollouts `[N, T + 1, ...]` of one actor thread with three environments."""
    agent, spec = make_agent(use_lstm, stacks)
    environment = CountingEnvironments(np.array([1, 0, 1]))
    sink = ListSink(num_rollouts)
    policy = Policy(make_agent(use_lstm, stacks)[0], CountingSource(agent), 0, 3)
    run_actor(Lockstep(environment), policy, sink, spec, clock or StageClock())
    assert environment.closed
    assert policy.num_traces == 1
    return agent, sink.rollouts


def test_consecutive_rollouts_overlap_by_one_step() -> None:
    _, made = act(4)
    for earlier, later in itertools.pairwise(made):
        last = tf.nest.map_structure(lambda t: t[:, -1], (earlier.env_outputs, earlier[3]))
        first = tf.nest.map_structure(lambda t: t[:, 0], (later.env_outputs, later[3]))
        tf.nest.map_structure(np.testing.assert_array_equal, last, first)
    steps = [observed(o).step for r in made for o in r.env_outputs.observation[0, 1:]]
    assert steps == list(range(1, 4 * UNROLL + 1))  # None lost, none twice.


def test_the_action_at_a_step_is_the_one_that_led_to_it() -> None:
    _, made = act(3)
    for rollout in made:
        for n, t in np.ndindex(rollout.agent_outputs.action.shape):
            seen = observed(rollout.env_outputs.observation[n, t])
            assert seen.action == rollout.agent_outputs.action[n, t]


def test_weights_are_taken_before_each_rollout() -> None:
    _, made = act(3)
    assert [r.policy_version.tolist() for r in made] == [[1] * 3, [2] * 3, [3] * 3]


def test_an_actor_tells_its_clock_what_it_does() -> None:
    clock = CountingClock()
    act(3, use_lstm=False, clock=clock)
    rollout = ["refresh", *["policy", "environment"] * UNROLL, "queue"]
    # The first step comes from a reset.
    assert clock.finished == ["environment", *(3 * rollout)]
    assert set(clock.seconds) == set(rollout)
    assert all(seconds >= 0 for seconds in clock.seconds.values())


@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("use_lstm", [False, True])
def test_the_learner_computes_the_very_logits_the_actor_acted_on(
    use_lstm: bool, stacks: bool
) -> None:
    """Ties together state at the first step, resets at episode ends, last action and reward."""
    agent, made = act(4, use_lstm, stacks)
    ends = 0
    for rollout in made:
        batch = rollouts.time_major(tf.nest.map_structure(tf.constant, rollout))
        unroll = agent.unroll(batch.agent_outputs.action, batch.env_outputs, batch.agent_state)
        np.testing.assert_allclose(
            unroll.policy_logits[:-1], batch.agent_outputs.policy_logits[1:], atol=1e-5
        )
        ends += int(np.sum(rollout.env_outputs.done[0, 1:-1]))
    assert ends >= 2  # Episodes ended inside rollouts.
    states = [rollout.agent_state for rollout in made]
    for i in range(2 * use_lstm + stacks):
        assert not np.any(states[0][i])
        assert all(np.any(state[i]) for state in states[1:])


@pytest.mark.parametrize("use_lstm", [False, True])
def test_environments_need_not_wait_for_one_another(use_lstm: bool) -> None:
    """Each one's rollouts stay whole and in order, and a lost one starts a new rollout."""
    agent, spec = make_agent(use_lstm, stacks=True)
    pool = UnevenEnvironments(np.array([1, 0, 1, 2]))
    sink = ListSink(60)
    policy = Policy(make_agent(use_lstm, stacks=True)[0], CountingSource(agent), 0, 4)
    run_actor(pool, policy, sink, spec, StageClock())
    assert pool.closed
    assert policy.num_traces == 1, "for any number of environments"
    assert {len(made.task_id) for made in sink.rollouts} > {1}, "some were ready together"

    next_step: dict[int, int] = defaultdict(int)
    versions: dict[int, list[int]] = defaultdict(list)
    for made in sink.rollouts:
        batch = rollouts.time_major(tf.nest.map_structure(tf.constant, made))
        unroll = agent.unroll(batch.agent_outputs.action, batch.env_outputs, batch.agent_state)
        np.testing.assert_allclose(
            unroll.policy_logits[:-1], batch.agent_outputs.policy_logits[1:], atol=1e-5
        )
        for n, task in enumerate(made.task_id):
            seen = [observed(o) for o in made.env_outputs.observation[n]]
            assert {s.task for s in seen} == {task}
            (number,) = {s.environment for s in seen}
            first = next_step[number]
            assert [s.step for s in seen] == list(range(first, first + UNROLL + 1))
            next_step[number] += UNROLL
            actions = made.agent_outputs.action[n]
            assert [s.action for s in seen[1:]] == actions[1:].tolist()
            assert first > 0 or not actions[0], "what was lost leaves no last action"
            versions[number].append(int(made.policy_version[n]))
    assert sum(number >= 4 for number in next_step) >= 3, "some were lost"
    assert all(np.all(np.diff(list_) > 0) for list_ in versions.values())


def test_those_behind_catch_up_while_the_learner_is_busy() -> None:
    """Environments differ six-fold in speed, and yet have equal shares."""
    agent, spec = make_agent(use_lstm=False, stacks=True)
    pool = UnevenEnvironments(np.arange(4), lost=0.0)
    sink = NarrowSink(limit=40, every=60)
    policy = Policy(make_agent(use_lstm=False, stacks=True)[0], CountingSource(agent), 0, 4)
    run_actor(pool, policy, sink, spec, StageClock())
    counts = np.bincount([int(made.task_id[0]) for made in sink.rollouts])
    assert counts.sum() == 40
    assert counts.max() - counts.min() <= 2


def test_batches_mix_the_tasks_however_many_actors_play_each() -> None:
    """Copies of a game stand together, since one emulator steps them."""
    agent, spec = make_agent(use_lstm=False)
    tasks = factory.deal_tasks(num_actors=32, num_tasks=4, num_threads=1)[0]
    environment = CountingEnvironments(tasks)
    sink = ListSink(8, room=8)
    policy = Policy(make_agent(use_lstm=False)[0], CountingSource(agent), 0, len(tasks))
    run_actor(Lockstep(environment), policy, sink, spec, StageClock())
    for batch in sink.rollouts:
        assert np.bincount(batch.task_id).tolist() == [2, 2, 2, 2]
    for made in (sink.rollouts[:4], sink.rollouts[4:]):  # Of each environment one.
        seen = [observed(frames[0]) for part in made for frames in part.env_outputs.observation]
        assert sorted(s.environment for s in seen) == list(range(32))
        assert [s.task for s in seen] == [task for part in made for task in part.task_id]


def test_frozen_weights_are_untouched_by_what_the_learner_does_next() -> None:
    variable = tf.Variable([1.0, 2.0])
    store = WeightStore([variable], version=1)
    old = store.latest()
    slot = tf.Variable([1.0, 1.0])
    tf.raw_ops.ResourceApplyRMSProp(
        var=variable.handle,
        ms=slot.handle,
        mom=tf.Variable([0.0, 0.0]).handle,
        lr=1.0,
        rho=0.9,
        momentum=0.0,
        epsilon=0.1,
        grad=tf.constant([1.0, 1.0]),
    )
    np.testing.assert_array_equal(old.tensors[0], [1.0, 2.0])
    store.publish(2)
    assert store.latest().version == 2
    np.testing.assert_array_equal(store.latest().tensors[0], variable)


def test_a_policy_keeps_its_weights_until_it_refreshes() -> None:
    learned, _ = make_agent(use_lstm=False)
    store = WeightStore(learned.trainable_variables, version=1)
    acting, _ = make_agent(use_lstm=False)
    policy = Policy(acting, store, seed=0, num_environments=1)
    policy.refresh()
    before = [variable.numpy() for variable in acting.trainable_variables]
    for variable in learned.trainable_variables:
        variable.assign_add(tf.ones_like(variable))
    store.publish(2)
    for variable, value in zip(acting.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert policy.refresh() == 2
    for variable, new in zip(acting.trainable_variables, learned.trainable_variables, strict=True):
        np.testing.assert_array_equal(variable, new)


@pytest.fixture
def pool_config() -> Config:
    return Config.from_flags(
        {
            "level_name": "catch5",
            "num_actors": 12,
            "actor_threads": 3,
            "unroll_length": UNROLL,
            "batch_size": 4,
            "use_lstm": True,
        }
    )


def count_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every actor thread play counting environments with numbers of their own."""
    numbers = iter(range(0, 1000, 50))

    def make(
        config: Config, suite: Suite, task_ids: np.ndarray, *_: object, **__: object
    ) -> Lockstep:
        return Lockstep(CountingEnvironments(task_ids, next(numbers)))

    monkeypatch.setattr(factory, "make_environments", make)
    monkeypatch.setattr(
        factory,
        "make_rollout_spec",
        lambda config: rollouts.rollout_spec(
            OBSERVATION,
            Agent(NUM_ACTIONS, "shallow", use_lstm=True).initial_state(1),
            NUM_ACTIONS,
            config.unroll_length,
        ),
    )


def test_tasks_and_order_survive_threads_and_queue(
    monkeypatch: pytest.MonkeyPatch, pool_config: Config
) -> None:
    count_everywhere(monkeypatch)
    spec = factory.make_rollout_spec(pool_config)
    learner = factory.make_learner(pool_config, spec)
    steps_seen: dict[int, list[list[int]]] = defaultdict(list)
    tasks_seen = set()
    taken = 0
    with LocalActors(pool_config, spec, learner) as pool:
        # One thread may be ready long before the other.
        while taken < 15 or (len(tasks_seen) < 5 and taken < 2000):
            batch = pool.next_batch()
            if batch is None:
                continue
            taken += 1
            for b in range(pool_config.batch_size):
                seen = [observed(o) for o in batch.env_outputs.observation[:, b].numpy()]
                assert {s.task for s in seen} == {int(batch.task_id[b])}
                assert len({s.environment for s in seen}) == 1
                steps_seen[seen[0].environment].append([s.step for s in seen])
                tasks_seen.add(int(batch.task_id[b]))
        where_time_went, load = shares(pool.threads.clocks), pool.load()
        assert pool.load()["learner_wait"] == 0, "nobody has waited since"
    assert set(where_time_went) == {"refresh", "policy", "environment", "queue"}
    assert all(0 <= share <= 1 for share in where_time_went.values())
    assert set(load) == {"learner_wait", "queue_fill"}
    assert all(0 <= share <= 1 for share in load.values())
    assert load["learner_wait"] > 0, "the first batch was waited for"
    assert 1 <= pool.threads.num_traces <= pool_config.actor_threads
    assert tasks_seen == set(range(5))
    for rollouts_seen in steps_seen.values():
        for k, steps in enumerate(rollouts_seen):
            assert steps == list(range(k * UNROLL, (k + 1) * UNROLL + 1))


def test_it_is_told_who_has_begun_and_how_many_rollouts_there_are(
    monkeypatch: pytest.MonkeyPatch, pool_config: Config
) -> None:
    count_everywhere(monkeypatch)
    compiled = threading.Event()

    class Slow(CountingEnvironments):
        def reset(self) -> StepOutput:
            compiled.wait()
            return super().reset()

    kinds = iter([Slow])  # One of the three threads has such environments.
    monkeypatch.setattr(
        factory,
        "make_environments",
        lambda config, suite, task_ids, *_, **__: Lockstep(
            next(kinds, CountingEnvironments)(task_ids)
        ),
    )
    spec = factory.make_rollout_spec(pool_config)
    learner = factory.make_learner(pool_config, spec)
    pool = LocalActors(pool_config, spec, learner)
    assert pool.describe_start() == "0 of 12 environments ready"
    with pool:
        wait_until(lambda: pool.describe_start() == "8 of 12 environments ready")
        compiled.set()
        # Nobody takes batches, so the queue fills up.
        wait_until(lambda: pool.describe_start() == "4 of 4 rollouts")


def test_every_task_has_an_actor_and_shares_are_even() -> None:
    for num_actors, num_tasks, num_threads in ((57, 57, 2), (12, 5, 3), (7, 1, 7), (9, 4, 1)):
        dealt = factory.deal_tasks(num_actors, num_tasks, num_threads)
        assert len(dealt) == num_threads
        counts = np.bincount(np.concatenate(dealt), minlength=num_tasks)
        assert counts.sum() == num_actors
        assert counts.max() - counts.min() <= 1
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        for tasks in dealt:  # As mixed as its size allows.
            assert len(set(tasks)) >= min(len(tasks), num_tasks // num_threads)


def test_an_exception_in_an_actor_thread_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, pool_config: Config
) -> None:
    count_everywhere(monkeypatch)

    class Broken(CountingEnvironments):
        def receive(self) -> None:
            raise RuntimeError("the emulator caught fire")

    monkeypatch.setattr(
        factory,
        "make_environments",
        lambda config, suite, task_ids, *_, **__: Lockstep(Broken(task_ids)),
    )
    spec = factory.make_rollout_spec(pool_config)
    learner = factory.make_learner(pool_config, spec)

    def take_batches() -> None:
        with LocalActors(pool_config, spec, learner) as pool:
            while True:
                pool.next_batch()

    with pytest.raises(RuntimeError, match="the emulator caught fire"):
        take_batches()
    names = {thread.name for thread in threading.enumerate()}
    assert not [name for name in names if name.startswith(("actor-", "batches"))]
