"""Training: batches of experience to the learner, and the run's records."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import numpy as np
import tensorflow as tf

from environments import EnvironmentLostError
from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.acting.batch_feed import BatchFeed
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.acting.weights import WeightStore
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import DivergenceError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.learning.task_gradients import norms_by_task
from scalable_agent_popart.runs.checkpoints import Checkpoints
from scalable_agent_popart.runs.directory import RunDirectory, describe_device
from scalable_agent_popart.runs.logs import RunLog
from scalable_agent_popart.system import hardware
from scalable_agent_popart.system.signals import StopOnSignal, show_saved
from scalable_agent_popart.training.local_actors import ActorThreads
from scalable_agent_popart.training.tuning import FixedHyperparameters, MakeTuner, Tuner


class Experience(AbstractContextManager, Protocol):
    """Batches to learn from, made by actors with the weights that are published.

    Entering it starts what makes them; leaving it ends that.
    """

    def next_batch(self) -> rollouts.Rollout | None:
        """The next batch `[T + 1, B, ...]`, or None if there is none yet.

        Raises:
          Exception: whatever keeps batches from being made.
        """
        ...

    def awaited(self) -> str:
        """Describes the progress towards the first batch, for the terminal."""
        ...

    def publish(self, version: int) -> None:
        """Makes the learner's present weights the newest."""
        ...

    def restarts(self) -> dict[str, int]:
        """How often environments were lost and started again, by task, where that happened."""
        ...

    def load(self) -> dict[str, float]:
        """What keeps whom waiting; see `BatchFeed.load`."""
        ...


class ActorPool:
    """Actor threads of this process and the batches they make, stopped together.

    Attributes:
      actor_clocks: where the time of each actor thread goes.
      learner_clock: the same for the thread that takes batches; see `BatchFeed`.
      rollout_queue: between the two.
    """

    def __init__(
        self,
        config: Config,
        spec: rollouts.Rollout,
        learner: Learner,
        policies: dict[int, Policy] | None = None,
    ):
        """Prepares the pool; threads start on entering.

        Args:
          config: of the run.
          spec: of one environment's rollout.
          learner: whose weights act.
          policies: see `ActorThreads`.
        """
        self._config = config
        version = int(learner.num_updates)
        self._store = WeightStore(learner.agent.trainable_variables, version)
        self.rollout_queue = RolloutQueue(spec, capacity=config.batch_size)
        self._feed = BatchFeed(self.rollout_queue, config.batch_size)
        # The version keeps a resumed run from replaying its past.
        seed = np.random.SeedSequence([config.seed, version])
        self._actors = ActorThreads(
            config,
            spec,
            lambda: (self._store, self.rollout_queue),
            seed,
            stop=self.rollout_queue.close,
            policies=policies,
        )
        self.actor_clocks = self._actors.clocks
        self.learner_clock = self._feed.clock
        self.publish = self._store.publish
        self.restarts = self._actors.restarts
        self.load = self._feed.load

    def __enter__(self) -> "ActorPool":
        self._actors.start()
        self._feed.start()
        return self

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        self._feed.close()
        self._actors.close()
        if exception_type is None:
            self._raise_error()

    def next_batch(self) -> rollouts.Rollout | None:
        self._raise_error()
        return self._feed.next_batch()

    def awaited(self) -> str:
        begun, environments = self._actors.num_begun, self._config.num_actors
        if begun < environments:
            return f"{begun} of {environments} environments ready"
        batch_size = self._config.batch_size
        rollouts_ready = min(self.rollout_queue.num_reserved(), batch_size)
        return f"{rollouts_ready} of {batch_size} rollouts"

    @property
    def num_traces(self) -> int:
        """How often the policies were traced."""
        return self._actors.num_traces

    def _raise_error(self) -> None:
        self._actors.raise_error()
        self._feed.raise_error()


# Name of a measurement to its values by task.
ByTask = Mapping[str, Mapping[str, float]]
MakeExperience = Callable[[Config, rollouts.Rollout, Learner], Experience]
MakeLearner = Callable[[Config, rollouts.Rollout], Learner]


def train(
    config: Config,
    make_experience: MakeExperience = ActorPool,
    make_tuner: MakeTuner = FixedHyperparameters,
    show_progress: bool = True,
    make_learner: MakeLearner = factory.make_learner,
) -> int | None:
    """Trains until `total_environment_frames`, from the newest checkpoint if there is one.

    Args:
      config: of the run.
      make_experience: where batches come from; by default actors in threads of this process.
      make_tuner: what changes hyperparameters on the way; by default nothing does.
      show_progress: whether on the terminal.
      make_learner: gives one that has learned nothing.

    Returns:
      None at the end, or where the tuner stops; or the number of the signal that asked to stop.
      Everything is saved either way.

    Raises:
      UserError: if the run directory is another run's, damaged, or without the checkpoints that
        belong to its logs, before anything of a run is written.
      InUseError: if another process trains there.
      DivergenceError: if the loss is no longer a finite number; it still was at the newest
        checkpoint.
    """
    directory = RunDirectory(config.logdir)
    directory.check(config)
    directory.lock()
    try:
        return _train_in(
            directory, config, make_experience, make_tuner, show_progress, make_learner
        )
    finally:
        directory.close()


def _train_in(
    directory: RunDirectory,
    config: Config,
    make_experience: MakeExperience,
    make_tuner: MakeTuner,
    show_progress: bool,
    make_learner: MakeLearner,
) -> int | None:
    """Trains in a directory that is locked, so that no other process moves the run on."""
    directory.check(config)
    previous = directory.read_config()
    if previous is not None and config.precision == "auto":
        config = replace(config, precision=previous.precision)
    config = factory.settle(config)
    tf.random.set_seed(config.seed)
    spec = factory.make_rollout_spec(config)
    learner = make_learner(config, spec)
    tuner = make_tuner(learner)
    device = hardware.device()
    constants = {"precision": config.precision, "device": describe_device(device)}
    log = RunLog(directory, config.suite, config.num_action_repeats, tuner.hear, constants)
    checkpoints = Checkpoints(
        directory.checkpoints,
        learner=learner,
        metrics_length=log.metrics.length,
        episodes_length=log.episodes.length,
        **tuner.tracked,
    )
    if not checkpoints.restore():
        directory.refuse_to_lose_logs()
    finished = learner.frames >= config.total_environment_frames
    if not finished:
        # With what trains it from now on.
        directory.record(config, int(learner.frames), device)
    try:
        log.open(int(learner.frames), config.total_environment_frames, show_progress)
        if finished and not config.learner_address:
            return None  # It needs no actors; those of other processes want to hear of it.
        if not finished:
            tuner.begin(checkpoints.save)
        experience = make_experience(config, spec, learner)
        signal_number = _learn(config, learner, log, checkpoints, experience, tuner)
    except DivergenceError:
        tuner.note_divergence()
        raise
    finally:
        log.close()
        tuner.close()
    if signal_number is not None and show_progress:
        show_saved(int(learner.frames), directory.checkpoints)
    return signal_number


def _learn(
    config: Config,
    learner: Learner,
    log: RunLog,
    checkpoints: Checkpoints,
    experience: Experience,
    tuner: Tuner,
) -> int | None:
    """Feeds batches to the learner and records what becomes of them; returns as `train` does."""
    stop = StopOnSignal()
    try:
        with stop, experience:
            _feed(config, learner, log, checkpoints, experience, tuner, stop)
    except DivergenceError as error:
        error.signal_number = stop.signal_number
        raise
    return stop.signal_number


def _feed(
    config: Config,
    learner: Learner,
    log: RunLog,
    checkpoints: Checkpoints,
    experience: Experience,
    tuner: Tuner,
    stop: StopOnSignal,
) -> None:
    log_due = checkpoint_due = time.monotonic()
    metrics = None
    for batch in _batches(experience, learner, config, stop, log):
        if metrics is None:
            log.show_awaited("compiling the update")
        due = time.monotonic() >= min(log_due, checkpoint_due)
        measures = due and config.log_task_gradients  # With the weights that the update meets.
        gradients = norms_by_task(learner, config.suite.tasks, batch) if measures else {}
        metrics = learner.update(batch)
        experience.publish(int(learner.num_updates))
        log.record_batch(
            int(learner.frames),
            batch.task_id.numpy(),
            tf.nest.map_structure(lambda t: t.numpy(), batch.env_outputs.info),
        )
        if due:
            _record(config, learner, log, metrics, experience, gradients)
            log_due = time.monotonic() + config.log_seconds
        if due and time.monotonic() >= checkpoint_due:
            checkpoints.save()
            checkpoint_due = time.monotonic() + config.checkpoint_seconds
        if tuner.due():
            _record(config, learner, log, metrics, experience)
            if not tuner.tune(checkpoints.save):
                break
            experience.publish(int(learner.num_updates))
    if metrics is not None:  # Before the threads are waited for, and still safe from signals.
        _record(config, learner, log, metrics, experience)
        checkpoints.save()


def _record(
    config: Config,
    learner: Learner,
    log: RunLog,
    metrics: Mapping[str, tf.Tensor],
    experience: Experience,
    gradients: ByTask | None = None,
) -> None:
    """Logs an update and how the actors fare; with gradients, also those by task.

    Raises:
      DivergenceError: if the loss is no longer a finite number.
    """
    frames = int(learner.frames)
    values = {name: float(tensor) for name, tensor in metrics.items()}
    if not np.isfinite(values["total_loss"] + values["gradient_norm"]):
        raise DivergenceError(
            f"training diverged at {frames:,} frames: total_loss is {values['total_loss']}, "
            f"gradient_norm {values['gradient_norm']}; "
            "lower --learning_rate or --max_grad_norm and give another --logdir"
        )
    restarts = experience.restarts()
    by_task = {**({"restarts": restarts} if restarts else {}), **(gradients or {})}
    if config.use_popart:
        for name, vector in (("shift", learner.head.shift), ("scale", learner.head.scale)):
            by_task[name] = dict(zip(config.suite.tasks, vector.numpy().tolist(), strict=True))
    for name, value in learner.hyperparameters.values().items():
        values.setdefault(name, value)  # What the update tells is what it used.
    values["environment_restarts"] = sum(restarts.values())
    log.record_metrics(frames, {**values, **experience.load()}, by_task)


def _batches(
    experience: Experience, learner: Learner, config: Config, stop: StopOnSignal, log: RunLog
) -> Iterator[rollouts.Rollout]:
    """Batches until the frames are used up, a signal asks to stop or an environment is lost.

    Shows what the first of them waits for.
    """
    any_batch = False
    while stop.signal_number is None and learner.frames < config.total_environment_frames:
        try:
            batch = experience.next_batch()
        except EnvironmentLostError:
            return  # What was learned is saved first; leaving the actors raises it again.
        if batch is not None:
            any_batch = True
            yield batch
        elif not any_batch:
            log.show_awaited(experience.awaited())
