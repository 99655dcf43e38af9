# ruff: noqa: E402 - TensorFlow is imported first, without its messages.
"""Training throughput, and what the same machine allows in the same minutes.

  python benchmarks/throughput.py --use_popart --json=throughput.json
  python benchmarks/throughput.py --use_popart --against=use_popart=false
  python benchmarks/throughput.py --use_popart --endurance_minutes=10
  python benchmarks/throughput.py --measure=overhead --num_actors=64

Takes every flag of training; the level is pong if none is given. Without the last three options
it measures, in one process and in turn, repeated `--repeats` times:

* training: agent steps/s that the learner consumes while actors act, as in `--mode=train`,
  with the share of time that actor threads and learner spend in each stage;
* forward: the policy's call alone, on as many environments as an actor thread has;
* train_step: the learner's update alone, on one batch over and over;
* emulation: the environments alone, all actor threads stepping random actions.

Every training step needs one of each, so with all cores busy the arithmetic allows
roofline = 1 / (1 / forward + 1 / train_step + 1 / emulation), and efficiency is training
divided by that. Reported are medians over the repeats, and the peak memory of training alone.

`--against=FLAG=VALUE[;FLAG=VALUE]` instead trains two agents in turn, one as the flags say and
one with these flags changed, and reports the ratio of their rates, and that of their updates
alone, made in turn one by one. `--endurance_minutes` trains once for so long and reports the
growth of memory and the number of traces.

`--measure=overhead` measures the program's own work: training with environments that cost nothing
and a network of one linear layer behind the conversion of the images, with one actor thread and
with two in turn. `processor_us` is processor time of all threads an agent step, in microseconds.
"""

import dataclasses
import json
import resource
import statistics
import sys
import time
from pathlib import Path

from absl import app, flags

from scalable_agent_popart.system import tensorflow_import

tensorflow_import.import_quietly()

import costless
import rates

import experiment
from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.settings import SETTINGS
from scalable_agent_popart.system import hardware

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "measure", "training", ["training", "overhead"], "The whole, or the program's own work."
)
flags.DEFINE_integer("repeats", 3, "Times that everything is measured.")
flags.DEFINE_float("seconds", 30.0, "Seconds each measurement lasts.")
flags.DEFINE_string("against", None, "Flags of a second agent: use_popart=false;seed=2.")
flags.DEFINE_float("endurance_minutes", None, "Trains once for so long.")
flags.DEFINE_string("json", None, "File to write the results to.")

_MEMORY_SAMPLES = 60


def measure(config: Config) -> dict[str, float]:
    """Measures everything once."""
    figures = rates.measure_training(config, FLAGS.seconds)
    figures["peak_memory_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    bare = {
        "forward": rates.measure_forward(config, FLAGS.seconds),
        "train_step": rates.measure_train_step(config, FLAGS.seconds),
        "emulation": rates.measure_emulation(config, FLAGS.seconds),
    }
    roofline = 1.0 / sum(1.0 / speed for speed in bare.values())
    efficiency = figures["agent_steps_per_second"] / roofline
    return {**figures, **bare, "roofline": roofline, "efficiency": efficiency}


def compare(config: Config, other: Config, other_first: bool) -> dict[str, float]:
    """Trains two agents in turn, once."""
    agents = {"agent_steps_per_second": config, "against": other}
    speeds = dict.fromkeys(agents, 0.0)
    for name in reversed(agents) if other_first else agents:
        training = rates.measure_training(agents[name], FLAGS.seconds)
        speeds[name] = training["agent_steps_per_second"]
    return {
        **speeds,
        "ratio": speeds["agent_steps_per_second"] / speeds["against"],
        "train_step_ratio": rates.compare_train_steps(config, other, FLAGS.seconds),
    }


def endure(config: Config, minutes: float) -> dict[str, float]:
    """Measures memory and traces of one long training; growth is from second quarter to last."""
    memory: list[float] = []
    with rates.training(config) as running:
        traces = running.num_traces
        sample_seconds = 60.0 * minutes / _MEMORY_SAMPLES
        start = time.perf_counter()
        for _ in range(_MEMORY_SAMPLES):
            rates.rate(running.steps_per_update, running.update, sample_seconds)
            memory.append(hardware.memory()["memory_mib"] / 1024)
        elapsed = time.perf_counter() - start
        updates = int(running.learner.num_updates)
        retraced = running.num_traces - traces
    quarter = _MEMORY_SAMPLES // 4
    before = statistics.mean(memory[quarter : 2 * quarter])
    after = statistics.mean(memory[-quarter:])
    return {
        "minutes": elapsed / 60.0,
        "updates": updates,
        "memory_gib_early": before,
        "memory_gib_late": after,
        "memory_growth": after / before - 1.0,
        "retraced": retraced,
    }


def measure_overhead(config: Config) -> dict[str, float]:
    """Measures training at next to no cost, with one actor thread and with two."""
    figures = {}
    with costless.in_place():
        for threads, name in ((1, "one_thread"), (2, "two_threads")):
            threaded = dataclasses.replace(config, actor_threads=threads)
            found = rates.measure_training(threaded, FLAGS.seconds)
            figures[name] = found["agent_steps_per_second"]
            figures[f"{name}_processor_us"] = found["processor_us"]
    figures["agent_steps_per_second"] = max(figures["one_thread"], figures["two_threads"])
    figures["ratio"] = figures["two_threads"] / figures["one_thread"]
    return figures


def run(config: Config, other: Config | None) -> list[dict[str, float]]:
    """Makes the measurements asked for, and prints them as they come."""
    if FLAGS.endurance_minutes:
        return [endure(config, FLAGS.endurance_minutes)]
    results = []
    for i in range(FLAGS.repeats):
        if FLAGS.measure == "overhead":
            results.append(measure_overhead(config))
        elif other is None:
            results.append(measure(config))
        else:
            results.append(compare(config, other, other_first=i % 2 == 1))
        print({name: round(value, 3) for name, value in results[-1].items()}, flush=True)
    return results


def changed(config: Config, changes: str) -> Config:
    """Returns the configuration with flags changed, `FLAG=VALUE;FLAG=VALUE`."""
    try:
        pairs = [change.partition("=") for change in changes.split(";")]
        values = {n: FLAGS[n].parser.parse(value) for n, _, value in pairs if n in SETTINGS}
    except ValueError as error:
        raise UserError(f"--against={changes}: {error}") from error
    if len(values) < len(pairs):
        raise UserError(f"--against={changes} is not FLAG=VALUE;FLAG=VALUE with an agent's flags")
    return config.with_flags(values)


def report(config: Config, results: list[dict[str, float]]) -> None:
    """Prints the medians and writes the JSON file."""
    medians = {name: statistics.median(r[name] for r in results) for name in results[0]}
    if "peak_memory_gib" in medians:  # Later ones hold what the bare rates took.
        medians["peak_memory_gib"] = results[0]["peak_memory_gib"]
    overhead = FLAGS.measure == "overhead"
    network = "one linear layer" if overhead else f"{config.network} network"
    print(f"\n{config.agent_name}, {network}, {config.level_name}, {config.precision}")
    threads = "1 and 2" if overhead else factory.num_actor_threads(config)
    print(f"{config.num_actors} actors in {threads} threads; medians")
    for name, value in medians.items():
        print(f"{name:<24}{value:>12,.3f}")
    if FLAGS.json:
        taken = {name: FLAGS[name].value for name in ("measure", "against")}
        taken["precision"] = config.precision
        settings = {**experiment.given_flags(), **taken}
        record = {**medians, "settings": settings, "repeats": results}
        Path(FLAGS.json).write_text(json.dumps(record, indent=2) + "\n")


def main(argv: list[str]) -> None:
    """Measures, prints a table and writes the JSON file."""
    del argv
    try:
        if FLAGS.measure == "overhead" and (FLAGS.against or FLAGS.endurance_minutes):
            raise UserError(
                "--measure=overhead goes with neither --against nor --endurance_minutes"
            )
        config = Config.from_flags({"level_name": "pong", **experiment.given_flags()})
        other = changed(config, FLAGS.against) if FLAGS.against else None
        for each in (config, other or config):
            each.check_playable()
    except UserError as error:
        sys.exit(f"error: {error}")
    hardware.prepare_process()
    for each in (config, other or config):
        factory.check_precision(each)
    report(config, run(config, other))


if __name__ == "__main__":
    app.run(main)
