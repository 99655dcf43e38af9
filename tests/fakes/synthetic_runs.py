"""Run directories as training and testing leave them, made up in an instant."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scalable_agent_popart.report.comparison import Comparison, compare
from scalable_agent_popart.report.runs import read_run

from scalable_agent_popart.config import Config
from scalable_agent_popart.evaluation import summary as evaluation_summary
from scalable_agent_popart.population.directory import (
    Event,
    MemberDirectory,
    PopulationDirectory,
)
from scalable_agent_popart.runs.directory import RunDirectory

FRAMES_PER_EPISODE = 1000
# Of members whose lineages are told.
HYPERPARAMETERS = {"learning_rate": 1e-3, "entropy_cost": 1e-2, "epsilon": 0.1}
# That made-up members draw their hyperparameters from.
_RANGES = {
    "learning_rate": (5e-6, 5e-3),
    "entropy_cost": (5e-5, 1e-2),
    "epsilon": (1e-7, 1e-1),
    "max_grad_norm": (10.0, 100.0),
}


def make_run(
    path: Path,
    final_percent: float = 50.0,
    episodes: int = 40,
    tests: Mapping[str, int] = {"noop": 5},
    **flags: Any,
) -> RunDirectory:
    """Writes a run whose returns grow evenly from random play.

    Args:
      path: of the run directory.
      final_percent: the human-normalised score of every task at the end, up to noise.
      episodes: finished in training, of each task.
      tests: starts to the number of test episodes a level.
      **flags: of the run.
    """
    config = Config.from_flags({"logdir": str(path), **flags})
    tasks, references = config.suite.tasks, config.suite.reference_scores
    random = np.random.default_rng(config.seed)
    path.mkdir(parents=True)
    directory = RunDirectory(str(path))
    directory.record(config)
    total = episodes * len(tasks) * FRAMES_PER_EPISODE
    with open(directory.episodes, "w") as file:
        for i in range(episodes * len(tasks)):
            task, done = tasks[i % len(tasks)], (i + 1) / (episodes * len(tasks))
            low, high = references[task]
            percent = final_percent * done * random.uniform(0.9, 1.1)
            record = {
                "task": task,
                "episode_return": low + (high - low) * percent / 100,
                "episode_frames": FRAMES_PER_EPISODE,
                "frames": (i + 1) * FRAMES_PER_EPISODE,
            }
            file.write(json.dumps(record) + "\n")
    with open(directory.metrics, "w") as file:
        for i in range(1, 51):
            record = {"frames": total * i // 50, "frames_per_second": 1000.0, "total_loss": 1.0}
            record["memory_mib"] = 500.0 + i
            record["entropy_cost"] = config.entropy_cost
            steps = config.unroll_length * config.batch_size
            record["entropy_loss"] = -config.entropy_cost * steps * 0.5
            wobble = (-1) ** i / 10 / len(tasks)  # Between the first task and the last.
            shares = np.full(len(tasks), 1 / len(tasks))
            shares[0] += wobble
            shares[-1] -= wobble
            record["batch_share"] = dict(zip(tasks, shares.tolist(), strict=True))
            if config.use_popart:
                spans = {task: references[task].human - references[task].random for task in tasks}
                record["shift"] = {t: s * i / 100 for t, s in spans.items()}
                record["scale"] = {t: abs(s) * (0.1 + i / 300) for t, s in spans.items()}
            if config.log_task_gradients and i < 50:  # Not in the last line of a program.
                sizes = {task: place * i / 10 for place, task in enumerate(tasks, start=1)}
                record["policy_gradient_norm"] = sizes
                record["total_gradient_norm"] = {task: s**2 for task, s in sizes.items()}
            file.write(json.dumps(record) + "\n")
    for starts, count in tests.items():
        given = {"mode": "test", "starts": starts}
        if starts == "human":
            given["human_starts_dir"] = "starts"
        write_test(directory, config.for_test(given), total, final_percent, count)
    return directory


def compare_runs(*paths: Path) -> Comparison:
    """Reads runs that can all be compared with each other."""
    (comparison,), left_out = compare([read_run(str(path)) for path in paths], None)
    assert left_out == []
    return comparison


def write_test(
    directory: RunDirectory, config: Config, frames: int, percent: float, episodes: int
) -> None:
    """Writes the evaluation of a policy with about this score on every level."""
    suite = config.suite
    random = np.random.default_rng(config.seed)
    returns = {}
    for level in dict.fromkeys([*map(suite.test_version, suite.tasks), *suite.tasks]):
        low, high = suite.references(config.starts)[level]
        noise = random.uniform(0.8, 1.2, size=episodes)
        returns[level] = (low + (high - low) * percent * noise / 100).tolist()
    directory.write_evaluation(evaluation_summary.summarise(config, frames, returns))


def make_population(
    path: Path,
    size: int = 4,
    rounds: int = 6,
    seed: int = 1,
    level_name: str = "catch5",
    **flags: Any,
) -> PopulationDirectory:
    """Writes a population whose members learn well if they lower a high learning rate in time.

    Members are of different speeds. After each round, of eight episodes a task, a member is
    compared with another's latest fitness, as in training, and copies it if that is five points
    better.

    Args:
      path: of the population's directory.
      size: number of members.
      rounds: that each of them trains for; after the last nothing is compared.
      seed: the population's.
      level_name: of its members' runs.
      **flags: likewise.
    """
    given = {"mode": "pbt", "population_size": size, "seed": seed, "level_name": level_name}
    config = Config.from_flags({"logdir": str(path), "pbt_burn_in_frames": 0, **given, **flags})
    population = PopulationDirectory(str(path))
    population.join(config, config.precision)
    random = np.random.default_rng(seed)
    members = [_Member(population, config, number, random) for number in range(size)]
    for number in range(1, rounds + 1):
        for member in members:
            member.train()
            others = [other for other in members if other is not member and other.published]
            if number < rounds:
                member.compare(number, others)
    return population


class _Member:
    """A member of a made-up population."""

    def __init__(
        self,
        population: PopulationDirectory,
        config: Config,
        number: int,
        random: np.random.Generator,
    ):
        self.number, self._random = number, random
        self._values = {
            name: float(np.exp(random.uniform(*np.log((low, high)))))
            for name, (low, high) in _RANGES.items()
            if name in config.tuned
        }
        self._config = population.member_config(config, number, self._values)
        self._directory = population.member(number)
        self._directory.path.mkdir()
        self._directory.record(self._config)
        self._speed = int(FRAMES_PER_EPISODE * random.uniform(0.6, 1.4))
        self._frames, self._percent = 0, 0.0
        self.published: tuple[int, float, dict[str, float]] | None = None
        self._note(Event(0, 0, None, None, None, False, None, self._values))

    def train(self) -> None:
        best = -2.5 - self._percent / 60  # The smaller the better, later on.
        quality = np.exp(-3 * (np.log10(self._values["learning_rate"]) - best) ** 2)
        suite = self._config.suite
        for _ in range(8):
            gain = quality * self._random.uniform(0, 1.5)
            self._percent += (100 - self._percent) / 120 * gain
            for task in suite.tasks:
                low, high = suite.reference_scores[task]
                self._frames += self._speed
                record = {"task": task, "frames": self._frames}
                record["episode_return"] = low + (high - low) * self._percent / 100
                _append(self._directory.episodes, record)
            _append(
                self._directory.metrics,
                {
                    "frames": self._frames,
                    "shift": dict.fromkeys(suite.tasks, self._percent),
                    "scale": dict.fromkeys(suite.tasks, 1.0),
                },
            )

    def compare(self, number: int, others: Sequence["_Member"]) -> None:
        self.published = (self._frames, self._percent, dict(self._values))
        fitness, partner = self._percent, None
        frames: int | None = None
        score: float | None = None
        if others:
            partner = others[self._random.integers(len(others))]
            assert partner.published
            frames, score, values = partner.published
            if score > fitness + 5:
                self._percent, self._values = score, dict(values)
            else:
                frames = None
        for name in self._values:
            if self._random.random() < 0.33:
                self._values[name] *= self._random.choice((1.2, 1 / 1.2))
        at = None if partner is None else partner.number
        copied = frames is not None
        self._note(
            Event(number, self._frames, fitness, at, score, copied, frames, dict(self._values))
        )

    def _note(self, event: Event) -> None:
        _append(self._directory.lineage, event._asdict())


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\n")


def make_event(
    number: int, frames: int, source: tuple[int, int] | None = None, **given: Any
) -> Event:
    """A comparison, at which `source` may be copied: a member and its frames."""
    partner, source_frames = source or (None, None)
    values: dict[str, Any] = {
        "fitness": 10.0 if number else None,
        "partner": partner,
        "partner_fitness": 20.0 if source else None,
        "copied": source is not None,
        "source_frames": source_frames,
        "hyperparameters": HYPERPARAMETERS,
    }
    return Event(number, frames, **{**values, **given})


# By hand: 3 copies 2 at 900 when that has 700, which had copied 1 at 400 when that was ahead, at
# 650, which had copied 0 at 300 when that was behind, at 200.
LINEAGES = {
    0: [make_event(0, 0), make_event(1, 200), make_event(2, 420, (1, 310))],
    1: [
        make_event(0, 0),
        make_event(1, 300, (0, 200)),
        make_event(2, 500),
        make_event(3, 650, (2, 390)),
    ],
    2: [
        make_event(0, 0),
        make_event(1, 400, (1, 650)),
        make_event(2, 550),
        make_event(3, 700, (0, 600)),
    ],
    3: [make_event(0, 0), make_event(1, 500), make_event(2, 900, (2, 700)), make_event(3, 1000)],
}


def write_lineage(directory: MemberDirectory, events: Sequence[Event]) -> None:
    directory.lineage.write_text("".join(json.dumps(e._asdict()) + "\n" for e in events))


def make_population_of_lineages(path: Path, best: int = 3, **flags: Any) -> PopulationDirectory:
    """A population of five with the lineages above; member 4 has not begun.

    Each has an episode, of each task in turn, and metrics every 10 frames up to 1200. The return
    of each is the member's number by a thousandth of a point, but for the later half of the best.
    """
    given = {"mode": "pbt", "population_size": 5, "seed": 7, "level_name": "catch5", **flags}
    config = Config.from_flags({"logdir": str(path), "use_popart": True, **given})
    population = PopulationDirectory(str(path))
    population.join(config, config.precision)
    for number, events in LINEAGES.items():
        directory = population.member(number)
        directory.path.mkdir()
        directory.record(population.member_config(config, number, HYPERPARAMETERS))
        write_lineage(directory, events)
        episodes, metrics = [], []
        for frames in range(10, 1210, 10):
            task = config.suite.tasks[frames // 10 % len(config.suite.tasks)]
            value = 1.0 * (number == best) if frames > 600 else number / 1000
            scale = config.suite.reference_scores[task].human
            episodes.append({"task": task, "frames": frames, "episode_return": value * scale})
            by_task = dict.fromkeys(config.suite.tasks, float(number))
            metrics.append({"frames": frames, "shift": by_task, "scale": by_task})
        directory.episodes.write_text("".join(json.dumps(line) + "\n" for line in episodes))
        directory.metrics.write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return population
