"""Steps that are not as declared, and what environments raise, name the environment."""

import re
from typing import Any
from unittest import mock

import numpy as np
import pytest

from environments import ArraySpec, EnvironmentLostError, EpisodeCounter, InvalidStepError, Ready
from scalable_agent_popart.suites.checked import CheckedPool, SerialEnvironments, step_fault

_IMAGE, _SPEC = np.zeros((4, 4, 3), np.uint8), ArraySpec((4, 4, 3), np.uint8)
_NAMES = ["left", "right"]


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
    for good in (1, True, np.float32(-2), 3e38):
        assert not step_fault(_SPEC, good, _IMAGE)
    assert re.search(message, step_fault(_SPEC, reward, image))
    members = [mock.Mock(), mock.Mock()]
    make = [mock.Mock(return_value=member) for member in members]
    serial = SerialEnvironments(make, np.arange(2), _NAMES, _SPEC)
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
    ("error", "message"),
    [
        ("no\ndisplay", "raised RuntimeError: no display"),
        ("x" * 10**6, "raised RuntimeError: x{900,999}"),
    ],
)
def test_an_exception_of_a_serial_environment_is_one_line_with_its_name_and_closes_all(
    error: str, message: str, failing: str
) -> None:
    usual = {"reset.return_value": _IMAGE, "step.return_value": (1.0, False, _IMAGE)}
    usual["close.side_effect"] = OSError
    failure = {f"{failing}.side_effect": RuntimeError(error)}
    left, right = mock.Mock(**usual), mock.Mock(**usual | failure)
    right.make.return_value = right

    def play() -> None:
        make = [lambda: left, right.make]
        serial = SerialEnvironments(make, np.arange(2), _NAMES, _SPEC)
        serial.reset()
        serial.send(np.zeros(2, np.int32))
        serial.receive()

    with pytest.raises(EnvironmentLostError, match=rf"^right \(environment 1\) {message} \(.*mock"):
        play()
    assert (left.close.call_count, right.close.call_count) == (1, failing != "make")


def _ready(**changes: Any) -> Ready:
    output = EpisodeCounter(3).start(np.zeros((3, 4, 4, 3), np.uint8))
    info = {name: changes.pop(name) for name in output.info._fields if name in changes}
    output = output._replace(info=output.info._replace(**info), **changes)
    return Ready(np.array([0, 2, 3]), output, np.ones(3, bool))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observation": np.zeros((3, 2))}, r"^a, c, d: .* uint8 \(3, 4, 4, 3\), and is float64"),
        ({"reward": np.float32([1, np.nan, 1])}, "^a, c, d: a reward must be a finite float32"),
        ({"reward": np.zeros(3)}, "^a, c, d: reward must be of type float32, and is float64"),
        ({"done": np.zeros(3, np.uint8)}, "done must be of type bool"),
        ({"episode_step": np.arange(3)}, "episode_step must be of type int32"),
    ],
)
def test_pools_are_held_to_what_was_declared(wrong: dict[str, np.ndarray], message: str) -> None:
    pool = mock.Mock(**{"receive.side_effect": [good := _ready(), _ready(**wrong)]})
    checked = CheckedPool(pool, "abcd", _SPEC)
    assert checked.receive(0.0) is good
    with pytest.raises(InvalidStepError, match=message):
        checked.receive(0.0)
