"""What became of a population's members: every comparison, and where each stands."""

from pathlib import Path
from typing import Any

import pandas as pd

from scalable_agent_popart.report.ancestry import Segment
from scalable_agent_popart.report.comparison import Agent, Comparison
from scalable_agent_popart.report.curves import RUN_COLUMNS, run_columns
from scalable_agent_popart.report.populations import Population
from scalable_agent_popart.report.runs import Run

_EVENT = (
    "comparison",
    "frames",
    "fitness",
    "partner",
    "partner_fitness",
    "copied",
    "source_frames",
)
_MOST_NAMED = 12


def populations(comparison: Comparison) -> list[tuple[Agent, Run, Population]]:
    """Each population of which there is a run, once; where only members were asked for, of one."""
    found: dict[Path, tuple[Agent, Run, Population]] = {}
    for agent in comparison.agents:
        for run in agent.runs:
            if run.population is not None:
                path = run.population.path.resolve()
                if path not in found or run.population.whole:
                    found[path] = agent, run, run.population
    return list(found.values())


def events(comparison: Comparison) -> pd.DataFrame:
    """The lineages of all members, a row a start or comparison.

    `frames` are the member's own; values of hyperparameters are those from there on.
    """
    rows: list[dict[str, Any]] = []
    tuned: dict[str, None] = {}
    for agent, run, population in populations(comparison):
        tuned.update(dict.fromkeys(population.config.tuned))
        for member in population.members.values():
            for event in member.lineage:
                own = event._asdict()
                values = own.pop("hyperparameters")
                rows.append(
                    {**run_columns(agent, run), "member": member.number, **own}
                    | {name: values.get(name) for name in tuned}
                )
    columns = [*RUN_COLUMNS, "member", *_EVENT, *tuned, "started_over"]
    counts = dict.fromkeys(("partner", "source_frames"), "Int64")
    return pd.DataFrame(rows, columns=columns).astype(counts)


def members(population: Population) -> list[dict[str, str]]:
    """Where each member stands, for people; the fittest first."""
    rows = []
    for member in sorted(population.members.values(), key=lambda own: own.standing, reverse=True):
        score = "" if member.score is None else f"{member.score:.1f}%"
        latest = member.lineage[-1].hyperparameters if member.lineage else {}
        rows.append(
            {
                "Member": member.name,
                "Score": score if member.complete or not score else f"{score} so far",
                "Frames": f"{member.frames:,}",
                "Comparisons": str(member.lineage[-1].comparison if member.lineage else 0),
                "Copies": str(len(member.copies)),
                **{
                    name: f"{latest[name]:.3g}" if name in latest else ""
                    for name in population.config.tuned
                },
            }
        )
    return rows


def ancestries(comparison: Comparison) -> pd.DataFrame:
    """The segments of each population's ancestry, oldest first.

    `first` and `last` are frames of the member's own, `learned_first` and `learned_last` those
    that the weights have learned from.
    """
    rows = [
        {
            **run_columns(agent, run),
            "member": segment.member,
            "first": segment.first,
            "last": last,
            "learned_first": segment.first + segment.offset,
            "learned_last": last + segment.offset,
        }
        for agent, run, population in populations(comparison)
        for segment, last in _ended(population)
    ]
    return pd.DataFrame(rows)


def descent(population: Population) -> str:
    """The ancestry in words, or the later part of it if it is long."""
    parts = [
        f"member {segment.member} ({segment.first:,} to {last:,})"
        for segment, last in _ended(population)
    ]
    return ("..., then " if len(parts) > _MOST_NAMED else "") + ", then ".join(parts[-_MOST_NAMED:])


def _ended(population: Population) -> list[tuple[Segment, int]]:
    """The segments, and where each ends: that of the present at the newest known frames."""
    return [
        (
            segment,
            population.members[segment.member].frames if segment.last is None else segment.last,
        )
        for segment in population.segments
    ]
