"""The environment contract: episode totals and environments stepped in lockstep."""

import re
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest

import environments
from environments import ArraySpec

_IMAGE = np.zeros((4, 4, 3), np.uint8)


class RecordingEnvironment:
    """Writes every call into a log that it shares; a reward names task and action."""

    def __init__(self, name: str, task_ids: list[int], calls: list[str]):
        self.task_ids = np.array(task_ids, np.int32)
        self._name, self._calls = name, calls
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


@pytest.mark.parametrize(
    ("reward", "image", "message"),
    [
        (1.0, _IMAGE.astype(np.float32), r"uint8 \(4, 4, 3\), and is float32 \(4, 4, 3\)"),
        (1.0, _IMAGE[..., :1], r"uint8 \(4, 4, 3\), and is uint8 \(4, 4, 1\)"),
        (1.0, np.uint8(3), r"and is uint8 \(\)"),
        (1.0, None, r"and is object \(\)"),
        (1.0, {"image": _IMAGE, "other": _IMAGE}, "declared as 1 arrays, and has 2"),
        (np.inf, _IMAGE, "a reward must be a finite float32, and is inf"),
        (-1e39, _IMAGE, "a finite float32, and is -1e"),
        (float("nan"), _IMAGE, "a finite float32, and is nan"),
        (None, _IMAGE, "a reward must be a number, and is None"),
        (np.zeros(1), _IMAGE, r"a number, and is array\(\[0"),
    ],
)
def test_steps_that_are_not_as_declared_are_refused(reward: Any, image: Any, message: str) -> None:
    check = environments.StepCheck(ArraySpec((4, 4, 3), np.uint8))
    for good in (1, True, np.float32(-2), 3e38):
        assert not check.fault(good, _IMAGE)
    assert re.search(message, check.fault(reward, image))
    members = [mock.Mock(), mock.Mock()]
    names, spec = ["left", "right"], ArraySpec((4, 4, 3), np.uint8)
    make = [mock.Mock(return_value=member) for member in members]
    serial = environments.SerialEnvironments(make, np.arange(2), names, spec)
    for member in members:
        member.step.return_value = 1.0, False, _IMAGE
    members[1].step.return_value = reward, False, image
    members[0].close.side_effect = OSError("gone")
    serial.send(np.zeros(2, np.int32))
    with pytest.raises(
        environments.InvalidStepError, match=rf"right \(environment 1\): .*{message}"
    ):
        serial.receive()
    serial.close()
    assert [member.close.call_count for member in members] == [1, 1]


@pytest.mark.parametrize("failing", ["make", "reset", "step"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("no\ndisplay"), "raised RuntimeError: no display"),
        (RuntimeError("x" * 10**6), "raised RuntimeError: x{900,999}"),
        (SystemExit, "called sys.exit"),
    ],
)
def test_an_exception_of_a_serial_environment_is_one_line_with_its_name_and_closes_all(
    error: BaseException, told: str, failing: str
) -> None:
    usual = {"reset.return_value": _IMAGE, "step.return_value": (1.0, False, _IMAGE)}
    usual["close.side_effect"] = OSError
    left, right = mock.Mock(**usual), mock.Mock(**usual | {f"{failing}.side_effect": error})
    right.make.return_value = right
    names, spec = ["left", "right"], ArraySpec((4, 4, 3), np.uint8)

    def play() -> None:
        make = [lambda: left, right.make]
        serial = environments.SerialEnvironments(make, np.arange(2), names, spec)
        serial.reset()
        serial.send(np.zeros(2, np.int32))
        serial.receive()

    with pytest.raises(
        environments.EnvironmentLostError, match=rf"^right \(environment 1\) {told} \(.*mock"
    ):
        play()
    assert (left.close.call_count, right.close.call_count) == (1, failing != "make")


def test_pools_are_held_to_what_was_declared_and_cannot_end_the_program() -> None:
    calls: list[str] = []
    pool = environments.Lockstep(RecordingEnvironment("a", [4, 5], calls))
    checked = environments.CheckedPool(pool, ["left", "right"], ArraySpec((), np.int32))
    checked.start()
    output = checked.receive(0.0).output
    assert output.observation.tolist() == [4, 5]
    assert (checked.restarts.tolist(), checked.groups.tolist()) == ([0, 0], [0, 0])
    for wrong, spec, message in (
        (
            np.arange(2, dtype=np.int32),
            ArraySpec((), np.int64),
            r"left, right: .* int64 \(2,\), and is int32 \(2,\)",
        ),
        (np.array([1, np.nan]), ArraySpec((), np.float64), "right: a reward must be a finite"),
    ):
        checked = environments.CheckedPool(pool, ["left", "right"], spec)
        checked.send(np.arange(2), wrong)
        with pytest.raises(environments.InvalidStepError, match=message):
            checked.receive(0.0)
    without = output._replace(reward=np.array([1, None]), observation=output.observation * 1.0)
    pool.members[0].receive = lambda: without
    checked.send(np.arange(2), np.zeros(2, np.int32))
    with pytest.raises(environments.InvalidStepError, match=r"^left, right: a reward must be a nu"):
        checked.receive(0.0)
    for name, wrong_type in (
        ("reward", output._replace(reward=output.reward.astype(np.float64))),
        ("done", output._replace(done=output.done.astype(np.uint8))),
        ("episode_step", output._replace(info=output.info._replace(episode_step=np.arange(2)))),
    ):
        pool.members[0].receive = lambda wrong_type=wrong_type: wrong_type
        checked = environments.CheckedPool(pool, ["left", "right"], ArraySpec((), np.int32))
        checked.send(np.arange(2), np.zeros(2, np.int32))
        with pytest.raises(environments.InvalidStepError, match=f"right: {name} must be of type"):
            checked.receive(0.0)
    pool.members[0].send = sys.exit
    with pytest.raises(
        environments.EnvironmentLostError, match=r"^left, right called sys.exit .*py"
    ):
        checked.send(np.arange(2), np.zeros(2, np.int32))


def test_counter_counts_some_environments_and_no_step_where_one_begins() -> None:
    counter = environments.EpisodeCounter(3)
    _step(counter, [1.0, 1.0, 1.0], [False] * 3)
    reward = np.array([0.0, 2.0], np.float32)
    info = counter.step(reward, np.zeros(2, bool), np.array([0, 2]), np.array([True, False]))
    np.testing.assert_array_equal(info.episode_return, [0.0, 3.0])
    np.testing.assert_array_equal(info.episode_step, [0, 2])
    np.testing.assert_array_equal(_step(counter, [0.0] * 3, [False] * 3).episode_step, [1, 2, 3])


def test_lockstep_sends_to_all_members_before_it_receives_and_lets_some_rest() -> None:
    calls: list[str] = []
    tasks = {"a": [4, 4], "b": [7], "c": [1, 2, 3]}
    pool = environments.Lockstep(*(RecordingEnvironment(n, t, calls) for n, t in tasks.items()))
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
