"""Logs are read line by line, and hold no number that is not finite."""

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from scalable_agent_popart.runs.json_lines import DAMAGE, read_lines, to_json


def test_json_has_null_where_a_number_also_of_numpy_is_not_finite() -> None:
    record = {"a": math.nan, "b": [math.inf, {"c": (-math.inf, 1.5)}], "d": np.int64(2)}
    record["e"] = (np.float32(0.5), np.float32(np.inf), np.True_)
    assert json.loads(to_json(record, indent=2)) == {
        "a": None,
        "b": [None, {"c": [None, 1.5]}],
        "d": 2,
        "e": [0.5, None, True],
    }


def test_only_whole_lines_are_read_and_damaged_ones_raise(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"1\n23")
    assert list(read_lines(path)) == [1]
    for damaged in (b"not json", b"\xff", b"", b"[" * 100_000):
        path.write_bytes(b"1\n" + damaged + b"\n2\n")
        with pytest.raises(DAMAGE):
            list(read_lines(path))


def _write(path: Path, lengths: list[int]) -> None:
    """Writes a log whose lines have these lengths, and their numbers as `n`."""
    with open(path, "w") as file:
        for n, length in enumerate(lengths):
            file.write(json.dumps({"n": n}).ljust(length - 1) + "\n")


def _numbers(path: Path, **how: int) -> list[int]:
    return [record["n"] for record in read_lines(path, **how)]


@pytest.mark.parametrize("how", [{}, {"at_most": 50}])
def test_a_log_may_be_larger_than_the_memory(tmp_path: Path, how: dict[str, int]) -> None:
    path, length, number = tmp_path / "log.jsonl", 2**18, 2**7
    _write(path, [length] * number)
    tracemalloc.start()
    numbers = _numbers(path, **how)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * length
    assert numbers[-1] == number - 1
    assert len(numbers) == how.get("at_most", number)


@pytest.mark.parametrize("lengths", [[20] * 1000, [20, 500] * 500, [5000, *[20] * 999]])
def test_of_many_lines_the_first_the_last_and_some_between_are_read(
    tmp_path: Path, lengths: list[int]
) -> None:
    path = tmp_path / "log.jsonl"
    _write(path, lengths)
    numbers = _numbers(path, at_most=50)
    assert (numbers[0], numbers[-1]) == (0, 999)
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 50
    _write(path, lengths[:1])
    assert _numbers(path, at_most=50) == [0]
    _write(path, [])
    assert _numbers(path, at_most=50) == []
