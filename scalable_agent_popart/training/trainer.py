"""Training: batches from actors to the learner, weights back to them, and the run's records."""

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.errors import DivergenceError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.checkpoints import Checkpoints
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import Record, describe_device
from scalable_agent_popart.runs.logs import RunLog
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.system import hardware
from scalable_agent_popart.system.signals import StopOnSignal
from scalable_agent_popart.system.terminal import show_saved
from scalable_agent_popart.training import initial_weights
from scalable_agent_popart.training.actors import Actors
from scalable_agent_popart.training.averages import Averages
from scalable_agent_popart.training.local_actors import LocalActors


class Tuner:
    """Keeps a run's hyperparameters; subclasses change them, and perhaps weights."""

    def attach(self, learner: Learner) -> Mapping[str, Any]:
        """Takes the learner to tune; returns the tuner's own part of a checkpoint, by name."""
        return {}

    def on_episode(self, task: str, episode_return: float, frames: int) -> None:
        """Is called for each finished game of the run, also those before it was resumed."""

    def begin(self, save: Callable[[], str]) -> None:
        """Is called before the first update; `save` returns a checkpoint's path."""

    def due(self) -> bool:
        """Returns whether `tune` is to be called before the next update."""
        return False

    def tune(self, save: Callable[[], str]) -> bool:
        """Makes the changes; returns whether training continues."""
        raise NotImplementedError


class Parts:
    """Makes the learner and the actors of a run: threads of this process, or a subclass's own.

    Members of a population that it serves in turn share one learner and one set of policies.
    TensorFlow frees no traced graph, so that new ones for each turn would fill the memory.
    """

    def __init__(self) -> None:
        self._learners: dict[bool, Learner] = {}  # By whether they clip gradients.
        self._policies: dict[int, Policy] = {}  # By actor thread.

    def prepare(self, config: Config) -> None:
        """Makes what actors need and a user may have to fix, before anything else is written."""

    def make_learner(self, config: Config, spec: Rollout) -> Learner:
        """Makes a learner that has learned nothing, if possible in the last one's variables."""
        fresh = factory.make_learner(config, spec)
        # Graphs read the hyperparameters from variables, but clip gradients only if asked to.
        learner = self._learners.setdefault(config.max_grad_norm > 0, fresh)
        if learner is not fresh:
            learner.copy(fresh)
        return learner

    def make_actors(self, config: Config, spec: Rollout, learner: Learner) -> Actors:
        """Makes the actors that play for the learner, not yet started."""
        assert not config.uses_port, "its actors are those of distributed.learner_side.RemoteParts"
        return LocalActors(config, spec, learner, self._policies)


def train(
    config: Config,
    tuner: Tuner | None = None,
    parts: Parts | None = None,
    show_progress: bool = True,
) -> int | None:
    """Trains until `total_environment_frames`, from the newest checkpoint if there is one.

    Returns None at the end or when the tuner stops, or the number of the signal that asked to stop.
    Raises UserError as `Run.begin` and the parts do; a bad directory is refused before anything but
    a lock is written. Raises DivergenceError if loss, weights or logits are no longer finite.
    """
    tuner, parts = tuner or Tuner(), parts or Parts()
    factory.check_network(config)
    stop = StopOnSignal()
    with Run.begin(config) as run, contextlib.ExitStack() as stack:
        parts.prepare(config)
        tf.random.set_seed(config.seed)
        spec = factory.make_rollout_spec(config)
        learner = parts.make_learner(config, spec)
        device = hardware.device()
        log = RunLog(config, run.directory, describe_device(device), tuner.on_episode)
        checkpoints = run.checkpoints(
            learner=learner,
            metrics_length=log.metrics.length,
            episodes_length=log.episodes.length,
            **tuner.attach(learner),
        )
        if not checkpoints.restore() and config.init_from:
            taken = initial_weights.take_over(config, learner)
            if show_progress:  # A population's own bar is on the terminal otherwise.
                print(taken, file=sys.stderr)
        finished = learner.frames >= config.total_environment_frames
        if not finished:
            if change := _describe_new_rate(run.record, config, learner):
                logging.warning("%s", change)
            run.directory.record(config, int(learner.frames), device)
            if remarks := config.remarks():
                logging.warning("%s", "; ".join(f"{flag} has {remarks[flag]}" for flag in remarks))
            if show_progress:
                print(_describe_start(config, learner, describe_device(device)), file=sys.stderr)
        log.open(int(learner.frames), show_progress)
        stack.callback(log.close)
        if not finished:
            tuner.begin(checkpoints.save)
        # A finished run needs no actors, but actor jobs must learn of the end.
        if not finished or config.learner_address:
            try:
                with stop, parts.make_actors(config, spec, learner) as actors:
                    _learn(config, learner, actors, log, checkpoints, tuner, stop)
            except DivergenceError as error:
                error.signal_number = stop.signal_number
                raise
    if stop.signal_number is not None and show_progress:
        show_saved(int(learner.frames), run.directory.checkpoints)
    elif learner.frames >= config.total_environment_frames and show_progress:
        print(_describe_end(config, learner, log.score), file=sys.stderr)
    return stop.signal_number


def _describe_start(config: Config, learner: Learner, device: str) -> str:
    """Describes what a run learns, with what, and where."""
    suite, frames = config.suite, int(learner.frames)
    tasks = f"{len(suite.tasks)} tasks of {suite.title}" if len(suite.tasks) > 1 else suite.tasks[0]
    actors = "actor jobs" if config.uses_port else f"{config.num_actors} actors"
    resumes = f" resumes at {frames:,} frames" if frames else ""
    where = f"on {device} in {config.precision}"
    return f"{config.agent_name}{resumes}: {tasks}, {actors}, {where}; logs in {config.logdir}"


def _describe_new_rate(before: Record, config: Config, learner: Learner) -> str:
    """Describes how more or fewer frames change a run's learning rate; empty if they do not."""
    frames, total = int(learner.frames), config.total_environment_frames
    then = before.flag("total_environment_frames", frames) if frames else total
    if then == total or config.learning_rate_schedule != "linear":
        return ""
    full = float(learner.hyperparameters.learning_rate)
    old, new = (full * max(0.0, 1 - frames / end) for end in (then, total))
    annealed = f"it now falls to 0 over {total:,} frames instead of {then:,}"
    return f"the learning rate changes from {old:.3g} to {new:.3g} at {frames:,} frames: {annealed}"


def _describe_end(config: Config, learner: Learner, score: str) -> str:
    """Describes the result of a finished run, and what can be done with it next."""
    test = f"--mode=test --logdir={shlex.quote(config.logdir)}"
    if config.is_outside:
        test += f" --level_name={config.level_name}"
    if config.has_own_network:
        test += f" --network={config.network}"
    frames = f"{int(learner.frames):,} of {config.total_environment_frames:,} frames"
    trained = f"{frames}, {score} in training" if score else frames
    more = "train longer with more --total_environment_frames"
    return f"{config.logdir} is finished: {trained}; test it with {test}, or {more}"


def _updates(
    config: Config, learner: Learner, actors: Actors, log: RunLog, stop: StopOnSignal
) -> Iterator[tuple[Rollout, Mapping[str, tf.Tensor]]]:
    """Learns from batch after batch; yields each with what its update reports.

    Ends when frames are used up, when a signal asks to stop, or when actors fail for good, whose
    error is raised on leaving them. Raises DivergenceError if a policy's logits, or weights that
    actors wait for, are not finite.
    """
    metrics = None
    while stop.signal_number is None and learner.frames < config.total_environment_frames:
        try:
            batch = actors.next_batch()
        except DivergenceError:
            raise
        except Exception as error:  # The learner itself is as it was, and can be saved.
            actors.error = error
            return
        if batch is not None:
            if metrics is None:
                log.show_start("compiling the update")
            metrics = learner.update(batch)
            actors.publish(int(learner.num_updates))
            yield batch, metrics
        elif metrics is None:
            log.show_start(actors.describe_start())
        else:
            _check(learner, metrics)  # Actor jobs wait for finite weights.


def _learn(
    config: Config,
    learner: Learner,
    actors: Actors,
    log: RunLog,
    checkpoints: Checkpoints,
    tuner: Tuner,
    stop: StopOnSignal,
) -> None:
    """Logs, saves and tunes between updates, and saves after the last."""
    version, tasks = int(learner.num_updates), config.suite.tasks
    log_due = checkpoint_due = time.monotonic()
    averages = Averages(tasks)

    def record(**of_batch: Mapping[str, float]) -> None:
        """Logs the updates since the last record, the actors' state, and values by task."""
        if not averages.num_updates:
            return
        values, by_task = averages.take()
        _check(learner, values)
        if restarts := actors.restarts():
            by_task["restarts"] = restarts
        by_task.update(of_batch)
        if config.use_popart:
            for name, vector in (("shift", learner.head.shift), ("scale", learner.head.scale)):
                by_task[name] = dict(zip(tasks, vector.numpy().tolist(), strict=True))
        else:
            del by_task["largest_target"]  # Without PopArt it is in units of the rewards.
        # Updates have reported some hyperparameters themselves, as they used them.
        values = {**learner.hyperparameters.values(), **values, **actors.feed.load()}
        values["environment_restarts"] = sum(restarts.values())
        log.record_metrics(int(learner.frames), values, by_task)

    for batch, metrics in _updates(config, learner, actors, log, stop):
        task_ids = batch.task_id.numpy()
        averages.add(metrics, task_ids)
        info = tf.nest.map_structure(np.asarray, batch.env_outputs.info)
        log.record_batch(int(learner.frames), task_ids, info)
        if time.monotonic() >= min(log_due, checkpoint_due):
            # After the update PopArt has a scale of each task that has shown it a reward.
            record(**(learner.gradient_norms(batch, tasks) if config.log_task_gradients else {}))
            log_due = time.monotonic() + config.log_seconds
            if time.monotonic() >= checkpoint_due:
                checkpoints.save()
                checkpoint_due = time.monotonic() + config.checkpoint_seconds

        if tuner.due():
            record()
            if not tuner.tune(checkpoints.save):
                break
            actors.publish(int(learner.num_updates))
    if learner.num_updates > version:  # Signals are still held back, and no thread has ended.
        record()
        checkpoints.save()


def _check(learner: Learner, metrics: Mapping[str, Any]) -> None:
    """Raises DivergenceError if updates, or the weights after them, are not finite."""
    loss, norm = float(metrics["total_loss"]), float(metrics["gradient_norm"])
    largest = np.max([np.abs(weight).max() for weight in learner.agent.trainable_variables])
    if not np.isfinite([loss, norm, largest]).all():
        raise DivergenceError(
            f"at {int(learner.frames):,} frames total_loss is {loss:g}, gradient_norm {norm:g} and "
            f"the largest weight {largest:g}"
        )
