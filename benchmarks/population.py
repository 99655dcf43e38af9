"""What population-based training makes of a population half of which begins hopelessly.

  python benchmarks/population.py --logdir=runs/population

Trains populations on `catch5`, with comparisons and, from the same hyperparameters, without. The
last half of the members begin with a learning rate that teaches nothing in so few frames, the
others with the suite's; the other hyperparameters are drawn. All members of a population train at
the same time, each in a process of its own. Prints a table in Markdown, of the end and of points on
the way there: as learning rates are not annealed, these are what shorter runs would have come to,
up to the few seconds between two lines of a log.
Populations that are finished are not trained again; `--mode=report` draws their curves. Flags
after `--` go to every member.
"""

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "runs/population", "Directory of the populations.")
flags.DEFINE_integer("num_seeds", 3, "Seeds, from 1.")
flags.DEFINE_integer("population_size", 8, "Members of each population.")
flags.DEFINE_integer("total_environment_frames", 300_000, "Frames of each member.")
flags.DEFINE_float("learning_rate", 5e-3, "Where the first half of the members begin.")
flags.DEFINE_float("hopeless_learning_rate", 1e-6, "Where the last half of the members begin.")

_COMPARES = {"with": True, "without": False}
_PARTS = (1 / 3, 1 / 2, 2 / 3, 5 / 6, 1)
_EXPERIMENT = Path(__file__).parent.parent / "experiment.py"


def train(logdir: Path, seed: int, compares: bool, others: list[str]) -> None:
    """Trains a population."""
    size = FLAGS.population_size
    settings = ["--mode=pbt", f"--population_size={size}", "--level_name=catch5", "--use_popart"]
    settings += [f"--logdir={logdir}", f"--seed={seed}"]
    settings.append(f"--total_environment_frames={FLAGS.total_environment_frames}")
    if not compares:
        settings.append(f"--pbt_burn_in_frames={FLAGS.total_environment_frames}")
    processes = []
    try:
        for member in range(size):
            hopeless = member >= size // 2
            rate = FLAGS.hopeless_learning_rate if hopeless else FLAGS.learning_rate
            own = [f"--pbt_member={member}", f"--learning_rate={rate}"]
            command = [sys.executable, str(_EXPERIMENT), *settings, *own, *others]
            processes.append(subprocess.Popen(command))
        if any(process.wait() for process in processes):
            sys.exit("error: a member did not end well")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def scores(logdir: Path, frames: float) -> list[float]:
    """Each member's mean score over its last episodes (100 a task) at these frames, in percent."""
    found = []
    for member in range(FLAGS.population_size):
        log = (logdir / f"member-{member:02d}" / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in log.splitlines()]
        known = [line["mean"] for line in lines if line["frames"] <= frames and "mean" in line]
        found.append(known[-1])
    return found


def table(logdir: Path) -> Iterator[str]:
    """Lines in Markdown: what populations came to with comparisons and, in brackets, without."""
    yield "| Frames of each | seed | best | median | begun hopelessly: mean | worst |"
    yield "|---|---|---|---|---|---|"
    for part in _PARTS:
        # The last batch goes beyond the end.
        frames = math.inf if part == 1 else part * FLAGS.total_environment_frames
        for seed in range(1, FLAGS.num_seeds + 1):
            pairs = zip(
                *(summary(scores(logdir / f"{name}-{seed}", frames)) for name in _COMPARES),
                strict=True,
            )
            cells = [f"{ours:.1f} ({theirs:.1f})" for ours, theirs in pairs]
            shown = f"{part * FLAGS.total_environment_frames:,.0f}"
            yield f"| {shown} | {seed} | {' | '.join(cells)} |"


def summary(found: list[float]) -> tuple[float, ...]:
    """Best and median of all, mean and worst of those that began hopelessly."""
    hopeless = found[len(found) // 2 :]
    return max(found), statistics.median(found), statistics.fmean(hopeless), min(hopeless)


def main(argv: list[str]) -> None:
    """Runs everything and prints the table."""
    for seed in range(1, FLAGS.num_seeds + 1):
        for name, compares in _COMPARES.items():
            train(Path(FLAGS.logdir) / f"{name}-{seed}", seed, compares, argv[1:])
    print()
    print("\n".join(table(Path(FLAGS.logdir))))


if __name__ == "__main__":
    app.run(main)
