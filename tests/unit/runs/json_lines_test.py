"""Logs are read line by line, whatever lies in them, and hold no number that is not finite."""

import json
import math
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from scalable_agent_popart.runs.json_lines import read_lines, to_episode, to_json

_LARGE = 2**25
# None is of a log whose only task is `catch_1`.
_DAMAGED_EPISODES = [
    *(b"not json", b"[1, 2]", b'"text"', b"\xff", b"", b"\0" * 20, b"[" * 10_000),
    b'{"task": "catch_1", "episode_return": 1.0}',
    b'{"task": "pong", "frames": 5, "episode_return": 1.0}',
    b'{"task": ["catch_1"], "frames": 5, "episode_return": 1.0}',
    b'{"task": "catch_1", "frames": 1e15, "episode_return": 1.0}',
    b'{"task": "catch_1", "frames": -1, "episode_return": 1.0}',
    *(
        b'{"task": "catch_1", "frames": 5, "episode_return": %s}' % value
        for value in (b'"1.0"', b"null", b"NaN", b"Infinity", b"true", b"1" * 400)
    ),
]


def test_json_has_null_where_a_number_also_of_numpy_is_not_finite() -> None:
    record = {"a": math.nan, "b": [math.inf, {"c": (-math.inf, 1.5)}], "d": np.int64(2)}
    record["e"] = (np.float32(0.5), np.float32(np.inf), np.True_)
    assert json.loads(to_json(record, indent=2)) == {
        "a": None,
        "b": [None, {"c": [None, 1.5]}],
        "d": 2,
        "e": [0.5, None, True],
    }


def test_lines_that_are_none_of_the_log_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    whole = [b'{"task": "catch_1", "frames": %d, "episode_return": 1e300}' % i for i in (1, 2)]
    path.write_bytes(b"\n".join([whole[0], *_DAMAGED_EPISODES, whole[1], whole[1][:20]]))
    problems: list[str] = []
    rows = list(read_lines(path, lambda record: to_episode(record, {"catch_1"}), problems))
    assert rows == [("catch_1", 1e300, 1), ("catch_1", 1e300, 2)]
    cut_off, damaged = problems
    assert cut_off.startswith(f"{path}: its last line is cut off")
    number = len(_DAMAGED_EPISODES)
    assert damaged.startswith(f"{path}: {number} of {number + 2} lines")


def test_a_line_whose_end_is_written_meanwhile_is_not_counted_as_another(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"1\n23")
    problems = mock.Mock(**{"append.side_effect": lambda _: path.write_bytes(b"1\n2345\n6\n")})
    assert list(read_lines(path, lambda record: record, problems)) == [1]
    problems.append.assert_called_once()


def _write(path: Path, lengths: list[int]) -> None:
    """Writes a log whose lines have these lengths, and their numbers as `n`."""
    with open(path, "w") as file:
        for n, length in enumerate(lengths):
            file.write(json.dumps({"n": n}).ljust(length - 1) + "\n")


def _numbers(path: Path, **how: int) -> list[int]:
    return list(read_lines(path, lambda record: record["n"], [], **how))


@pytest.mark.parametrize("how", [{}, {"tail": _LARGE // 2}, {"at_most": 50}])
def test_a_log_may_be_larger_than_the_memory(tmp_path: Path, how: dict[str, int]) -> None:
    path, length = tmp_path / "log.jsonl", 2**18
    number = _LARGE // length
    _write(path, [length] * number)
    tracemalloc.start()
    found = _numbers(path, **how)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * length
    assert found[-1] == number - 1
    assert len(found) == how.get("at_most", number // 2 if "tail" in how else number)


@pytest.mark.parametrize("lengths", [[20] * 1000, [20, 500] * 500, [5000, *[20] * 999]])
def test_of_many_lines_the_first_the_last_and_some_between_are_read(
    tmp_path: Path, lengths: list[int]
) -> None:
    path = tmp_path / "log.jsonl"
    _write(path, lengths)
    found = _numbers(path, at_most=50)
    assert (found[0], found[-1]) == (0, 999)
    assert found == sorted(set(found))
    assert len(found) == 50
    _write(path, lengths[:1])
    assert _numbers(path, at_most=50) == [0]
    _write(path, [])
    assert _numbers(path, at_most=50) == []
