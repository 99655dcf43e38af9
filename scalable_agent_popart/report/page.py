"""The report as one Markdown text, and the same as one HTML page with its figures inside."""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import markdown
import pandas as pd

from scalable_agent_popart.report import published
from scalable_agent_popart.report.comparison import Comparison, label
from scalable_agent_popart.report.curves import RECENT_EPISODES
from scalable_agent_popart.report.finals import Column

_WORDS = {"mean": "mean", "median": "median", "mean_capped": "mean capped"}
_STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.85rem; }
th, td { border: 1px solid #ccc; padding: 0.25rem 0.6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { background: #f2f2f2; }
img { max-width: 100%; }
"""


def runs_section(comparisons: Sequence[Comparison], skipped: Sequence[str]) -> str:
    """What was read, how far each run is, and what could not be read."""
    rows = [
        {
            "Agent": agent.label,
            "Run": str(run.path),
            "Tasks": comparison.suite.level_name
            if len(comparison.suite.tasks) < 9
            else comparison.suite.name,
            "Seed": run.config.seed,
            "Frames": f"{run.frames:,} of {run.config.total_environment_frames:,}",
            "Episodes": f"{len(run.episodes):,}",
            "Tests": ", ".join(sorted({test.starts for test in run.evaluations})) or "none yet",
        }
        for comparison in comparisons
        for agent in comparison.agents
        for run in agent.runs
    ]
    text = ["# Comparison with the published results", "## Runs", _table(rows)]
    if skipped:
        text += ["Left out:", "\n".join(f"* {line}" for line in skipped)]
    return "\n\n".join(text)


def table_1_section(
    comparison: Comparison, tables: Mapping[Column, pd.DataFrame], complete: Mapping[Column, bool]
) -> str:
    """The paper's Table 1 for one benchmark: published and ours beside each other."""
    suite = comparison.suite
    names = [agent.label for agent in comparison.agents]
    cells: dict[str, dict[str, str]] = {name: {} for name in names}
    for column, table in tables.items():
        if complete[column]:
            for agent, clipping in published.agents(suite.name):
                theirs = published.aggregate(suite.name, clipping, column.name, agent)
                row = cells.setdefault(label(agent, suite, reward_clipping=clipping), {})
                row[f"{column.title}: published"] = f"{theirs:.1f}%"
        for _, entry in table.iterrows():
            row = cells.setdefault(entry["agent"], {})
            if pd.notna(entry["published"]):
                row[f"{column.title}: published"] = f"{entry['published']:.1f}%"
            if pd.notna(entry["score"]):
                row[f"{column.title}: ours"] = _score(entry)
                runs_and_frames = f"{entry['runs']:.0f}, {_short(entry['frames'])}"
                row[f"{column.title}: runs, frames"] = runs_and_frames
    heads = [f"{c.title}: {what}" for c in tables for what in ("published", "ours", "runs, frames")]
    rows = [
        {"Agent": name, **{head: row.get(head, "") for head in heads}}
        for name, row in cells.items()
    ]
    notes = [
        _coverage(comparison, column, table, complete[column]) for column, table in tables.items()
    ]
    return "\n\n".join(
        [
            f"### Table 1: {_WORDS[suite.headline]} human-normalised score",
            _table(rows),
            "In brackets, 95% bootstrap intervals: over seeds, or over a single run's episodes.",
            *(note for note in notes if note),
            *_footnotes(tables),
        ]
    )


def _short(frames: float) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if frames >= unit:
            return f"{frames / unit:.3g}{letter}"
    return f"{frames:.0f}"


def _score(entry: pd.Series) -> str:
    text = f"{entry['score']:.1f}%"
    if pd.notna(entry["low"]):
        text += f" [{entry['low']:.1f}, {entry['high']:.1f}]"
    return text + (" †" if entry["source"] == "training" else "")


def _coverage(comparison: Comparison, column: Column, table: pd.DataFrame, complete: bool) -> str:
    """Says so where not all tasks of the benchmark are compared."""
    suite = comparison.suite
    if complete or not len(table):
        return ""
    count, whole = int(table["tasks"].iloc[0]), len(suite.reference_scores)
    text = f"**A subset**, {column.title}: aggregates are over {count} of {whole} tasks, "
    text += (
        "those that all runs have final scores of. " if count < len(suite.tasks) else "as trained. "
    )
    if published.IMPALA in set(table["agent"]):
        text += f"{published.IMPALA}: computed from its published scores of the same tasks. "
    return text + "What the paper reports of its own agents is over all tasks, and left out here."


def _footnotes(tables: Mapping[Column, pd.DataFrame]) -> list[str]:
    if not any((table["source"] == "training").any() for table in tables.values()):
        return []
    return [
        f"† not tested yet (`--mode=test`): the last {RECENT_EPISODES} episodes a task of training."
    ]


def levels_table(table: pd.DataFrame) -> str:
    """Normalised scores, a row a level and a column an agent."""
    scores = table.pivot_table(index="level", columns="agent", values="normalised", sort=False)
    agents = [agent for agent in dict.fromkeys(table["agent"]) if agent in scores]
    return _table(
        [
            {"Level": level, **{a: f"{row[a]:.1f}%" if pd.notna(row[a]) else "" for a in agents}}
            for level, row in scores.iterrows()
        ]
    )


def as_html(text: str, figures: Path) -> str:
    """The Markdown as a page that needs no other file, with its images from `figures` inside."""

    def embed(source: re.Match[str]) -> str:
        data = base64.b64encode((figures / source[1]).read_bytes()).decode()
        return f'src="data:image/png;base64,{data}"'

    body = re.sub(
        rf'src="{figures.name}/([^"]+)"', embed, markdown.markdown(text, extensions=["tables"])
    )
    title = text.splitlines()[0].removeprefix("# ")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; all rows have the keys of the first."""
    heads = list(rows[0])
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    lines += [[str(row[head]).replace("|", "\\|") for head in heads] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
