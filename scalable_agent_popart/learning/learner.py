"""The learner: batches of rollouts in, one gradient step and one PopArt update each."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

import popart
import vtrace
from environments import StepOutput, image_of
from scalable_agent_popart import rollouts
from scalable_agent_popart.agent.agent import Agent, Unroll
from scalable_agent_popart.learning import losses, pixel_control
from scalable_agent_popart.learning.rmsprop import RMSProp
from scalable_agent_popart.rollouts import AgentOutput, Rollout


@dataclass(frozen=True, kw_only=True)
class LearnerOptions:
    """Settings of a learner, by the names of their flags."""

    batch_size: int  # rollouts
    total_environment_frames: int  # over which the learning rate is annealed
    num_action_repeats: int  # environment frames per agent step
    reward_clipping: str
    reward_scale: float
    discounting: float
    entropy_cost: float
    baseline_cost: float
    pixel_control_cost: float
    pixel_control_discount: float
    learning_rate: float
    learning_rate_schedule: str
    decay: float
    momentum: float
    initial_mean_square: float
    epsilon: float
    max_grad_norm: float  # 0 for never
    xla: bool = False  # if true, XLA compiles the update


# This is no `tf.Module`, because flags decide and not checkpoints. Population-based training, which
# lets checkpoints decide, adds these variables to them itself.
@dataclass(frozen=True)
class Hyperparameters:
    """Settings that populations tune, as float32 scalar variables; the others never change."""

    learning_rate: tf.Variable
    entropy_cost: tf.Variable
    epsilon: tf.Variable
    max_grad_norm: tf.Variable

    def assign(self, values: Mapping[str, float]) -> None:
        """Changes those that are named."""
        for name, value in values.items():
            getattr(self, name).assign(value)

    def values(self) -> dict[str, float]:
        """Returns the present values by name."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}


class _Computed(NamedTuple):
    """Losses of a batch, their gradient, and the value targets."""

    losses: dict[str, tf.Tensor]  # The total and its parts, scalars.
    gradients: list[tf.Tensor]
    targets: tf.Tensor  # [T, B], on the scale of the rewards
    began: tf.Tensor  # bool [B], the rollouts that `ValueHead.begin` has taken
    diagnostics: dict[str, tf.Tensor]  # [B]


class Learner(snt.Module):
    """Owns the agent's weights, the value head, the optimiser and the frame count.

    The variable `frames` counts the environment frames learned from. `num_updates` is the version
    of the weights, so copying another's weights counts, too.
    """

    def __init__(
        self,
        agent: Agent,
        head: popart.ValueHead,
        options: LearnerOptions,
        spec: Rollout,
        q_head: pixel_control.QHead | None = None,
        num_microbatches: int = 1,
    ):
        """Creates every variable, so that they can be restored before the first update.

        The value head has one head for all tasks, or one per task. `spec` is one environment's.
        `q_head` learns pixel control on the side. The gradient of a batch is the sum of those of
        `num_microbatches`, each of some of its rollouts. They are computed one after the other, so
        that memory holds the activations of only one.
        """
        super().__init__()
        self.agent = agent
        self.head = head
        self.q_head = q_head
        self._options = options
        self._num_microbatches = num_microbatches
        self.hyperparameters = Hyperparameters(
            *(
                tf.Variable(getattr(options, name), trainable=False, dtype=tf.float32, name=name)
                for name in (field.name for field in fields(Hyperparameters))
            )
        )
        self.frames = tf.Variable(0, dtype=tf.int64, trainable=False, name="frames")
        self.num_updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_updates")
        features = agent.create_variables(spec)
        head(features, tf.zeros(features.shape[:-1], tf.int32))
        self._parameters = (*agent.trainable_variables, *head.trainable_variables)
        if q_head is not None:
            q_head(features)
            self._parameters += q_head.trainable_variables
        self._optimiser = RMSProp(
            self._parameters, options.decay, options.momentum, options.initial_mean_square
        )
        self._compiled_update = tf.function(
            self._update,
            input_signature=[rollouts.batch_spec(spec, options.batch_size)],
            autograph=False,  # There is nothing to convert, and looking for it takes seconds.
            jit_compile=options.xla or None,
        )
        self._compiled_norms = tf.function(
            self._norms, input_signature=[rollouts.batch_spec(spec, None)], autograph=False
        )

    def copy(self, source: "Learner") -> None:
        """Copies all that another learner has learned and counted, and its hyperparameters."""
        for variable, other in zip(self.variables, source.variables, strict=True):
            variable.assign(other)
        self.hyperparameters.assign(source.hyperparameters.values())

    def update(self, batch: Rollout) -> Mapping[str, tf.Tensor]:
        """Learns from one batch `[T + 1, B, ...]`; returns what to log.

        These are scalars, and diagnostics of each rollout `[B]`: `largest_target` in sigmas, and
        what `losses.diagnostics` computes.
        """
        return self._compiled_update(batch)

    def gradient_norms(
        self, batch: Rollout, tasks: Sequence[str]
    ) -> Mapping[str, Mapping[str, float]]:
        """Measures, apart from the update, what each task adds to a batch's gradient.

        Losses are sums over rollouts, so the gradient g of a batch `[T + 1, B, ...]` to the agent's
        weights is the sum of those of its tasks: g = sum_k g_k. Values count because they reach the
        agent through shared layers. Statistics scale them as they are.

        Returns:
          |g_k| before any clipping, by the names of the tasks in the batch. `policy_gradient_norm`
          is of the policy's loss alone, and `total_gradient_norm` of what an update minimises.
        """
        task_ids = batch.task_id.numpy()  # [B]
        norms: dict[str, dict[str, float]] = defaultdict(dict)
        for i in np.unique(task_ids):
            of_task = rollouts.select(batch, np.flatnonzero(task_ids == i))
            for name, norm in self._compiled_norms(of_task).items():
                norms[name][tasks[i]] = float(norm)
        return norms

    def _norms(self, batch: Rollout) -> dict[str, tf.Tensor]:
        weights = self.agent.trainable_variables
        with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
            tape.watch(weights)
            unroll = self._unroll(batch)
            returns, _ = self._returns(batch, unroll)
            parts = self._losses(batch, unroll, returns)
        named = {
            "policy_gradient_norm": "policy_gradient_loss",
            "total_gradient_norm": "total_loss",
        }
        return {
            norm: tf.linalg.global_norm(tape.gradient(parts[loss], weights))
            for norm, loss in named.items()
        }

    def _update(self, batch: Rollout) -> dict[str, tf.Tensor]:
        options, hyperparameters = self._options, self.hyperparameters
        if self._num_microbatches > 1:
            computed = self._differentiate_in_turn(batch)
        else:
            computed = self._differentiate(batch)
        targets, gradients = computed.targets, computed.gradients
        gradient_norm = tf.linalg.global_norm(gradients)
        if options.max_grad_norm > 0:
            gradients, _ = tf.clip_by_global_norm(
                gradients, hyperparameters.max_grad_norm, use_norm=gradient_norm
            )
        learning_rate = hyperparameters.learning_rate.read_value()
        if options.learning_rate_schedule == "linear":
            progress = tf.cast(self.frames / options.total_environment_frames, tf.float32)
            learning_rate *= tf.maximum(1.0 - progress, 0.0)
        self._optimiser.apply(gradients, learning_rate, hyperparameters.epsilon)
        shift, scale = self.head.statistics(self._head_ids(batch))  # [B]
        largest_target = tf.reduce_max(tf.abs(targets - shift), axis=0) / scale  # [B]
        self.head.update(targets, self._head_ids(batch), self._rewarded(batch), ~computed.began)

        lag = tf.reduce_mean(tf.cast(self.num_updates - batch.policy_version, tf.float32))
        steps, batch_size = targets.shape
        self.frames.assign_add(steps * batch_size * options.num_action_repeats)
        self.num_updates.assign_add(1)
        return {
            **computed.losses,
            "gradient_norm": gradient_norm,
            "learning_rate": learning_rate,
            "policy_lag": lag,
            "largest_target": largest_target,
            **computed.diagnostics,
        }

    def _differentiate(self, batch: Rollout) -> _Computed:
        """Computes targets, which may begin a task's average, then losses, then the gradient."""
        with tf.GradientTape() as tape:
            unroll = self._unroll(batch)
            returns, values = self._returns(batch, unroll)
            began = self.head.begin(returns.vs, self._head_ids(batch), self._rewarded(batch))
            parts = self._losses(batch, unroll, returns)
        diagnostics = losses.diagnostics(
            batch.agent_outputs.policy_logits[1:],
            unroll.policy_logits[:-1],
            returns.log_rhos,
            returns.vs,
            values,
        )
        gradients = tape.gradient(parts["total_loss"], self._parameters)
        return _Computed(parts, gradients, returns.vs, began, diagnostics)

    def _differentiate_in_turn(self, batch: Rollout) -> _Computed:
        """Computes the same for one microbatch after the other.

        The batch in which a task's average begins is an exception. The first microbatch with a
        reward of the task begins the average alone, and later ones are normalised by it.
        """
        results: list[_Computed] = []
        for ids in np.array_split(np.arange(batch.task_id.shape[0]), self._num_microbatches):
            with tf.control_dependencies(tf.nest.flatten(results[-1:])):
                microbatch = rollouts.select(batch, ids)
            results.append(self._differentiate(microbatch))
        parts, gradients, targets, *by_rollout = zip(*results, strict=True)
        parts, gradients = (
            tf.nest.map_structure(lambda *each: tf.add_n(each), *of_microbatches)
            for of_microbatches in (parts, gradients)
        )
        began, diagnostics = (
            tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *of_microbatches)
            for of_microbatches in by_rollout
        )
        return _Computed(parts, gradients, tf.concat(targets, axis=1), began, diagnostics)

    def _unroll(self, batch: Rollout) -> Unroll:
        """Computes logits and features `[T + 1, B, ...]` with the present weights."""
        return self.agent.unroll(batch.agent_outputs.action, batch.env_outputs, batch.agent_state)

    def _returns(
        self, batch: Rollout, unroll: Unroll
    ) -> tuple[vtrace.VTraceFromLogitsReturns, tf.Tensor]:
        """Computes V-trace on the scale of the rewards, and the values V(x_s) `[T, B]` it took."""
        taken, led_to = _transitions(batch)
        values = self._values(batch, unroll).unnormalised  # [T + 1, B]
        returns = vtrace.from_logits(
            behaviour_policy_logits=taken.policy_logits,
            target_policy_logits=unroll.policy_logits[:-1],
            actions=taken.action,
            discounts=tf.where(led_to.done, 0.0, self._options.discounting),
            rewards=self._rewards(batch),
            values=values[:-1],
            bootstrap_value=values[-1],
        )
        return returns, values[:-1]

    def _losses(
        self, batch: Rollout, unroll: Unroll, returns: vtrace.VTraceFromLogitsReturns
    ) -> dict[str, tf.Tensor]:
        """Computes the total loss and its weighted parts with the present statistics."""
        options = self._options
        shift, scale = self.head.statistics(self._head_ids(batch))  # [B]
        normalised = self._values(batch, unroll).normalised[:-1]  # [T, B]
        logits = unroll.policy_logits[:-1]
        value_loss = losses.value_loss(returns.vs, normalised, shift, scale)
        entropy_loss = losses.entropy_loss(logits)
        parts = {
            "policy_gradient_loss": losses.policy_gradient_loss(
                returns.target_action_log_probs, returns.pg_advantages / scale
            ),
            "value_loss": options.baseline_cost * value_loss,
            "entropy_loss": self.hyperparameters.entropy_cost * entropy_loss,
        }
        if self.q_head is not None:
            taken, led_to = _transitions(batch)
            parts["pixel_control_loss"] = options.pixel_control_cost * pixel_control.loss(
                self.q_head,
                unroll.features,
                image_of(batch.env_outputs.observation),
                batch.env_outputs.info.episode_end,
                taken.action,
                tf.where(led_to.done, 0.0, options.pixel_control_discount),
            )
        return {"total_loss": tf.add_n(list(parts.values())), **parts}

    def _values(self, batch: Rollout, unroll: Unroll) -> popart.Value:
        """Computes the values `[T + 1, B]` of each rollout's head."""
        times = [unroll.features.shape[0], 1]
        return self.head(unroll.features, tf.tile(self._head_ids(batch)[tf.newaxis], times))

    def _rewards(self, batch: Rollout) -> tf.Tensor:
        """Returns the rewards `[T, B]` to learn from, each of the step that its action led to."""
        options, rewards = self._options, batch.env_outputs.reward[1:]
        return losses.clip_rewards(rewards, options.reward_clipping, options.reward_scale)

    def _rewarded(self, batch: Rollout) -> tf.Tensor:
        """Returns whether each rollout `[B]` has a reward other than 0."""
        return tf.reduce_any(self._rewards(batch) != 0, axis=0)

    def _head_ids(self, batch: Rollout) -> tf.Tensor:
        """Returns the head of each rollout `[B]`: that of its task, or the only one."""
        return batch.task_id if self.head.num_tasks > 1 else tf.zeros_like(batch.task_id)


def _transitions(batch: Rollout) -> tuple[AgentOutput, StepOutput]:
    """Returns the actions `[T, B]` of a batch's transitions, and what they led to.

    Row t of env_outputs and agent_outputs is what led to step t. So row t + 1 has the action,
    reward and done of the transition from t to t + 1.
    """
    return tf.nest.map_structure(lambda t: t[1:], (batch.agent_outputs, batch.env_outputs))
