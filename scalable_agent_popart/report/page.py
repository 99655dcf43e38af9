"""Computes what the report's templates are given, and writes it with its figures and tables."""

import base64
import errno
import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report import figures, tables
from scalable_agent_popart.report.compare import Comparison, compare, experiment, in_words
from scalable_agent_popart.report.films import write_films
from scalable_agent_popart.report.final_scores import IMPALA, PAPERS_MEAN, FinalScores, columns
from scalable_agent_popart.report.read import RECENT_EPISODES, Population, Run, read_run
from scalable_agent_popart.report.render import interval, one_line, render_report, short
from scalable_agent_popart.report.summary import agents_numbers, scores_by_task, summarise
from scalable_agent_popart.suites import Suite

_DOTS_PER_INCH = 110
_NUMBER = "%.9g"  # Nine digits are all a float32 holds.
_SUMMARY = "summary.csv"
_MAX_NAMED = 12  # Segments of an ancestry that are told in words.
_MAX_COLUMNS = 8  # Tasks in a table with a column for each.
_MAX_DRAWN = 60  # Tasks in a figure with a part for each; those of Atari-57 can be read.
# The head and the style of each measure's column.
_PROGRESS = {
    "frames_per_second": ("Frames/s (median)", ",.0f"),
    "memory_mib": ("Memory, at most (MiB)", ",.0f"),
    "entropy": ("Entropy (median, nats)", ".3g"),
}


class Written(NamedTuple):
    """Holds the lines that the terminal shows once a report is written."""

    left_out: list[str]  # A line for each run or table that is not in it, and why.
    outcome: list[str]  # The lines of a table of agents' scores for each comparison.


def write_report(
    paths: Sequence[str],
    report_dir: str,
    suite: Suite | None = None,
) -> Written:
    """Writes a report on the runs in some directories.

    What is in the directories may be anybody's. Its text is never markup, neither in the page nor
    in the Markdown, and no file of them gets into the page but the pixels of films.

    Raises UserError if no run can be read, or nothing written.
    """
    runs, skipped = [], []
    for path in {Path(path).resolve(): path for path in paths}.values():
        try:
            runs.append(read_run(path))
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
        sections, names = [], Counter[str]()
        for comparison in comparisons:
            name = _name(comparison.suite)
            names[name] += 1
            name += f"-{names[name]}" if names[name] > 1 else ""
            sections.append(_Section(comparison, name, directory))
        summary = pd.concat([own.summary.assign(comparison=own.name) for own in sections])
        summary = summary.set_index("comparison")
        summary.to_csv(directory / _SUMMARY, errors="replace", float_format=_NUMBER)
        published = any(section.published for section in sections)
        found = [own for comparison in comparisons for own in comparison.runs]
        content = {
            "title": "Comparison with the published results" if published else "Results",
            "runs": [(own.label, run, _members(run.population), _dates(run)) for own, run in found],
            "skipped": skipped,
            "sections": [section.content() for section in sections],
            "films": write_films(comparisons, directory, skipped),
            "summary": _SUMMARY,
            "recent": RECENT_EPISODES,
            "most_drawn": _MAX_DRAWN,
            "impala": IMPALA,
            "papers_mean": PAPERS_MEAN.replace("_", " "),
        }
        for ending, text in render_report(content).items():
            # Names of files need not be text.
            file = directory / f"report.{ending}"
            file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(
            f"--report_dir={report_dir} cannot be written to ({error}); give another one"
        ) from error
    outcome = [line for section in sections for line in section.outcome()]
    return Written([one_line(line) for line in skipped], [one_line(line) for line in outcome])


def _name(suite: Suite) -> str:
    """Returns the name with which the files of a comparison begin."""
    if suite.whole:
        return suite.name
    several = len(suite.tasks) > 1
    part = f"{len(suite.tasks)}-tasks" if several else re.sub(r"[^\w.-]", "-", suite.tasks[0])
    return f"{suite.name}-{part}"


def _runs(row: Mapping[str, Any], total: int = 0) -> str:
    """Describes how many runs a score is of, and whether of their tests or their training."""
    number, source = row["runs"], "tested" if row["source"] == "test" else "in training"
    return f"{number}{f' of {total}' * (total > number)} run{'s' * (number > 1)}, {source}"


def _dates(run: Run) -> str:
    """Returns when a run began and ended, or got to by now, in UTC."""
    times = run.logs["progress"]["time"]
    times = times[times.between(0, 1e10)]  # What is later was no time.
    if not len(times):
        return ""
    ends = pd.to_datetime(times.agg(["min", "max"]), unit="s")
    first, last = (f"{time:%Y-%m-%d %H:%M}" for time in ends)
    return f"{first} to {last.removeprefix(first[:11])}"


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
    """

    def __init__(self, comparison: Comparison, name: str, directory: Path):
        self._comparison = comparison
        self._suite = comparison.suite
        self.name = name
        self._directory = directory
        self._finals = [FinalScores(comparison, column) for column in columns(self._suite)]
        self._recorded = tables.recorded(comparison)
        self.summary = summarise(self._finals, self._recorded)
        self.published = bool((self.summary["kind"] == "published").any())
        self._styles = figures.styles_of(
            [(own.name, own.runs[0].config.reward_clipping, own.label) for own in comparison.agents]
        )
        # The name of the aggregate over tasks that agents are compared by first.
        self._headline = f"{self._suite.headline.replace('_', ' ')} {self._suite.score_name}"

    def outcome(self) -> list[str]:
        """Lists the agents' scores, as a table for the terminal."""
        title = f"{self._headline.capitalize()} [95% interval], {self._comparison.title}"
        headline = {"task": self._suite.headline, "kind": "agent"}
        rows = agents_numbers(self.summary, "aggregate", **headline)
        several = rows["protocol"].nunique() > 1  # Such as no-op and human starts.
        cells = [
            (
                own["agent"],
                interval(own, unit=self._suite.unit),
                _runs(own) + f", {own['protocol']}" * several,
            )
            for own in rows.to_dict("records")
        ]
        if not cells:
            return [f"{title}: none yet, as no run has finished an episode of every task"]
        widths = [max(len(row[i]) for row in cells) for i in range(2)]
        return [title, *(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in cells)]

    def content(self) -> dict[str, Any]:
        """Writes figures and tables; returns what the template is given. None has no part."""
        levels = [self._levels(final) for final in self._finals]
        return {
            "title": self._comparison.title,
            "headline": self._headline,
            "published": self.published,
            "unit": self._suite.unit,
            "normalised": self._suite.normalised,
            "scores": [own for own in map(self._scores, self._finals) if own],
            "scored": len(self._suite.reference_scores.keys() & set(self._suite.tasks)),
            "known": len(self._suite.reference_scores),
            "differences": self._differences(),
            "learning_curves": self._learning_curves(),
            "returns": self._returns(),
            "progress": self._progress(),
            "statistics": self._statistics(),
            "gradients": self._gradients(),
            "levels": [own for own in levels if own],
            "populations": self._populations(),
            "hyperparameters": self._hyperparameters(),
        }

    def _figure(self, figure: Figure, name: str, says: str) -> dict[str, str]:
        file = f"figures/{self.name}-{name}.png"
        figure.savefig(self._directory / file, dpi=_DOTS_PER_INCH)
        data = base64.b64encode((self._directory / file).read_bytes()).decode()
        return {"file": file, "says": says, "data": data}

    def _figures(
        self, draw: Callable[[pd.DataFrame], Figure], table: pd.DataFrame, name: str, says: str
    ) -> list[dict[str, str]]:
        """Writes a figure for each reward clipping, as in the paper."""
        title = self._comparison.title
        return [
            self._figure(
                draw(own),
                f"{name}-{clipping}",
                f"{title}, {in_words('reward_clipping', clipping)}: {says}",
            )
            for clipping, own in table.groupby("reward_clipping", sort=False)
        ]

    def _by_task(
        self,
        draw: Callable[[pd.DataFrame], Figure],
        table: pd.DataFrame,
        name: str,
        says: str,
        file: str,
    ) -> dict[str, Any]:
        """Writes figures with a part for each task of a table, unless these are too many."""
        tasks = table["task"].nunique()
        drawn = self._figures(draw, table, name, says) if tasks <= _MAX_DRAWN else []
        return {"figures": drawn, "tasks": tasks, "says": says, "file": file}

    def _file(self, table: pd.DataFrame, name: str) -> str:
        file = f"tables/{self.name}-{name}.csv"
        path = self._directory / file
        table.to_csv(path, index=False, errors="replace", float_format=_NUMBER)
        return file

    def _scores(self, final: FinalScores) -> dict[str, Any] | None:
        """Returns each agent's aggregates over tasks, the headline first, and their profiles."""
        column, suite = final.column, self._suite
        own = self.summary[self.summary["protocol"] == column.name]
        if not len(own) and not column.trained_on:
            return None
        several = suite.normalised and len(suite.tasks) > 1
        runs = {agent.label: len(agent.runs) for agent in self._comparison.agents}
        rows = {agent: {"Agent": agent, suite.headline: ""} for agent in runs}
        sources = {}
        for entry in agents_numbers(own, "aggregate").to_dict("records"):
            agent, name = entry["agent"], entry["task"]
            row = rows.setdefault(agent, {"Agent": agent, suite.headline: ""})
            if name == suite.headline or several:
                row[name] = interval(entry, unit=suite.unit)
            if entry["kind"] == "measured":
                sources[agent] = f"{entry['episodes']} episodes per task"
            if entry["kind"] == "agent":
                frames = dict.fromkeys((entry["fewest_frames"], entry["most_frames"]))
                sources[agent] = (
                    f"{_runs(entry, runs[agent])}, episodes per task: {entry['episodes']}, "
                    f"{' to '.join(map(short, frames))} frames"
                )
        heads = list(dict.fromkeys(head for row in rows.values() for head in row))
        for agent, row in rows.items():
            rows[agent] = {h: row.get(h, "") for h in heads} | {"from": sources.get(agent, "")}
        drawn = []
        scores = own[(own["kind"] == "run") & (own["measure"] == "normalised")]
        if several and len(scores):
            configs = {agent.label: agent.runs[0].config for agent in self._comparison.agents}
            clippings = scores["agent"].map(lambda label: configs[label].reward_clipping)
            draw = functools.partial(figures.profiles, suite=suite, styles=self._styles)
            says = f"share of tasks above each score, {column.title}"
            table = scores.assign(reward_clipping=clippings)
            drawn = self._figures(draw, table, f"profiles-{column.name}", says)
        table = _table([{n.replace("_", " "): v for n, v in row.items()} for row in rows.values()])
        return {"final": final, "table": table, "figures": drawn}

    def _differences(self) -> dict[str, Any] | None:
        """Returns how far apart every two agents are that have several runs each."""
        table = self.summary[self.summary["kind"] == "difference"]
        few = len(self._suite.tasks) <= _MAX_COLUMNS
        rows: dict[tuple[str, str, str], dict[str, str]] = {}
        for final in self._finals:
            headline = self._suite.headline
            heads = {
                ("aggregate", headline): f"{headline} over tasks",
                ("aggregate", "probability_of_improvement"): "probability of improvement (%)",
            }
            if len(self._suite.tasks) > 1:
                heads["aggregate", "interquartile_mean"] = "interquartile mean"
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
                    row[head] += f", p = {entry.p:.2g}" * pd.notna(entry.p)
        return _table(list(rows.values())) if rows else None

    def _learning_curves(self) -> dict[str, Any] | None:
        table = self._recorded["learning_curves"]
        if not len(table):
            return None
        names = list(dict.fromkeys(agent.name for agent in self._comparison.agents))
        trained_on = next(own for own in self._finals if own.column.trained_on)
        clippings = table["reward_clipping"].unique()
        targets = {clipping: trained_on.targets(clipping, names) for clipping in clippings}
        random = self.summary.query(
            f"kind == 'measured' and task == '{self._suite.headline}' and "
            f"protocol == '{trained_on.column.name}'"
        )["value"]

        def draw(own: pd.DataFrame) -> Figure:
            published = targets[own["reward_clipping"].iloc[0]]
            return figures.learning_curves(own, self._suite, published, self._styles, random)

        says = f"{self._headline} against frames"
        return {
            "figures": self._figures(draw, table, "learning-curves", says),
            "published": any(targets.values()),
            "file": self._file(table, "learning-curves"),
        }

    def _returns(self) -> dict[str, Any] | None:
        """Draws each task's returns, of few tasks or of those without reference scores."""
        known = self._suite.reference_scores
        few = len(self._suite.tasks) <= _MAX_COLUMNS
        tasks = [task for task in self._suite.tasks if few or task not in known]
        table = tables.returns(self._comparison, tasks)
        if not len(table):
            return None
        says, file = "each task's returns against frames", self._file(table, "returns")
        draw = functools.partial(figures.returns, styles=self._styles)
        return self._by_task(draw, table, "returns", says, file)

    def _progress(self) -> dict[str, Any] | None:
        progress = self._recorded["progress"]
        if not len(progress):
            return None
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
        behind = [
            f"{run.path}: at {run.frames:,} frames, and another run of {agent.label} is farther"
            for agent, run in self._comparison.runs
            if (agent, run) not in self._comparison.even_runs
        ]
        file = self._file(progress, "progress")
        return {"table": _table(rows), "file": file, "behind": behind}

    def _statistics(self) -> dict[str, Any] | None:
        table = self._recorded["statistics"]
        if not len(table):
            return None
        says, file = "shift and scale by task, above returns", self._file(table, "statistics")
        draw = functools.partial(figures.statistics, styles=self._styles)
        of_all = "scales of all tasks next to each other"
        return self._by_task(draw, table, "statistics", says, file) | {
            "scales": self._figures(figures.scales, table, "scales", of_all),
            "several_runs": table.groupby("agent")["run"].nunique().max() > 1,
        }

    def _gradients(self) -> dict[str, Any] | None:
        table = self._recorded["gradients"]
        if not len(table):
            return None
        rows: dict[Any, dict[str, str]] = {}
        for loss in dict.fromkeys(table["loss"]):
            for kind, says in (("size", "size (median)"), ("part", "part of all sizes (mean)")):
                for entry in agents_numbers(self.summary, f"{loss}_gradient_{kind}").itertuples():
                    ends = entry.value, entry.low, entry.high, ".1%"
                    if kind == "size":
                        ends = entry.median, entry.lowest, entry.highest, ".3g"
                    key = {"Agent": entry.agent, "Task": entry.task}
                    row = rows.setdefault((entry.agent, entry.task), key)
                    row[f"{loss} loss: {says}"] = _with_ends(*ends)
        policy, says = table[table["loss"] == "policy"], "size of tasks' policy gradients"
        file = self._file(table, "gradients")
        common = self.summary.query("measure.str.endswith('_gradient_size')")["most_frames"].max()
        return self._by_task(figures.gradients, policy, "gradients", says, file) | {
            "table": _table(list(rows.values())),
            "frames": f"{common:,}",
        }

    def _levels(self, final: FinalScores) -> dict[str, Any] | None:
        protocol, title = final.column.name, final.column.title
        table = scores_by_task(self.summary, protocol)
        if not (table["kind"] == "agent").any():  # Nothing is final yet.
            return None
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
        normalised = table[table["measure"] == "normalised"]
        ours = normalised.loc[normalised["kind"] == "agent", "agent"]
        says, drawn = f"{self._suite.score_name} of each level, {title}", []
        if len(ours) and normalised["task"].nunique() <= _MAX_DRAWN:
            figure = figures.breakdown(normalised, self._suite, self._styles)
            drawn = [self._figure(figure, f"levels-{protocol}", says)]
        return {
            "column": title,
            "table": _table(list(rows.values())),
            "agent": ours.iloc[-1] if len(ours) else None,
            "figures": drawn,
            "tasks": normalised["task"].nunique(),
            "says": says,
            "file": _SUMMARY,
        }

    def _populations(self) -> list[dict[str, Any]]:
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
            if len(passed) > _MAX_NAMED:
                passed = ["...", *passed[-_MAX_NAMED:]]
            drawn = figures.population(population)
            parts.append(
                {
                    "population": population,
                    "figure": self._figure(drawn, f"population-{number}", says),
                    "copies": {0: "no copy", 1: "one copy"}.get(copies, f"{copies} copies"),
                    "ancestry": passed,
                    "ancestries_file": ancestries,
                    "events_file": events,
                }
            )
        return parts

    def _hyperparameters(self) -> dict[str, Any]:
        """Returns the flags that shape learning: a table of those that differ, and the others."""
        flags_of = {own.label: experiment(own.runs[0]) for own in self._comparison.agents}
        rows, shared = [], []
        for name in dict.fromkeys(name for own in flags_of.values() for name in own):
            values = {agent: str(own.get(name, "")) for agent, own in flags_of.items()}
            if len({*values.values()}) > 1:
                rows.append({"Flag": name, **values})
            elif name != "dataset_path":  # Few levels show images, so it hardly matters.
                shared.append(f"--{name}={next(iter(values.values()))}")
        return {"table": _table(rows), "shared": shared}


def _with_ends(value: float, low: float, high: float, style: str) -> str:
    """Writes a value over runs with the ends of its interval or range, if it has any width."""
    return f"{value:{style}}" + (f" [{low:{style}}, {high:{style}}]" if high > low else "")


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, list]:
    """Returns a table whose columns are the keys of the rows, in order."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return {"heads": heads, "rows": [[row.get(head, "") for head in heads] for row in rows]}
