# ruff: noqa: E402 - TensorFlow is imported first, without its messages.
"""Training throughput, and what the same machine allows in the same minutes.

  python benchmarks/throughput.py --use_popart --json=throughput.json
  python benchmarks/throughput.py --use_popart --against=use_popart=false
  python benchmarks/throughput.py --measure=overhead --num_actors=64

Takes every flag of training; the level is pong if none is given. Without the last two options
it measures these rates in turn, in one process, and repeats that `--repeats` times:

* training: agent steps/s that the learner consumes while actors act, as in `--mode=train`,
  with the share of time that actor threads and learner spend in each stage;
* forward: the policy's call alone, on as many environments as an actor thread has;
* train_step: the learner's update alone, on one batch over and over;
* emulation: the environments alone, all actor threads stepping random actions.

Every training step needs one of each, so with all cores busy the arithmetic allows
roofline = 1 / (1 / forward + 1 / train_step + 1 / emulation). The efficiency is training divided
by that. The report has medians over the repeats, and the peak memory of training alone.

`--against` instead trains two agents in turn, one as the flags say and one with these flags
changed. It reports the ratio of their rates, and that of their updates alone, made one by one.

`--measure=overhead` measures the program's own work, with one actor thread and with two in turn:
environments cost nothing then, and the network is a linear layer. `--measure=accelerator` trains on
a `--machine` with a GPU that only pretends, next to the bound that its slower part sets.
`--measure=port` measures what a learner's port takes in from four processes that only send.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    # A Python without the project's packages does not have the project itself, either.
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from scalable_agent_popart.system import signals

    signals.end_at_ctrl_c()

import json
import resource
import statistics
from pathlib import Path

from absl import flags
from absl.testing import flagsaver

from scalable_agent_popart.system import tensorflow_import

tensorflow_import.import_quietly()

import rates
import stand_ins
import tensorflow as tf
import wire

import experiment
from scalable_agent_popart import factory
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system import hardware, program

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "measure", "training", ["training", "overhead", "accelerator", "port"], "What is measured."
)
_MACHINE = "A row of results/speed/gpu.json, or agent steps/s of emulators, updates and policy."
flags.DEFINE_list("machine", ["float32"], _MACHINE)
flags.DEFINE(program.Integer(), "repeats", 3, "How often everything is measured.")
flags.DEFINE_float("seconds", 30.0, "How long each measurement lasts.")
flags.DEFINE_string("against", None, "Flags of a second agent: use_popart=false;seed=2.")
flags.DEFINE_string("json", None, "File to write the results to.")


def measure(config: Config, seconds: float) -> dict[str, float]:
    """Measures everything once."""
    figures = rates.measure_training(config, seconds)
    figures["peak_memory_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if hardware.has_gpu():
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
        figures["peak_gpu_memory_gib"] = peak / 2**30
    bare = {
        "forward": rates.measure_forward(config, seconds),
        "train_step": rates.rate(rates.make_train_step(config), seconds),
        "emulation": rates.measure_emulation(config, seconds),
    }
    roofline = 1.0 / sum(1.0 / speed for speed in bare.values())
    efficiency = figures["agent_steps_per_second"] / roofline
    return {**figures, **bare, "roofline": roofline, "efficiency": efficiency}


def compare(agents: list[Config], order: int, seconds: float) -> dict[str, float]:
    """Trains two agents in turn, once; with an order of -1 the second is first."""
    trained = [rates.measure_training(agent, seconds) for agent in agents[::order]]
    first, second = (figures["agent_steps_per_second"] for figures in trained[::order])
    return {
        "agent_steps_per_second": first,
        "against": second,
        "ratio": first / second,
        "train_step_ratio": rates.compare_train_steps(agents[0], agents[1], seconds),
    }


def changed(config: Config, changes: str) -> Config:
    """Returns the configuration with flags changed, `FLAG=VALUE;FLAG=VALUE`."""
    with flagsaver.flagsaver():
        FLAGS(["throughput.py", *(f"--{change}" for change in changes.split(";"))])
        return config.with_flags(experiment.given_flags())


_MEASURES = {
    "training": measure,
    "overhead": stand_ins.measure_overhead,
    "accelerator": lambda config, seconds: stand_ins.measure_machine(
        config, seconds, stand_ins.make_machine(FLAGS.machine)
    ),
    "port": wire.measure,
}


def main(argv: list[str]) -> None:
    """Measures, prints medians and writes the JSON file."""
    if FLAGS.measure != "training" and FLAGS.against:
        raise UserError(f"--measure={FLAGS.measure} goes without --against")
    config = Config.from_flags({"level_name": "pong", **experiment.given_flags()})
    agents = [config]
    if FLAGS.against:
        agents.append(changed(config, FLAGS.against))
    for agent in agents:
        agent.check_playable()
    hardware.prepare_process()
    for agent in agents:
        factory.check_network(agent)
    results: list[dict[str, float]] = []
    for i in range(FLAGS.repeats):
        if FLAGS.against:
            results.append(compare(agents, (-1) ** i, FLAGS.seconds))
        else:
            results.append(_MEASURES[FLAGS.measure](config, FLAGS.seconds))
        print({name: round(value, 3) for name, value in results[-1].items()}, flush=True)
    medians = {name: statistics.median(r[name] for r in results) for name in results[0]}
    # Later peaks include what the bare rates took.
    medians |= {name: value for name, value in results[0].items() if name.startswith("peak_")}
    what = f"{config.agent_name}, {config.network} network, {config.level_name}, {config.precision}"
    print(f"\n{FLAGS.measure}: {what}, {config.num_actors} actors; medians")
    for name, value in medians.items():
        print(f"{name:<24}{value:>12,.3f}")
    if FLAGS.json:
        settings = experiment.given_flags() | {"precision": config.precision}
        settings |= {"measure": FLAGS.measure, "against": FLAGS.against}
        record = {**medians, "settings": settings, "repeats": results}
        Path(FLAGS.json).expanduser().write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    program.run(main, FLAGS)
