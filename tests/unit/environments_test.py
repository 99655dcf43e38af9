"""The environment contract: episode totals and environments stepped in lockstep."""

import numpy as np
import pytest

import environments


def _step(counter: environments.EpisodeCounter, rewards: list[float], ends: list[bool]):
    return counter.step(np.array(rewards, np.float32), np.array(ends))


def test_counter_reports_totals_and_starts_again_where_an_episode_ends() -> None:
    counter = environments.EpisodeCounter(2)
    _step(counter, [7.0, 7.0], [False, False])
    output = counter.start(np.zeros(2))
    assert (output.reward.tolist(), output.done.tolist()) == ([0, 0], [True, True])
    infos = [output.info]
    infos += [_step(counter, [1.0, -2.0], [False] * 2), _step(counter, [2.0, 2.5], [True, False])]
    infos += [_step(counter, [5.0, 5.0], [False] * 2)]
    returns = [[0.0, 0.0], [1.0, -2.0], [3.0, 0.5], [5.0, 5.5]]
    np.testing.assert_array_equal([info.episode_return for info in infos], returns)
    steps = [[0, 0], [1, 1], [2, 2], [1, 3]]
    np.testing.assert_array_equal([info.episode_step for info in infos], steps)
    ends = [[False, False], [False, False], [True, False], [False, False]]
    np.testing.assert_array_equal([info.episode_end for info in infos], ends)
    for info in infos:
        assert [array.dtype for array in info] == [np.float64, np.int32, bool]


def test_counter_adds_without_float32s_rounding_and_keeps_no_infinity() -> None:
    counter = environments.EpisodeCounter(1)
    for reward in (2.0**24, 1.0, 1.0):
        info = _step(counter, [reward], [False])
    assert info.episode_return.tolist() == [2.0**24 + 2]
    assert _step(counter, [np.inf], [True]).episode_return.tolist() == [np.inf]
    assert _step(counter, [1.0], [False]).episode_return.tolist() == [1.0]


def test_counter_counts_some_environments_and_no_step_where_one_begins() -> None:
    counter = environments.EpisodeCounter(3)
    _step(counter, [1.0, 1.0, 1.0], [False] * 3)
    reward = np.array([0.0, 2.0], np.float32)
    info = counter.step(reward, np.zeros(2, bool), np.array([0, 2]), np.array([True, False]))
    np.testing.assert_array_equal(info.episode_return, [0.0, 3.0])
    np.testing.assert_array_equal(info.episode_step, [0, 2])
    np.testing.assert_array_equal(_step(counter, [0.0] * 3, [False] * 3).episode_step, [1, 2, 3])


class _Recording:
    """Writes every call into a log that it shares; a reward names task and action."""

    def __init__(self, name: str, task_ids: list[int], calls: list[str]):
        self.task_ids, self._name, self._calls = np.array(task_ids, np.int32), name, calls
        self._counter = environments.EpisodeCounter(len(task_ids))

    def reset(self) -> environments.StepOutput:
        return self._counter.start(self.task_ids)

    def send(self, actions: np.ndarray) -> None:
        self._calls.append(f"send {self._name}")
        self._actions = actions.copy()

    def receive(self) -> environments.StepOutput:
        self._calls.append(f"receive {self._name}")
        done = self._actions == 0
        reward = (self.task_ids * 10 + self._actions).astype(np.float32)
        info = self._counter.step(reward, done)
        return environments.StepOutput(reward, info, done, self._actions)

    def close(self) -> None:
        self._calls.append(f"close {self._name}")
        if self._name == "b":
            raise OSError("b cannot be closed")


def test_lockstep_sends_to_all_members_before_it_receives_and_lets_some_rest() -> None:
    calls: list[str] = []
    tasks = {"a": [4, 4], "b": [7], "c": [1, 2, 3]}
    pool = environments.Lockstep(*(_Recording(n, t, calls) for n, t in tasks.items()))
    np.testing.assert_array_equal(pool.groups, [0, 0, 1, 2, 2, 2])
    pool.start()
    ids, output, fresh = pool.receive(0.0)
    assert ids.tolist() == list(range(6))
    assert fresh.all()
    np.testing.assert_array_equal(output.observation, [4, 4, 7, 1, 2, 3])
    pool.send(ids, np.array([1, 0, 2, 3, 0, 5], np.int32))
    ids, output, fresh = pool.receive(0.0)
    assert calls == ["send a", "send b", "send c", "receive a", "receive b", "receive c"]
    assert not fresh.any()
    np.testing.assert_array_equal(output.reward, [41, 40, 72, 13, 20, 35])
    np.testing.assert_array_equal(output.done, [False, True, False, False, True, False])
    rest = np.array([0, 1, 3, 4, 5])
    pool.send(rest, np.array([1, 2, 3, 4, 5], np.int32))
    ready = pool.receive(0.0)
    np.testing.assert_array_equal(ready.ids, rest)
    np.testing.assert_array_equal(ready.output.reward, [41, 42, 13, 24, 35])
    pool.start()
    assert pool.receive(0.0).ids.tolist() == list(range(6))
    with pytest.raises(OSError, match="b cannot be closed"):
        pool.close()
    assert sorted(calls[-3:]) == ["close a", "close b", "close c"]
