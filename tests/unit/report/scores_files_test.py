"""Files of other programs' returns next to runs in a report."""

from pathlib import Path

import pandas as pd
import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report.page import write_report
from tests.fakes.main_program import run
from tests.fakes.report_text import read_report
from tests.fakes.synthetic_runs import make_run

_HEAD = "agent,seed,task,frames,return\n"


def _rows(agent: str, seed: int, *tasks: str) -> str:
    """Returns rows of a run whose returns are 1 and then 2, or 3 in the second seed."""
    returns = {20_000: 1, 80_000: 1 + seed}
    rows = (f"{agent},{seed},{t},{frames},{returns[frames]}\n" for frames in returns for t in tasks)
    return "".join(rows)


@pytest.mark.parametrize("tests", [{}, {"noop": 5}], ids=["untested", "tested"])
def test_an_agent_of_a_file_is_compared_with_runs(tmp_path: Path, tests: dict[str, int]) -> None:
    games, file = ("boxing", "pong"), tmp_path / "mine.csv"
    paths = [
        make_run(tmp_path / str(s), seed=s, tests=tests, level_name="pong,boxing").path
        for s in (1, 2)
    ]
    rows = (_rows("DQN", 1, *games), _rows("DQN", 2, *games), _rows("DQN", 3, "pong"))
    file.write_text(_HEAD + "".join(rows))
    out = tmp_path / "out"
    run(mode="report", runs=[*map(str, paths)], report_dir=str(out), scores=[str(file)])
    text, summary = read_report(out), pd.read_csv(out / "summary.csv")
    assert f"* `{file}: DQN, seed 3 skipped: it has no return of boxing`" in text
    assert "| 2 runs, from a file, 80k frames |" in text
    of_file = summary[summary["agent"] == "DQN"]
    (mean, _) = of_file.query("kind == 'agent' and measure == 'return'").to_dict("records")
    numbers = [mean[name] for name in ("value", "low", "high")]  # Last frames, Student's t.
    assert numbers == pytest.approx([2.5, 2.5 - 6.353, 2.5 + 6.353], rel=1e-3)
    differences = of_file.query("kind == 'difference' and measure == 'aggregate'")
    assert differences["task"].tolist().count("median") == 1
    curve = pd.read_csv(out / "tables" / "atari57-2-tasks-returns.csv").query("agent == 'DQN'")
    by_frames = curve[curve["task"] == "pong"].groupby("frames")["return"].mean()
    assert by_frames.to_dict() == {20_000: 1.0, 80_000: 2.5}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("agent,seed,task,frames\n", "first line is agent,seed,task,frames,return"),
        (_HEAD + "DQN,1,pong,9,high\n", "'high'"),
        (_HEAD + "DQN,,pong,9,5\n", "cannot be read"),
        (_HEAD + "DQN,1,pong,9,inf\n", "not finite"),
        (_HEAD, "no rows"),
        (_HEAD + "DQN,1,ping,9,5\n", "there is no task 'ping' in Atari-57"),
        (_HEAD + "DQN,1,pong,9,5\n" * 2, "several returns of pong at 9 frames"),
        ("", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, content: str, says: str) -> None:
    make_run(tmp_path / "run", level_name="pong")
    file = tmp_path / "mine.csv"
    file.write_text(content)
    with pytest.raises(UserError, match=says) as info:
        write_report([str(tmp_path / "run")], str(tmp_path / "out"), scores_files=[str(file)])
    assert "\n" not in str(info.value)
    assert not (tmp_path / "out").exists()


def test_an_agent_of_a_file_has_a_name_and_a_colour_of_its_own(tmp_path: Path) -> None:
    make_run(tmp_path / "run", level_name="pong")
    file = tmp_path / "mine.csv"
    file.write_text(_HEAD + _rows('"IMPALA, clipped"', 1, "pong"))
    write_report([str(tmp_path / "run")], str(tmp_path / "out"), scores_files=[str(file)])
    assert f"| IMPALA, clipped ({file}) | " in read_report(tmp_path / "out")
