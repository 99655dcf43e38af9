"""Computes which share of each game runs have learned, compares agents, and draws the figure.

  python results/two_scales/shares.py runs/two_scales/natural runs/two_scales/inverted OUTPUT

`shares.csv` has a row per run and game, `runs.csv` one per run with the plan's measure, and
`comparisons.csv` the differences between the two agents that the plan compares.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from games import FILE
from matplotlib.figure import Figure

from scalable_agent_popart import scores
from scalable_agent_popart.report.drawing import COLOURS
from scalable_agent_popart.report.read import Run, read_runs
from scalable_agent_popart.runs.directory import find_runs

_CONDITIONS = ["natural", "inverted"]
_AGENTS = ["PopArt-IMPALA", "IMPALA"]  # The first minus the second is compared.
_SEEDS = 5  # So many runs of both agents are compared in each condition.
_LEARNED = 50.0  # A game counts as learned from this share on.


def tabulate(run: Run, games: pd.DataFrame) -> pd.DataFrame:
    """Makes a row per game of a run.

    A `share` is of the way from measured random play to the game's reference, in percent. A
    `gradient` is the game's mean part of the policy's gradient over the run, in percent, and an
    `entropy` is the policy's in nats at the end.
    """
    test = max(run.evaluations, key=lambda each: each.frames)
    assert test.frames >= run.config.total_environment_frames, f"{run.path} has no test at its end"
    returns = pd.Series({game: test.returns[game].mean() for game in games.index})
    logged = run.numbers("task_metrics", ["policy_gradient_norm"])
    norms = logged.pivot(index="frames", columns="task", values="policy_gradient_norm")
    # A game without a rollout in the batch adds nothing to its gradient.
    parts = norms.div(norms.sum(axis="columns"), axis="index").fillna(0.0).mean()
    entropies = run.numbers("task_metrics", ["entropy"]).groupby("task")["entropy"].last()
    config = run.config
    scaled = config.use_popart or config.reward_scale != 1
    about = {
        "condition": "inverted" if config.suite.name == "inverted" else "natural",
        "agent": config.agent_name if scaled else f"{config.agent_name}, raw rewards",
        "seed": run.seed,
        "game": games.index,
        "return": returns,
        "share": 100 * (returns - games["random"]) / (games["reference"] - games["random"]),
        "gradient": 100 * parts.reindex(games.index),
        "entropy": entropies.reindex(games.index),
    }
    return pd.DataFrame(about)


def measure(shares: pd.DataFrame) -> pd.DataFrame:
    """Makes a row per run: the mean share within 0 and 100, the worst, and the games learned."""
    by_run = shares.assign(
        bounded=shares["share"].clip(0, 100), learned=shares["share"] >= _LEARNED
    )
    return by_run.groupby(
        ["condition", "agent", "seed"], sort=False, as_index=False, observed=True
    ).agg(measure=("bounded", "mean"), worst=("share", "min"), learned=("learned", "sum"))


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """Makes a row per condition: the first agent's measure minus the second's, tested.

    The interval is Welch's at 95%, `p` is of the exact permutation test, and `p_of_two` is
    corrected for both conditions as Holm does.
    """
    rows = []
    for condition, of_condition in runs.groupby("condition", sort=False, observed=True):
        by_agent = of_condition.groupby("agent")["measure"]
        both = (by_agent.get_group(agent).to_numpy() for agent in _AGENTS)
        rows.append({"condition": condition, **scores.difference_over_seeds(*both)._asdict()})
    table = pd.DataFrame(rows)
    ranks = table["p"].rank(method="first")
    corrected = (table["p"] * (len(table) + 1 - ranks)).clip(upper=1.0)
    in_order = corrected[table["p"].argsort(kind="stable")]
    return table.assign(p_of_two=in_order.cummax())


def draw(shares: pd.DataFrame, games: pd.DataFrame) -> Figure:
    """Draws a panel per condition: each game's mean share by agent, with runs as dots."""
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    panels = figure.subplots(1, len(_CONDITIONS), sharey=True)
    in_order = games["scale"].sort_values().index
    for axes, condition in zip(panels, _CONDITIONS, strict=True):
        for i, agent in enumerate(_AGENTS):
            rows = shares[(shares["condition"] == condition) & (shares["agent"] == agent)]
            table = rows.pivot(index="game", columns="seed", values="share").loc[in_order]
            places = np.arange(len(table)) + 0.42 * (i - 0.5)
            axes.bar(places, table.mean(axis="columns"), 0.4, color=COLOURS[agent], label=agent)
            for runs in table.to_numpy().T:
                axes.plot(places, runs, "o", color="black", ms=3.5, mfc="white", mew=0.8)
        names = [game.replace("_", " ") for game in in_order]
        axes.set_xticks(np.arange(len(names)), names, fontsize=11, rotation=20, ha="right")
        axes.set_title(f"{condition} rewards", fontsize=13)
        axes.axhline(100, color="grey", lw=0.8, ls=":")
        axes.tick_params(axis="y", labelsize=11)
    panels[0].set_ylabel("share of IMPALA alone (%)", fontsize=12)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=12)
    return figure


def main(*arguments: str) -> None:
    """Writes the tables and the figure of runs in some folders; the last argument is the output."""
    *folders, output = map(Path, arguments)
    games = pd.read_csv(FILE, index_col="game").query("chosen")
    runs, problems = read_runs(find_runs(map(str, folders)))
    assert not problems, problems
    shares = pd.concat([tabulate(run, games) for run in runs], ignore_index=True)
    shares["condition"] = pd.Categorical(shares["condition"], _CONDITIONS)
    shares = shares.sort_values(["condition", "agent", "seed"], kind="stable", ignore_index=True)
    measured = measure(shares)
    assert not measured.duplicated(["condition", "agent", "seed"]).any(), "a seed has two runs"
    numbers = measured.groupby(["condition", "agent"], observed=True).size().unstack("agent")
    assert (numbers.loc[_CONDITIONS, _AGENTS] == _SEEDS).all(axis=None), numbers
    output.mkdir(parents=True, exist_ok=True)
    tables = {"shares": shares, "runs": measured, "comparisons": compare(measured)}
    for name, table in tables.items():
        table.to_csv(output / f"{name}.csv", index=False, float_format="%.6g")
    draw(shares, games).savefig(output / "shares.png", dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
