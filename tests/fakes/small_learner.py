"""Small learners and batches for tests, and what to expect of an update."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import popart
from environments import ArraySpec
from scalable_agent_popart import rollouts
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.agent.networks import ShallowTorso
from scalable_agent_popart.learning import pixel_control
from scalable_agent_popart.learning.learner import Learner, LearnerOptions
from scalable_agent_popart.rollouts import AgentOutput, Rollout
from tests.fakes import oracles
from tests.fakes.agent_inputs import (
    NUM_ACTIONS,
    SMALL,
    make_inputs,
    random_state,
    with_done,
    with_game_over,
)

UNROLL_LENGTH = 5
BATCH_SIZE = 4
PIXEL_CONTROL_SHAPE = (32, 35, 1)  # One column of pixels is cut off at the left, two at the right.

OPTIONS = LearnerOptions(
    batch_size=BATCH_SIZE,
    total_environment_frames=1000,
    num_action_repeats=4,
    discounting=0.9,
    reward_clipping="none",
    reward_scale=1.0,
    entropy_cost=0.01,
    baseline_cost=0.5,
    pixel_control_cost=0.25,
    pixel_control_discount=0.8,
    # With decay 1 the mean square stays at one, so that an update is minus the gradient.
    learning_rate=2.0,
    learning_rate_schedule="linear",
    decay=1.0,
    momentum=0.0,
    initial_mean_square=1.0,
    epsilon=3.0,
    max_grad_norm=0.0,
)


def snapshot(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    """Copies variables' values."""
    return [variable.numpy().copy() for variable in variables]


def restore(variables: Sequence[tf.Variable], values: list[np.ndarray]) -> None:
    """Restores the values of a snapshot."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


@functools.cache
def _build(
    num_tasks: int = 5,
    normalise: bool = True,
    use_lstm: bool = False,
    controls_pixels: bool = False,
    num_microbatches: int = 1,
    start: str = "fixed",
    **options: Any,
) -> tuple[Learner, list[np.ndarray], dict[str, float]]:
    tf.random.set_seed(0)
    shape = PIXEL_CONTROL_SHAPE if controls_pixels else SMALL
    agent = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), use_lstm)
    spec = rollouts.rollout_spec(
        ArraySpec(shape, np.uint8), agent.initial_state(1), NUM_ACTIONS, UNROLL_LENGTH
    )
    head = popart.ValueHead(num_tasks, normalise, step_size=0.1, start=start)
    q_head = pixel_control.QHead(NUM_ACTIONS, *shape[:2]) if controls_pixels else None
    chosen = dataclasses.replace(OPTIONS, **options)
    learner = Learner(agent, head, chosen, spec, q_head, num_microbatches)
    rng = np.random.default_rng(0)
    head.weights.assign(rng.normal(scale=0.1, size=head.weights.shape))
    head.bias.assign(rng.normal(size=num_tasks))
    if normalise:
        shift, scale = rng.normal(size=num_tasks), rng.uniform(0.5, 3.0, num_tasks)
        head.shift.assign(shift)
        head.second_moment.assign(shift**2 + scale**2)
    return learner, snapshot(learner.variables), learner.hyperparameters.values()


def make_learner(**arguments: Any) -> Learner:
    """Makes a learner with a small network and random weights; with PopArt, also statistics.

    All tests that ask for the same one share its graphs.
    """
    learner, initial, hyperparameters = _build(**arguments)
    restore(learner.variables, initial)
    learner.hyperparameters.assign(hyperparameters)
    return learner


def make_batch(
    task_ids: tuple[int, ...] = (0, 2, 2, 4),
    use_lstm: bool = False,
    seed: int = 0,
    shape: tuple[int, ...] = SMALL,
) -> Rollout:
    """Makes a random batch with a lost life and a game's end; rewards are at least one in size."""
    rng = np.random.default_rng(seed)
    actions, env_outputs = make_inputs(UNROLL_LENGTH + 1, BATCH_SIZE, shape, seed)
    rewards = rng.uniform(1.0, 3.0, actions.shape) * rng.choice([-1.0, 1.0], actions.shape)
    logits = tf.constant(rng.normal(size=(*actions.shape, NUM_ACTIONS)), tf.float32)
    batch = Rollout(
        task_id=tf.constant(task_ids, tf.int32),
        agent_state=random_state(BATCH_SIZE, use_lstm),
        env_outputs=with_game_over(with_done(env_outputs, (3, 1)), (2, 3)),
        agent_outputs=AgentOutput(actions, logits),
        policy_version=tf.zeros([BATCH_SIZE], tf.int64),
    )
    return with_rewards(batch, rewards)


def with_rewards(batch: Rollout, rewards: np.ndarray) -> Rollout:
    """Replaces the rewards; the agent's input is the same if they are clipped alike."""
    reward = tf.constant(rewards, tf.float32)
    return batch._replace(env_outputs=batch.env_outputs._replace(reward=reward))


def expected_losses(learner: Learner, batch: Rollout) -> tuple[dict[str, tf.Tensor], np.ndarray]:
    """Computes the weighted losses with the gradients they should have, and targets `[T, B]`.

    It shares no code with the learner: rewards are not clipped, targets are slow NumPy in float64,
    and whatever must have no gradient is NumPy.
    """
    options, env, acted = learner._options, batch.env_outputs, batch.agent_outputs
    ids = batch.task_id.numpy() * (learner.head.num_tasks > 1)  # [B]
    unroll = learner.agent.unroll(acted.action, env, batch.agent_state)
    value = learner.head(unroll.features, np.tile(ids, [len(env.reward), 1]))
    # Row t + 1 has the action of step t and what it led to.
    ends, actions = env.done.numpy()[1:], acted.action.numpy()[1:]
    taken = np.eye(NUM_ACTIONS, dtype=np.float32)[actions]  # [T, B, num_actions]
    log_policy = tf.nn.log_softmax(unroll.policy_logits[:-1])
    log_probs = tf.reduce_sum(taken * log_policy, axis=-1)
    behaviour = (taken * oracles.log_softmax(acted.policy_logits[1:])).sum(axis=-1)
    targets, advantages = oracles.vtrace(
        log_probs - behaviour,
        options.discounting * ~ends,
        env.reward.numpy()[1:],
        value.unnormalised.numpy()[:-1],
        value.unnormalised.numpy()[-1],
    )
    shift, scale = learner.head.shift.numpy()[ids], learner.head.scale.numpy()[ids]
    errors = np.float32((targets - shift) / scale) - value.normalised[:-1]
    negative_entropy = tf.reduce_sum(tf.exp(log_policy) * log_policy)
    losses = {
        "policy_gradient_loss": -tf.reduce_sum(np.float32(advantages / scale) * log_probs),
        "value_loss": options.baseline_cost * 0.5 * tf.reduce_sum(errors**2),
        "entropy_loss": options.entropy_cost * negative_entropy,
    }
    if learner.q_head is not None:
        q_last = oracles.q_values(learner.q_head, unroll.features.numpy())[-1]
        images, game_ends = env.observation.numpy(), env.info.episode_end.numpy()
        rewards = oracles.cell_rewards(images[:, :, :, 1:33], game_ends, 0, 0)
        q_targets = oracles.q_targets(rewards, options.pixel_control_discount * ~ends, q_last)
        chosen = pixel_control.action_values(learner.q_head(unroll.features[:-1]), actions)
        squares = tf.reduce_sum((np.float32(q_targets) - chosen) ** 2)
        losses["pixel_control_loss"] = options.pixel_control_cost * 0.5 * squares
    return losses, targets
