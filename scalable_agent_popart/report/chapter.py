"""A comparison's part of a report: what its sections are computed from, and where they write."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from scalable_agent_popart.report.compare import Comparison, in_words
from scalable_agent_popart.report.drawing import Styles, styles_of
from scalable_agent_popart.report.final_scores import FinalScores
from scalable_agent_popart.report.render import MAX_DRAWN, render
from scalable_agent_popart.suites import Suite

NUMBER = "%.9g"  # Nine digits are all a float32 holds.
SUMMARY = "summary.csv"
MAX_COLUMNS = 8  # Tasks in a table with a column for each.
_FIGURE = '<p><img alt="{{ says }}" src="data:image/png;base64,{{ data }}"></p>'

Draw = Callable[[pd.DataFrame], Figure]


@dataclass(frozen=True)
class Chapter:
    """One comparison's part of a report in a directory, with its files."""

    comparison: Comparison
    finals: Sequence[FinalScores]  # One for each way to test.
    recorded: Mapping[str, pd.DataFrame]  # See `summary.recorded`.
    summary: pd.DataFrame  # All numbers, see `summary.summarise`.
    name: str  # The chapter's files begin with it.
    directory: Path

    @property
    def suite(self) -> Suite:
        return self.comparison.suite

    @property
    def headline(self) -> str:
        """The name of the aggregate over tasks that agents are compared by first."""
        return f"{self.suite.headline.replace('_', ' ')} {self.suite.score_name}"

    @property
    def published(self) -> bool:
        """Returns whether the summary has published scores next to the agents' own."""
        return bool((self.summary["kind"] == "published").any())

    @property
    def clippings(self) -> dict[str, str]:
        """Each agent's reward clipping, by label; that of a file of scores is empty."""
        agents = self.comparison.agents
        return {agent.label: agent.runs[0].config.reward_clipping for agent in agents}

    @property
    def styles(self) -> Styles:
        """Each agent's look in figures, by label."""
        agents, clippings = self.comparison.agents, self.clippings
        return styles_of([(agent.name, clippings[agent.label], agent.label) for agent in agents])

    def figure(self, figure: Figure, name: str, says: str) -> Markup:
        """Writes a figure; returns it as the page embeds it."""
        path = self.directory / f"figures/{self.name}-{name}.png"
        figure.savefig(path, dpi=110)
        return render(_FIGURE, says=says, data=base64.b64encode(path.read_bytes()).decode())

    def figures(self, name: str, table: pd.DataFrame, draw: Draw, says: str) -> Markup:
        """Writes a figure for each reward clipping, as in the paper; files' agents are in all."""
        drawn, clippings = [], table["agent"].map(self.clippings)
        for clipping in filter(None, clippings.unique()):
            rows = table[clippings.isin([clipping, ""])]
            agents = in_words("reward_clipping", clipping)
            caption = f"{self.comparison.title}, {agents}: {says}"
            drawn.append(self.figure(draw(rows), f"{name}-{clipping}", caption))
        return Markup().join(drawn)

    def part(self, name: str, table: pd.DataFrame, draw: Draw, says: str) -> dict[str, Any] | None:
        """Writes a table and its figures; these are left out if they had too many parts.

        Returns None if there is nothing in the table.
        """
        if not len(table):
            return None
        tasks = table["task"].nunique() if "task" in table else 0
        return {
            "figures": self.figures(name, table, draw, says) if tasks <= MAX_DRAWN else "",
            "file": self.file(table, name),
            "tasks": tasks,
            "says": says,
            "several_runs": table.groupby("agent")["run"].nunique().max() > 1,
        }

    def file(self, table: pd.DataFrame, name: str) -> str:
        """Writes a table; returns its path in the report's directory."""
        file = f"tables/{self.name}-{name}.csv"
        path = self.directory / file
        table.to_csv(path, index=False, errors="replace", float_format=NUMBER)
        return file
