"""The parts of a run, made from its configuration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import sonnet as snt
import tensorflow as tf

import popart
from environments import BatchedEnvironment, EnvironmentPool
from scalable_agent_popart import rollouts
from scalable_agent_popart.agent import networks, own_torso
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning.pixel_control import QHead
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.suites import EnvironmentOptions, Suite
from scalable_agent_popart.suites.checked import CheckedPool
from scalable_agent_popart.system import cores, hardware

if TYPE_CHECKING:
    from scalable_agent_popart.learning.learner import Learner

# So few images in a part of a batch that the next layer finds them in the processor's cache.
_IMAGES_PER_PART = 64
# Pixels in a microbatch of the deep network on the processor. It holds 2.3 MiB of activations for
# each image of 72x96 pixels. Eight rollouts of DmLab-30 took 3.5% longer than 32 at once, four 10%.
_MAX_MICROBATCH_PIXELS = 6_000_000
# Fewer environments per thread would waste time, since each call of the policy has a fixed cost.
_MIN_ACTORS_PER_THREAD = 8
# On a GPU their calls delay the learner's update: on an H200 of sixteen cores it took 29 ms next
# to two threads, and 181 ms next to sixteen. While one thread waits for an update, others emulate.
_MAX_THREADS_WITH_GPU = 4


def make_films(
    options: EnvironmentOptions,
    suite: Suite,
    tasks: Mapping[int, str],
    seed: np.random.SeedSequence,
) -> dict[int, BatchedEnvironment]:
    """Makes the environments, by number, that show a task as people see it, if that differs.

    They play just like the environments that `make_environments` makes for a test of this seed.
    """
    make = suite.film_factory
    if make is None or options.human_starts_dir or not tasks:
        return {}
    seeds = seed.generate_state(max(tasks) + 1) >> 1
    return {i: make(task, int(seeds[i]), options) for i, task in tasks.items()}


def check_network(config: Config) -> None:
    """Raises UserError if a torso from outside of the package does not fit the agent.

    It also raises it if this machine cannot compute convolutions in the configured type.
    """
    if config.has_own_network:
        num_channels = 4 if config.suite.stacks_frames else config.suite.num_channels
        own_torso.check(config.network, (config.height, config.width, num_channels))
    if config.precision == "float32":
        return
    torso = networks.TORSOS[config.network](tf.as_dtype(config.precision), "SAME")
    try:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(torso(tf.zeros([1, 1, 16, 16, 1], tf.uint8)))
        tape.gradient(loss, torso.trainable_variables)
    except tf.errors.OpError as error:
        message = f"this machine cannot compute convolutions in {config.precision}"
        raise UserError(f"{message}: give --precision=float32") from error


def make_rollout_spec(config: Config) -> rollouts.Rollout:
    """Returns `tf.TensorSpec`s of the rollouts that this run's actors make."""
    return rollouts.rollout_spec(
        config.suite.observation_spec(config.environment_options(training=True)),
        _bare_agent(config).initial_state(1),
        config.num_actions,
        config.unroll_length,
    )


def make_agent(config: Config, spec: rollouts.Rollout) -> Agent:
    """Makes the policy network, its variables created for rollouts of this spec."""
    agent = _bare_agent(config)
    agent.create_variables(spec)
    return agent


def _bare_agent(config: Config) -> Agent:
    suite = config.suite
    frame = suite.observation_spec(config.environment_options(training=True))
    return Agent(
        config.num_actions,
        _make_torso(config),
        config.use_lstm,
        stacked_frame=frame if suite.stacks_frames else None,
        reads_instructions=suite.has_instructions,
    )


def _make_torso(config: Config) -> snt.Module:
    """Makes the torso; without a GPU, images pass it in a multiple of the cores' parts."""
    if config.has_own_network:
        return own_torso.make(config.network)
    images = config.unroll_length * config.batch_size // _num_microbatches(config)
    n = cores.num_cores()
    num_parts = 1 if hardware.has_gpu() else n * math.ceil(images / (_IMAGES_PER_PART * n))
    return networks.TORSOS[config.network](
        tf.as_dtype(config.precision),
        config.padding.upper(),
        image_scale=config.image_scale,
        zero_mean_filters=config.zero_mean_filters,
        num_parts=num_parts,
    )


def make_learner(config: Config, spec: rollouts.Rollout) -> "Learner":
    """Makes the learner with its agent, value head and optimiser, all variables created."""
    # Who only acts saves the memory of TensorFlow Probability.
    from scalable_agent_popart.learning.learner import Learner, LearnerOptions  # noqa: PLC0415

    agent, head, q_head = _make_networks(config)
    options = config.options(LearnerOptions)
    return Learner(agent, head, options, spec, q_head, _num_microbatches(config))


def make_saved_parts(config: Config) -> tf.train.Checkpoint:
    """Makes what acts and values in a run's checkpoints, by the learner's names, and `frames`."""
    agent, head, q_head = _make_networks(config)
    features = agent.create_variables(make_rollout_spec(config))
    head(features, tf.zeros(features.shape[:-1], tf.int32))
    parts = {"agent": agent, "head": head, "frames": tf.Variable(0, dtype=tf.int64)}
    if q_head is not None:
        q_head(features)
        parts["q_head"] = q_head
    return tf.train.Checkpoint(**parts)


def _make_networks(config: Config) -> tuple[Agent, popart.ValueHead, QHead | None]:
    """Makes the agent, the value head with its statistics, and the head of pixel control if any."""
    head = popart.ValueHead(
        config.num_heads,
        normalise=config.use_popart,
        step_size=config.popart_step_size,
        scale_lower_bound=config.popart_scale_lower_bound,
        scale_upper_bound=config.popart_scale_upper_bound,
        second_moment_of=config.popart_second_moment_of,
        start=config.popart_start,
    )
    q_head = None
    if config.pixel_control:
        q_head = QHead(config.num_actions, config.height, config.width)
    return _bare_agent(config), head, q_head


def _num_microbatches(config: Config) -> int:
    """Returns into how many parts a batch is split, so that activations of only one are held."""
    if config.network != "deep" or hardware.has_gpu():
        return 1
    pixels = config.unroll_length * config.height * config.width  # Per rollout.
    return math.ceil(config.batch_size / max(1, _MAX_MICROBATCH_PIXELS // pixels))


def num_actor_threads(config: Config, most: int | None = None) -> int:
    """Returns how many threads a process's actors share: `--actor_threads`, or what suits it.

    It is not more than `most`, by default the number for this process.
    """
    if most is None:
        most = _MAX_THREADS_WITH_GPU if hardware.has_gpu() else cores.num_cores()
    return config.actor_threads or max(1, min(most, config.num_actors // _MIN_ACTORS_PER_THREAD))


def deal_tasks(num_actors: int, num_tasks: int, num_threads: int, job: int = 0) -> list[np.ndarray]:
    """Returns the task of each actor, by thread: round robin over the tasks, then over the threads.

    Every thread plays as many different tasks as it can, so that batches mix them. Copies of a task
    are neighbours. Jobs with the same number of actors continue one another's round.
    """
    first = job * num_actors
    tasks = np.sort(np.arange(first, first + num_actors) % num_tasks).astype(np.int32)
    return [tasks[i::num_threads] for i in range(num_threads)]


def make_environments(
    options: EnvironmentOptions,
    suite: Suite,
    task_ids: Sequence[int] | np.ndarray,
    seed: np.random.SeedSequence,
    num_pools: int = 1,
) -> EnvironmentPool:
    """Makes environments that play these tasks, in one of `num_pools` pools.

    Pools share the cores. With a GPU each may use all of them, since others wait for updates.
    Environments of one pool that trains begin alike for a seed. With several pools training depends
    on which thread is first, so environments that train may ignore their seeds.
    """
    seeds = seed.generate_state(len(task_ids)) >> 1  # Emulators take 31 bits.
    num_threads = max(1, cores.num_cores() // (1 if hardware.has_gpu() else num_pools))
    reproducible = not options.training or num_pools == 1
    options = replace(options, num_threads=num_threads, reproducible=reproducible)
    names = [suite.tasks[i] for i in task_ids]
    pool = suite.make_environments(task_ids, seeds.tolist(), options)
    return CheckedPool(pool, names, suite.observation_spec(options))
