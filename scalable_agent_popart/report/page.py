"""Writes the report: one Markdown text, the same as an HTML page, its figures and its tables."""

import base64
import errno
import functools
import html
import re
import string
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import markdown
import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report import figures, tables
from scalable_agent_popart.report.compare import Comparison, agent_label, compare
from scalable_agent_popart.report.final_scores import IMPALA, FinalScores, columns
from scalable_agent_popart.report.read import RECENT_EPISODES, Population, read_run
from scalable_agent_popart.report.summary import agents_numbers, scores_by_task, summarise
from scalable_agent_popart.suites import Suite

_DATA = resources.files(__package__) / "data"
_NOTES = tomllib.loads((_DATA / "notes.toml").read_text(encoding="utf-8"))
_DOTS_PER_INCH = 110
_NUMBER = "%.9g"  # Of a float32 all there is, and half the digits of what is computed from it.
_SUMMARY = "summary.csv"
_MAX_NAMED = 12  # Segments of an ancestry that are told in words.
_MAX_COLUMNS = 8  # Tasks in a table with a column for each.
_MAX_DRAWN = 60  # Tasks in a figure with a part for each; those of Atari-57 can be read.
# What Markdown or HTML would take for markup; within words underscores are none.
_MARKUP = re.compile(r"([\\`*|]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))")
# What else Python-Markdown knows, and a report has none of.
_UNUSED = (
    *("reference", "link", "image_reference", "short_reference", "short_image_ref"),
    *("autolink", "automail", "linebreak", "html"),
)
# Of each run: head and style of a measure's column.
_PROGRESS = {
    "frames_per_second": ("Frames/s (median)", ",.0f"),
    "memory_mib": ("Memory, at most (MiB)", ",.0f"),
    "entropy": ("Entropy (median, nats)", ".3g"),
}


def write_report(
    paths: Sequence[str],
    report_dir: str,
    suite: Suite | None = None,
) -> list[str]:
    """Writes a report on the runs in some directories; returns a line for each thing left out.

    What is in the directories may be anybody's. Its text is never markup, neither in the page nor
    in the Markdown, and no file of them gets into the page.

    Raises UserError if no run can be read, or nothing written.
    """
    runs, skipped = [], []
    for path in {Path(path).resolve(): path for path in paths}.values():
        try:
            runs.append(read_run(path, suite))
            skipped += runs[-1].problems
        except UserError as error:
            skipped.append(f"{path} skipped: {error}")
    comparisons, left_out = compare(runs, suite)
    skipped += left_out
    for agent in (agent for comparison in comparisons for agent in comparison.agents):
        for seed, count in Counter(run.seed for run in agent.runs).items():
            if count > 1:
                told = f"{count} runs have seed {seed} and count as independent ones"
                skipped.append(f"{agent.label}: {told}; give each run once")
    if not comparisons:
        raise UserError(f"there is no run to report on: {'; '.join(skipped)}")
    directory = Path(report_dir)
    try:
        for folder in ("figures", "tables"):
            (directory / folder).mkdir(parents=True, exist_ok=True)
        sections: list[_Section] = []
        parts, names = list[str](), Counter[str]()
        for comparison in comparisons:
            suite, tasks = comparison.suite, comparison.suite.tasks
            part = f"{len(tasks)}-tasks" if len(tasks) > 1 else _as_file(tasks[0])
            name = suite.name if suite.whole else f"{suite.name}-{part}"
            names[name] += 1
            name += f"-{names[name]}" if names[name] > 1 else ""
            sections.append(_Section(comparison, name, directory))
            parts += sections[-1].write()
        summary = pd.concat([own.summary.assign(comparison=own.name) for own in sections])
        summary = summary.set_index("comparison")
        summary.to_csv(directory / _SUMMARY, errors="replace", float_format=_NUMBER)
        published = any(section.published for section in sections)
        title = "Comparison with the published results" if published else "Results"
        text = "\n\n".join([f"# {title}", *_runs(comparisons, skipped), *parts])
        page = _as_html(text, title, directory, [f for own in sections for f in own.figures])
        for file, content in (("report.md", text + "\n"), ("report.html", page)):
            # Names of files need not be text.
            (directory / file).write_text(content, encoding="utf-8", errors="replace")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(
            f"--report_dir={report_dir} cannot be written to ({error}); give another one"
        ) from error
    return [figures.one_line(line) for line in skipped]


def _runs(comparisons: Sequence[Comparison], skipped: Sequence[str]) -> list[str]:
    """Returns what was read, how far each run is, and what could not be read."""
    found = [own for comparison in comparisons for own in comparison.runs]
    rows = [
        {
            "Agent": agent.label,
            "Run": _Markdown(_code(str(run.path)) + _members(run.population)),
            "Seed": run.seed,
            "Frames": f"{run.frames:,} of {run.config.total_environment_frames:,}",
            "Episodes": f"{len(run.logs['episodes']):,}",
            "Tests": ", ".join(sorted({test.starts for test in run.evaluations})) or "none yet",
            "Precision": run.config.precision,
            "Device": run.device or "not recorded",
        }
        for agent, run in found
    ]
    parts = ["## Runs", _table(rows)]
    if any(run.population for _, run in found):
        parts.append(_note("population"))
    return [*parts, *_lines("Skipped, or doubtful:", skipped)]


def _members(population: Population | None) -> str:
    if population is None:
        return ""
    size = population.shown.config.population_size
    if not population.whole:
        is_best = population.shown is population.best
        return f", of a population of {size}{', now its best' * is_best}"
    waiting = size - len(population.members)
    rest = f", {waiting} not begun" * (waiting > 0)
    return f", population of {size}, best: {population.best.name}{rest}"


class _Section:
    """One comparison's part of a report in a directory, with its files.

    Attributes:
      name: with which its files begin.
      summary: all numbers of the comparison, see `summary.summarise`.
      published: whether any of them was published.
      figures: the files of those written, in the directory.
    """

    def __init__(self, comparison: Comparison, name: str, directory: Path):
        self._comparison = comparison
        self._suite = comparison.suite
        self.name = name
        self._directory = directory
        self._finals = [FinalScores(comparison, column) for column in columns(self._suite)]
        self._recorded = tables.recorded(comparison)
        self.summary = summarise(self._finals, self._recorded)
        self.published = bool((self.summary["kind"] == "published").any()) or any(
            final.papers for final in self._finals
        )
        self.figures: list[str] = []
        self._styles = figures.styles_of([(own.name, own.label) for own in comparison.agents])

    def write(self) -> list[str]:
        """Writes figures and tables; returns the paragraphs of the text."""
        return [
            f"## {_plain(self._comparison.title)}",
            *self._final_scores(),
            *self._differences(),
            *self._learning_curves(),
            *self._progress(),
            *self._statistics(),
            *self._gradients(),
            *(part for own in self._finals for part in self._breakdown(own)),
            *self._populations(),
        ]

    @property
    def _headline(self) -> str:
        """The name of the aggregate over tasks that agents are compared by first."""
        return f"{self._suite.headline.replace('_', ' ')} {self._suite.score_name}"

    def _figure(self, figure: Figure, name: str, says: str) -> str:
        file = f"figures/{self.name}-{name}.png"
        figure.savefig(self._directory / file, dpi=_DOTS_PER_INCH)
        self.figures.append(file)
        return f"![{_plain(re.sub('[][]', ' ', says))}]({file})"

    def _figures(
        self, draw: Callable[[pd.DataFrame], Figure], table: pd.DataFrame, name: str, says: str
    ) -> list[str]:
        """Writes a figure for each reward clipping, as in the paper."""
        title = self._comparison.title
        return [
            self._figure(draw(own), f"{name}-{clipping}", f"{title}, rewards {clipping}: {says}")
            for clipping, own in table.groupby("reward_clipping", sort=False)
        ]

    def _too_many(self, table: pd.DataFrame, says: str, file: str) -> list[str]:
        """Returns a note that there is no figure with a part for each task, of too many tasks."""
        tasks = table["task"].nunique()
        values = {"says": says, "tasks": tasks, "most": _MAX_DRAWN, "file": file}
        return [_note("too_many", **values)] if tasks > _MAX_DRAWN else []

    def _file(self, table: pd.DataFrame, name: str) -> str:
        file = f"tables/{self.name}-{name}.csv"
        path = self._directory / file
        table.to_csv(path, index=False, errors="replace", float_format=_NUMBER)
        return f"`{file}`"

    def _final_scores(self) -> list[str]:
        """Returns the paper's Table 1 for one benchmark: ours, beside any that are published."""
        suite = self._suite
        own = agents_numbers(self.summary, "aggregate", task=suite.headline)
        kinds = ("published", "ours", "from") if self.published else ("ours", "from")
        heads = [f"{final.column.title}: {what}" for final in self._finals for what in kinds]
        known = {agent.label: len(agent.runs) for agent in self._comparison.agents}
        cells: dict[str, dict[str, str]] = {label: {} for label in known}
        left_out = []
        for final in self._finals:
            title = final.column.title
            left_out += [f"{title}: {line}" for line in final.left_out]
            for (name, clipping), theirs in final.papers.items():
                label = agent_label(name, suite, reward_clipping=clipping)
                cells.setdefault(label, {})[f"{title}: published"] = f"{theirs:.1f}%"
            for entry in own[own["protocol"] == final.column.name].itertuples():
                row = cells.setdefault(entry.agent, {})
                if entry.kind == "published":
                    row[f"{title}: published"] = f"{entry.value:.1f}%"
                    continue
                row[f"{title}: ours"] = (
                    f"{entry.value:.1f}{suite.unit}"
                    + (f" [{entry.low:.1f}, {entry.high:.1f}]" if pd.notna(entry.low) else "")
                    + " †" * (entry.source == "training")
                )
                frames = dict.fromkeys((entry.fewest_frames, entry.most_frames))
                of = f"of {known[entry.agent]} " if known[entry.agent] > entry.runs else ""
                row[f"{title}: from"] = (
                    f"{entry.runs} {of}{'run' if known[entry.agent] == 1 else 'runs'}, "
                    f"{entry.episodes} episodes a task, "
                    f"{' to '.join(map(_short, frames))} frames"
                )
        order = sorted(cells, key=lambda agent: agent == IMPALA)
        rows = [{"Agent": agent, **dict.fromkeys(heads, ""), **cells[agent]} for agent in order]
        return [
            f"### {'Table 1' if self.published else 'Final scores'}: {self._headline}",
            _table(rows),
            *self._notes((own["source"] == "training").any()),
            *_lines("Returns that do not count here:", left_out),
            _note("summary", file=f"`{_SUMMARY}`"),
        ]

    def _differences(self) -> list[str]:
        """Returns how far apart every two agents are that have several runs each."""
        table = self.summary[self.summary["kind"] == "difference"]
        few = len(self._suite.tasks) <= _MAX_COLUMNS
        rows: dict[tuple[str, str, str], dict[str, str]] = {}
        for final in self._finals:
            headline = self._suite.headline
            heads = {("aggregate", headline): f"{headline} over tasks"}
            for level in final.column.levels.values() if few else ():
                heads |= {("normalised", level): level, ("return", level): f"{level} (return)"}
            heads["mean_over_training", headline] = f"{headline} over tasks, over training"
            own = table[table["protocol"] == final.column.name].set_index(["measure", "task"])
            for key, head in heads.items():
                for entry in own.loc[own.index.isin([key])].itertuples():
                    row = rows.setdefault((final.column.name, entry.agent, entry.versus), {})
                    row["Agents"] = f"{entry.agent} over {entry.versus}"
                    if table["protocol"].nunique() > 1:
                        row["Test"] = final.column.title
                    row[head] = f"{entry.value:.1f}"
                    if pd.notna(entry.low):
                        row[head] += f" [{entry.low:.1f}, {entry.high:.1f}], g = {entry.effect:.1f}"
                    row[head] += f", p = {entry.p:.2g}"
        if not rows:
            return []
        return ["### Differences between agents", _table(list(rows.values())), _note("differences")]

    def _notes(self, any_training: bool) -> list[str]:
        known = self._suite.reference_scores
        scored = known.keys() & set(self._suite.tasks)
        holds = {
            "intervals": True,
            "training": any_training,
            "raw": not self._suite.normalised,
            "unknown": not scored,
            "subset": 0 < len(scored) < len(known),
            "subset_published": 0 < len(scored) < len(known) and self.published,
        }
        values = {"scored": len(scored), "known": len(known), "impala": IMPALA}
        return [_note(name, **values) for name, true in holds.items() if true] + [
            _note("inverted", column=own.column.title, levels=_plain(", ".join(own.inverted)))
            for own in self._finals
            if own.inverted
        ]

    def _learning_curves(self) -> list[str]:
        table = self._recorded["learning_curves"]
        returns = self._returns()
        if not len(table):
            return ["### Learning curves", _note("no_curves"), *returns]
        names = list(dict.fromkeys(agent.name for agent in self._comparison.agents))
        trained_on = next(own for own in self._finals if own.column.trained_on)
        clippings = table["reward_clipping"].unique()
        targets = {clipping: trained_on.targets(clipping, names) for clipping in clippings}

        def draw(own: pd.DataFrame) -> Figure:
            published = targets[own["reward_clipping"].iloc[0]]
            return figures.learning_curves(own, self._suite, published, self._styles)

        return [
            "### Learning curves",
            *self._figures(draw, table, "learning-curves", f"{self._headline} against frames"),
            _note("learning_curves", file=self._file(table, "learning-curves")),
            *([_note("dotted")] if any(targets.values()) else []),
            *returns,
        ]

    def _returns(self) -> list[str]:
        """Draws each task's returns, of few tasks or of those without reference scores."""
        known = self._suite.reference_scores
        tasks = [task for task in self._suite.tasks if task not in known]
        if len(self._suite.tasks) <= _MAX_COLUMNS:
            tasks = list(self._suite.tasks)
        table = tables.returns(self._comparison, tasks)
        if not len(table):
            return []
        file, says = self._file(table, "returns"), "each task's returns against frames"
        if too_many := self._too_many(table, says, file):
            return too_many
        draw = functools.partial(figures.returns, styles=self._styles)
        return [*self._figures(draw, table, "returns", says), _note("returns", file=file)]

    def _progress(self) -> list[str]:
        progress = self._recorded["progress"]
        if not len(progress):
            return []
        rows = []
        for _, run in self.summary.query("kind == 'run'").groupby("run", sort=False):
            of = {measure: own["value"] for measure, own in run.groupby("measure")}
            first, shares = run.iloc[0], of.get("batch_share", pd.Series(dtype=float))
            row = {"Agent": first["agent"], "Seed": first["seed"]}
            for measure, (head, style) in _PROGRESS.items():
                row[head] = "".join(f"{value:{style}}" for value in of.get(measure, ()))
            if len(shares):
                row["Tasks in its batches, and the share of each"] = (
                    f"{(shares > 0).sum()}, {shares.min():.2%} to {shares.max():.2%}"
                )
            rows.append(row)
        file = self._file(progress, "progress")
        even = self._comparison.even_runs
        behind = [
            f"{run.path}: at {run.frames:,} frames, and another run of {agent.label} is farther"
            for agent, run in self._comparison.runs
            if (agent, run) not in even
        ]
        return [
            "### Training progress",
            _table(rows),
            f"All of it: {file}.",
            *_lines("Records that do not count here and in what follows:", behind),
        ]

    def _statistics(self) -> list[str]:
        table = self._recorded["statistics"]
        if not len(table):
            return []
        several = table.groupby("agent")["run"].nunique().max() > 1
        file, says = self._file(table, "statistics"), "shift and scale by task, above returns"
        by_task = self._too_many(table, says, file)
        if not by_task:
            draw = functools.partial(figures.statistics, styles=self._styles)
            drawn = self._figures(draw, table, "statistics", says)
            by_task = [*drawn, _note("statistics", file=file)]
        says = "scales of all tasks beside each other"
        return [
            "### Normalisation statistics",
            *by_task,
            *self._figures(figures.scales, table, "scales", says),
            *([_note("scales")] if several else []),
        ]

    def _gradients(self) -> list[str]:
        table = self._recorded["gradients"]
        if not len(table):
            return []
        rows: dict[Any, dict[str, str]] = {}
        many = table["task"].nunique() > _MAX_COLUMNS
        for loss in dict.fromkeys(table["loss"]):
            for kind, says in (("size", "size (median)"), ("part", "part of all sizes (mean)")):
                own = agents_numbers(self.summary, f"{loss}_gradient_{kind}")
                for entry in own.itertuples():
                    head = f"{loss} loss: {says}"
                    if kind == "size":
                        ends = entry.median, entry.lowest, entry.highest, ".3g"
                    else:
                        ends = entry.value, entry.low, entry.high, ".1%"
                    if many:
                        row = rows.setdefault(entry.task, {"Task": entry.task})
                        row[f"{entry.agent}, {head}"] = _with_ends(*ends)
                    else:
                        both = {"Agent": entry.agent, "": head}
                        row = rows.setdefault((entry.agent, head), both)
                        row[entry.task] = _with_ends(*ends)

        def draw(own: pd.DataFrame) -> Figure:
            return figures.gradients(tables.gradients_over_frames(own))

        policy, says = table[table["loss"] == "policy"], "size of tasks' policy gradients"
        file = self._file(table, "gradients")
        drawn = self._too_many(policy, says, file)
        if not drawn:
            drawn = [*self._figures(draw, policy, "gradients", says), _note("gradients_figure")]
        common = self.summary.query("measure.str.endswith('_gradient_size')")["most_frames"].max()
        note = _note("gradients", frames=f"{common:,}", file=file)
        return ["### Gradients by task", *drawn, _table(list(rows.values())), note]

    def _breakdown(self, final: FinalScores) -> list[str]:
        protocol = final.column.name
        table = scores_by_task(self.summary, protocol)
        if (table["kind"] == "published").all():  # Nothing final yet.
            return []
        normalised, figure = table[table["measure"] == "normalised"], []
        ours = normalised.loc[normalised["kind"] == "agent", "agent"]
        if len(ours):
            says = f"{self._suite.score_name} of each level, {final.column.title}"
            figure = self._too_many(normalised, says, f"`{_SUMMARY}`")
            if not figure:
                drawn = figures.breakdown(normalised, self._suite, self._styles)
                note = _note("levels", agent=_plain(ours.iloc[-1]))
                figure = [self._figure(drawn, f"levels-{protocol}", says), note]
        remarks = table.dropna(subset="remark").set_index("task")["remark"].to_dict()
        rows: dict[str, dict[str, str]] = {}
        for entry in table.itertuples():
            raw = entry.measure == "return"
            cell = f"{entry.value:.1f}{'' if raw else self._suite.unit}"
            if pd.notna(entry.runs) and entry.runs > 1:
                cell += f" [{entry.low:.1f}, {entry.high:.1f}]"
            remark = remarks.get(entry.task, "return" if raw else "")
            named = f"{entry.task} ({remark})" if remark else entry.task
            rows.setdefault(entry.task, {"Level": named})[entry.agent] = cell
        return [
            f"### Scores by level, {final.column.title}",
            *figure,
            _table(list(rows.values())),
        ]

    def _populations(self) -> list[str]:
        found = tables.populations(self._comparison)
        if not found:
            return []
        events = self._file(tables.events(self._comparison), "populations")
        ancestries = self._file(tables.ancestries(self._comparison), "ancestries")
        says = f"{self._comparison.title}: hyperparameters and fitness of a population's members"
        parts = []
        for number, (*_, population) in enumerate(found, start=1):
            copies = len(population.segments) - 1
            passed = [
                f"member {segment.member} ({segment.first:,} to {population.end(segment):,})"
                for segment in population.segments
            ]
            frames = sum(member.frames for member in population.members.values())
            if len(passed) > _MAX_NAMED:
                passed = ["...", *passed[-_MAX_NAMED:]]
            parts += [
                f"### Population-based training in {_code(str(population.directory.path))}",
                self._figure(figures.population(population), f"population-{number}", says),
                _note(
                    "ancestry",
                    member=population.shown.name,
                    copies={0: "no copy", 1: "one copy"}.get(copies, f"{copies} copies"),
                    ancestry=", then ".join(passed),
                    file=ancestries,
                ),
                _table(_standings(population, self._suite.unit)),
                _note("standings", frames=f"{frames:,}", file=events),
            ]
        return parts


def _standings(population: Population, unit: str) -> list[dict[str, str]]:
    rows = []
    for member in sorted(population.members.values(), key=lambda own: own.rank, reverse=True):
        latest = member.lineage[-1] if member.lineage else None
        values = latest.hyperparameters if latest else {}
        so_far = "" if member.complete else " so far"
        row = {
            "Member": member.name,
            "Score": "" if member.score is None else f"{member.score:.1f}{unit}{so_far}",
            "Frames": f"{member.frames:,}",
            "Comparisons": str(latest.comparison if latest else 0),
            "Copies": str(sum(event.copied for event in member.lineage)),
        }
        tuned = population.shown.config.tuned
        rows.append(row | {n: f"{values[n]:.3g}" if n in values else "" for n in tuned})
    return rows


def _note(name: str, **values: Any) -> str:
    return _NOTES[name].format(recent=RECENT_EPISODES, **values)


def _short(frames: float) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if frames >= unit:
            return f"{frames / unit:.3g}{letter}"
    return f"{frames:.0f}"


def _with_ends(value: float, low: float, high: float, style: str) -> str:
    """Writes a value over runs with the ends of its interval or range, if it has any width."""
    return f"{value:{style}}" + (f" [{low:{style}}, {high:{style}}]" if high > low else "")


def _lines(head: str, lines: Sequence[str]) -> list[str]:
    return [head, "\n".join(f"* {_code(line)}" for line in lines)] if lines else []


def _as_file(task: str) -> str:
    """Gives a task's name as part of a file's."""
    return re.sub(r"[^\w.-]", "-", task)


class _Markdown(str):
    """Text that is Markdown already; any other is put into tables as it is."""


def _plain(text: str) -> str:
    """Returns Markdown that shows a text as it is."""
    return _MARKUP.sub(r"\\\1", html.escape(figures.one_line(text), quote=False))


def _code(text: str) -> str:
    """Returns Markdown that shows a text as it is, as code."""
    return "`" + figures.one_line(text).replace("`", "'") + "`"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table whose columns are the keys of the rows, in order."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines: list[Iterable[str]] = [map(_cell, heads), ["---", *["---:"] * (len(heads) - 1)]]
    lines += [[_cell(row.get(head, "")) for head in heads] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: Any) -> str:
    if isinstance(value, _Markdown):
        return value.replace("|", "\\|")
    return _plain(str(value))


def _as_html(text: str, title: str, directory: Path, own_figures: Collection[str]) -> str:
    """Makes a page of the Markdown that needs no other file: the report's figures are inside."""
    converter = markdown.Markdown(extensions=["tables"])
    converter.preprocessors.deregister("html_block")
    for name in _UNUSED:
        converter.inlinePatterns.deregister(name)

    def embed(image: re.Match[str]) -> str:
        if image[2] not in own_figures:
            return f'{image[1]}"'
        data = base64.b64encode((directory / image[2]).read_bytes()).decode()
        return f'{image[1]}data:image/png;base64,{data}"'

    body = re.sub(r'(<img alt="[^"]*" src=")([^"]*)"', embed, converter.convert(text))
    page = string.Template((_DATA / "page.html").read_text(encoding="utf-8"))
    return page.substitute(title=title, body=body)
