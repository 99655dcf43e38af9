"""Small learners and batches for tests, and what to expect of an update."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import popart
from environments import ArraySpec, StepOutput, StepOutputInfo
from scalable_agent_popart import rollouts
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.learning import pixel_control
from scalable_agent_popart.learning.learner import Learner, LearnerSettings
from scalable_agent_popart.rollouts import AgentOutput, Rollout
from tests.fakes import oracles

UNROLL_LENGTH = 5
BATCH_SIZE = 4
NUM_ACTIONS = 3
SHAPE = (10, 5, 3)
PIXEL_CONTROL_SHAPE = (32, 35, 1)  # One column of pixels is cut off at the left, two at the right.

SETTINGS = LearnerSettings(
    total_environment_frames=1000,
    num_action_repeats=4,
    discounting=0.9,
    reward_clipping="none",
    entropy_cost=0.01,
    baseline_cost=0.5,
    pixel_control_cost=0.25,
    pixel_control_discount=0.8,
    learning_rate=0.01,
    learning_rate_schedule="linear",
    decay=0.99,
    momentum=0.0,
    epsilon=0.1,
    max_grad_norm=0.0,
    popart_order="gradient_first",
)
# With decay 1 the mean square stays at one, so that an update is minus the gradient.
PLAIN_GRADIENT = {"decay": 1.0, "epsilon": 3.0, "learning_rate": 2.0}


def snapshot(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    """Copies variables' values."""
    return [variable.numpy().copy() for variable in variables]


def restore(variables: Sequence[tf.Variable], values: list[np.ndarray]) -> None:
    """Undoes what happened since the snapshot."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def build_learner(
    num_tasks: int = 5,
    normalise: bool = True,
    use_lstm: bool = False,
    controls_pixels: bool = False,
    xla: bool = False,
    **settings: Any,
) -> Learner:
    """Builds a learner with a small network and random weights; with PopArt, also statistics."""
    tf.random.set_seed(0)
    shape = PIXEL_CONTROL_SHAPE if controls_pixels else SHAPE
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm)
    spec = rollouts.rollout_spec(
        ArraySpec(shape, np.uint8), agent.initial_state(1), NUM_ACTIONS, UNROLL_LENGTH
    )
    example = rollouts.example_batch(spec)
    agent.unroll(example.agent_outputs.action, example.env_outputs, example.agent_state)
    head = popart.ValueHead(num_tasks, normalise=normalise, step_size=0.1)
    q_head = pixel_control.QHead(NUM_ACTIONS, *shape[:2]) if controls_pixels else None
    chosen = dataclasses.replace(SETTINGS, **settings)
    learner = Learner(agent, head, chosen, spec, BATCH_SIZE, q_head, xla)
    rng = np.random.default_rng(0)
    head.weights.assign(rng.normal(scale=0.1, size=head.weights.shape))
    head.bias.assign(rng.normal(size=num_tasks))
    if normalise:
        shift, scale = rng.normal(size=num_tasks), rng.uniform(0.5, 3.0, num_tasks)
        head.shift.assign(shift)
        head.second_moment.assign(shift**2 + scale**2)
    return learner


@functools.cache
def _built(arguments: tuple[tuple[str, Any], ...]) -> tuple[Learner, list[np.ndarray]]:
    learner = build_learner(**dict(arguments))
    return learner, snapshot(learner.variables)


def make_learner(**arguments: Any) -> Learner:
    """Builds a learner, but traces an update once for all tests that ask for the same one."""
    learner, initial = _built(tuple(sorted(arguments.items())))
    restore(learner.variables, initial)
    return learner


def make_batch(
    task_ids: tuple[int, ...] = (0, 2, 2, 4),
    use_lstm: bool = False,
    seed: int = 0,
    shape: tuple[int, ...] = SHAPE,
) -> Rollout:
    """Makes a random batch with a lost life and a game's end; rewards are at least one in size."""
    rng = np.random.default_rng(seed)
    leading = (UNROLL_LENGTH + 1, BATCH_SIZE)
    done, episode_end = np.zeros((2, *leading), bool)
    done[[3, 2], [1, 3]] = episode_end[2, 3] = True
    rewards = rng.uniform(1.0, 3.0, leading) * rng.choice([-1.0, 1.0], leading)
    states = rng.normal(size=(2, BATCH_SIZE, 256)) if use_lstm else ()
    return Rollout(
        task_id=tf.constant(task_ids, tf.int32),
        agent_state=tuple(tf.constant(state, tf.float32) for state in states),
        env_outputs=StepOutput(
            reward=tf.constant(rewards, tf.float32),
            info=StepOutputInfo(
                episode_return=tf.zeros(leading),
                episode_step=tf.zeros(leading, tf.int32),
                episode_end=tf.constant(episode_end),
            ),
            done=tf.constant(done),
            observation=tf.constant(rng.integers(256, size=(*leading, *shape)), tf.uint8),
        ),
        agent_outputs=AgentOutput(
            action=tf.constant(rng.integers(NUM_ACTIONS, size=leading), tf.int32),
            policy_logits=tf.constant(rng.normal(size=(*leading, NUM_ACTIONS)), tf.float32),
        ),
        policy_version=tf.zeros([BATCH_SIZE], tf.int64),
    )


def with_rewards(batch: Rollout, rewards: np.ndarray) -> Rollout:
    """Replaces the rewards; the agent's input is the same if they are clipped alike."""
    reward = tf.constant(rewards, tf.float32)
    return batch._replace(env_outputs=batch.env_outputs._replace(reward=reward))


def expected_losses(learner: Learner, batch: Rollout) -> tuple[dict[str, tf.Tensor], np.ndarray]:
    """The weighted losses as scalars with the gradients they should have, and targets `[T, B]`.

    Written apart from the learner: rewards are not clipped, targets are slow NumPy in float64,
    and whatever must have no gradient is NumPy.
    """
    settings, env, acted = learner._settings, batch.env_outputs, batch.agent_outputs
    ids = batch.task_id.numpy() * (learner.head.num_tasks > 1)  # [B]
    unroll = learner.agent.unroll(acted.action, env, batch.agent_state)
    value = learner.head(unroll.features, np.tile(ids, [len(env.reward), 1]))
    # What step t's action led to stands in row t + 1, as does the action itself.
    ends, actions = env.done.numpy()[1:], acted.action.numpy()[1:]
    taken = np.eye(NUM_ACTIONS, dtype=np.float32)[actions]  # [T, B, num_actions]
    log_policy = tf.nn.log_softmax(unroll.policy_logits[:-1])
    log_probs = tf.reduce_sum(taken * log_policy, axis=-1)
    behaviour = (taken * oracles.log_softmax(acted.policy_logits[1:])).sum(axis=-1)
    targets, advantages = oracles.vtrace(
        log_probs - behaviour,
        settings.discounting * ~ends,
        env.reward.numpy()[1:],
        value.unnormalised.numpy()[:-1],
        value.unnormalised.numpy()[-1],
    )
    shift, scale = learner.head.shift.numpy()[ids], learner.head.scale.numpy()[ids]
    errors = np.float32((targets - shift) / scale) - value.normalised[:-1]
    negative_entropy = tf.reduce_sum(tf.exp(log_policy) * log_policy)
    losses = {
        "policy_gradient_loss": -tf.reduce_sum(np.float32(advantages / scale) * log_probs),
        "value_loss": settings.baseline_cost * 0.5 * tf.reduce_sum(errors**2),
        "entropy_loss": settings.entropy_cost * negative_entropy,
    }
    if learner.q_head is not None:
        q_last = oracles.q_values(learner.q_head, unroll.features.numpy())[-1]
        images, game_ends = env.observation.numpy(), env.info.episode_end.numpy()
        rewards = oracles.cell_rewards(images[:, :, :, 1:33], game_ends, 0, 0)
        q_targets = oracles.q_targets(rewards, settings.pixel_control_discount * ~ends, q_last)
        chosen = pixel_control.action_values(learner.q_head(unroll.features[:-1]), actions)
        squares = tf.reduce_sum((np.float32(q_targets) - chosen) ** 2)
        losses["pixel_control_loss"] = settings.pixel_control_cost * 0.5 * squares
    return losses, targets
