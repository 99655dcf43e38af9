"""Small learners and batches for the learner's tests, with what to expect of them."""

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
from scalable_agent_popart.learning.learner import Learner, LearnerSettings
from scalable_agent_popart.rollouts import AgentOutput, Rollout

UNROLL_LENGTH = 5
BATCH_SIZE = 4
NUM_ACTIONS = 3
SHAPE = (10, 5, 3)
EPS = float(np.finfo(np.float32).eps)

SETTINGS = LearnerSettings(
    total_environment_frames=1000,
    num_action_repeats=4,
    discounting=0.9,
    reward_clipping="none",
    entropy_cost=0.01,
    baseline_cost=0.5,
    pixel_control_cost=0.01,
    pixel_control_discount=0.9,
    learning_rate=0.01,
    learning_rate_schedule="linear",
    decay=0.99,
    momentum=0.0,
    epsilon=0.1,
    max_grad_norm=0.0,
    popart_order="gradient_first",
)


def snapshot(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    """Copies of variables' values."""
    return [variable.numpy().copy() for variable in variables]


def restore(variables: Sequence[tf.Variable], values: list[np.ndarray]) -> None:
    """Undoes what happened since the snapshot."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def build_learner(
    num_tasks: int = 5, normalise: bool = True, use_lstm: bool = False, **settings: Any
) -> Learner:
    """A learner with a small network and random weights; with PopArt, also statistics."""
    tf.random.set_seed(0)
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm)
    spec = rollouts.rollout_spec(
        ArraySpec(SHAPE, np.uint8), agent.initial_state(1), NUM_ACTIONS, UNROLL_LENGTH
    )
    example = rollouts.example_batch(spec)
    agent.unroll(example.agent_outputs.action, example.env_outputs, example.agent_state)
    head = popart.ValueHead(num_tasks, normalise=normalise, step_size=0.1)
    learner = Learner(
        agent, head, dataclasses.replace(SETTINGS, **settings), spec, batch_size=BATCH_SIZE
    )
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
    """As `build_learner`, but traces an update once for all tests that ask for the same one."""
    defaults = {"normalise": True, "use_lstm": False, **dataclasses.asdict(SETTINGS)}
    chosen = {name: v for name, v in arguments.items() if defaults.get(name) != v}
    learner, initial = _built(tuple(sorted(chosen.items())))
    restore(learner.variables, initial)
    return learner


def make_batch(
    task_ids: tuple[int, ...] = (0, 2, 2, 4), use_lstm: bool = False, seed: int = 0
) -> Rollout:
    """A random batch with one episode's end in it, rewards of at least one in size."""
    rng = np.random.default_rng(seed)
    leading = (UNROLL_LENGTH + 1, BATCH_SIZE)
    done = np.zeros(leading, bool)
    done[3, 1] = True
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
                episode_end=tf.zeros(leading, tf.bool),
            ),
            done=tf.constant(done),
            observation=tf.constant(rng.integers(256, size=(*leading, *SHAPE)), tf.uint8),
        ),
        agent_outputs=AgentOutput(
            action=tf.constant(rng.integers(NUM_ACTIONS, size=leading), tf.int32),
            policy_logits=tf.constant(rng.normal(size=(*leading, NUM_ACTIONS)), tf.float32),
        ),
        policy_version=tf.zeros([BATCH_SIZE], tf.int64),
    )


def with_rewards(batch: Rollout, rewards: np.ndarray) -> Rollout:
    """The same batch with other rewards, and the same input to the agent if clipped alike."""
    reward = tf.constant(rewards, tf.float32)
    return batch._replace(env_outputs=batch.env_outputs._replace(reward=reward))


def unroll(learner: Learner, batch: Rollout) -> Any:
    """The agent's features and logits `[T + 1, B, ...]` for a batch."""
    return learner.agent.unroll(batch.agent_outputs.action, batch.env_outputs, batch.agent_state)


def values(learner: Learner, batch: Rollout) -> popart.Value:
    """The head's values `[T + 1, B]` for a batch, each rollout under its own task."""
    task_ids = tf.tile(batch.task_id[tf.newaxis], [UNROLL_LENGTH + 1, 1])
    return learner.head(unroll(learner, batch).features, task_ids)


def on_policy(learner: Learner, batch: Rollout) -> Rollout:
    """The same batch, as if the learner's present policy had acted."""
    logits = unroll(learner, batch).policy_logits  # [T + 1, B, num_actions]
    # The answer to step t stands in row t + 1; what stands in row 0 is nobody's business.
    acted = tf.concat([batch.agent_outputs.policy_logits[:1], logits[:-1]], axis=0)
    return batch._replace(agent_outputs=batch.agent_outputs._replace(policy_logits=acted))


def bellman_returns(learner: Learner, batch: Rollout, unnormalised: np.ndarray) -> np.ndarray:
    """n-step returns `[T, B]` in float64: what V-trace gives on policy."""
    following = np.float64(unnormalised[-1])
    result = np.zeros((UNROLL_LENGTH, BATCH_SIZE))
    for t in reversed(range(UNROLL_LENGTH)):
        # Row t + 1 holds the reward and the end that followed the action taken at step t.
        alive = ~batch.env_outputs.done.numpy()[t + 1]
        following = batch.env_outputs.reward.numpy()[t + 1] + 0.9 * alive * following
        result[t] = following
    return result


def bits(array: Any) -> bytes:
    """What is compared bit for bit."""
    return np.asarray(array).tobytes()


def float64_softmax(logits: Any) -> np.ndarray:
    """Over the last axis."""
    exponentials = np.exp(np.float64(logits))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def expected_parts(
    learner: Learner, batch: Rollout, shift: np.ndarray, scale: np.ndarray
) -> dict[str, float]:
    """The weighted losses of an on-policy batch, for statistics `[num_tasks]`, in float64."""
    value = np.float64(values(learner, batch).unnormalised)
    targets = bellman_returns(learner, batch, value)
    shift, scale = shift[batch.task_id], scale[batch.task_id]  # [B]
    advantages = (targets - value[:-1]) / scale
    probabilities = float64_softmax(unroll(learner, batch).policy_logits[:-1])
    taken = batch.agent_outputs.action.numpy()[1:]
    log_probs = np.log((probabilities * np.eye(NUM_ACTIONS)[taken]).sum(axis=-1))
    errors = (targets - shift) / scale - (value[:-1] - shift) / scale
    return {
        "policy_gradient_loss": -(advantages * log_probs).sum(),
        "value_loss": 0.5 * 0.5 * (errors**2).sum(),
        "entropy_loss": 0.01 * (probabilities * np.log(probabilities)).sum(),
    }
