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
from scalable_agent_popart.report.finals import Column, Finals
from scalable_agent_popart.report.population_tables import descent, members
from scalable_agent_popart.report.populations import Population
from scalable_agent_popart.report.records import RECENT_EPISODES
from scalable_agent_popart.report.runs import Run
from scalable_agent_popart.report.tables import FinalScores

_WORDS = {"mean": "mean", "median": "median", "mean_capped": "mean capped"}
_POPULATIONS = (
    "A population is one run: the line of descent of its best member's weights through all copies. "
    "Its frames are those that these weights have learned from, so those that one instance of the "
    "population has processed."
)
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
            "Run": _code(str(run.path)) + _members(run),
            "Seed": run.seed,
            "Frames": f"{run.frames:,} of {run.config.total_environment_frames:,}",
            "Episodes": f"{len(run.episodes):,}",
            "Tests": ", ".join(sorted({test.starts for test in run.evaluations})) or "none yet",
            "Precision": run.config.precision,
            "Device": run.device or "not recorded",
        }
        for comparison in comparisons
        for agent in comparison.agents
        for run in agent.runs
    ]
    text = ["# Comparison with the published results", "## Runs", _table(rows)]
    if any(r.population for c in comparisons for agent in c.agents for r in agent.runs):
        text.append(_POPULATIONS)
    return "\n\n".join([*text, *_lines("Skipped:", skipped)])


def _members(run: Run) -> str:
    """What there is to know of a run beside its path if it is of a population."""
    population = run.population
    if population is None:
        return ""
    if not population.whole:
        place = ", now its best" if population.shown is population.best else ""
        return f", of a population of {population.size}{place}"
    waiting = population.size - len(population.members)
    rest = f", {waiting} not begun" if waiting else ""
    return f", population of {population.size}, best: {population.best.name}{rest}"


def population_section(population: Population, figure: str, files: Sequence[str]) -> str:
    """What became of one population.

    Args:
      population: whole, or that of a member.
      figure: Markdown of its figure.
      files: the names of the tables of all comparisons and of the ancestry.
    """
    together = sum(member.frames for member in population.members.values())
    sources = len(population.segments) - 1
    times = {0: "no copy", 1: "one copy"}.get(sources, f"{sources} copies")
    return "\n\n".join(
        [
            f"### Population-based training in {_code(str(population.path))}",
            figure,
            f"The ancestry of {population.shown.name}, through {times}, by frames of each member's "
            f"own: {descent(population)}. {files[1]}",
            _table(members(population)),
            f"Scores are mean capped, of each task's last {RECENT_EPISODES} training episodes; "
            "hyperparameters are the present ones. All members together have processed "
            f"{together:,} frames. Every comparison: {files[0]}",
        ]
    )


def table_1_section(
    comparison: Comparison,
    tables: Mapping[Column, pd.DataFrame],
    finals: Mapping[Column, Finals],
    of_columns: Mapping[Column, FinalScores],
) -> str:
    """The paper's Table 1 for one benchmark: published and ours beside each other."""
    suite = comparison.suite
    cells: dict[str, dict[str, str]] = {agent.label: {} for agent in comparison.agents}
    if all(found.complete for found in of_columns.values()):
        for agent, clipping in published.agents(suite.name):
            row = cells.setdefault(label(agent, suite, reward_clipping=clipping), {})
            for column in tables:
                theirs = published.aggregate(suite.name, clipping, column.name, agent)
                row[f"{column.title}: published"] = f"{theirs:.1f}%"
    for column, table in tables.items():
        for _, entry in table.iterrows():
            row = cells.setdefault(entry["agent"], {})
            if pd.notna(entry["published"]):
                row[f"{column.title}: published"] = f"{entry['published']:.1f}%"
            if pd.notna(entry["score"]):
                row[f"{column.title}: ours"] = _score(entry)
                row[f"{column.title}: from"] = _origin(entry)
    heads = [f"{c.title}: {what}" for c in tables for what in ("published", "ours", "from")]
    rows = [
        {"Agent": name, **{head: row.get(head, "") for head in heads}}
        for name, row in sorted(cells.items(), key=lambda cell: cell[0] == published.IMPALA)
    ]
    left_out = [f"{c.title}: {line}" for c, found in finals.items() for line in found.left_out]
    return "\n\n".join(
        [
            f"### Table 1: {_WORDS[suite.headline]} human-normalised score",
            _table(rows),
            *_notes(comparison, tables, of_columns),
            *_lines("Returns that do not count here:", left_out),
        ]
    )


def _score(entry: pd.Series) -> str:
    text = f"{entry['score']:.1f}%"
    if pd.notna(entry["low"]):
        text += f" [{entry['low']:.1f}, {entry['high']:.1f}]"
    return text + (" †" if entry["source"] == "training" else "")


def _origin(entry: pd.Series) -> str:
    runs, frames = entry["runs"], _short(entry["fewest_frames"])
    if entry["most_frames"] > entry["fewest_frames"]:
        frames += f" to {_short(entry['most_frames'])}"
    return f"{runs} run{'s' * (runs > 1)}, {entry['episodes']} episodes a task, {frames} frames"


def _short(frames: float) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if frames >= unit:
            return f"{frames / unit:.3g}{letter}"
    return f"{frames:.0f}"


def _notes(
    comparison: Comparison,
    tables: Mapping[Column, pd.DataFrame],
    of_columns: Mapping[Column, FinalScores],
) -> list[str]:
    """What has to be known to read the table right."""
    suite = comparison.suite
    notes = [
        "In brackets, 95% intervals. Those of a single run are bootstraps over its episodes, and "
        "say nothing of how another seed would do. Those of several are of their mean, by "
        "Student's t, which knows of no least or greatest score: two runs leave it very wide."
    ]
    if any((table["source"] == "training").any() for table in tables.values()):
        notes.append(
            "† not tested yet (`--mode=test`): the last "
            f"{RECENT_EPISODES} episodes of each task in training."
        )
    whole, scored = len(suite.reference_scores), set(suite.tasks) & set(suite.reference_scores)
    if not suite.normalised:
        notes.append("Scores are raw returns: this suite has no random and human scores.")
    if not scored:
        notes.append("Random and human scores of these levels are not known.")
    elif len(scored) < whole:
        notes.append(
            f"**A subset**: all scores are over {len(scored)} of {whole} tasks. That of "
            f"{published.IMPALA} is computed from its published scores of the same tasks; the "
            "PopArt paper has scores over all tasks only, which are left out here."
        )
    for column, found in of_columns.items():
        if found.inverted:
            notes.append(
                f"{column.title}: the published human does worse than random play in "
                f"{', '.join(found.inverted)}, so that normalised scores there are upside down."
            )
    return notes


def course_table(table: pd.DataFrame) -> str:
    """Speed, memory, entropy and batches, a row a run."""

    def known(value: float, text: str) -> str:
        return text if pd.notna(value) else ""

    return _table(
        [
            {
                "Agent": row.agent,
                "Seed": row.seed,
                "Frames/s (median)": f"{row.frames_per_second:,.0f}",
                "Memory, at most (MiB)": known(row.memory_mib, f"{row.memory_mib:,.0f}"),
                "Entropy (median, nats)": known(row.entropy, f"{row.entropy:.3g}"),
                "Tasks in its batches, and the share of each": known(
                    row.tasks, f"{row.tasks:.0f}, {row.least:.2%} to {row.most:.2%}"
                ),
            }
            for row in table.itertuples()
        ]
    )


def levels_table(table: pd.DataFrame) -> str:
    """Normalised scores, a row a level and a column an agent; of several runs with intervals."""
    known = table.dropna(subset="normalised")
    rows: dict[str, dict[str, str]] = {}
    for entry in known.to_dict("records"):
        cell = f"{entry['normalised']:.1f}%"
        if pd.notna(entry["runs"]) and entry["runs"] > 1:
            cell += f" [{entry['low']:.1f}, {entry['high']:.1f}]"
        rows.setdefault(entry["level"], {})[entry["agent"]] = cell
    agents = dict.fromkeys(known["agent"])
    return _table(
        [{"Level": level, **{a: row.get(a, "") for a in agents}} for level, row in rows.items()]
    )


def gradients_section(table: pd.DataFrame) -> str:
    """What each task adds to the gradients, a row an agent, loss and measure."""
    rows = []
    for (agent, loss), own in table.groupby(["agent", "loss"], sort=False):
        measured = own.dropna(subset="norm").itertuples()
        sizes = {
            row.task: _with_ends(row.norm, row.least_norm, row.most_norm, ".3g") for row in measured
        }
        parts = {
            row.task: _with_ends(row.part, row.low_part, row.high_part, ".1%")
            for row in own.itertuples()
        }
        rows += [{"Agent": agent, "": f"{loss} loss: size (median)", **sizes}]
        rows += [{"Agent": agent, "": f"{loss} loss: part of all sizes (mean)", **parts}]
    return "\n\n".join(
        [
            _table(rows),
            "The gradient of a batch's loss to the agent's weights is the sum of its tasks' "
            "gradients; of the policy's loss alone, which the figure shows, or of the total, with "
            "the values' loss, which reaches the shared layers as well. Size: the length of a "
            "task's, in batches that it has rollouts in. Part: that over the sum of all tasks' "
            "sizes, which says nothing where these are next to zero. Of each run the mean part and "
            "the median size, up to the frames that all runs have reached. Then, over runs, the "
            "mean part, in brackets its 95% interval by Student's t; and the median size, in "
            "brackets the least and the greatest of a run. What comes after is not in it: the "
            "clipping to `--max_grad_norm` and RMSProp's division. The figure has a panel for each "
            "seed, or, of many, for each agent: for each stretch of training the median size of "
            "all its runs' records, and the mean over runs of the part, its 95% interval shaded.",
        ]
    )


def _with_ends(value: float, low: float, high: float, style: str) -> str:
    """A value over runs and the ends of its interval or range, if it has any width."""
    return f"{value:{style}}" + (f" [{low:{style}}, {high:{style}}]" if high > low else "")


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


def _lines(head: str, lines: Sequence[str]) -> list[str]:
    return [head, "\n".join(f"* {_code(line)}" for line in lines)] if lines else []


def _code(text: str) -> str:
    """Text that Markdown and HTML are to leave as it is."""
    return "`" + text.replace("`", "'").replace("\n", " ") + "`"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; all rows have the keys of the first."""
    heads = list(rows[0])
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    lines += [[str(row[head]).replace("|", "\\|") for head in heads] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
