"""The data that flows from actors to the learner, and how its time steps line up.

Index t of a rollout pairs `env_outputs[t]`, the step an environment returned, with
`agent_outputs[t]`, the action that led to it and the logits it was sampled from. The agent's
answer to `env_outputs[t]` is therefore `agent_outputs[t + 1]`.

A rollout holds T + 1 steps: T transitions, and the state to bootstrap from. Consecutive
rollouts of one environment overlap by that step: the last of one is the first of the next. An
environment that is lost and starts again also starts a new rollout.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from environments import StepOutput, StepOutputInfo


class AgentOutput(NamedTuple):
    """The agent's answer to one step."""

    action: Any  # int32 [...]
    policy_logits: Any  # float32 [..., num_actions]


class Rollout(NamedTuple):
    """T + 1 steps of one environment, or of N environments with a leading dimension N.

    Stacked for the learner it is called a batch: `[T + 1, B, ...]`, with `task_id`,
    `agent_state` and `policy_version` `[B, ...]`.
    """

    task_id: Any  # int32 []
    agent_state: Any  # recurrent state as it was before step 0
    env_outputs: StepOutput  # [T + 1, ...]
    agent_outputs: AgentOutput  # [T + 1, ...]
    policy_version: Any  # int64 [], number of learner updates that made the weights that acted


def _map(
    rollout: Rollout, without_time: Callable[[Any], Any], with_time: Callable[[Any], Any]
) -> Rollout:
    """Applies one function to the leaves without a dimension of time, another to those with it."""
    functions = (without_time, without_time, with_time, with_time, without_time)
    return Rollout(*map(tf.nest.map_structure, functions, rollout))


def rollout_spec(
    observation: Any, agent_state: Any, num_actions: int, unroll_length: int
) -> Rollout:
    """Returns `tf.TensorSpec`s of one environment's rollout of T = `unroll_length` agent steps.

    `observation` is nested `ArraySpec`s, and `agent_state` an initial state `[1, ...]`.
    """

    def over_time(dtype: Any, *shape: int) -> tf.TensorSpec:
        return tf.TensorSpec((unroll_length + 1, *shape), dtype)

    return Rollout(
        task_id=tf.TensorSpec((), tf.int32),
        agent_state=tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape[1:], tensor.dtype), agent_state
        ),
        env_outputs=StepOutput(
            reward=over_time(tf.float32),
            info=StepOutputInfo(over_time(tf.float64), over_time(tf.int32), over_time(tf.bool)),
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
    """Returns `tf.TensorSpec`s of a batch, of any size if None, for those of one rollout."""
    return _map(
        spec,
        lambda leaf: tf.TensorSpec((batch_size, *leaf.shape), leaf.dtype),
        lambda leaf: tf.TensorSpec((leaf.shape[0], batch_size, *leaf.shape[1:]), leaf.dtype),
    )


def time_major(rollouts: Rollout) -> Rollout:
    """Turns stacked rollouts `[B, T + 1, ...]` into a batch `[T + 1, B, ...]`."""
    return _map(
        rollouts,
        lambda tensor: tensor,
        lambda tensor: tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)]),
    )


def select(batch: Rollout, ids: np.ndarray) -> Rollout:
    """Returns the rollouts `ids` `[M]` of a batch `[T + 1, B, ...]` as one `[T + 1, M, ...]`."""
    return _map(
        batch,
        lambda tensor: tf.gather(tensor, ids, axis=0),
        lambda tensor: tf.gather(tensor, ids, axis=1),
    )


class RolloutBuffer:
    """Unfinished rollouts of N environments, each at its own step.

    `ids` `[M]` are numbers of environments. `write` their steps, and before the second of them
    `begin` the rollout. `take` it once it is full, which keeps its last step as the first of the
    next. The `newest` step can be read at any time.
    """

    def __init__(self, spec: Rollout, task_ids: np.ndarray):
        self._rollouts = tf.nest.map_structure(
            lambda leaf: np.zeros((len(task_ids), *leaf.shape), leaf.dtype.as_numpy_dtype), spec
        )._replace(task_id=task_ids)
        # Flat, since many small structures are slow to walk through; each `[N, T + 1, ...]`.
        self._env_arrays = tree.flatten(self._rollouts.env_outputs)
        self._step_arrays = [*self._env_arrays, *self._rollouts.agent_outputs]
        self._num_steps = spec.env_outputs.reward.shape[0]
        self._written = np.zeros(len(task_ids), np.int64)

    def write(
        self, ids: np.ndarray, env_output: StepOutput, agent_output: AgentOutput, fresh: np.ndarray
    ) -> None:
        """Adds a step `[M, ...]`; where `fresh` `[M]`, the rollout so far is dropped."""
        self._written[ids[fresh]] = 0
        steps = self._written[ids]
        values = (*tree.flatten(env_output), *agent_output)
        for array, value in zip(self._step_arrays, values, strict=True):
            array[ids, steps] = value
        self._written[ids] += 1

    def full(self, ids: np.ndarray) -> np.ndarray:
        """Returns which of the environments have a whole rollout, bool `[M]`."""
        return self._written[ids] == self._num_steps

    def take(self, ids: np.ndarray) -> Rollout:
        """Copies out the full rollouts `[M, T + 1, ...]` of the environments."""
        taken = tf.nest.map_structure(lambda array: array[ids], self._rollouts)
        for array in self._step_arrays:
            array[ids, 0] = array[ids, -1]
        self._written[ids] = 1
        return taken

    def at_start(self, ids: np.ndarray) -> np.ndarray:
        """Returns which of the environments have written only step 0, bool `[M]`."""
        return self._written[ids] == 1

    def newest(self, ids: np.ndarray) -> StepOutput:
        """Copies out what the environments returned last, `[M, ...]`."""
        steps = self._written[ids] - 1
        leaves = [array[ids, steps] for array in self._env_arrays]
        return tree.unflatten_as(self._rollouts.env_outputs, leaves)

    def begin(self, ids: np.ndarray, agent_state: Any, policy_version: int) -> None:
        """Records the recurrent state `[M, ...]` before step 0 and the weights that act."""
        for array, value in zip(self._rollouts.agent_state, agent_state, strict=True):
            array[ids] = value
        self._rollouts.policy_version[ids] = policy_version
