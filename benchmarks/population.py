"""What population-based training makes of a population half of which begins hopelessly.

  python benchmarks/population.py --logdir=runs/population

Trains populations on `catch5`, with comparisons and, from the same hyperparameters, without. The
last half of the members begin with a learning rate that teaches nothing in so few frames, the
others with the suite's; the other hyperparameters are drawn. All members of a population train at
the same time, each in a process of its own. Prints a table in Markdown. Populations that are
finished are not trained again; `--mode=report` draws their curves. Flags after `--` go to every
member.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "runs/population", "Directory of the populations.")
flags.DEFINE_integer("num_seeds", 3, "Seeds, from 1.")
flags.DEFINE_integer("population_size", 8, "Members of each population.")
flags.DEFINE_integer("total_environment_frames", 300_000, "Frames of each member.")
flags.DEFINE_float("learning_rate", 5e-3, "Where the first half of the members begin.")
flags.DEFINE_float("hopeless_learning_rate", 1e-6, "Where the last half of the members begin.")

_EXPERIMENT = Path(__file__).parent.parent / "experiment.py"


def train(logdir: Path, seed: int, compares: bool, others: list[str]) -> list[float]:
    """Trains a population; returns each member's mean score over its last episodes, in percent."""
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
    logs = [logdir / f"member-{member:02d}" / "metrics.jsonl" for member in range(size)]
    return [json.loads(log.read_text().splitlines()[-1])["mean"] for log in logs]


def row(seed: int, name: str, scores: list[float]) -> str:
    """One line of the table."""
    hopeless = scores[len(scores) // 2 :]
    cells = [max(scores), statistics.median(scores), statistics.fmean(hopeless), min(hopeless)]
    return f"| {seed} | {name} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |"


def main(argv: list[str]) -> None:
    """Runs everything and prints the table."""
    rows = []
    for seed in range(1, FLAGS.num_seeds + 1):
        for name, compares in (("with", True), ("without", False)):
            scores = train(Path(FLAGS.logdir) / f"{name}-{seed}", seed, compares, argv[1:])
            rows.append(row(seed, name, scores))
            print(rows[-1], flush=True)
    print("\n| Seed | comparisons | best | median | begun hopelessly: mean | worst |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    app.run(main)
