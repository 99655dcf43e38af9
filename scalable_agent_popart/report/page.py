"""Computes what the report's templates are given, and writes it with its figures and tables."""

import base64
import errno
import functools
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart.errors import UserError, one_line
from scalable_agent_popart.report import figures, tables
from scalable_agent_popart.report.compare import Comparison, compare, experiment, in_words
from scalable_agent_popart.report.films import write_films
from scalable_agent_popart.report.final_scores import IMPALA, PAPERS_MEAN, FinalScores, columns
from scalable_agent_popart.report.read import Run, read_run
from scalable_agent_popart.report.render import interval, render_report
from scalable_agent_popart.report.summary import agents_numbers, scores_by_task, summarise
from scalable_agent_popart.scores import RECENT_EPISODES
from scalable_agent_popart.suites import Suite

_DOTS_PER_INCH = 110
_NUMBER = "%.9g"  # Nine digits are all a float32 holds.
_SUMMARY = "summary.csv"
_MAX_COLUMNS = 8  # Tasks in a table with a column for each.
_MAX_DRAWN = 60  # Tasks in a figure with a part for each; those of Atari-57 can be read.


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

    What is in the directories may be anybody's. Its text is never markup in the page, and no file
    of them gets into the page but the pixels of films.

    Raises UserError if no run can be read, or nothing written.
    """
    runs, skipped = [], []
    for path in {os.path.realpath(path): path for path in paths}.values():
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
            "runs": [(own.label, run, _dates(run)) for own, run in found],
            "skipped": skipped,
            "sections": [section.content() for section in sections],
            "films": write_films(comparisons, directory, skipped),
            "summary": _SUMMARY,
            "recent": RECENT_EPISODES,
            "most_drawn": _MAX_DRAWN,
            "impala": IMPALA,
            "papers_mean": PAPERS_MEAN,
            "describe_runs": _runs,
        }
        # Names of files need not be text.
        file = directory / "report.html"
        file.write_text(render_report(content), encoding="utf-8", errors="replace")
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
        self._clippings = {
            own.label: own.runs[0].config.reward_clipping for own in comparison.agents
        }
        self._styles = figures.styles_of(
            [(own.name, self._clippings[own.label], own.label) for own in comparison.agents]
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
        runs = self.summary.query("kind == 'agent' and measure == 'return'")["runs"]
        return {
            "title": self._comparison.title,
            "suite": self._suite,
            "headline": self._headline,
            "published": self.published,
            "one_run": (runs == 1).any(),
            "several_runs": (runs > 1).any(),
            "scores": [own for own in map(self._scores, self._finals) if own],
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
        self, name: str, table: pd.DataFrame, draw: Callable[[pd.DataFrame], Figure], says: str
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

    def _part(
        self, name: str, table: pd.DataFrame, draw: Callable[[pd.DataFrame], Figure], says: str
    ) -> dict[str, Any] | None:
        """Writes a table and its figures; these are left out if they had too many parts.

        Returns None if there is nothing in the table.
        """
        if not len(table):
            return None
        tasks = table["task"].nunique() if "task" in table else 0
        drawn = self._figures(name, table, draw, says) if tasks <= _MAX_DRAWN else []
        several = table.groupby("agent")["run"].nunique().max() > 1
        about = {"tasks": tasks, "says": says, "several_runs": several}
        return {"figures": drawn, "file": self._file(table, name), **about}

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
        entries = agents_numbers(own, "aggregate")
        runs = {agent.label: len(agent.runs) for agent in self._comparison.agents}
        drawn = []
        scores = own[(own["kind"] == "run") & (own["measure"] == "normalised")]
        if several and len(scores):
            draw = functools.partial(figures.profiles, suite=suite, styles=self._styles)
            says = f"share of tasks above each score, {column.title}"
            table = scores.assign(reward_clipping=scores["agent"].map(self._clippings))
            drawn = self._figures(f"profiles-{column.name}", table, draw, says)
        return {
            "final": final,
            "names": list(dict.fromkeys([suite.headline, *(entries["task"] if several else ())])),
            "rows": {agent: {} for agent in runs} | _records(entries, "agent", "task"),
            "runs": runs,
            "figures": drawn,
        }

    def _differences(self) -> dict[str, Any]:
        """Returns how far apart every two agents are that have several runs each."""
        table = self.summary[self.summary["kind"] == "difference"]
        few, headline = len(self._suite.tasks) <= _MAX_COLUMNS, self._suite.headline
        heads: dict[tuple[str, str], str] = {}
        for final in self._finals:
            heads["aggregate", headline] = f"{headline} over tasks"
            heads["aggregate", "probability_of_improvement"] = "probability of improvement (%)"
            if len(self._suite.tasks) > 1:
                heads["aggregate", "interquartile_mean"] = "interquartile mean"
            for level in final.column.levels.values() if few else ():
                heads |= {("normalised", level): level, ("return", level): f"{level} (return)"}
            heads["mean_over_training", headline] = f"{headline} over tasks, over training"
        rows = _records(table, ["protocol", "agent", "versus"], ["measure", "task"])
        known = {key for entries in rows.values() for key in entries}
        return {
            "heads": {key: head for key, head in heads.items() if key in known},
            "rows": rows,
            "tests": {final.column.name: final.column.title for final in self._finals},
            "several_tests": table["protocol"].nunique() > 1,
        }

    def _learning_curves(self) -> dict[str, Any] | None:
        names = list(dict.fromkeys(agent.name for agent in self._comparison.agents))
        trained_on = next(own for own in self._finals if own.column.trained_on)
        where = {"task": self._suite.headline, "protocol": trained_on.column.name}
        random = agents_numbers(self.summary, "aggregate", kind="measured", **where)["value"]
        table = self._recorded["learning_curves"]
        clippings = table["reward_clipping"].unique()
        targets = {clipping: trained_on.targets(clipping, names) for clipping in clippings}

        def draw(own: pd.DataFrame) -> Figure:
            published = targets[own["reward_clipping"].iloc[0]]
            return figures.learning_curves(own, self._suite, published, self._styles, random)

        part = self._part("learning-curves", table, draw, f"{self._headline} against frames")
        return part and {**part, "published": any(targets.values())}

    def _returns(self) -> dict[str, Any] | None:
        """Draws each task's returns, of few tasks or of those without reference scores."""
        known = self._suite.reference_scores
        few = len(self._suite.tasks) <= _MAX_COLUMNS
        tasks = [task for task in self._suite.tasks if few or task not in known]
        draw = functools.partial(figures.returns, styles=self._styles)
        table = tables.returns(self._comparison, tasks)
        return self._part("returns", table, draw, "each task's returns against frames")

    def _progress(self) -> dict[str, Any] | None:
        progress = self._recorded["progress"]
        if not len(progress):
            return None
        by_run = self.summary[self.summary["kind"] == "run"]
        behind = [
            f"{run.path}: at {run.frames:,} frames, and another run of {agent.label} is farther"
            for agent, run in self._comparison.runs
            if (agent, run) not in self._comparison.even_runs
        ]
        return {
            "rows": _records(
                by_run.drop_duplicates(["run", "measure"]), ["agent", "run", "seed"], "measure"
            ),
            "shares": by_run[by_run["measure"] == "batch_share"].groupby("run")["value"],
            "file": self._file(progress, "progress"),
            "behind": behind,
        }

    def _statistics(self) -> dict[str, Any] | None:
        table = self._recorded["statistics"]
        draw = functools.partial(figures.statistics, styles=self._styles)
        says = "top: shift and scale by task, bottom: returns"
        part = self._part("statistics", table, draw, says)
        of_all = "scales of all tasks next to each other"
        return part and {
            **part,
            "scales": self._figures("scales", table, figures.scales, of_all),
        }

    def _gradients(self) -> dict[str, Any] | None:
        table = self._recorded["gradients"]
        says = "size of tasks' policy gradients"
        part = self._part("gradients", table, figures.gradients, says)
        numbers = self.summary.query("kind == 'agent' and measure.str.contains('_gradient_')")
        losses, heads = table["loss"].unique(), ("size (median)", "part of all sizes (mean)")
        parts = numbers[numbers["measure"] == "policy_gradient_part"]
        parts = parts.assign(reward_clipping=parts["agent"].map(self._clippings))
        several = _MAX_COLUMNS < parts["task"].nunique() <= _MAX_DRAWN
        draw = functools.partial(figures.gradient_parts, styles=self._styles)
        says = "mean part of each task in the policy gradient"
        return part and {
            **part,
            "parts": self._figures("gradient-parts", parts, draw, says) if several else [],
            "losses": losses,
            "heads": [f"{loss} loss: {own}" for loss in losses for own in heads],
            "rows": _records(numbers, ["agent", "task"], "measure"),
            "frames": numbers["most_frames"].max(),
        }

    def _levels(self, final: FinalScores) -> dict[str, Any] | None:
        protocol, title = final.column.name, final.column.title
        table = scores_by_task(self.summary, protocol)
        if not (table["kind"] == "agent").any():  # Nothing is final yet.
            return None
        normalised = table[table["measure"] == "normalised"]
        ours = normalised.loc[normalised["kind"] == "agent", "agent"]
        says, drawn = f"{self._suite.score_name} of each level, {title}", []
        if len(ours) and normalised["task"].nunique() <= _MAX_DRAWN:
            figure = figures.breakdown(normalised, self._suite, self._styles)
            drawn = [self._figure(figure, f"levels-{protocol}", says)]
        return {
            "column": title,
            "agents": list(dict.fromkeys(table["agent"])),
            "rows": _records(table, "task", "agent"),
            "remarks": table.dropna(subset="remark").set_index("task")["remark"].to_dict(),
            "agent": ours.iloc[-1] if len(ours) else None,
            "several_runs": (table["runs"] > 1).any(),
            "figures": drawn,
            "tasks": normalised["task"].nunique(),
            "says": says,
            "file": _SUMMARY,
        }

    def _populations(self) -> list[dict[str, Any]]:
        found = tables.populations(self._comparison)
        if not found:
            return []
        says = f"{self._comparison.title}: hyperparameters and fitness of a population's members"
        files = {
            "events_file": self._file(tables.events(self._comparison), "populations"),
            "ancestries_file": self._file(tables.ancestries(self._comparison), "ancestries"),
        }
        parts = []
        for number, (*_, population) in enumerate(found, start=1):
            drawn = self._figure(figures.population(population), f"population-{number}", says)
            parts.append({"population": population, "figure": drawn, **files})
        return parts

    def _hyperparameters(self) -> dict[str, Any]:
        """Returns the flags that shape learning: those that differ, by agent, and the others."""
        flags_of = {own.label: experiment(own.runs[0]) for own in self._comparison.agents}
        differing, shared = {}, []
        for name in dict.fromkeys(name for own in flags_of.values() for name in own):
            values = [str(own.get(name, "")) for own in flags_of.values()]
            if len({*values}) > 1:
                differing[name] = values
            elif name != "dataset_path":  # Few levels show images, so it hardly matters.
                shared.append(f"--{name}={values[0]}")
        return {"agents": list(flags_of), "differing": differing, "shared": shared}


def _records(table: pd.DataFrame, rows: Any, columns: Any) -> dict[Any, dict[Any, dict[str, Any]]]:
    """Returns a table's records by the values of some columns, and then by those of others."""
    groups = table.groupby(rows, sort=False)
    return {key: own.set_index(columns, drop=False).to_dict("index") for key, own in groups}
