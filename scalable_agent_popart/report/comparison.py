"""Which runs are put side by side: runs of one agent together, agents of one benchmark together."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report.runs import Run
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
    """Runs of one agent, which differ by their seeds.

    Attributes:
      name: the paper's, such as `PopArt-IMPALA`.
      label: the name, and what else tells it from the other agents of the comparison.
      runs: at least one.
    """

    name: str
    label: str
    runs: tuple[Run, ...]

    @property
    def config(self) -> Config:
        """The configuration of the first of its runs."""
        return self.runs[0].config


@dataclass(frozen=True)
class Comparison:
    """Agents that were trained on the same tasks, all or some, of a benchmark.

    Attributes:
      suite: the benchmark with the tasks to compare in play.
      agents: at least one.
    """

    suite: Suite
    agents: tuple[Agent, ...]

    @property
    def title(self) -> str:
        """Names the benchmark, and what part of it is compared."""
        known, part = self.suite.reference_scores, len(self.suite.tasks)
        whole = len(known)
        if self.suite.whole:
            return self.suite.title
        named = ", ".join(self.suite.tasks[:8]) + (", ..." if part > 8 else "")
        if not set(self.suite.tasks) <= set(known):
            return f"Levels that are no part of {self.suite.title}, or not only: {named}"
        return f"{self.suite.title}, a subset of {part} of {whole} tasks: {named}"


def compare(
    runs: Sequence[Run], suite: Suite | None, ignored: Collection[str] = ()
) -> tuple[list[Comparison], list[str]]:
    """Groups runs.

    Args:
      runs: of any agents and benchmarks.
      suite: with the tasks to compare; if None, runs of the same tasks are compared on these.
      ignored: flags that do not tell agents apart.

    Returns:
      Comparisons, and a line for each run that is in none of them.

    Raises:
      UserError: if a flag to be ignored is none that tells agents apart.
    """
    for name in ignored:
        if not any(name in _experiment(run.config) for run in runs) or name in _IN_NAMES:
            raise UserError(
                f"--ignore_flags={name} is no flag by which agents are told apart beside their "
                "names, such as precision or batch_size; leave it out"
            )
    members: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    left_out = []
    for run in runs:
        own = run.config.suite
        tasks = _in_order(suite or own).tasks
        if own.name != (suite or own).name or not set(tasks) <= set(own.tasks):
            left_out.append(f"{run.path} skipped: it was not trained on {','.join(tasks)}")
        else:
            members.setdefault((own.name, tasks), []).append(run)
    comparisons = [
        Comparison(together[0].config.suite.select(tasks), _agents(together, ignored))
        for (_, tasks), together in members.items()
    ]
    return comparisons, left_out


def _agents(runs: Sequence[Run], ignored: Collection[str]) -> tuple[Agent, ...]:
    experiments: dict[str, list[Run]] = {}
    for run in runs:
        key = repr((_label(run), sorted(_experiment(run.config, ignored).items())))
        experiments.setdefault(key, []).append(run)
    variants: dict[str, list[list[Run]]] = {}
    for together in experiments.values():
        variants.setdefault(_label(together[0]), []).append(together)
    agents = []
    for members in variants.values():  # With a population or without, so of the same flags.
        flags = [_experiment(together[0].config, ignored) for together in members]
        differing = [name for name in flags[0] if len({own[name] for own in flags}) > 1]
        for together, own in zip(members, flags, strict=True):
            text = _label(together[0], [_difference(name, own[name]) for name in differing])
            agents.append(Agent(together[0].config.agent_name, text, tuple(together)))
    return tuple(sorted(agents, key=lambda agent: (_place(agent.name), agent.label)))


def _difference(flag: str, value: Any) -> str:
    """What tells an agent from another, briefly."""
    if flag != "level_name":
        return f"{flag}={value}"
    tasks = str(value).split(",")
    return f"trained on {value if len(tasks) < 4 else f'{len(tasks)} tasks'}"


def _experiment(config: Config, ignored: Collection[str] = ()) -> dict[str, Any]:
    """The flags that make an experiment, with its tasks always in the same order."""
    flags = {**config.experiment, "level_name": _in_order(config.suite).level_name}
    return {name: value for name, value in flags.items() if name not in ignored}


def _in_order(suite: Suite) -> Suite:
    """The tasks in play in the benchmark's order; levels outside of it come last."""
    tasks = [task for task in suite.reference_scores if task in suite.tasks]
    return suite.select([*tasks, *sorted(set(suite.tasks) - set(tasks))])


def label(name: str, suite: Suite, others: Sequence[str] = (), **flags: Any) -> str:
    """An agent's name, and in brackets the paper's words for how it varies, and `others`."""
    words = [
        _VARIANTS[flag].get(value, f"{flag}={value}")
        for flag, value in flags.items()
        if value != suite.defaults[flag]
    ]
    words += others
    return f"{name} ({', '.join(words)})" if words else name


def _label(run: Run, others: Sequence[str] = ()) -> str:
    config = run.config
    variant = {flag: getattr(config, flag) for flag in _VARIANTS}
    mixed = [f"mixed: {'; '.join(run.mixed)}"] if run.mixed else []
    words = [*_population(run), *mixed, *others]
    return label(config.agent_name, config.suite, words, **variant)


def _population(run: Run) -> list[str]:
    """What says that an agent's hyperparameters were tuned while it learned."""
    config = run.config
    if not config.population_size:
        return []
    words = f"population of {config.population_size}"
    # Members of one population share ancestors, and are not several runs of one agent.
    whole = run.population is not None and run.population.whole
    return [words if whole else f"member {config.pbt_member} of a {words}"]


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)
