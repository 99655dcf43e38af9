"""The evaluator's job: tests a run again and again while others train it."""

import json
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from scalable_agent_popart.config import Config
from scalable_agent_popart.evaluation import evaluate as evaluation
from scalable_agent_popart.runs.checkpoints import frames_of, newest_checkpoint
from scalable_agent_popart.runs.directory import RunDirectory

_POLL_SECONDS = 1.0


def follow(config: Config) -> None:
    """Tests every checkpoint that is the newest when it looks, until the run has ended.

    Each test is written as `--mode=test` writes it, added as a line to `evaluations.jsonl`, and
    to TensorBoard's curves.

    Args:
      config: to test with; its `total_environment_frames` are the run's end.

    Raises:
      UserError: see `evaluation.Tester`.
    """
    directory = RunDirectory(config.logdir)
    writer = tf.summary.create_file_writer(str(directory.path / "evaluator"))
    tester = evaluation.Tester(config)
    tested, frames = None, -1
    with writer.as_default():
        while frames < config.total_environment_frames:
            newest = newest_checkpoint(directory.checkpoints)
            if newest is None or newest == tested or frames_of(newest) in (None, frames):
                time.sleep(_POLL_SECONDS)
                continue
            summary = tester.test()
            tested, frames = newest, summary["frames"]
            _record(directory.evaluations_log, summary)


def _record(path: Path, summary: dict[str, Any]) -> None:
    """Adds a line to the log, and a point to TensorBoard's curves, which the caller opened."""
    means = {level: result["mean_return"] for level, result in summary["tasks"].items()}
    record = {name: summary[name] for name in ("frames", "starts")} | summary["aggregate"]
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **record, "mean_return": means}) + "\n")
    for name, score in summary["aggregate"].items():
        if score is not None:
            tf.summary.scalar(f"evaluation/{name}", score, summary["frames"])
    for level, mean in means.items():
        tf.summary.scalar(f"evaluation_return/{level}", mean, summary["frames"])
