"""The evaluator's job: tests a run again and again while others train it."""

import json
import time

import tensorflow as tf

from scalable_agent_popart.config import Config
from scalable_agent_popart.evaluation import evaluate
from scalable_agent_popart.runs.checkpoints import frames_of, newest_checkpoint
from scalable_agent_popart.runs.directory import RunDirectory

_POLL_SECONDS = 1.0


def follow(config: Config) -> None:
    """Tests the newest checkpoint again and again, up to the end of `total_environment_frames`.

    Each test is written as `--mode=test` writes it, added as a line to `evaluations.jsonl`, and
    to TensorBoard's curves. Raises UserError as `evaluate.Tester` does.
    """
    directory = RunDirectory(config.logdir)
    tester = evaluate.Tester(config)
    tested, frames = None, -1
    with tf.summary.create_file_writer(str(directory.path / "evaluator")).as_default():
        while frames < config.total_environment_frames:
            newest = newest_checkpoint(directory.checkpoints)
            if newest is None or newest == tested or frames_of(newest) in (None, frames):
                time.sleep(_POLL_SECONDS)
                continue
            summary = tester.test()
            tested, frames = newest, summary["frames"]
            means = {level: result["mean_return"] for level, result in summary["tasks"].items()}
            record = {"time": time.time(), "frames": frames, "starts": summary["starts"]}
            record |= summary["aggregate"] | {"mean_return": means}
            with open(directory.evaluations_log, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            points = {f"evaluation/{name}": score for name, score in summary["aggregate"].items()}
            points |= {f"evaluation_return/{level}": mean for level, mean in means.items()}
            for name, value in points.items():
                if value is not None:
                    tf.summary.scalar(name, value, frames)
