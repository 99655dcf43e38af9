"""How fast training is, and how fast each of its parts is alone, in agent steps per second."""

import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from environments import EnvironmentPool
from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.acting.policy import Policy, WeightStore
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system.stage_clock import shares
from scalable_agent_popart.training.local_actors import LocalActors

# So many updates use up the rollouts that gather while the learner is being traced.
_WARM_UP_UPDATES = 8


def rate(call: Callable[[], int], seconds: float) -> float:
    """Measures the rate of a call, which returns its agent steps, made once or for so long."""
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not steps:
        steps += call()
    return steps / elapsed


def _rate_in_threads(calls: list[Callable[[], int]], seconds: float) -> float:
    """Measures the rate of several calls at the same time, each in a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return sum(pool.map(lambda call: rate(call, seconds), calls))


def measure_training(config: Config, seconds: float) -> dict[str, float]:
    """Measures the learner's rate with actors at work, and what each thread's time is spent on."""
    spec = factory.make_rollout_spec(config)
    learner = factory.make_learner(config, spec)
    with LocalActors(config, spec, learner) as actors:

        def update() -> int:
            while (batch := actors.next_batch()) is None:
                pass
            float(learner.update(batch)["total_loss"])  # The conversion waits for the result.
            actors.publish(int(learner.num_updates))
            return config.batch_size * config.unroll_length

        for _ in range(_WARM_UP_UPDATES):
            update()
        clocks = {"actor": actors.threads.clocks, "learner": [actors.feed.clock]}
        for clock in itertools.chain(*clocks.values()):
            clock.restart()
        figures = {"agent_steps_per_second": rate(update, seconds)}
        for who, of_threads in clocks.items():
            figures |= {f"{who}_{stage}": share for stage, share in shares(of_threads).items()}
    return figures


def compare_train_steps(config: Config, other: Config, seconds: float) -> float:
    """Measures how many times as fast the first's update is; both update in turn, one by one.

    A change of the machine's speed meets both, so that small differences can be seen.
    """
    first, second = make_train_step(config), make_train_step(other)
    ratios: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or not ratios:
        ratios.append(rate(first, 0.0) / rate(second, 0.0))
    return statistics.median(ratios)


def make_train_step(config: Config) -> Callable[[], int]:
    """Makes a traced update on the same batch of noise at every call."""
    spec = factory.make_rollout_spec(config)
    learner = factory.make_learner(config, spec)
    generator = np.random.default_rng(0)

    def noise(leaf: tf.TensorSpec) -> tf.Tensor:
        high = {tf.bool: 2, tf.uint8: 256}.get(leaf.dtype, config.num_actions)
        values = generator.integers(high, size=leaf.shape)
        return tf.constant(values.astype(leaf.dtype.as_numpy_dtype))

    batch = tf.nest.map_structure(noise, rollouts.batch_spec(spec, config.batch_size))
    tasks = generator.integers(len(config.suite.tasks), size=config.batch_size)
    batch = batch._replace(task_id=tf.constant(tasks, tf.int32))

    def call() -> int:
        float(learner.update(batch)["total_loss"])  # The conversion waits for the result.
        return config.batch_size * config.unroll_length

    call()
    return call


def measure_forward(config: Config, seconds: float) -> float:
    """Measures the policy alone, one in each actor thread."""
    spec = factory.make_rollout_spec(config)
    store = WeightStore(factory.make_agent(config, spec).trainable_variables, 0)

    def prepare(tasks: np.ndarray) -> Callable[[], int]:
        policy = Policy(factory.make_agent(config, spec), store, 0, len(tasks))
        policy.refresh()
        ids = np.arange(len(tasks))
        zeros = rollouts.RolloutBuffer(spec, tasks).newest(ids)

        def call() -> int:
            policy.act(ids, zeros)
            return len(ids)

        call()  # Traces.
        return call

    return _rate_in_threads([prepare(tasks) for tasks in _dealt(config)], seconds)


def measure_emulation(config: Config, seconds: float) -> float:
    """Measures the environments alone, all actor threads stepping random actions."""
    dealt, seed = _dealt(config), np.random.SeedSequence(0)
    options = config.environment_options(training=True)
    pools = [
        factory.make_environments(options, config.suite, tasks, each, len(dealt))
        for tasks, each in zip(dealt, seed.spawn(len(dealt)), strict=True)
    ]

    def prepare(pool: EnvironmentPool) -> Callable[[], int]:
        pool.start()
        generator = np.random.default_rng(0)
        started = np.zeros(len(pool.task_ids), bool)

        def call() -> int:
            ids, _, _ = pool.receive(1.0)
            started[ids] = True
            pool.send(ids, generator.integers(config.num_actions, size=len(ids), dtype=np.int32))
            return len(ids)

        while not started.all():
            call()
        return call

    speed = _rate_in_threads([prepare(pool) for pool in pools], seconds)
    for pool in pools:
        pool.close()
    return speed


def _dealt(config: Config) -> list[np.ndarray]:
    """Returns the tasks of each actor thread."""
    threads = factory.num_actor_threads(config)
    return factory.deal_tasks(config.num_actors, len(config.suite.tasks), threads)
