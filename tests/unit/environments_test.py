"""The environment contract: episode totals, groups stepped side by side, small imports."""

import subprocess
import sys
from pathlib import Path

import numpy as np

import environments

_ROOT = Path(__file__).resolve().parents[2]


class RecordingEnvironment:
    """Writes every call into a log that it shares; observations name task and action."""

    def __init__(self, name: str, task_ids: list[int], calls: list[tuple[str, str]]):
        self.task_ids = np.array(task_ids, np.int32)
        self.actions = np.zeros(len(task_ids), np.int32)
        self._name = name
        self._calls = calls
        self._counter = environments.EpisodeCounter(len(task_ids))

    def reset(self) -> environments.StepOutput:
        self._calls.append(("reset", self._name))
        return environments.initial_step(self._counter, self._observation())

    def send(self, actions: np.ndarray) -> None:
        self._calls.append(("send", self._name))
        self.actions = actions.copy()

    def receive(self) -> environments.StepOutput:
        self._calls.append(("receive", self._name))
        done = self.actions == 0
        reward = (self.task_ids * 10 + self.actions).astype(np.float32)
        info = self._counter.step(reward, done)
        return environments.StepOutput(reward, info, done, self._observation())

    def close(self) -> None:
        self._calls.append(("close", self._name))

    def _observation(self) -> dict[str, np.ndarray]:
        return {
            "image": np.stack([np.full((2, 3), task, np.uint8) for task in self.task_ids]),
            "action": self.actions,
        }


_ALL = np.arange(6)


def _pool() -> tuple[environments.Lockstep, list, list[tuple[str, str]]]:
    calls: list[tuple[str, str]] = []
    members = [
        RecordingEnvironment("a", [4, 4], calls),
        RecordingEnvironment("b", [7], calls),
        RecordingEnvironment("c", [1, 2, 3], calls),
    ]
    return environments.Lockstep(*members), members, calls


def _step(counter: environments.EpisodeCounter, rewards: list[float], ends: list[bool]):
    return counter.step(np.array(rewards, np.float32), np.array(ends))


def test_counter_adds_up_rewards_and_steps_of_each_environment() -> None:
    counter = environments.EpisodeCounter(2)
    counter.start()
    _step(counter, [1.0, -2.0], [False, False])
    info = _step(counter, [10.0, 0.5], [False, False])
    np.testing.assert_array_equal(info.episode_return, [11.0, -1.5])
    np.testing.assert_array_equal(info.episode_step, [2, 2])
    np.testing.assert_array_equal(info.episode_end, [False, False])


def test_counter_reports_totals_at_the_end_and_starts_again_only_there() -> None:
    counter = environments.EpisodeCounter(2)
    counter.start()
    _step(counter, [1.0, 1.0], [False, False])
    ended = _step(counter, [2.0, 2.0], [True, False])
    after = _step(counter, [5.0, 5.0], [False, False])
    np.testing.assert_array_equal(ended.episode_return, [3.0, 3.0])
    np.testing.assert_array_equal(ended.episode_step, [2, 2])
    np.testing.assert_array_equal(ended.episode_end, [True, False])
    np.testing.assert_array_equal(after.episode_return, [5.0, 8.0])
    np.testing.assert_array_equal(after.episode_step, [1, 3])


def test_counter_starts_from_zero_whatever_came_before() -> None:
    counter = environments.EpisodeCounter(1)
    counter.start()
    _step(counter, [3.0], [False])
    info = counter.start()
    np.testing.assert_array_equal(info.episode_return, [0.0])
    np.testing.assert_array_equal(info.episode_step, [0])
    np.testing.assert_array_equal(info.episode_end, [False])
    assert _step(counter, [2.0], [False]).episode_return[0] == 2.0


def test_counter_outputs_are_not_changed_by_later_steps() -> None:
    counter = environments.EpisodeCounter(1)
    start = counter.start()
    first = _step(counter, [1.0], [False])
    end = _step(counter, [1.0], [True])
    _step(counter, [1.0], [False])
    assert [info.episode_return[0] for info in (start, first, end)] == [0.0, 1.0, 2.0]
    assert [info.episode_step[0] for info in (start, first, end)] == [0, 1, 2]


def test_counter_types_are_those_of_the_contract() -> None:
    counter = environments.EpisodeCounter(3)
    for info in (counter.start(), _step(counter, [1.0] * 3, [False] * 3)):
        assert info.episode_return.dtype == np.float32
        assert info.episode_step.dtype == np.int32
        assert info.episode_end.dtype == bool
        assert {array.shape for array in info} == {(3,)}


def test_initial_step_is_done_and_without_reward() -> None:
    observation = np.arange(6).reshape(2, 3)
    output = environments.initial_step(environments.EpisodeCounter(2), observation)
    assert output.reward.dtype == np.float32
    np.testing.assert_array_equal(output.reward, [0.0, 0.0])
    assert output.done.dtype == bool
    np.testing.assert_array_equal(output.done, [True, True])
    np.testing.assert_array_equal(output.info.episode_end, [False, False])
    assert output.observation is observation


def _begun() -> tuple[environments.Lockstep, list, list[tuple[str, str]]]:
    """A pool whose first observations were received, and nothing logged yet."""
    pool, members, calls = _pool()
    pool.start()
    pool.receive(0.0)
    calls.clear()
    return pool, members, calls


def test_lockstep_sends_to_all_members_before_it_receives_from_any() -> None:
    pool, _, calls = _begun()
    pool.send(_ALL, np.ones(6, np.int32))
    assert calls == [("send", "a"), ("send", "b"), ("send", "c")]
    calls.clear()
    pool.receive(0.0)
    assert calls == [("receive", "a"), ("receive", "b"), ("receive", "c")]


def test_lockstep_hands_each_member_its_own_actions() -> None:
    pool, members, _ = _begun()
    pool.send(_ALL, np.array([10, 11, 12, 13, 14, 15], np.int32))
    assert [member.actions.tolist() for member in members] == [[10, 11], [12], [13, 14, 15]]
    assert all(member.actions.dtype == np.int32 for member in members)


def test_lockstep_keeps_the_order_of_its_members_in_everything_it_returns() -> None:
    pool, _, _ = _pool()
    np.testing.assert_array_equal(pool.task_ids, [4, 4, 7, 1, 2, 3])
    pool.start()
    ids, first, fresh = pool.receive(0.0)
    np.testing.assert_array_equal(ids, _ALL)
    np.testing.assert_array_equal(fresh, [True] * 6)
    np.testing.assert_array_equal(first.observation["image"][:, 1, 2], [4, 4, 7, 1, 2, 3])
    np.testing.assert_array_equal(first.done, [True] * 6)
    pool.send(_ALL, np.array([1, 0, 2, 3, 0, 5], np.int32))
    ids, output, fresh = pool.receive(0.0)
    np.testing.assert_array_equal(ids, _ALL)
    np.testing.assert_array_equal(fresh, [False] * 6)
    np.testing.assert_array_equal(output.reward, [41, 40, 72, 13, 20, 35])
    np.testing.assert_array_equal(output.done, [False, True, False, False, True, False])
    np.testing.assert_array_equal(output.info.episode_end, output.done)
    np.testing.assert_array_equal(output.info.episode_return, output.reward)
    np.testing.assert_array_equal(output.info.episode_step, [1] * 6)
    np.testing.assert_array_equal(output.observation["action"], [1, 0, 2, 3, 0, 5])
    np.testing.assert_array_equal(output.observation["image"][:, 0, 0], [4, 4, 7, 1, 2, 3])


def test_lockstep_keeps_the_types_of_its_members() -> None:
    pool, _, _ = _begun()
    pool.send(_ALL, np.ones(6, np.int32))
    output = pool.receive(0.0).output
    assert isinstance(output, environments.StepOutput)
    assert isinstance(output.info, environments.StepOutputInfo)
    assert output.reward.dtype == np.float32
    assert output.done.dtype == bool
    assert output.info.episode_step.dtype == np.int32
    assert output.observation["image"].dtype == np.uint8


def test_members_of_lockstep_that_are_sent_nothing_rest() -> None:
    pool, members, calls = _begun()
    np.testing.assert_array_equal(pool.groups, [0, 0, 1, 2, 2, 2])
    ids = np.array([0, 1, 3, 4, 5])
    pool.send(ids, np.array([1, 2, 3, 4, 5], np.int32))
    ready = pool.receive(0.0)
    assert calls == [("send", "a"), ("send", "c"), ("receive", "a"), ("receive", "c")]
    assert [members[i].actions.tolist() for i in (0, 2)] == [[1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(ready.ids, ids)
    np.testing.assert_array_equal(ready.output.reward, [41, 42, 13, 24, 35])
    assert ready.fresh.shape == ids.shape
    calls.clear()
    pool.send(np.array([3, 4, 5]), np.ones(3, np.int32))
    assert pool.receive(0.0).ids.tolist() == [3, 4, 5]
    assert calls == [("send", "c"), ("receive", "c")]


def test_lockstep_that_starts_again_has_no_member_at_rest() -> None:
    pool, _, _ = _begun()
    pool.send(np.array([2]), np.ones(1, np.int32))
    pool.start()
    ids, _, fresh = pool.receive(0.0)
    assert ids.tolist() == _ALL.tolist()
    assert fresh.all()


def test_lockstep_closes_every_member_each_time_it_is_closed() -> None:
    pool, _, calls = _begun()
    pool.close()
    assert sorted(calls) == [("close", "a"), ("close", "b"), ("close", "c")]
    pool.close()
    assert set(calls) == {("close", "a"), ("close", "b"), ("close", "c")}


def test_import_brings_in_no_tensorflow() -> None:
    script = (
        "import sys, environments; "
        "heavy = {'tensorflow', 'sonnet', 'tensorflow_probability', 'keras', 'tf_keras'}; "
        "print('imported', sorted(heavy & set(sys.modules)), 'environments' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=_ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "imported [] True", result.stderr
