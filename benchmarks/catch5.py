"""Three agents, three seeds, raw rewards over four orders of magnitude: who learns what?

  python benchmarks/catch5.py --logdir=runs/catch5

Trains IMPALA, MultiHead-IMPALA and PopArt-IMPALA on `catch5` with the same flags and frames,
one run after the other, tests each, and prints a table in Markdown. Runs that are finished are
only tested again. Flags after `--` go to every training run.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "runs/catch5", "Directory of the runs.")
flags.DEFINE_integer("num_seeds", 3, "Seeds, from 1.")

_AGENTS = {
    "IMPALA": [],
    "MultiHead-IMPALA": ["--multi_head"],
    "PopArt-IMPALA": ["--use_popart"],
}
_EXPERIMENT = Path(__file__).parent.parent / "experiment.py"


def run(agent: str, seed: int, flags_for_training: list[str]) -> dict:
    """Trains and tests one agent; returns its `evaluation.json`."""
    logdir = Path(FLAGS.logdir) / f"{agent}-{seed}"
    command = [sys.executable, str(_EXPERIMENT), f"--logdir={logdir}"]
    training = ["--level_name=catch5", "--reward_clipping=none", f"--seed={seed}"]
    subprocess.run([*command, *training, *_AGENTS[agent], *flags_for_training], check=True)
    subprocess.run([*command, "--mode=test", "--test_num_episodes=200"], check=True)
    return json.loads((logdir / "evaluation.json").read_text())


def row(agent: str, evaluations: list[dict]) -> str:
    """One line of the table: mean normalised score by task over seeds, and each seed's mean."""
    tasks = evaluations[0]["tasks"]
    by_task = [statistics.mean(e["tasks"][t]["normalised"] for e in evaluations) for t in tasks]
    means = [e["aggregate"]["mean"] for e in evaluations]
    cells = [f"{value:.0f}" for value in by_task]
    seeds = ", ".join(f"{value:.1f}" for value in means)
    return f"| {agent} | {' | '.join(cells)} | **{statistics.mean(means):.1f}** | {seeds} |"


def main(argv: list[str]) -> None:
    """Runs everything and prints the table."""
    rows = []
    for agent in _AGENTS:
        evaluations = [run(agent, seed, argv[1:]) for seed in range(1, FLAGS.num_seeds + 1)]
        tasks = list(evaluations[0]["tasks"])
        rows.append(row(agent, evaluations))
    print(f"\n| Agent | {' | '.join(tasks)} | mean | by seed |")
    print("|---" * (len(tasks) + 3) + "|")
    print("\n".join(rows))


if __name__ == "__main__":
    app.run(main)
