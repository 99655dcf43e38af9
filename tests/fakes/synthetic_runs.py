"""Run directories as training and testing leave them, made up in an instant."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalable_agent_popart.config import Config
from scalable_agent_popart.evaluation import summary as evaluation_summary
from scalable_agent_popart.population.directory import (
    Event,
    MemberDirectory,
    PopulationDirectory,
)
from scalable_agent_popart.report.compare import Comparison, compare
from scalable_agent_popart.report.read import read_run
from scalable_agent_popart.runs.directory import RunDirectory

FRAMES_PER_EPISODE = 1000
# Of members whose lineages are told.
HYPERPARAMETERS = {"learning_rate": 1e-3, "entropy_cost": 1e-2, "epsilon": 0.1}


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
    records = []
    for i in range(episodes * len(tasks)):
        task, done = tasks[i % len(tasks)], (i + 1) / (episodes * len(tasks))
        low, high = references[task]
        score = low + (high - low) * final_percent * done * random.uniform(0.9, 1.1) / 100
        record = {"task": task, "episode_return": score, "episode_frames": FRAMES_PER_EPISODE}
        records.append({**record, "frames": (i + 1) * FRAMES_PER_EPISODE})
    append(directory.episodes, *records)
    for i in range(1, 51):
        steps, wobble = config.unroll_length * config.batch_size, (-1) ** i / 10 / len(tasks)
        shares = np.full(len(tasks), 1 / len(tasks))
        shares[[0, -1]] += (wobble, -wobble)  # Between the first task and the last.
        record = {
            "frames": total * i // 50,
            "frames_per_second": 1000.0,
            "total_loss": 1.0,
            "memory_mib": 500.0 + i,
            "entropy_cost": config.entropy_cost,
            "entropy_loss": -config.entropy_cost * steps * 0.5,
            "batch_share": dict(zip(tasks, shares.tolist(), strict=True)),
        }
        if config.use_popart:
            spans = {task: references[task].human - references[task].random for task in tasks}
            record["shift"] = {t: s * i / 100 for t, s in spans.items()}
            record["scale"] = {t: abs(s) * (0.1 + i / 300) for t, s in spans.items()}
        if config.log_task_gradients and i < 50:  # Not in the last line of a program.
            sizes = {task: k * i / 10 for k, task in enumerate(tasks, start=1)}
            record["policy_gradient_norm"] = sizes
            record["total_gradient_norm"] = {task: s**2 for task, s in sizes.items()}
        append(directory.metrics, record)
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
    """Writes a population whose members learn at different speeds.

    In each round a member plays eight episodes a task and, but for the last round, is compared
    with another's latest fitness, as in training: it copies it if that is five points better.
    """
    given = {"mode": "pbt", "population_size": size, "seed": seed, "level_name": level_name}
    config = Config.from_flags({"logdir": str(path), "pbt_burn_in_frames": 0, **given, **flags})
    population = PopulationDirectory(str(path))
    population.join(config, config.precision)
    random = np.random.default_rng(seed)
    percents, frames = np.zeros(size), np.zeros(size, int)
    published: dict[int, tuple[int, float]] = {}
    values = [
        {n: HYPERPARAMETERS.get(n, 40.0) * random.uniform(1, 5) for n in config.tuned}
        for _ in percents
    ]
    for i in range(size):
        population.member(i).path.mkdir()
        population.member(i).record(population.member_config(config, i, values[i]))
        start = make_event(0, 0, hyperparameters=values[i])
        append(population.member(i).lineage, start._asdict())
    for number, i in itertools.product(range(1, rounds + 1), range(size)):
        directory, suite = population.member(i), config.suite
        for _ in range(8):
            percents[i] += random.uniform(0, i / rounds)
            for task in suite.tasks:
                frames[i] += 600 + 50 * i
                low, high = suite.reference_scores[task]
                score = low + (high - low) * percents[i] / 100
                record = {"task": task, "frames": int(frames[i]), "episode_return": score}
                append(directory.episodes, record)
            by_task = dict.fromkeys(suite.tasks, 1.0)
            record = {"frames": int(frames[i]), "shift": by_task, "scale": by_task}
            append(directory.metrics, record)
        if number == rounds:
            continue
        published[i] = int(frames[i]), float(percents[i])
        partner = int(random.choice([j for j in range(size) if j != i]))
        found = published.get(partner)
        copied = bool(found and found[1] > percents[i] + 5)
        event = make_event(
            number,
            int(frames[i]),
            fitness=float(percents[i]),
            partner=partner if found else None,
            partner_fitness=found[1] if found else None,
            copied=copied,
            source_frames=found[0] if found and copied else None,
            hyperparameters=values[partner if copied else i],
        )
        if copied:
            percents[i], values[i] = percents[partner], values[partner]
        append(directory.lineage, event._asdict())
    return population


def append(path: Path, *records: Mapping[str, Any]) -> None:
    """Adds lines to a log."""
    with open(path, "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


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
        append(directory.episodes, *episodes)
        append(directory.metrics, *metrics)
    return population
