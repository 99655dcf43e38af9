"""Groups runs into agents, which differ by their seeds, and agents into comparisons."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report.read import Run
from scalable_agent_popart.suites import Suite

# Agents in the order of the paper; any other comes after them.
_ORDER = ("IMPALA", "MultiHead-IMPALA", "PopArt-IMPALA", "Pixel-IMPALA", "Pixel-PopArt-IMPALA")
# Flags by which the paper tells variants of an agent apart, and its words for their values.
_VARIANTS = {
    "reward_clipping": {"none": "unclipped"},
    "action_set": {"impala": "original action set"},
}
# Flags that make an agent's name, so that runs that differ in them are different agents always.
_IN_NAMES = (*_VARIANTS, "use_popart", "multi_head", "pixel_control", "population_size")


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

    @property
    def runs(self) -> list[tuple[Agent, Run]]:
        """All runs, each with its agent."""
        return [(agent, run) for agent in self.agents for run in agent.runs]

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


def compare(
    runs: Sequence[Run], suite: Suite | None, ignored: Collection[str] = ()
) -> tuple[list[Comparison], list[str]]:
    """Groups runs of any agents and benchmarks into comparisons of agents on the same tasks.

    They are compared on the tasks of `suite`, or if it is None on those that they were trained on.
    Flags that are `ignored` do not tell agents apart: a UserError if they do not anyway. Gives
    comparisons, and a line for each run that is in none of them.
    """
    for name in ignored:
        if not any(name in _experiment(run.config) for run in runs) or name in _IN_NAMES:
            raise UserError(
                f"--ignore_flags={name} is no flag by which agents are told apart beside their "
                "names, such as precision or batch_size; leave it out"
            )
    groups: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    left_out = []
    for run in runs:
        own = run.config.suite
        asked = _in_order(suite or own)
        if own.name != asked.name or not set(asked.tasks) <= set(own.tasks):
            left_out.append(f"{run.path} skipped: it was not trained on {','.join(asked.tasks)}")
        else:
            groups.setdefault((own.name, asked.tasks), []).append(run)
    comparisons = [
        Comparison(group[0].config.suite.select(tasks), _agents(group, ignored))
        for (_, tasks), group in groups.items()
    ]
    return comparisons, left_out


def agent_label(name: str, suite: Suite, others: Sequence[str] = (), **flags: Any) -> str:
    """Gives an agent's name with, in brackets, the paper's words for its variant, and `others`."""
    words = [
        _VARIANTS[flag].get(value, f"{flag}={value}")
        for flag, value in flags.items()
        if value != suite.defaults[flag]
    ]
    words += others
    return f"{name} ({', '.join(words)})" if words else name


def _agents(runs: Sequence[Run], ignored: Collection[str]) -> tuple[Agent, ...]:
    """Groups runs by label and flags; where a label has several, their differences are added."""
    labels: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        flags = repr(sorted(_experiment(run.config, ignored).items()))
        labels.setdefault(_label(run), {}).setdefault(flags, []).append(run)
    agents = []
    for groups in labels.values():
        experiments = [_experiment(own[0].config, ignored) for own in groups.values()]
        differing = [n for n in experiments[0] if len({own[n] for own in experiments}) > 1]
        for own, flags_of in zip(groups.values(), experiments, strict=True):
            others = [f"{name}={flags_of[name]}" for name in differing]
            if "level_name" in differing:
                tasks = flags_of["level_name"].split(",")
                named = ",".join(tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
                others[differing.index("level_name")] = f"trained on {named}"
            agents.append(Agent(own[0].config.agent_name, _label(own[0], others), tuple(own)))
    rank = {name: i for i, name in enumerate(_ORDER)}
    return tuple(sorted(agents, key=lambda a: (rank.get(a.name, len(_ORDER)), a.label)))


def _label(run: Run, others: Sequence[str] = ()) -> str:
    """Names a run's agent, with all that is known of it without the other runs."""
    config, words = run.config, []
    if config.population_size:
        words.append(f"population of {config.population_size}")
        # Members of one population share ancestors, and are not several runs of one agent.
        if run.population is None or not run.population.whole:
            words[0] = f"member {config.pbt_member} of a {words[0]}"
    if run.mixed:
        words.append(f"mixed: {'; '.join(run.mixed)}")
    variant = {flag: getattr(config, flag) for flag in _VARIANTS}
    return agent_label(config.agent_name, config.suite, [*words, *others], **variant)


def _experiment(config: Config, ignored: Collection[str] = ()) -> dict[str, Any]:
    """Gives the flags that make an experiment, with its tasks always in the same order."""
    flags = {**config.experiment, "level_name": _in_order(config.suite).level_name}
    return {name: value for name, value in flags.items() if name not in ignored}


def _in_order(suite: Suite) -> Suite:
    """Puts the tasks in play in the benchmark's order; levels outside of it come last."""
    rank = {task: i for i, task in enumerate(suite.reference_scores)}
    return suite.select(sorted(suite.tasks, key=lambda task: (rank.get(task, len(rank)), task)))
