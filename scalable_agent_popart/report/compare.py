"""Groups runs into agents, which differ by their seeds, and agents into comparisons."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scalable_agent_popart.report.read import Run, join
from scalable_agent_popart.suites import Suite

MIN_PART_OF_FRAMES = 0.9  # A run with fewer of the farthest run's frames is not compared.
RUN = ["agent", "run", "seed"]
RUN_COLUMNS = ["agent", "reward_clipping", "run", "seed"]
# Agents in the order of the paper; any other comes after them.
_ORDER = ("IMPALA", "MultiHead-IMPALA", "PopArt-IMPALA", "Pixel-IMPALA", "Pixel-PopArt-IMPALA")
# The words for the values of flags by which the paper tells variants of an agent apart.
_WORDS = {
    "reward_clipping": {
        "none": "raw rewards",
        "abs_one": "clipped",
        "oar": "optimistic asymmetric rewards",
        "soft_asymmetric": "soft asymmetric rewards",
    },
    "action_set": {"impala": "original action set", "popart": "larger action set"},
    "init_from": {"": "new weights"},
}


@dataclass(frozen=True)
class Agent:
    """Runs of one agent, at least one, which differ by their seeds."""

    name: str  # The paper's, such as `PopArt-IMPALA`.
    label: str  # The name, and what else tells it from the other agents of the comparison.
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Comparison:
    """Agents, at least one, that were trained on the same tasks, all or some, of a benchmark."""

    suite: Suite  # With the tasks to compare in play.
    agents: tuple[Agent, ...]
    measured_zero: bool = False  # Whether 0% is measured random play, not the published one.

    @property
    def runs(self) -> list[tuple[Agent, Run]]:
        return [(agent, run) for agent in self.agents for run in agent.runs]

    @property
    def even_runs(self) -> list[tuple[Agent, Run]]:
        """The runs that are about as far as the farthest of their agent, and can be averaged."""
        return [
            (agent, run)
            for agent, run in self.runs
            if run.frames >= MIN_PART_OF_FRAMES * max(other.frames for other in agent.runs)
        ]

    def tabulate(
        self, read: Callable[[Run], pd.DataFrame], every_run: bool = False
    ) -> pd.DataFrame:
        """Makes one table of what `read` finds in even runs, or in all, after `RUN_COLUMNS`."""
        parts = []
        for agent, run in self.runs if every_run else self.even_runs:
            table = read(run)
            parts.append(table.assign(**columns_of(agent, run))[[*RUN_COLUMNS, *table]])
        return join(parts)

    @property
    def name(self) -> str:
        """Names the benchmark, and what part of it is compared, as names of files begin."""
        suite, name = self.suite, self.suite.name
        if len(suite.tasks) > 1 and not suite.whole:
            name += f"-{len(suite.tasks)}-tasks"
        elif not suite.whole:
            name += "-" + re.sub(r"[^\w.-]", "-", suite.tasks[0])
        return name + "-measured-zero" * self.measured_zero

    @property
    def title(self) -> str:
        """Names the benchmark, and what part of it is compared."""
        known, tasks = self.suite.reference_scores, self.suite.tasks
        if self.suite.whole:
            return self.suite.title
        named = ", ".join(tasks[:8]) + (", ..." if len(tasks) > 8 else "")
        if not set(tasks) <= set(known):
            return f"Levels that are no part of {self.suite.title}, or not only: {named}"
        return f"{self.suite.title}, a subset of {len(tasks)} of {len(known)} tasks: {named}"


def columns_of(agent: Agent, run: Run) -> dict[str, Any]:
    """Returns what each row of a run has in its `RUN_COLUMNS`."""
    values = (agent.label, run.config.reward_clipping, str(run.path), run.seed)
    return dict(zip(RUN_COLUMNS, values, strict=True))


def compare(runs: Sequence[Run], suite: Suite | None) -> tuple[list[Comparison], list[str]]:
    """Groups runs of any agents and benchmarks into comparisons of agents on the same tasks.

    The tasks are those of `suite`, or by default those trained on. Also returns a line for each run
    left out.
    """
    groups: dict[tuple, list[Run]] = {}
    left_out = []
    for run in runs:
        trained = run.config.suite
        asked = _in_order(suite or trained)
        if trained.name != asked.name or not set(asked.tasks) <= set(trained.tasks):
            left_out.append(f"{run.path} skipped: it was not trained on {','.join(asked.tasks)}")
            continue
        # Suites from outside of the package may have had other scores when a run was made.
        scores = tuple(trained.reference_scores.get(task) for task in asked.tasks)
        key = (asked.tasks, trained.name, trained.full_score, trained.normalised, scores)
        groups.setdefault(key, []).append(run)
    comparisons = [
        Comparison(group[0].config.suite.select(tasks), _agents(group))
        for (tasks, *_), group in groups.items()
    ]
    return comparisons, left_out


def in_words(flag: str, value: Any) -> str:
    """Returns words for a flag's value; None stands for values sampled for each member."""
    name = flag.removeprefix("use_").replace("burn_in", "burn-in").replace("_", " ")
    for plain, proper in (("popart", "PopArt"), ("lstm", "LSTM"), ("pbt", "PBT")):
        name = name.replace(plain, proper)
    if value is None:
        return f"{name} sampled"
    if isinstance(value, bool):
        return f"with{'' if value else 'out'} {name}"
    words = f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
    return _WORDS.get(flag, {}).get(value, words)


def _agents(runs: Sequence[Run]) -> tuple[Agent, ...]:
    """Groups runs by label and flags; where a label has several, their differences are added."""
    several = len({run.config.action_set for run in runs}) > 1
    variants = ("reward_clipping", "action_set") if several else ("reward_clipping",)
    groups: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        flags = repr(sorted(experiment(run).items()))
        groups.setdefault(_label(run, variants), {}).setdefault(flags, []).append(run)
    agents = []
    for label, by_flags in groups.items():
        experiments = [experiment(group[0]) for group in by_flags.values()]
        names = [name for name in experiments[0] if len({e[name] for e in experiments}) > 1]
        counts = {e["level_name"]: e["level_name"].count(",") + 1 for e in experiments}
        in_full = len({*counts.values()}) < len(counts)  # Numbers of tasks would be ambiguous.
        for group, flags_of_group in zip(by_flags.values(), experiments, strict=True):
            words = {name: in_words(name, flags_of_group[name]) for name in names}
            if "level_name" in words:
                tasks = flags_of_group["level_name"]
                named = in_full or counts[tasks] < 4
                words["level_name"] = f"trained on {tasks if named else f'{counts[tasks]} tasks'}"
            full_label = ", ".join([label, *words.values()])
            agents.append(Agent(group[0].config.agent_name, full_label, tuple(group)))
    rank = {name: i for i, name in enumerate(_ORDER)}
    return tuple(sorted(agents, key=lambda a: (rank.get(a.name, len(_ORDER)), a.label)))


def _label(run: Run, variants: Sequence[str]) -> str:
    """Names a run's agent, with all that is known of it without the other runs."""
    config = run.config
    words = [config.agent_name, *(in_words(flag, getattr(config, flag)) for flag in variants)]
    if config.population_size:
        # Members of one population share ancestors, and are not several runs of one agent.
        member = "" if run.population else f"member {config.pbt_member} of a "
        words.append(f"{member}population of {config.population_size}")
    if run.mixed:
        words.append(f"mixed: {'; '.join(run.mixed)}")
    return ", ".join(words)


def experiment(run: Run) -> dict[str, Any]:
    """Returns the flags that make an experiment, with its tasks always in the same order.

    A population also has what all its members began with. That is None if they began with several
    values, or if a member lies there without its population.
    """
    flags = {**run.config.experiment, "level_name": _in_order(run.config.suite).level_name}
    members = run.population.members.values() if run.population else ()
    begun = [member.lineage[0].hyperparameters for member in members if member.lineage]
    for name in run.config.tuned:
        # A lineage has them as float32.
        values = {float(f"{start[name]:.6g}") for start in begun if name in start}
        flags[name] = values.pop() if len(begun) > 1 and len(values) == 1 else None
    return flags


def _in_order(suite: Suite) -> Suite:
    """Puts the tasks in play in the benchmark's order; levels outside of it come last."""
    rank = {task: i for i, task in enumerate(suite.reference_scores)}
    return suite.select(sorted(suite.tasks, key=lambda task: (rank.get(task, len(rank)), task)))
