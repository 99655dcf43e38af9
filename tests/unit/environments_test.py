"""The environment contract: episode totals and environments stepped in lockstep."""

from unittest import mock

import numpy as np
import pytest

import environments
from tests.fakes.counting_environment import CountingEnvironments, observed


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


def test_lockstep_sends_to_all_members_before_it_receives_and_lets_some_rest() -> None:
    calls = mock.Mock()
    for name, tasks in {"a": [4, 4], "b": [7], "c": [1, 2, 3]}.items():
        member = CountingEnvironments(np.array(tasks))
        calls.attach_mock(mock.Mock(wraps=member, task_ids=member.task_ids), name)
    pool = environments.Lockstep(calls.a, calls.b, calls.c)
    np.testing.assert_array_equal(pool.groups, [0, 0, 1, 2, 2, 2])

    def received() -> tuple[list[int], list[bool], list[tuple[int, int, int]]]:
        """Returns who has stepped, who is fresh, and of each its task, step and last action."""
        ids, output, fresh = pool.receive(0.0)
        seen = [observed(observation)[1:] for observation in output.observation]
        return ids.tolist(), fresh.tolist(), seen

    first = [(4, 0, 0), (4, 0, 0), (7, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)]
    pool.start()
    assert received() == ([*range(6)], [True] * 6, first)
    calls.reset_mock()
    pool.send(np.arange(6), np.array([1, 0, 2, 3, 0, 5], np.int32))
    stepped = [(4, 1, 1), (4, 1, 0), (7, 1, 2), (1, 1, 3), (2, 1, 0), (3, 1, 5)]
    assert received() == ([*range(6)], [False] * 6, stepped)
    in_order = ["a.send", "b.send", "c.send", "a.receive", "b.receive", "c.receive"]
    assert [name for name, *_ in calls.mock_calls] == in_order
    pool.send(np.array([0, 1, 3, 4, 5]), np.array([1, 2, 3, 4, 5], np.int32))
    without_b = [(4, 2, 1), (4, 2, 2), (1, 2, 3), (2, 2, 4), (3, 2, 5)]
    assert received() == ([0, 1, 3, 4, 5], [False] * 5, without_b)
    pool.start()
    assert received()[0] == [*range(6)]
    calls.b.close.side_effect = OSError("b cannot be closed")
    with pytest.raises(OSError, match="b cannot be closed"):
        pool.close()
    assert [each.close.call_count for each in pool.members] == [1, 1, 1]
