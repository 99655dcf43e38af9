"""The data that flows from actors to the learner, and how its time steps line up.

Index t of a rollout pairs `env_outputs[t]`, the step an environment returned, with
`agent_outputs[t]`, the action that led to it and the logits it was drawn from. The agent's
answer to `env_outputs[t]` is therefore `agent_outputs[t + 1]`.

A rollout holds T + 1 steps: T transitions, and the state to bootstrap from. Consecutive
rollouts of one environment overlap by that step: the last of one is the first of the next.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from environments import ArraySpec, StepOutput, StepOutputInfo


class AgentOutput(NamedTuple):
    """What the agent says at one step."""

    action: Any  # int32 [...]
    policy_logits: Any  # float32 [..., num_actions]


class Rollout(NamedTuple):
    """T + 1 steps of one environment; of N environments with a leading dimension N.

    Stacked for the learner it is called a batch: `[T + 1, B, ...]`, with `task_id`,
    `agent_state` and `policy_version` `[B, ...]`.
    """

    task_id: Any  # int32 []
    agent_state: Any  # recurrent state as it was before step 0
    env_outputs: StepOutput  # [T + 1, ...]
    agent_outputs: AgentOutput  # [T + 1, ...]
    policy_version: Any  # int64 [], learner updates behind the weights that acted


def rollout_spec(
    observation: ArraySpec, agent_state: Any, num_actions: int, unroll_length: int
) -> Rollout:
    """`tf.TensorSpec`s of one environment's rollout.

    Args:
      observation: of one environment at one step.
      agent_state: an initial state `[1, ...]`.
      num_actions: size of the action set.
      unroll_length: T, in agent steps.
    """
    steps = unroll_length + 1

    def over_time(dtype: Any, *shape: int) -> tf.TensorSpec:
        return tf.TensorSpec((steps, *shape), dtype)

    return Rollout(
        task_id=tf.TensorSpec((), tf.int32),
        agent_state=tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape[1:], tensor.dtype), agent_state
        ),
        env_outputs=StepOutput(
            reward=over_time(tf.float32),
            info=StepOutputInfo(
                episode_return=over_time(tf.float32),
                episode_step=over_time(tf.int32),
                episode_end=over_time(tf.bool),
            ),
            done=over_time(tf.bool),
            observation=over_time(tf.as_dtype(observation.dtype), *observation.shape),
        ),
        agent_outputs=AgentOutput(
            action=over_time(tf.int32), policy_logits=over_time(tf.float32, num_actions)
        ),
        policy_version=tf.TensorSpec((), tf.int64),
    )


def batch_spec(spec: Rollout, batch_size: int) -> Rollout:
    """`tf.TensorSpec`s of a batch, for the specs of one rollout."""

    def at_front(leaf: tf.TensorSpec) -> tf.TensorSpec:
        return tf.TensorSpec((batch_size, *leaf.shape), leaf.dtype)

    def after_time(leaf: tf.TensorSpec) -> tf.TensorSpec:
        return tf.TensorSpec((leaf.shape[0], batch_size, *leaf.shape[1:]), leaf.dtype)

    return Rollout(
        task_id=at_front(spec.task_id),
        agent_state=tf.nest.map_structure(at_front, spec.agent_state),
        env_outputs=tf.nest.map_structure(after_time, spec.env_outputs),
        agent_outputs=tf.nest.map_structure(after_time, spec.agent_outputs),
        policy_version=at_front(spec.policy_version),
    )


def example_batch(spec: Rollout) -> Rollout:
    """One step of one environment as a batch `[1, 1, ...]` of zeros, to create variables with."""
    one_step = spec._replace(
        env_outputs=tf.nest.map_structure(_first_step, spec.env_outputs),
        agent_outputs=tf.nest.map_structure(_first_step, spec.agent_outputs),
    )
    return tf.nest.map_structure(
        lambda leaf: tf.zeros(leaf.shape, leaf.dtype), batch_spec(one_step, batch_size=1)
    )


def _first_step(leaf: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec((1, *leaf.shape[1:]), leaf.dtype)


def time_major(rollouts: Rollout) -> Rollout:
    """Turns stacked rollouts `[B, T + 1, ...]` into a batch `[T + 1, B, ...]`."""

    def swap(tensor: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])

    return rollouts._replace(
        env_outputs=tf.nest.map_structure(swap, rollouts.env_outputs),
        agent_outputs=tf.nest.map_structure(swap, rollouts.agent_outputs),
    )


class RolloutBuffer:
    """Room for one rollout of each of N environments, filled step by step."""

    def __init__(self, spec: Rollout, num_environments: int):
        def room(leaf: tf.TensorSpec) -> np.ndarray:
            return np.zeros((num_environments, *leaf.shape), leaf.dtype.as_numpy_dtype)

        self._steps = tf.nest.map_structure(room, (spec.env_outputs, spec.agent_outputs))

    def write(self, step: int, env_output: StepOutput, agent_output: AgentOutput) -> None:
        """Stores step t: `[N, ...]` into `[N, t, ...]`."""

        def store(room: np.ndarray, value: Any) -> None:
            room[:, step] = value

        tf.nest.map_structure(store, self._steps, (env_output, agent_output))

    def rollouts(self, task_ids: np.ndarray, agent_state: Any, policy_version: int) -> Rollout:
        """The N rollouts `[N, T + 1, ...]`; views, to be copied before the next write."""
        env_outputs, agent_outputs = self._steps
        versions = np.full(len(task_ids), policy_version, np.int64)
        return Rollout(task_ids, agent_state, env_outputs, agent_outputs, versions)
