"""How one run grows with its actors: a calculation from measured constants.

  python benchmarks/scaling.py

Prints a table in Markdown: for so many environments, the agent steps per second that actors could
make, what the learner's port and its network then carry, and what stands in the way first. The
constants are flags; their defaults are what benchmarks/throughput.py and benchmarks/wire.py
measured for the deep network on Atari, on a machine of two cores.
"""

import math

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("environments", ["150", "500", "1000", "2000", "5000", "10000"], "Of all jobs.")
flags.DEFINE_integer("environments_per_job", 57, "An actor job's.")
flags.DEFINE_integer("threads_per_job", 2, "An actor job's.")
flags.DEFINE_integer("cores_per_job", 2, "An actor job's.")
flags.DEFINE_float("actor_steps", 416.0, "Agent steps/s that a core acts and emulates.")
flags.DEFINE_float("learner_steps", 20_000.0, "Agent steps/s that the learner trains.")
flags.DEFINE_float("ingest_steps", 40_000.0, "Agent steps/s that the learner's port takes in.")
flags.DEFINE_float("network_bytes", 1.25e9, "Bytes/s of the learner's network, each way.")
flags.DEFINE_float("step_bytes", 8915.0, "Of an agent step on the wire.")
flags.DEFINE_float("weight_bytes", 4.4e6, "Of the weights.")
flags.DEFINE_integer("unroll_length", 20, "Agent steps a rollout.")
flags.DEFINE_integer("batch_size", 32, "Rollouts a batch.")


def row(environments: int) -> list[str]:
    """Cells of the table for so many environments."""
    jobs = math.ceil(environments / FLAGS.environments_per_job)
    makes = jobs * FLAGS.cores_per_job * FLAGS.actor_steps
    limits = {
        "actors": makes,
        "training": FLAGS.learner_steps,
        "port": FLAGS.ingest_steps,
        "network, rollouts": FLAGS.network_bytes / FLAGS.step_bytes,
    }
    steps = min(limits.values())
    # A job fetches the weights before a rollout of any thread, if there are others by then.
    rollouts_a_thread = steps / (environments * FLAGS.unroll_length)
    updates = steps / (FLAGS.batch_size * FLAGS.unroll_length)
    fetches = jobs * min(FLAGS.threads_per_job * rollouts_a_thread, updates)
    weights = fetches * FLAGS.weight_bytes
    if weights > FLAGS.network_bytes:
        limits["network, weights"] = steps * FLAGS.network_bytes / weights
        weights, steps = FLAGS.network_bytes, limits["network, weights"]
    return [
        f"{environments:,}",
        f"{jobs:,} ({jobs * FLAGS.cores_per_job:,} cores)",
        f"{makes:,.0f}",
        f"{steps:,.0f}",
        f"{steps * FLAGS.step_bytes / 1e6:,.0f}",
        f"{weights / 1e6:,.0f}",
        min(limits, key=lambda name: limits[name]),
    ]


def main(argv: list[str]) -> None:
    del argv
    heads = ["environments", "actor jobs", "actors could make", "learned from", "MB/s in"]
    heads += ["MB/s of weights out", "limited by"]
    lines = [heads, ["---:"] * len(heads), *(row(int(count)) for count in FLAGS.environments)]
    for cells in lines:
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    app.run(main)
