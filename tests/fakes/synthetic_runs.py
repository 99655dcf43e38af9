"""Makes up run directories as training and testing leave them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

from scalable_agent_popart.evaluation import summary as evaluation_summary
from scalable_agent_popart.population.directory import Event, PopulationDirectory
from scalable_agent_popart.report.compare import Comparison, compare
from scalable_agent_popart.report.read import read_run
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.scores import ReferenceScore

_UNKNOWN = ReferenceScore(0.0, 10.0)  # Levels outside of the benchmark get it.
HYPERPARAMETERS = {"learning_rate": 1e-3, "entropy_cost": 1e-2, "epsilon": 0.1}


def make_run(
    path: Path,
    final_percent: float = 50.0,
    episodes: int = 40,
    tests: Mapping[str, int] = {"noop": 5},
    **flags: Any,
) -> RunDirectory:
    """Writes a run of so many `episodes` per task, whose returns grow from random play.

    They end at about the score `final_percent`, as in the `tests`: episodes per level by starts.
    """
    config = Config.from_flags({"logdir": str(path), **flags})
    tasks, known = config.suite.tasks, config.suite.reference_scores
    references = {task: known.get(task, _UNKNOWN) for task in tasks}
    random = np.random.default_rng(config.seed)
    path.mkdir(parents=True)
    directory = RunDirectory(str(path))
    directory.record(config)
    count = episodes * len(tasks)
    total = count * 1000
    records = []
    for i in range(1, count + 1):
        task = tasks[(i - 1) % len(tasks)]
        low, high = references[task]
        score = low + (high - low) * final_percent * i / count * random.uniform(0.9, 1.1) / 100
        records.append({"task": task, "episode_return": score, "frames": i * 1000})
    append(directory.episodes, *records)
    for i in range(1, 51):
        entropy = 0.5 * config.unroll_length * config.batch_size
        record: dict[str, Any] = {
            "frames": total * i // 50,
            "frames_per_second": 1000.0,
            "memory_mib": 500.0 + i,
            "entropy_cost": 0.01,
            "entropy_loss": -0.01 * entropy,
            "batch_share": dict.fromkeys(tasks, 1 / len(tasks)),
        }
        if config.use_popart:
            spans = {task: references[task].human - references[task].random for task in tasks}
            record["shift"] = {t: s * i / 100 for t, s in spans.items()}
            record["scale"] = {t: abs(s) * (0.1 + i / 300) for t, s in spans.items()}
        if config.log_task_gradients and i < 50:  # A program's last line has none.
            sizes = {task: k * i / 10 for k, task in enumerate(tasks, start=1)}
            record["policy_gradient_norm"] = sizes
            record["total_gradient_norm"] = {task: s**2 for task, s in sizes.items()}
        append(directory.metrics, record)
    for starts, number in tests.items():
        folder = "starts" if starts == "human" else ""
        given = config.for_test({"mode": "test", "starts": starts, "human_starts_dir": folder})
        write_test(directory, given, total, final_percent, number)
    return directory


def compare_runs(*paths: Path) -> Comparison:
    (comparison,), left_out = compare([read_run(str(path)) for path in paths], None)
    assert left_out == []
    return comparison


def write_test(
    directory: RunDirectory, config: Config, frames: int, percent: float, episodes: int
) -> None:
    suite = config.suite
    random = np.random.default_rng(config.seed)
    returns = {}
    for level in dict.fromkeys([*map(suite.test_version, suite.tasks), *suite.tasks]):
        low, high = suite.references(config.starts).get(level, _UNKNOWN)
        noise = random.uniform(0.8, 1.2, size=episodes)
        returns[level] = (low + (high - low) * percent * noise / 100).tolist()
    directory.write_evaluation(evaluation_summary.summarise(config, frames, returns))


def make_film(path: Path, images: Sequence[np.ndarray]) -> None:
    """Writes a film of images uint8 `[height, width, 3]`, 15 per second."""
    path.parent.mkdir(exist_ok=True)
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", 15)
        stream.height, stream.width, _ = images[0].shape
        stream.pix_fmt = "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def append(path: Path, *records: Mapping[str, Any]) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def make_event(
    number: int, frames: int, source: tuple[int, int] | None = None, **given: Any
) -> Event:
    partner, source_frames = source or (None, None)
    fitness, theirs = 10.0 if number else None, 20.0 if source else None
    outcome = (fitness, partner, theirs, source is not None, source_frames, HYPERPARAMETERS)
    return Event(number, frames, *outcome)._replace(**given)


START = make_event(0, 0)


def begin(number: int) -> Event:
    """Returns the start of a member whose hyperparameters are its own."""
    values = {name: value * (1 + number) for name, value in HYPERPARAMETERS.items()}
    return make_event(0, 0, hyperparameters=values)


# Member 3 copies 2 at 900 frames, when that has 700. Member 2 had copied 1 at 400, when that was
# ahead at 650, and member 1 had copied 0 at 300, when that was behind at 200.
LINEAGES: dict[int, list[Event]] = {
    0: [START, make_event(1, 200), make_event(2, 420, (1, 310))],
    1: [START, make_event(1, 300, (0, 200)), make_event(2, 500), make_event(3, 650, (2, 390))],
    2: [START, make_event(1, 400, (1, 650)), make_event(2, 550), make_event(3, 700, (0, 600))],
    3: [START, make_event(1, 500), make_event(2, 900, (2, 700)), make_event(3, 1000)],
}


def make_population(
    path: Path, lineages: Mapping[int, Sequence[Event]] = LINEAGES, best: int = 3, **flags: Any
) -> PopulationDirectory:
    """Makes a population of five; by default member 4 has not begun.

    Every 10 frames up to 1200 each member has metrics and an episode, of each task in turn.
    """
    given = {"mode": "pbt", "population_size": 5, "seed": 7, "level_name": "catch5", **flags}
    config = Config.from_flags({"logdir": str(path), "use_popart": True, **given})
    population, tasks = PopulationDirectory(str(path)), config.suite.tasks
    population.join(config)
    for number, events in lineages.items():
        directory = population.member(number)
        directory.path.mkdir()
        directory.record(population.member_config(config, number, HYPERPARAMETERS))
        append(directory.lineage, *(event._asdict() for event in events))
        for frames in range(10, 1210, 10):
            task = tasks[frames // 10 % len(tasks)]
            value = 1.0 * (number == best) if frames > 600 else number / 1000
            scale = config.suite.reference_scores[task].human
            episode = {"task": task, "frames": frames, "episode_return": value * scale}
            append(directory.episodes, episode)
            by_task = dict.fromkeys(tasks, float(number))
            append(directory.metrics, {"frames": frames, "shift": by_task, "scale": by_task})
    return population
