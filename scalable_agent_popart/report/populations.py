"""Populations: their members, the comparisons between these, and the way through copies."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogFormatter

from scalable_agent_popart.population.directory import Event
from scalable_agent_popart.report.chapter import Chapter
from scalable_agent_popart.report.compare import RUN_COLUMNS, Comparison, columns_of
from scalable_agent_popart.report.drawing import VIRIDIS, frames_axis, legend, plain, score_axis
from scalable_agent_popart.report.read import Member, Population

# Members' scores: steps are equal to the eye, and yellow is left out as too light for lines.
_SCORES: Colormap = ListedColormap(VIRIDIS(np.linspace(0.05, 0.92, 256)))
_GREY = "#B0B0B0"
_MAX_SEGMENTS = 12  # Segments of an ancestry that the page names.
_WORDS = """
{% for population, figure, ancestry, heads, rows in parts %}
<h3>Population-based training in <code>{{ population.path }}</code></h3>
{{ figure }}
<p>The ancestry of {{ ancestry }}. All of it is in {{ link(ancestries_file) }}.</p>
{{ table(heads, rows) }}
<p>Scores are mean capped, of each task's last {{ recent }} training episodes; hyperparameters are
the present ones. All members together have processed
{{ "{:,}".format(population.members.values() | sum("frames")) }} frames. Every comparison is in
{{ link(events_file) }}.</p>
{% endfor %}
"""


def find(comparison: Comparison) -> list[tuple[dict[str, Any], Population]]:
    """Returns each population, after what its rows have in their `RUN_COLUMNS`."""
    runs = comparison.runs
    return [(columns_of(agent, run), run.population) for agent, run in runs if run.population]


def events(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per start or comparison, with the member's own frames: populations' lineages."""
    populations = find(comparison)
    rows = [
        {**columns, "member": number, **event._asdict(), **event.hyperparameters}
        for columns, population in populations
        for number, member in population.members.items()
        for event in member.lineage
    ]
    tuned = dict.fromkeys(name for _, p in populations for name in p.best.config.tuned)
    names = ["member", *Event._fields[: Event._fields.index("hyperparameters")], *tuned]
    table = pd.DataFrame(rows, columns=[*RUN_COLUMNS, *names, "started_over"])
    return table.astype(dict.fromkeys(("partner", "source_frames"), "Int64"))


def summarise(comparison: Comparison) -> pd.DataFrame:
    """Returns training scores of populations' best, median and worst members, if all have one."""
    rows = []
    for columns, population in find(comparison):
        members = population.members.values()
        known = [m.score for m in members if m.complete and m.score is not None]
        if len(known) == population.best.config.population_size:
            frames = [member.frames for member in members]
            about = {**columns, "source": "training"}
            about |= {"fewest_frames": min(frames), "most_frames": max(frames)}
            values = {"best": max(known), "median": np.median(known), "worst": min(known)}
            for name, value in values.items():
                rows.append({**about, "measure": f"{name}_member", "value": value})
    return pd.DataFrame(sorted(rows, key=lambda row: row["measure"]))


def ancestries(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per segment of each population's ancestry, oldest first, in both frame counts."""
    rows = [
        {
            **columns,
            "member": segment.member,
            "first": segment.first,
            "last": population.end(segment),
            "learned_first": segment.first + segment.offset,
            "learned_last": population.end(segment) + segment.offset,
        }
        for columns, population in find(comparison)
        for segment in population.segments
    ]
    return pd.DataFrame(rows)


def draw(population: Population) -> Figure:
    """Draws fitness and each tuned hyperparameter of a population, against members' own frames."""
    members = sorted(population.members.values(), key=lambda member: member.rank)  # Best on top.
    tuned, suite = population.best.config.tuned, population.best.config.suite
    flags: list[str | None] = [*tuned]
    if not tuned or any(event.comparison for member in members for event in member.lineage):
        flags.insert(0, None)  # Fitness.
    # Panels come in pairs: where there is one too many, the first has a row.
    cells = flags[: len(flags) % 2] + flags
    panels: Any = [cells[i : i + 2] for i in range(0, len(cells), 2)]
    figure = Figure(figsize=(10, 1.1 + 2.6 * len(panels)), layout="constrained")
    farthest = max(member.frames for member in members)
    unit = frames_axis(figure, farthest, len(suite.tasks), "A member's own environment frames")
    known = [member.score for member in members if member.score is not None]
    norm = Normalize(min(known, default=0.0), max(known, default=100.0))
    ancestry_of = f"ancestry of {population.best.name}, the best"
    halo = [withStroke(linewidth=3.2, foreground="white")]
    black: dict[str, Any] = {"color": "black", "zorder": 4}
    for flag, axes in figure.subplot_mosaic(panels).items():
        axes.set_title(
            plain(flag or f"fitness at comparisons ({suite.unit or 'return'})"), fontsize=10
        )
        style: dict[str, Any] = {"drawstyle": "steps-post" if flag else "default"}
        curves = {member.number: _curve(member, flag) for member in members}
        values = pd.concat(curves.values())["value"].dropna()
        for member in members:
            curve = curves[member.number]
            colour = _GREY if member.score is None else _SCORES(norm(member.score))
            width = 0.35 if flag else 0.9  # What changes at once is paler than what stays.
            line = {"color": colour, "lw": width, "alpha": 0.8, "label": "a member"} | style
            axes.plot(curve.index / unit, curve["value"], **line)
            if flag:
                ends = curve.index[:-1] / unit, curve.index[1:] / unit
                axes.hlines(curve["value"].iloc[:-1], *ends, color=colour, lw=1)
            copied = curve.loc[curve["copied"], "value"]
            axes.plot(
                copied.index / unit, copied, "o", color=colour, ms=3.5,
                mec="white", mew=0.4, label="resumes from a copy",
            )  # fmt: skip
        ancestry = [
            _ancestry(curves[segment.member], segment.first, population.end(segment), flag)
            for segment in population.segments
        ]
        for part in ancestry:
            line = {"lw": 1.8, "path_effects": halo, "label": ancestry_of, **black, **style}
            axes.plot(part.index / unit, part, **line)
        for before, after in itertools.pairwise(ancestry):
            if len(before) and len(after):
                link = pd.concat([before[-1:], after[:1]])
                between = "from the copied to the copy"
                axes.plot(link.index / unit, link, lw=1.2, ls=":", label=between, **black)
        if flag and len(values) and values.min() > 0:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(LogFormatter())
            minor = LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5))
            axes.yaxis.set_minor_formatter(minor)
        axes.tick_params(labelsize=8, which="both")
        axes.grid(alpha=0.3)
        axes.set_xlim(0, max(farthest, 1) / unit * 1.01)
    text = f"{score_axis(suite, 'mean_capped')} now"
    figure.colorbar(ScalarMappable(norm, _SCORES), ax=figure.axes, label=text, aspect=40)
    legend(figure, figure.axes[0])
    return figure


def _curve(member: Member, flag: str | None) -> pd.DataFrame:
    """Makes a member's curve by frames: its values, and whether it resumes from a copy there.

    Values are those of a hyperparameter from each frame on, and until now. Without a flag they are
    the fitness at comparisons, of the weights before a copy and of those copied.
    """
    points: list[tuple[int, float | None, bool]] = []
    for event in member.lineage:  # There is no fitness where training had diverged.
        if flag:
            points.append((event.frames, event.hyperparameters.get(flag), event.copied))
            continue
        if event.comparison:
            points.append((event.frames, event.fitness, False))
        if event.copied:
            points.append((event.frames, event.partner_fitness, True))
    if flag and points:
        points.append((member.frames, points[-1][1], False))
    table = pd.DataFrame(points, columns=["frames", "value", "copied"]).set_index("frames")
    return table.astype({"value": float, "copied": bool})


def _ancestry(curve: pd.DataFrame, first: int, end: int, flag: str | None) -> pd.Series:
    """Returns the part of a member's curve that an ancestry passes through, between two frames."""
    frames, copied, values = curve.index, curve["copied"], curve["value"]
    if flag:
        part = values[(frames >= first) & (frames < end)]
        return pd.concat([part, part[-1:].set_axis([end][: len(part)])])
    return values[(copied & (frames == first)) | (~copied & (frames > first) & (frames <= end))]


def write(chapter: Chapter) -> str:
    """Writes a figure and a table of each population, and the files of all."""
    populations = find(chapter.comparison)
    if not populations:
        return ""
    says = f"{chapter.comparison.title}: hyperparameters and fitness of a population's members"
    parts = []
    for number, (_, population) in enumerate(populations, start=1):
        figure = chapter.figure(draw(population), f"population-{number}", says)
        members = _tabulate_members(population)
        parts.append((population, figure, _describe_ancestry(population), *members))
    return chapter.render(
        _WORDS,
        parts=parts,
        events_file=chapter.file(events(chapter.comparison), "populations"),
        ancestries_file=chapter.file(ancestries(chapter.comparison), "ancestries"),
    )


def _describe_ancestry(population: Population) -> str:
    """Describes the way of a population's weights in words; a long one by its end."""
    copies = len(population.segments) - 1
    count = {0: "no copy", 1: "one copy"}.get(copies, f"{copies} copies")
    ways = [
        f"member {segment.member} ({segment.first:,} to {population.end(segment):,})"
        for segment in population.segments[-_MAX_SEGMENTS:]
    ]
    way = ", then ".join(["..."] * (copies >= _MAX_SEGMENTS) + ways)
    return f"{population.best.name}, through {count}, by frames of each member's own: {way}"


def _tabulate_members(population: Population) -> tuple[list[str], list[list[Any]]]:
    """Returns the heads and the rows of the table of members, the fittest first."""
    config, rows = population.best.config, []
    for member in sorted(population.members.values(), key=lambda m: m.rank, reverse=True):
        latest = member.lineage[-1] if member.lineage else None
        values = latest.hyperparameters if latest else {}
        so_far = "" if member.complete else " so far"
        rows.append([
            member.name,
            "" if member.score is None else f"{member.score:.1f}{config.suite.unit}{so_far}",
            f"{member.frames:,}",
            latest.comparison if latest else 0,
            sum(event.copied for event in member.lineage),
            *(f"{values[name]:.3g}" if name in values else "" for name in config.tuned),
        ])  # fmt: skip
    heads = ["Member", "Score", "Frames", "Comparisons", "Copies", *config.tuned]
    return heads, rows
