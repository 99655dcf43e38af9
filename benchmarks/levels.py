"""DmLab-30's levels in their processes, with a stand-in for the engine that takes no time.

  python benchmarks/levels.py --measure=boundary
  python benchmarks/levels.py --measure=slow --seconds=120
  python benchmarks/levels.py --measure=deaths
  python benchmarks/levels.py --measure=pixel_control

Needs no `deepmind_lab`. Takes every flag of training; the level is dmlab30 if none is given.

* boundary: agent steps/s of all levels together, acted on at random; what the process boundary
  allows. With the share of processor time that the host of a virtual machine withheld.
* slow: training, with all levels equally slow to reset and with one of them 100 times slower, in
  turn; the ratio of the rates, and how often the slow level stands in the batches compared
  with the mean of all.
* deaths: training with a level that ends its process every few hundred steps, until it has
  done so 100 times.
* pixel_control: training without and with pixel control in turn, the ratio of the rates, and
  the share of the learner's update, alone, that pixel control takes.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rates
from absl import app, flags

import experiment
from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import hardware

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "measure", "boundary", ["boundary", "slow", "deaths", "pixel_control"], "What to measure."
)
flags.DEFINE_integer("repeats", 3, "Times that rates are measured.")
flags.DEFINE_float("seconds", 30.0, "Seconds each measurement lasts.")
flags.DEFINE_float("reset_seconds", 0.03, "How long a level takes to reset; slow: 100 times that.")
flags.DEFINE_integer("steps_to_death", 300, "Agent steps, on average.")
flags.DEFINE_integer("deaths", 100, "How many to go through.", lower_bound=1)
flags.DEFINE_string("json", None, "File to write the results to.")

_STOLEN = 7  # Field of /proc/stat: time that a virtual machine's host gave to others.
_ROOT = str(Path(__file__).resolve().parents[1])


def behave(**levels: Mapping[str, Any]) -> None:
    """Sets how the stand-in's levels behave in processes that start from now on."""
    os.environ["FAKE_DMLAB"] = json.dumps(levels)


def measure_boundary(config: Config) -> dict[str, float]:
    """The levels alone, and the share of the processors' time that the host gave to others."""
    behave()
    before = _processor_ticks()
    speed = rates.measure_emulation(config, FLAGS.seconds)
    ticks = [now - then for now, then in zip(_processor_ticks(), before, strict=True)]
    return {"agent_steps_per_second": speed, "stolen": ticks[_STOLEN] / sum(ticks)}


def _processor_ticks() -> list[int]:
    """Counts the time of all processors since the start, by what they did; see proc_stat(5)."""
    with open("/proc/stat") as lines:
        return [int(field) for field in lines.readline().split()[1:9]]


def measure_slow(config: Config) -> dict[str, float]:
    """Training without and with one slow level."""
    slow = config.suite.tasks[-1]
    usual = {"episode_frames": 360, "reset_seconds": FLAGS.reset_seconds}
    figures = {}
    for name, own in (("equal", usual), ("one_slow", {"reset_seconds": 100 * FLAGS.reset_seconds})):
        behave(**{"*": usual, slow: own})
        with rates.training(config) as running:
            running.rollouts_of.clear()
            figures[name] = rates.rate(running.steps_per_update, running.update, FLAGS.seconds)
            counts = running.rollouts_of
        mean = counts.total() / len(config.suite.tasks)
        figures[f"{name}_share_of_slow"] = counts[slow] / mean
        figures[f"{name}_least_share"] = min(counts[task] for task in config.suite.tasks) / mean
    return {**figures, "ratio": figures["one_slow"] / figures["equal"]}


def measure_deaths(config: Config) -> dict[str, float]:
    """Training through many deaths of one level."""
    dying = config.suite.tasks[-1]
    behave(**{dying: {"exit_after_steps": FLAGS.steps_to_death}})
    with rates.training(config) as running:
        running.rollouts_of.clear()
        earlier = running.actors.restarts().get(dying, 0)  # While it warmed up.
        start, updates, restarts = time.perf_counter(), 0, 0
        while restarts < FLAGS.deaths:
            running.update()
            updates += 1
            restarts = running.actors.restarts().get(dying, 0) - earlier
        seconds = time.perf_counter() - start
        mean = running.rollouts_of.total() / len(config.suite.tasks)
        return {
            "restarts": restarts,
            "updates": updates,
            "seconds": seconds,
            "agent_steps_per_second": updates * running.steps_per_update / seconds,
            "share_of_dying": running.rollouts_of[dying] / mean,
        }


def measure_pixel_control(config: Config) -> dict[str, float]:
    """Training without and with it, and its share of the update."""
    behave()
    plain, pixel = (config.with_flags({"pixel_control": wanted}) for wanted in (False, True))
    without, with_it = (
        rates.measure_training(each, FLAGS.seconds)["agent_steps_per_second"]
        for each in (plain, pixel)
    )
    return {
        "without": without,
        "with": with_it,
        "ratio": with_it / without,
        "share_of_update": 1.0 - rates.compare_train_steps(pixel, plain, FLAGS.seconds),
    }


def report(config: Config, results: list[dict[str, float]]) -> None:
    """Prints the medians and writes the JSON file."""
    medians = {name: statistics.median(r[name] for r in results) for name in results[0]}
    threads = factory.num_actor_threads(config)
    print(f"\n{FLAGS.measure}: {config.num_actors} actors in {threads} threads", end=", ")
    print(f"{config.height}x{config.width}")
    for name, value in medians.items():
        print(f"{name:<28}{value:>12,.3f}")
    if FLAGS.json:
        record = {**medians, "settings": experiment.given_flags(), "repeats": results}
        Path(FLAGS.json).write_text(json.dumps(record, indent=2) + "\n")


def main(argv: list[str]) -> None:
    """Measures, prints a table and writes the JSON file."""
    del argv
    measures = {
        "boundary": measure_boundary,
        "slow": measure_slow,
        "deaths": measure_deaths,
        "pixel_control": measure_pixel_control,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "deepmind_lab.py").write_text(
            "from tests.fakes.fake_deepmind_lab import *\n"
        )
        sys.path[:0] = [folder, _ROOT]
        given = {"level_name": "dmlab30", "dataset_path": "dummy", **experiment.given_flags()}
        try:
            config = Config.from_flags(given)
            config.check_playable()
        except UserError as error:
            sys.exit(f"error: {error}")
        hardware.prepare_process()
        repeats = 1 if FLAGS.measure == "deaths" else FLAGS.repeats
        results = []
        for _ in range(repeats):
            results.append(measures[FLAGS.measure](config))
            print({name: round(value, 3) for name, value in results[-1].items()}, flush=True)
        report(config, results)


if __name__ == "__main__":
    app.run(main)
