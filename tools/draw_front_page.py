"""Draws the figure of the front page: who learns which of five tasks at five scales of reward.

  python tools/draw_front_page.py

Reads `results/catch5/summary.csv` and writes `docs/figures/catch5.png`. Telephones show its letters
large enough.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

_ROOT = Path(__file__).resolve().parents[1]
_AGENTS = {"IMPALA": "#0072B2", "MultiHead-IMPALA": "#CC79A7", "PopArt-IMPALA": "#E69F00"}
_TASKS = {f"catch_{scale}": f"±{scale}" for scale in ("0.01", "0.1", "1", "10", "100")}
_BAR = 0.27  # A third of what a task has of the axis, which is 1.


def draw(table: pd.DataFrame) -> Figure:
    """Draws each agent's mean score per task as a bar, and each seed's as a dot."""
    figure = Figure(figsize=(8, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    table = table[(table["kind"] == "run") & (table["measure"] == "normalised")]
    for i, (agent, colour) in enumerate(_AGENTS.items()):
        of_agent = table[table["agent"] == f"{agent}, raw rewards"]
        by_seed = of_agent.pivot_table("value", "seed", "task")[list(_TASKS)]  # [seeds, tasks]
        places = np.arange(len(_TASKS)) + (i - 1) * _BAR
        axes.bar(places, by_seed.mean(), _BAR, color=colour, label=agent)
        axes.plot(places, by_seed.to_numpy().T, ".", color="black", markersize=5, alpha=0.6)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(np.arange(len(_TASKS)), list(_TASKS.values()), fontsize=17)
    axes.set_xlabel("a task's rewards", fontsize=17)
    axes.set_ylabel("score (%)", fontsize=17)
    axes.tick_params("y", labelsize=15)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, fontsize=15, frameon=False, handlelength=1)
    return figure


if __name__ == "__main__":
    results = pd.read_csv(_ROOT / "results/catch5/summary.csv")
    draw(results).savefig(_ROOT / "docs/figures/catch5.png", metadata={"Software": None})
