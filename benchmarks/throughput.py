"""Training throughput, and what the same machine allows in the same minutes.

  python benchmarks/throughput.py --json=throughput.json

Measures, in one process and in turn, repeated `--repeats` times:

* training: agent steps/s that the learner consumes while actors act, as in `--mode=train`;
* forward: the policy's call alone, on as many environments as an actor thread has;
* train_step: the learner's update alone, on one batch over and over;
* emulation: the environments alone, all actor threads stepping random actions.

Every training step needs one of each, so with all cores busy the arithmetic allows
roofline = 1 / (1 / forward + 1 / train_step + 1 / emulation), and efficiency is training
divided by that. Reported are medians over the repeats, and the peak memory of training alone.
"""

import json
import resource
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import app, flags

from environments import BatchedEnvironment
from scalable_agent_popart import construction, rollouts
from scalable_agent_popart.config import Config
from scalable_agent_popart.learner import Learner
from scalable_agent_popart.policy import Policy
from scalable_agent_popart.training import ActorPool
from scalable_agent_popart.weights import WeightStore

FLAGS = flags.FLAGS
flags.DEFINE_string("level_name", "pong", "Levels to play.")
flags.DEFINE_string("network", "deep", "Network: deep or shallow.")
flags.DEFINE_boolean("use_popart", True, "Whether the agent is PopArt-IMPALA.")
flags.DEFINE_integer("num_actors", None, "Environments. Default: as in training.")
flags.DEFINE_integer("actor_threads", 2, "Threads that step them.")
flags.DEFINE_integer("repeats", 3, "Times that everything is measured.")
flags.DEFINE_float("seconds", 30.0, "Seconds each measurement lasts.")
flags.DEFINE_string("json", None, "File to write the results to.")

# Enough to use up the rollouts that gather while the learner is being traced.
_WARM_UP_UPDATES = 8
_SETTINGS = ("level_name", "network", "use_popart", "num_actors", "actor_threads")


def rate(steps_per_call: int, call: Callable[[], object]) -> float:
    """Agent steps/s of a call repeated for `--seconds`, after one that does not count."""
    call()
    calls = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < FLAGS.seconds or not calls:
        call()
        calls += 1
    return steps_per_call * calls / elapsed


def measure_training(config: Config, spec: rollouts.Rollout, learner: Learner) -> dict[str, float]:
    """The learner's rate with actors at work, and how old the rollouts are."""
    store = WeightStore(learner.agent.trainable_variables, int(learner.num_updates))
    lags: list[float] = []

    def update() -> None:
        while (batch := pool.next_batch()) is None:
            pass
        lags.append(float(learner.update(batch)["policy_lag"]))
        store.publish(int(learner.num_updates))

    with ActorPool(config, spec, store, int(learner.num_updates)) as pool:
        for _ in range(_WARM_UP_UPDATES):
            update()
        lags.clear()
        speed = rate(config.batch_size * config.unroll_length, update)
    return {"agent_steps_per_second": speed, "policy_lag": statistics.mean(lags)}


def measure_train_step(config: Config, spec: rollouts.Rollout, learner: Learner) -> float:
    """Agent steps/s of the update alone, on a batch of noise."""
    generator = np.random.default_rng(0)

    def noise(leaf: tf.TensorSpec) -> tf.Tensor:
        high = {tf.bool: 2, tf.uint8: 256}.get(leaf.dtype, config.suite.num_actions)
        values = generator.integers(high, size=leaf.shape)
        return tf.constant(values.astype(leaf.dtype.as_numpy_dtype))

    batch = tf.nest.map_structure(noise, rollouts.batch_spec(spec, config.batch_size))
    tasks = generator.integers(len(config.suite.tasks), size=config.batch_size)
    batch = batch._replace(task_id=tf.constant(tasks, tf.int32))
    return rate(
        config.batch_size * config.unroll_length,
        lambda: float(learner.update(batch)["total_loss"]),
    )


def measure_forward(config: Config, spec: rollouts.Rollout, learner: Learner) -> float:
    """Agent steps/s of the policy alone, one in each actor thread."""
    store = WeightStore(learner.agent.trainable_variables, 0)

    def prepare(tasks: np.ndarray) -> Callable[[], int]:
        size = len(tasks)
        policy = Policy(construction.make_agent(config, spec), store, seed=0)
        policy.refresh()
        env_output = tf.nest.map_structure(
            lambda leaf: np.zeros((size, *leaf.shape[1:]), leaf.dtype.as_numpy_dtype),
            spec.env_outputs,
        )
        actions, state = np.zeros(size, np.int32), policy.initial_state(size)

        def call() -> int:
            policy.act(actions, env_output, state)
            return size

        call()  # Traces.
        return call

    return rate_in_threads([prepare(tasks) for tasks in dealt(config)])


def dealt(config: Config) -> list[np.ndarray]:
    """The tasks of each actor thread."""
    return construction.deal_tasks(config.num_actors, len(config.suite.tasks), config.actor_threads)


def rate_in_threads(calls: list[Callable[[], int]]) -> float:
    """Agent steps/s of several calls, each over and over in its thread for `--seconds`."""
    steps = [0] * len(calls)
    start = time.perf_counter()

    def work(i: int) -> None:
        while time.perf_counter() - start < FLAGS.seconds or not steps[i]:
            steps[i] += calls[i]()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(steps) / (time.perf_counter() - start)


def measure_emulation(config: Config) -> float:
    """Agent steps/s of the environments alone, all threads together."""
    made = [
        construction.make_environment(config, tasks, np.random.SeedSequence(i), training=True)
        for i, tasks in enumerate(dealt(config))
    ]

    def prepare(environment: BatchedEnvironment) -> Callable[[], int]:
        environment.reset()
        generator = np.random.default_rng(0)
        size = len(environment.task_ids)

        def call() -> int:
            actions = generator.integers(config.suite.num_actions, size=size, dtype=np.int32)
            environment.send(actions)
            environment.receive()
            return size

        return call

    figure = rate_in_threads([prepare(environment) for environment in made])
    for environment in made:
        environment.close()
    return figure


def measure(config: Config, spec: rollouts.Rollout, learner: Learner) -> dict[str, float]:
    """Everything once; the bare training step has a learner of its own to spoil."""
    figures = measure_training(config, spec, learner)
    figures["peak_memory_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures["forward"] = measure_forward(config, spec, learner)
    spoilt = construction.make_learner(config, spec)
    figures["train_step"] = measure_train_step(config, spec, spoilt)
    figures["emulation"] = measure_emulation(config)
    bare = (figures["forward"], figures["train_step"], figures["emulation"])
    figures["roofline"] = 1.0 / sum(1.0 / speed for speed in bare)
    figures["efficiency"] = figures["agent_steps_per_second"] / figures["roofline"]
    return figures


def main(argv: list[str]) -> None:
    """Measures, prints a table and writes the JSON file."""
    del argv
    given = {name: FLAGS[name].value for name in _SETTINGS if FLAGS[name].value is not None}
    config = Config.from_flags(given)
    spec = construction.make_rollout_spec(config)
    learner = construction.make_learner(config, spec)
    repeats = []
    for _ in range(FLAGS.repeats):
        repeats.append(measure(config, spec, learner))
        print({name: round(value, 3) for name, value in repeats[-1].items()}, flush=True)
    result = {name: statistics.median(r[name] for r in repeats) for name in repeats[0]}
    result["peak_memory_gib"] = repeats[0]["peak_memory_gib"]  # Later ones hold the bare rates'.
    print(f"\n{config.agent_name}, {config.network} network, {config.level_name}")
    print(f"{config.num_actors} actors in {config.actor_threads} threads; medians")
    for name, value in result.items():
        print(f"{name:<24}{value:>12,.2f}")
    if FLAGS.json:
        record = {**result, "settings": given, "repeats": repeats}
        Path(FLAGS.json).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
