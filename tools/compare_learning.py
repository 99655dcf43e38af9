"""Compares how fast runs learn single games with curves of other systems.

  python tools/compare_learning.py --runs=runs/learning --curves=public.csv --output=learning_speed
  python tools/compare_learning.py --runs=runs/hour --tables=peer.csv --against=minutes --output=.

`returns.csv` of the output folder has the mean raw return of each run's training games by agent
steps and by minutes of training. `returns.png` draws them, with a panel per game. `--tables` adds
files with the same columns. A file of `--curves` has ranges of other systems' runs, in the columns
game, agent, lowest_return, median_return, highest_return, and agent_steps_millions or minutes.
"""

if __name__ == "__main__":
    import start  # noqa: F401

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from absl import flags
from matplotlib.figure import Figure

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report.drawing import COLOURS
from scalable_agent_popart.report.read import read_runs
from scalable_agent_popart.runs.directory import find_runs
from scalable_agent_popart.system import program

_FLAGS = flags.FLAGS
_WINDOW = 0.125  # Millions of agent steps whose games have one mean.
_AXES = {"agent_steps_millions": "million agent steps", "minutes": "minutes of training"}
_GREY = "#7F7F7F"


def tabulate(path: str) -> pd.DataFrame:
    """Tabulates the mean raw return of the games that ended in each window of agent steps.

    A row holds for the end of its window, and `minutes` is how long training took up to there.
    They leave out the time between a stop and the next start, and work that was lost by it. Raises
    UserError for several games, for a population, and if there is nothing to compare in the run.
    """
    (run,), _ = read_runs([path], every_record=True)
    if len(run.config.suite.tasks) > 1 or run.population:
        raise UserError(f"{run.path} is no run of a single game; give such runs")
    if run.problems:
        raise UserError(f"{run.path} cannot be compared: {'; '.join(run.problems)}")
    frames_per_window = _WINDOW * 1e6 * run.config.num_action_repeats
    episodes = run.logs["episodes"]
    marks = np.arange(1, int(run.frames / frames_per_window) + 1)
    windows = np.ceil(episodes["frames"] / frames_per_window).astype(int)
    ended = episodes["episode_return"].groupby(windows)
    metrics = run.numbers("metrics", ["frames_per_second"])
    frames = np.array([0, *metrics["frames"]])
    minutes = np.cumsum([0.0, *np.diff(frames) / metrics["frames_per_second"]]) / 60
    return pd.DataFrame(
        {
            "run": run.path.name,
            "game": run.config.suite.tasks[0],
            "agent": run.config.agent_name,
            "seed": run.seed,
            "agent_steps_millions": marks * _WINDOW,
            "games": ended.size().reindex(marks, fill_value=0),
            "mean_return": ended.mean().reindex(marks),
            "minutes": np.interp(marks * frames_per_window, frames, minutes),
        },
        index=marks,
    )


def draw(table: pd.DataFrame, curves: pd.DataFrame, against: str) -> Figure:
    """Draws a panel per game: runs as lines, and the curves as lines within their ranges."""
    games = sorted(set(table["game"]))
    columns, rows = min(len(games), 3), math.ceil(len(games) / 3)
    figure = Figure(figsize=(3.2 * columns + 0.6, 2.8 * rows + 0.6), layout="constrained")
    others = sorted({*table["agent"]} - COLOURS.keys())
    colours = COLOURS | {agent: f"C{i + 2}" for i, agent in enumerate(others)}
    shown = {}
    for number, game in enumerate(games, start=1):
        axes = figure.add_subplot(rows, columns, number)
        runs = table[table["game"] == game].dropna(subset="mean_return")
        for (agent, _), run in runs.groupby(["agent", "run"]):
            colour = colours[agent]
            (shown[agent],) = axes.plot(run[against], run["mean_return"], color=colour, lw=1.2)
        known = curves[(curves["game"] == game) & (curves[against] <= runs[against].max())]
        for agent, curve in known.groupby("agent"):
            (shown[agent],) = axes.plot(curve[against], curve["median_return"], "--", color=_GREY)
            ends = curve["lowest_return"], curve["highest_return"]
            axes.fill_between(curve[against], *ends, color=_GREY, alpha=0.25, lw=0)
        axes.set_title(game.replace("_", " "), fontsize=10)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    figure.supxlabel(_AXES[against], fontsize=10)
    figure.supylabel("mean raw return of training games", fontsize=10)
    figure.legend(shown.values(), shown, loc="outside upper left", ncols=len(shown))
    return figure


def compare(
    paths: Iterable[str], tables: Iterable[str], curves: str, against: str, output: Path
) -> None:
    """Writes the table of runs, with those of other files, and its figure.

    Raises UserError, and ValueError of a file that lacks a column.
    """
    parts = [tabulate(path) for path in find_runs(paths)]
    parts += [pd.read_csv(path, usecols=list(parts[0])) for path in tables]
    table = pd.concat(parts)
    if table.empty:
        raise UserError(f"no run has come to {_WINDOW} million agent steps yet")
    columns = ["game", "agent", against, "lowest_return", "median_return", "highest_return"]
    ranges = pd.read_csv(curves, usecols=columns) if curves else pd.DataFrame(columns=columns)
    names = pd.Series([name for part in parts for name in part["run"].unique()])
    if names.duplicated().any():
        twice = ", ".join(names[names.duplicated()])
        raise UserError(f"several runs are called {twice}; rename their directories")
    output.mkdir(parents=True, exist_ok=True)
    table.to_csv(output / "returns.csv", index=False, float_format="%.6g")
    draw(table, ranges, against).savefig(output / "returns.png", dpi=150)


def main(_: list[str]) -> None:
    """Compares the runs of the flags."""
    output = Path(_FLAGS.output).expanduser()
    compare(_FLAGS.runs, _FLAGS.tables, _FLAGS.curves, _FLAGS.against, output)


if __name__ == "__main__":
    flags.DEFINE_list("runs", None, "Directories of runs, or of folders of them.", required=True)
    flags.DEFINE_list("tables", [], "CSV files with the columns of returns.csv, to be added.")
    flags.DEFINE_string("curves", "", "CSV file of ranges of other systems' runs.")
    flags.DEFINE_enum("against", "agent_steps_millions", list(_AXES), "The figure's x-axis.")
    flags.DEFINE_string("output", None, "Folder to write to.", required=True)
    program.run(main, _FLAGS, OSError, ValueError)
