"""Steps that are not as declared, and what environments raise, name the environment."""

import re
from typing import Any
from unittest import mock

import numpy as np
import pytest

from environments import ArraySpec, EnvironmentLostError, InvalidStepError, Lockstep
from scalable_agent_popart.suites.checked import CheckedPool, SerialEnvironments, StepCheck
from tests.fakes.recording_environment import RecordingEnvironment

_IMAGE = np.zeros((4, 4, 3), np.uint8)


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
    check = StepCheck(ArraySpec((4, 4, 3), np.uint8))
    for good in (1, True, np.float32(-2), 3e38):
        assert not check.fault(good, _IMAGE)
    assert re.search(message, check.fault(reward, image))
    members = [mock.Mock(), mock.Mock()]
    names, spec = ["left", "right"], ArraySpec((4, 4, 3), np.uint8)
    make = [mock.Mock(return_value=member) for member in members]
    serial = SerialEnvironments(make, np.arange(2), names, spec)
    for member in members:
        member.step.return_value = 1.0, False, _IMAGE
    members[1].step.return_value = reward, False, image
    members[0].close.side_effect = OSError("gone")
    serial.send(np.zeros(2, np.int32))
    with pytest.raises(InvalidStepError, match=rf"right \(environment 1\): .*{message}"):
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
        serial = SerialEnvironments(make, np.arange(2), names, spec)
        serial.reset()
        serial.send(np.zeros(2, np.int32))
        serial.receive()

    with pytest.raises(EnvironmentLostError, match=rf"^right \(environment 1\) {told} \(.*mock"):
        play()
    assert (left.close.call_count, right.close.call_count) == (1, failing != "make")


def test_pools_are_held_to_what_was_declared() -> None:
    calls: list[str] = []
    pool = Lockstep(RecordingEnvironment("a", [4, 5], calls))
    checked = CheckedPool(pool, ["left", "right"], ArraySpec((), np.int32))
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
        checked = CheckedPool(pool, ["left", "right"], spec)
        checked.send(np.arange(2), wrong)
        with pytest.raises(InvalidStepError, match=message):
            checked.receive(0.0)
    without = output._replace(reward=np.array([1, None]), observation=output.observation * 1.0)
    pool.members[0].receive = lambda: without
    checked.send(np.arange(2), np.zeros(2, np.int32))
    with pytest.raises(InvalidStepError, match=r"^left, right: a reward must be a nu"):
        checked.receive(0.0)
    for name, wrong_type in (
        ("reward", output._replace(reward=output.reward.astype(np.float64))),
        ("done", output._replace(done=output.done.astype(np.uint8))),
        ("episode_step", output._replace(info=output.info._replace(episode_step=np.arange(2)))),
    ):
        pool.members[0].receive = lambda wrong_type=wrong_type: wrong_type
        checked = CheckedPool(pool, ["left", "right"], ArraySpec((), np.int32))
        checked.send(np.arange(2), np.zeros(2, np.int32))
        with pytest.raises(InvalidStepError, match=f"right: {name} must be of type"):
            checked.receive(0.0)
