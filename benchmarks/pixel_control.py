"""What pixel control is good for, on one small task: how many frames does it save?

  python benchmarks/pixel_control.py --logdir=runs/pixel_control

Trains IMPALA and Pixel-IMPALA on `cluttered_catch` with the same flags and frames, one run after
the other, and prints a table in Markdown: the frames until half of the last 100 balls were caught,
and the share of the last 1,000 balls of the run. Runs that are finished are not repeated.
`--mode=report` draws the curves of the same directories. Flags after `--` go to every run.
"""

import json
import statistics
import subprocess
import sys
from collections import deque
from pathlib import Path

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "runs/pixel_control", "Directory of the runs.")
flags.DEFINE_integer("num_seeds", 3, "Seeds, from 1.")

_AGENTS = {"IMPALA": [], "Pixel-IMPALA": ["--pixel_control", "--pixel_control_cost=0.1"]}
_EXPERIMENT = Path(__file__).parent.parent / "experiment.py"
_WINDOW = 100
_LAST = 1000


def train(agent: str, seed: int, flags_for_training: list[str]) -> Path:
    """Trains one agent, unless that is done; returns the run's `episodes.jsonl`."""
    logdir = Path(FLAGS.logdir) / f"{agent}-{seed}"
    command = [sys.executable, str(_EXPERIMENT), f"--logdir={logdir}", f"--seed={seed}"]
    training = ["--level_name=cluttered_catch", *_AGENTS[agent], *flags_for_training]
    subprocess.run([*command, *training], check=True)
    return logdir / "episodes.jsonl"


def measure(episodes: Path) -> tuple[int | None, float]:
    """Frames until half of the last `_WINDOW` balls were caught, and the share at the end."""
    games = [json.loads(line) for line in episodes.read_text().splitlines()]
    window: deque[float] = deque(maxlen=_WINDOW)
    reached = None
    for game in games:
        window.append(game["episode_return"])
        if len(window) == _WINDOW and statistics.fmean(window) >= 0.5:
            reached = game["frames"]
            break
    return reached, statistics.fmean(game["episode_return"] for game in games[-_LAST:])


def main(argv: list[str]) -> None:
    """Runs everything and prints the table."""
    rows = []
    for agent in _AGENTS:
        for seed in range(1, FLAGS.num_seeds + 1):
            reached, last = measure(train(agent, seed, argv[1:]))
            frames = "never" if reached is None else f"{reached:,}"
            rows.append(f"| {agent} | {seed} | {frames} | {100 * last:.0f}% |")
    print("\n| Agent | seed | frames until half of the last 100 were caught | at the end |")
    print("|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    app.run(main)
