"""Training in one process: actor threads, the queue, the learner and the run's records."""

import functools
import queue
import time
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from environments import EnvironmentLostError, EnvironmentPool
from scalable_agent_popart import construction, hardware, rollouts
from scalable_agent_popart.actor import run_actor
from scalable_agent_popart.checkpoints import Checkpoints
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learner import Learner
from scalable_agent_popart.logs import RunLog
from scalable_agent_popart.policy import Policy
from scalable_agent_popart.rollout_queue import RolloutQueue
from scalable_agent_popart.run_directory import RunDirectory
from scalable_agent_popart.signals import StopOnSignal
from scalable_agent_popart.stage_clock import StageClock, shares
from scalable_agent_popart.weights import WeightSource, WeightStore
from scalable_agent_popart.worker_threads import WorkerThreads

# How long the main thread waits for a batch before it looks for signals and failed threads.
_POLL_SECONDS = 0.2


class ActorPool:
    """Actor threads and the batches they make, stopped together.

    Use as a context manager: leaving it ends every thread and closes every environment.

    Attributes:
      actor_clocks: where the time of each actor thread goes.
      learner_clock: the same for the thread that takes batches: `wait`ing for one, or `learn`ing.
    """

    def __init__(
        self, config: Config, spec: rollouts.Rollout, source: WeightSource, num_updates: int
    ):
        """Prepares the pool; threads start on entering.

        Args:
          config: of the run.
          spec: of one environment's rollout.
          source: where actors take their weights from.
          num_updates: the learner's, which keeps a resumed run from replaying its past.
        """
        self._config = config
        self._spec = spec
        self._source = source
        self._seed = np.random.SeedSequence([config.seed, num_updates])
        self.rollout_queue = RolloutQueue(spec, capacity=config.batch_size)
        self.learner_clock = StageClock()
        self.actor_clocks = [StageClock() for _ in range(config.actor_threads)]
        self._batches: queue.Queue[rollouts.Rollout] = queue.Queue(maxsize=1)
        self._closed = False
        self._policies: list[Policy] = []
        self._pools: list[EnvironmentPool] = []
        self._workers = WorkerThreads(self._stop)

    def __enter__(self) -> "ActorPool":
        config = self._config
        dealt = construction.deal_tasks(
            config.num_actors, len(config.suite.tasks), config.actor_threads
        )
        seeds = self._seed.spawn(len(dealt))
        for i, (task_ids, seed) in enumerate(zip(dealt, seeds, strict=True)):
            work = functools.partial(self._act, task_ids, seed, self.actor_clocks[i])
            self._workers.start(f"actor-{i}", work)
        self._workers.start("batches", self._prepare_batches)
        return self

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        self._workers.close()
        if exception_type is None:
            self._workers.raise_error()

    def next_batch(self) -> rollouts.Rollout | None:
        """The next batch `[T + 1, B, ...]`, or None if there is none yet.

        Raises:
          Exception: whatever ended an actor thread.
        """
        self._workers.raise_error()
        self.learner_clock.finish("learn")
        try:
            return self._batches.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return None
        finally:
            self.learner_clock.finish("wait")

    @property
    def num_traces(self) -> int:
        """How often the policies were traced."""
        return sum(policy.num_traces for policy in self._policies)

    def restarts(self) -> dict[str, int]:
        """How often environments were lost and started again, by task, where that happened."""
        tasks = self._config.suite.tasks
        counts = np.zeros(len(tasks), np.int64)
        for pool in self._pools:
            np.add.at(counts, pool.task_ids, pool.restarts)
        return {task: int(n) for task, n in zip(tasks, counts, strict=True) if n}

    def load(self) -> dict[str, float]:
        """What keeps whom waiting, since the last call.

        Returns:
          `learner_wait`: share of the learner's time without a batch, near 0 if it is the
          bottleneck; `queue_fill`: rollouts in the queue now as a share of its capacity, near 1
          if it is.
        """
        waiting = shares([self.learner_clock]).get("wait", 0.0)
        self.learner_clock.restart()
        return {"learner_wait": waiting, "queue_fill": self.rollout_queue.fill()}

    def _act(self, task_ids: np.ndarray, seed: np.random.SeedSequence, clock: StageClock) -> None:
        policy_seed = int(seed.spawn(1)[0].generate_state(1)[0])
        agent = construction.make_agent(self._config, self._spec)
        policy = Policy(agent, self._source, policy_seed, len(task_ids))
        self._policies.append(policy)
        environments = construction.make_environments(
            self._config, self._config.suite, task_ids, seed, training=True
        )
        self._pools.append(environments)
        run_actor(environments, policy, self.rollout_queue, self._spec, clock)

    def _prepare_batches(self) -> None:
        """Has the next batch ready on the learner's device while it works on the last."""
        transpose = tf.function(rollouts.time_major, autograph=False)
        while (stacked := self.rollout_queue.get(self._config.batch_size)) is not None:
            with tf.device(hardware.learner_device()):
                batch = transpose(stacked)
            while not self._closed:
                try:
                    self._batches.put(batch, timeout=_POLL_SECONDS)
                    break
                except queue.Full:
                    continue

    def _stop(self) -> None:
        self._closed = True
        self.rollout_queue.close()


def train(config: Config) -> int | None:
    """Trains until `total_environment_frames`, from the newest checkpoint if there is one.

    Returns:
      None at the end, or the number of the signal that asked to stop; saved either way.

    Raises:
      UserError: if the run directory is another run's or damaged, before anything is written.
    """
    directory = RunDirectory(config.logdir)
    directory.check(config)
    directory.lock()
    try:
        return _train_in(directory, config)
    finally:
        directory.close()


def _train_in(directory: RunDirectory, config: Config) -> int | None:
    """Trains in a directory that is locked, so that no other process moves the run on."""
    directory.check(config)
    tf.random.set_seed(config.seed)
    spec = construction.make_rollout_spec(config)
    learner = construction.make_learner(config, spec)
    log = RunLog(directory, config.suite, config.num_action_repeats)
    checkpoints = Checkpoints(
        directory.checkpoints,
        learner=learner,
        metrics_length=log.metrics.length,
        episodes_length=log.episodes.length,
    )
    checkpoints.restore()
    directory.record(config)
    try:
        log.open(int(learner.frames), config.total_environment_frames)
        return _learn(config, learner, log, checkpoints, spec)
    finally:
        log.close()


def _learn(
    config: Config,
    learner: Learner,
    log: RunLog,
    checkpoints: Checkpoints,
    spec: rollouts.Rollout,
) -> int | None:
    """Feeds batches to the learner and records what becomes of them; returns as `train` does."""
    if learner.frames >= config.total_environment_frames:
        return None  # A finished run needs no actors.
    store = WeightStore(learner.agent.trainable_variables, int(learner.num_updates))
    pool = ActorPool(config, spec, store, int(learner.num_updates))
    log_due = checkpoint_due = time.monotonic()
    metrics = None
    with StopOnSignal() as stop, pool:
        for batch in _batches(pool, learner, config, stop):
            metrics = learner.update(batch)
            store.publish(int(learner.num_updates))
            log.record_batch(
                int(learner.frames),
                batch.task_id.numpy(),
                tf.nest.map_structure(lambda t: t.numpy(), batch.env_outputs.info),
            )
            now = time.monotonic()
            if now >= min(log_due, checkpoint_due):
                _record(config, learner, log, metrics, pool)
                log_due = now + config.log_seconds
            if now >= checkpoint_due:
                checkpoints.save()
                checkpoint_due = now + config.checkpoint_seconds
        if metrics is not None:  # Before the threads are waited for, and still safe from signals.
            _record(config, learner, log, metrics, pool)
            checkpoints.save()
    return stop.signal_number


def _record(
    config: Config,
    learner: Learner,
    log: RunLog,
    metrics: Mapping[str, tf.Tensor],
    pool: ActorPool,
) -> None:
    """Logs an update and how the actors fare.

    Raises:
      UserError: if the loss is no longer a finite number.
    """
    frames = int(learner.frames)
    values = {name: float(tensor) for name, tensor in metrics.items()}
    if not np.isfinite(values["total_loss"] + values["gradient_norm"]):
        raise UserError(
            f"training diverged at {frames:,} frames: total_loss is {values['total_loss']}, "
            f"gradient_norm {values['gradient_norm']}; "
            "lower --learning_rate or --max_grad_norm and give another --logdir"
        )
    restarts = pool.restarts()
    by_task: dict[str, Mapping[str, float]] = {"restarts": restarts} if restarts else {}
    if config.use_popart:
        for name, vector in (("shift", learner.head.shift), ("scale", learner.head.scale)):
            by_task[name] = dict(zip(config.suite.tasks, vector.numpy().tolist(), strict=True))
    values["environment_restarts"] = sum(restarts.values())
    log.record_metrics(frames, {**values, **pool.load()}, by_task)


def _batches(
    pool: ActorPool, learner: Learner, config: Config, stop: StopOnSignal
) -> Iterator[rollouts.Rollout]:
    """Batches until the frames are used up, a signal asks to stop or an environment is lost."""
    while stop.signal_number is None and learner.frames < config.total_environment_frames:
        try:
            batch = pool.next_batch()
        except EnvironmentLostError:
            return  # What was learned is saved first; leaving the pool raises it again.
        if batch is not None:
            yield batch
