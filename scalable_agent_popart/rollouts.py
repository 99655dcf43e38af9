"""The data that flows from actors to the learner, and how its time steps line up.

Index t of a rollout pairs `env_outputs[t]`, the step an environment returned, with
`agent_outputs[t]`, the action that led to it and the logits it was drawn from. The agent's
answer to `env_outputs[t]` is therefore `agent_outputs[t + 1]`.

A rollout holds T + 1 steps: T transitions, and the state to bootstrap from. Consecutive
rollouts of one environment overlap by that step: the last of one is the first of the next. An
environment that is lost on the way and starts again also starts a new rollout.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from environments import StepOutput, StepOutputInfo


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
    observation: Any, agent_state: Any, num_actions: int, unroll_length: int
) -> Rollout:
    """`tf.TensorSpec`s of one environment's rollout.

    Args:
      observation: nested `ArraySpec`s of one environment at one step.
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
            observation=tf.nest.map_structure(
                lambda array: over_time(tf.as_dtype(array.dtype), *array.shape), observation
            ),
        ),
        agent_outputs=AgentOutput(
            action=over_time(tf.int32), policy_logits=over_time(tf.float32, num_actions)
        ),
        policy_version=tf.TensorSpec((), tf.int64),
    )


def batch_spec(spec: Rollout, batch_size: int | None) -> Rollout:
    """`tf.TensorSpec`s of a batch, of any size if None, for the specs of one rollout."""

    def at_front(leaf: tf.TensorSpec) -> tf.TensorSpec:
        return tf.TensorSpec((batch_size, *leaf.shape), leaf.dtype)

    def after_time(leaf: tf.TensorSpec) -> tf.TensorSpec:
        return tf.TensorSpec((leaf.shape[0], batch_size, *leaf.shape[1:]), leaf.dtype)

    return _map_batch(spec, at_front, after_time)


def _map_batch(
    rollout: Rollout, at_front: Callable[[Any], Any], after_time: Callable[[Any], Any]
) -> Rollout:
    """Applies one function to the leaves without a dimension of time, another to those with it."""
    return Rollout(
        task_id=at_front(rollout.task_id),
        agent_state=tf.nest.map_structure(at_front, rollout.agent_state),
        env_outputs=tf.nest.map_structure(after_time, rollout.env_outputs),
        agent_outputs=tf.nest.map_structure(after_time, rollout.agent_outputs),
        policy_version=at_front(rollout.policy_version),
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


def select(batch: Rollout, ids: np.ndarray) -> Rollout:
    """The rollouts `ids` `[M]` of a batch `[T + 1, B, ...]`, as a batch `[T + 1, M, ...]`."""

    def at_front(tensor: tf.Tensor) -> tf.Tensor:
        return tf.gather(tensor, ids, axis=0)

    def after_time(tensor: tf.Tensor) -> tf.Tensor:
        return tf.gather(tensor, ids, axis=1)

    return _map_batch(batch, at_front, after_time)


class RolloutBuffer:
    """Rollouts of N environments in the making, each at a step of its own.

    For each environment: `write` its steps; before its second, `begin` its rollout; and once
    it is full, `take` it, which leaves its last step as the first of the next. The `newest`
    step is there all the time.
    """

    def __init__(self, spec: Rollout, task_ids: np.ndarray):
        def room(leaf: tf.TensorSpec) -> np.ndarray:
            return np.zeros((len(task_ids), *leaf.shape), leaf.dtype.as_numpy_dtype)

        self._rollouts = tf.nest.map_structure(room, spec)._replace(task_id=task_ids)
        # Flat, since many small structures are slow to walk through.
        self._env_rooms = tree.flatten(self._rollouts.env_outputs)
        self._step_rooms = [*self._env_rooms, *self._rollouts.agent_outputs]
        self._num_steps = spec.env_outputs.reward.shape[0]
        self._written = np.zeros(len(task_ids), np.int64)

    def write(
        self, ids: np.ndarray, env_output: StepOutput, agent_output: AgentOutput, fresh: np.ndarray
    ) -> None:
        """Adds a step `[M, ...]` to the rollouts of the environments `ids`.

        Where `fresh` `[M]`, the rollout so far is dropped: the step does not continue it.
        """
        self._written[ids[fresh]] = 0
        steps = self._written[ids]

        values = (*tree.flatten(env_output), *agent_output)
        for room, value in zip(self._step_rooms, values, strict=True):
            room[ids, steps] = value
        self._written[ids] += 1

    def full(self, ids: np.ndarray) -> np.ndarray:
        """Which of the environments `ids` `[M]` have a whole rollout; bool `[M]`."""
        return self._written[ids] == self._num_steps

    def take(self, ids: np.ndarray) -> Rollout:
        """The full rollouts `[M, T + 1, ...]` of the environments `ids`."""
        taken = tf.nest.map_structure(lambda room: room[ids], self._rollouts)

        for room in self._step_rooms:
            room[ids, 0] = room[ids, -1]
        self._written[ids] = 1
        return taken

    def at_start(self, ids: np.ndarray) -> np.ndarray:
        """Which of the environments `ids` `[M]` have written step 0 alone; bool `[M]`."""
        return self._written[ids] == 1

    def newest(self, ids: np.ndarray) -> StepOutput:
        """What the environments `ids` returned last, `[M, ...]`."""
        steps = self._written[ids] - 1
        leaves = [room[ids, steps] for room in self._env_rooms]
        return tree.unflatten_as(self._rollouts.env_outputs, leaves)

    def begin(self, ids: np.ndarray, agent_state: Any, policy_version: int) -> None:
        """Notes the recurrent state `[M, ...]` before step 0 and the weights that act."""

        def store(room: np.ndarray, value: Any) -> None:
            room[ids] = value

        tf.nest.map_structure(store, self._rollouts.agent_state, agent_state)
        self._rollouts.policy_version[ids] = policy_version
