"""Exports the agent of a run as a SavedModel, which acts and values where only TensorFlow is.

  python tools/export_agent.py --logdir=runs/popart --output=exported
  python tools/export_agent.py --logdir=runs/popart --output=agents/mine --format=run

The second writes a small run directory of weights and flags instead, which this project loads,
tests and starts new runs from, but cannot resume. `--frames` names a checkpoint other than the
newest. The method `TrainedAgent.export` says what the signatures of a SavedModel take and return,
and `exported/agent.json` has the shapes.
"""

if __name__ == "__main__":
    import start  # noqa: F401

from absl import flags, logging

import scalable_agent_popart
from scalable_agent_popart.system import program

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", None, "Directory of the run.", required=True)
flags.DEFINE_string("output", None, "Directory to write, which must not exist.", required=True)
flags.DEFINE_enum("format", "saved_model", ["saved_model", "run"], "What to write.")
flags.DEFINE_string("network", None, "The run's --network, if that is MODULE:NAME.")
flags.DEFINE(program.Integer(), "frames", None, "Frames of the checkpoint. Default: the newest.")


def main(argv: list[str]) -> None:
    """Exports."""
    logging.set_verbosity(logging.WARNING)  # TensorFlow says what it renames.
    agent = scalable_agent_popart.load(FLAGS.logdir, FLAGS.frames, network=FLAGS.network)
    (agent.export if FLAGS.format == "saved_model" else agent.save)(FLAGS.output)
    print(f"exported at {agent.frames:,} frames: {FLAGS.output}")


if __name__ == "__main__":
    program.run(main, FLAGS)
