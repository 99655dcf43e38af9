"""Chooses the games by the plan's rule, and writes `games.csv`.

  python results/two_scales/games.py runs/two_scales/alone
  python results/two_scales/games.py runs/two_scales/alone runs/two_scales/scale

The first folder has the runs of IMPALA alone, and the second those of PopArt-IMPALA alone, whose
scale at the end is a game's scale.
"""

import sys
from pathlib import Path

import pandas as pd

from scalable_agent_popart.report import final_scores
from scalable_agent_popart.report.read import Run, read_runs
from scalable_agent_popart.runs.directory import find_runs

FILE = Path(__file__).parent / "games.csv"
_SMALL = {"robotank", "breakout", "tutankham", "amidar"}  # The others have large rewards.
_MIN_LEAD = 20.0  # Human-normalised points above measured random play.
_GAMES_PER_HALF = 2


def choose(alone: list[Run], scaled: list[Run]) -> pd.DataFrame:
    """Makes a row per game: its reference, its lead over random play, and whether it is chosen.

    A `random` or `reference` is a mean raw return. The `lead` is the reference's in
    human-normalised points. A `scale` is PopArt's sigma at the end, empty without such a run.
    """
    measured = final_scores.random_play("atari57")["mean"]
    scales = {}
    for run in scaled:
        last = run.numbers("task_metrics", ["scale"]).iloc[-1]
        scales[last["task"]] = last["scale"]
    rows = []
    for run in alone:
        (game,) = run.config.suite.tasks
        zero, human = run.config.suite.reference_scores[game]
        reference = max(run.evaluations, key=lambda test: test.frames).returns[game].mean()
        lead = 100 * (reference - measured[game]) / (human - zero)
        rows.append((game, "small" if game in _SMALL else "large", measured[game], reference, lead))
    table = pd.DataFrame(rows, columns=["game", "rewards", "random", "reference", "lead"])
    table = table.sort_values(["rewards", "lead"], ascending=False, ignore_index=True)
    best = table[table["lead"] >= _MIN_LEAD].groupby("rewards").head(_GAMES_PER_HALF)
    return table.assign(chosen=table.index.isin(best.index), scale=table["game"].map(scales))


if __name__ == "__main__":
    folders = [read_runs(find_runs([folder])) for folder in sys.argv[1:]]
    assert not any(problems for _, problems in folders), folders
    alone, *scaled = (runs for runs, _ in folders)
    choose(alone, *scaled or [[]]).to_csv(FILE, index=False, float_format="%.6g")
