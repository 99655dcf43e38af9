"""Calculates how one run grows with its actors, from measured constants.

  python benchmarks/scaling.py

Prints a table in Markdown. Each row has the agent steps per second that the actors of so many
environments could make, what the learner's port and network carry, and what limits the run. The
constants are what benchmarks/throughput.py and benchmarks/wire.py measured for the deep network
on Atari, on a machine of two cores.
"""

import math

ENVIRONMENTS_PER_JOB = 57
THREADS_PER_JOB = 2
CORES_PER_JOB = 2
ACTOR_STEPS = 416.0  # A core acts and emulates so many agent steps/s.
LEARNER_STEPS = 20_000.0  # The learner trains so many agent steps/s; this one is an assumption.
INGEST_STEPS = 40_000.0  # The learner's port takes in so many agent steps/s.
NETWORK_BYTES = 1.25e9  # The learner's network carries so many bytes/s each way.
STEP_BYTES = 8915.0  # An agent step takes so many bytes on the wire.
WEIGHT_BYTES = 4.4e6
UNROLL_LENGTH = 20
BATCH_SIZE = 32


def row(environments: int) -> list[str]:
    """Returns the cells of the table for so many environments of all jobs."""
    jobs = math.ceil(environments / ENVIRONMENTS_PER_JOB)
    makes = jobs * CORES_PER_JOB * ACTOR_STEPS
    limits = {
        "actors": makes,
        "training": LEARNER_STEPS,
        "port": INGEST_STEPS,
        "network, rollouts": NETWORK_BYTES / STEP_BYTES,
    }
    steps = min(limits.values())
    # A job fetches the weights before a rollout of any thread, if there are others by then.
    rollouts_per_thread = steps / (environments * UNROLL_LENGTH)
    updates = steps / (BATCH_SIZE * UNROLL_LENGTH)
    weights = jobs * min(THREADS_PER_JOB * rollouts_per_thread, updates) * WEIGHT_BYTES
    if weights > NETWORK_BYTES:
        steps *= NETWORK_BYTES / weights
        limits["network, weights"], weights = steps, NETWORK_BYTES
    return [
        f"{environments:,}",
        f"{jobs:,} ({jobs * CORES_PER_JOB:,} cores)",
        f"{makes:,.0f}",
        f"{steps:,.0f}",
        f"{steps * STEP_BYTES / 1e6:,.0f}",
        f"{weights / 1e6:,.0f}",
        min(limits, key=lambda name: limits[name]),
    ]


if __name__ == "__main__":
    heads = ["environments", "actor jobs", "actors could make", "learned from", "MB/s in"]
    heads += ["MB/s of weights out", "limited by"]
    counts = (150, 500, 1000, 2000, 5000, 10_000)
    for cells in (heads, ["---:"] * len(heads), *map(row, counts)):
        print(f"| {' | '.join(cells)} |")
