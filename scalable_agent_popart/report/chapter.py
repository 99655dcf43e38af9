"""A comparison's part of a report: what its chapters are computed from, and where they write."""

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart.report.compare import Comparison, in_words
from scalable_agent_popart.report.drawing import styles_of
from scalable_agent_popart.report.final_scores import FinalScores

_DOTS_PER_INCH = 110
NUMBER = "%.9g"  # Nine digits are all a float32 holds.
SUMMARY = "summary.csv"
MAX_COLUMNS = 8  # Tasks in a table with a column for each.
MAX_DRAWN = 60  # Tasks in a figure with a part for each; those of Atari-57 can be read.


class Chapter:
    """One comparison's part of a report in a directory, with its files.

    Attributes:
      name: with which its files begin.
      finals: the scores that count in the end, for each way to test.
      recorded: tables of what runs recorded, by name.
      summary: all numbers of the comparison, see `summary.summarise`.
      published: whether any of them was published.
      headline: the name of the aggregate over tasks that agents are compared by first.
      clippings: each agent's reward clipping, by label.
      styles: each agent's look in figures, by label.
    """

    def __init__(
        self,
        comparison: Comparison,
        finals: Sequence[FinalScores],
        recorded: Mapping[str, pd.DataFrame],
        summary: pd.DataFrame,
        name: str,
        directory: Path,
    ):
        self.comparison, self.suite, self.name = comparison, comparison.suite, name
        self.finals, self.recorded, self.summary = finals, recorded, summary
        self._directory = directory
        self.published = bool((summary["kind"] == "published").any())
        self.headline = f"{self.suite.headline.replace('_', ' ')} {self.suite.score_name}"
        self.clippings = {
            own.label: own.runs[0].config.reward_clipping for own in comparison.agents
        }
        self.styles = styles_of(
            [(own.name, self.clippings[own.label], own.label) for own in comparison.agents]
        )

    def figure(self, figure: Figure, name: str, says: str) -> dict[str, str]:
        """Writes a figure; returns its caption, and its bytes as the page embeds them."""
        file = f"figures/{self.name}-{name}.png"
        figure.savefig(self._directory / file, dpi=_DOTS_PER_INCH)
        data = base64.b64encode((self._directory / file).read_bytes()).decode()
        return {"says": says, "data": data}

    def figures(
        self, name: str, table: pd.DataFrame, draw: Callable[[pd.DataFrame], Figure], says: str
    ) -> list[dict[str, str]]:
        """Writes a figure for each reward clipping, as in the paper."""
        title = self.comparison.title
        return [
            self.figure(
                draw(own),
                f"{name}-{clipping}",
                f"{title}, {in_words('reward_clipping', clipping)}: {says}",
            )
            for clipping, own in table.groupby("reward_clipping", sort=False)
        ]

    def part(
        self, name: str, table: pd.DataFrame, draw: Callable[[pd.DataFrame], Figure], says: str
    ) -> dict[str, Any] | None:
        """Writes a table and its figures; these are left out if they had too many parts.

        Returns None if there is nothing in the table.
        """
        if not len(table):
            return None
        tasks = table["task"].nunique() if "task" in table else 0
        drawn = self.figures(name, table, draw, says) if tasks <= MAX_DRAWN else []
        several = table.groupby("agent")["run"].nunique().max() > 1
        about = {"tasks": tasks, "says": says, "several_runs": several}
        return {"figures": drawn, "file": self.file(table, name), **about}

    def file(self, table: pd.DataFrame, name: str) -> str:
        """Writes a table; returns its path in the report's directory."""
        file = f"tables/{self.name}-{name}.csv"
        path = self._directory / file
        table.to_csv(path, index=False, errors="replace", float_format=NUMBER)
        return file


def records(table: pd.DataFrame, rows: Any, columns: Any) -> dict[Any, dict[Any, dict[str, Any]]]:
    """Returns a table's records by the values of some columns, and then by those of others."""
    groups = table.groupby(rows, sort=False)
    return {key: own.set_index(columns, drop=False).to_dict("index") for key, own in groups}
