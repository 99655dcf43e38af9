"""Records of a training run: JSON lines, TensorBoard and the terminal.

`episodes.jsonl` has a line for each finished game, `metrics.jsonl` one every few seconds of
learning. When a run resumes, both return to their state at the checkpoint, so that their frames
never go backwards. TensorBoard's files keep what came after it, which its server leaves out.
"""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from environments import StepOutputInfo
from scalable_agent_popart import scores
from scalable_agent_popart.errors import UnsavedError
from scalable_agent_popart.runs import json_lines
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import RunDirectory, explained
from scalable_agent_popart.system import hardware
from scalable_agent_popart.system.terminal import progress_bar

# TensorBoard shows groups by name, so that scores come first, those by task second. These values
# are in the group `speed`, losses in `losses` and the rest in `learning`.
_SPEED = {"frames_per_second", "memory_mib", "policy_lag", "learner_wait", "queue_fill"}
_SPEED |= {"environment_restarts"}
# Values by task are groups of their own, some of them under another name.
_TENSORBOARD_NAMES = {"shift": "popart_shift", "scale": "popart_scale"}
_TENSORBOARD_NAMES |= {"batch_share": "share_of_batch"}


class JsonLines:
    """A file of one JSON object per line; its `length` in bytes is part of the checkpoint."""

    def __init__(self, path: Path):
        self.path = path
        self.length = tf.Variable(0, dtype=tf.int64, trainable=False)

    def open(self) -> None:
        """Cuts the file back to `length`, and to whole lines, and opens it to write more."""
        self._file = json_lines.open_to_append(self.path, int(self.length))

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json_lines.to_json(record) + "\n")

    def flush(self) -> None:
        """Passes everything written to the operating system and stores the length."""
        self._file.flush()
        self.length.assign(self._file.tell())

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def write_events(writer: tf.summary.SummaryWriter, path: Path, frames: int) -> Iterator[None]:
    """Writes TensorBoard's points of so many frames at once; raises UnsavedError if that fails."""
    try:
        with writer.as_default(step=frames):
            yield
        writer.flush()
    except tf.errors.OpError as error:
        message = f"TensorBoard's file in {path} cannot be written ({error.message})"
        advice = "make room, or fix this, and the same command resumes"
        raise UnsavedError(f"{message}; {advice}") from error


class RunLog:
    """All records of a training run: `metrics` of the learner, finished `episodes`, and others."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        device: str,
        on_episode: Callable[[str, float, int], None],
    ):
        """Opens nothing yet.

        Each finished game is passed to `on_episode`, also those in the log that is opened: its
        task, its raw return and the run's frames at its end. Every line of metrics will name the
        device.
        """
        tasks = config.suite.tasks
        self.metrics = JsonLines(directory.metrics)
        self.episodes = JsonLines(directory.episodes)
        self._path, self._config, self._suite = directory.path, config, config.suite
        self._constants = {"precision": config.precision, "device": device}
        self._on_episode = on_episode
        self._returns = {task: deque[float](maxlen=scores.RECENT_EPISODES) for task in tasks}
        self._rollouts = np.zeros(len(tasks), np.int64)  # By task, since the last record.

    def open(self, frames: int, show_progress: bool = True) -> None:
        """Starts to record, at so many environment frames of the run."""
        self.metrics.open()
        self.episodes.open()
        with explained(self.episodes.path):
            for episode in json_lines.read_lines(self.episodes.path):
                self._count_episode(episode["task"], episode["episode_return"], episode["frames"])
        if not frames:  # An earlier start may have had other flags.
            for path in self._path.glob("events.out.tfevents.*"):
                path.unlink()
        self._tensorboard = tf.summary.create_file_writer(str(self._path))
        if not frames:  # TensorBoard compares runs by these, and takes the first it finds.
            config = self._config
            shown = {"agent": config.agent_name, "seed": config.seed, **config.experiment}
            with self._tensorboard.as_default():
                hparams.hparams(shown, trial_id="")  # Every run has a row, with the run's name.
        how = {"initial": frames, "unit_scale": True, "smoothing": 0.05}
        total = self._config.total_environment_frames
        self._progress = progress_bar(total, " frames", disable=not show_progress, **how)
        self._since = (time.monotonic(), frames)  # Time and frames of the last record.

    def show_start(self, text: str) -> None:
        """Shows a text in the progress bar until the first batch is recorded."""
        self._progress.set_description(text, refresh=sys.stderr.isatty())
        self._progress.update(0)  # A log file gets it now and then.

    def record_batch(self, frames: int, task_ids: np.ndarray, info: StepOutputInfo) -> None:
        """Counts a batch of tasks `[B]`, writes its games that ended, and shows the progress."""
        self._rollouts += np.bincount(task_ids, minlength=len(self._rollouts))
        for step, b in np.argwhere(info.episode_end[1:]):  # Step 0 is of earlier rollouts.
            task, value = self._suite.tasks[task_ids[b]], float(info.episode_return[step + 1, b])
            length = int(info.episode_step[step + 1, b]) * self._config.num_action_repeats
            self._count_episode(task, value, frames)
            episode = {"task": task, "episode_return": value, "episode_frames": length}
            self.episodes.write({**episode, "frames": frames})
        self._progress.set_description(refresh=False)
        self._progress.update(frames - self._progress.n)

    def record_metrics(
        self, frames: int, metrics: Mapping[str, float], by_task: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Writes a line of metrics, TensorBoard scalars, and the terminal's score and loss.

        The learner's metrics, also those `by_task` such as `shift`, are joined by speed, scores,
        memory and each task's share of the rollouts since the last line.
        """
        since, self._since = self._since, (time.monotonic(), frames)
        aggregate, num_played = self._aggregate()
        score = {"tasks_scored": num_played, **(aggregate._asdict() if aggregate else {})}
        speed = (frames - since[1]) / max(self._since[0] - since[0], 1e-9)
        record = {"frames": frames, "frames_per_second": speed, **metrics, **score}
        record["memory_mib"] = hardware.memory_mib()
        shares = (self._rollouts / max(1, self._rollouts.sum())).tolist()
        self._rollouts[:] = 0
        mean_returns = {task: float(np.mean(r)) for task, r in self._returns.items() if r}
        batch_share = dict(zip(self._suite.tasks, shares, strict=True))
        by_task = {"episode_return": mean_returns, "batch_share": batch_share, **by_task}
        self.metrics.write({"time": time.time(), **record, **self._constants, **by_task})
        self.metrics.flush()
        self.episodes.flush()
        with write_events(self._tensorboard, self._path, frames):
            for name, value in record.items():
                group = "speed" if name in _SPEED else "learning"
                group = "losses" if name.endswith("_loss") else group
                group = "aggregate_score" if name in score else group
                if name != "frames":  # Frames are the axis.
                    tf.summary.scalar(f"{group}/{name}", value)
            for name, values in by_task.items():
                for task, value in values.items():
                    tf.summary.scalar(f"{_TENSORBOARD_NAMES.get(name, name)}/{task}", value)
        learning = f"loss {record['total_loss']:.4g}", f"entropy {record['mean_entropy']:.2f}"
        shown = filter(None, [self.score, *learning])
        self._progress.set_postfix_str(", ".join(shown), refresh=False)

    @property
    def score(self) -> str:
        """The score in training so far, in words; empty before any episode that counts."""
        aggregate, num_played = self._aggregate()
        if aggregate is None:
            return ""
        headline, tasks = self._suite.headline, len(self._suite.tasks)
        value = f"{getattr(aggregate, headline):.1f}{self._suite.unit}"
        return f"{headline} {value} of {num_played}/{tasks} tasks"

    def _aggregate(self) -> tuple[scores.Aggregate | None, int]:
        """Aggregates the recent returns, and counts their tasks."""
        references = self._suite.reference_scores
        played = {t: returns for t, returns in self._returns.items() if returns and t in references}
        return scores.aggregate_returns(played, references), len(played)

    def close(self) -> None:
        """Ends the records."""
        self._progress.close()
        self._tensorboard.close()
        self.metrics.close()
        self.episodes.close()

    def _count_episode(self, task: str, episode_return: float, frames: int) -> None:
        self._returns[task].append(episode_return)
        self._on_episode(task, episode_return, frames)
