"""The learner: batches of rollouts in, one gradient step and one PopArt update each."""

from collections.abc import Mapping
from dataclasses import dataclass

import sonnet as snt
import tensorflow as tf

import popart
import vtrace
from environments import image_of
from scalable_agent_popart import rollouts
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.learning import losses, pixel_control
from scalable_agent_popart.learning.hyperparameters import Hyperparameters
from scalable_agent_popart.learning.rmsprop import RMSProp
from scalable_agent_popart.rollouts import Rollout


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the update; names and meanings are those of the flags.

    Those that `Hyperparameters` names are where these start.
    """

    total_environment_frames: int
    num_action_repeats: int
    discounting: float
    reward_clipping: str
    entropy_cost: float
    baseline_cost: float
    pixel_control_cost: float
    pixel_control_discount: float
    learning_rate: float
    learning_rate_schedule: str  # "linear", to 0 at the end of the run, or "constant"
    decay: float
    momentum: float
    epsilon: float
    max_grad_norm: float  # 0: no clipping
    popart_order: str  # "gradient_first" or "statistics_first"


class Learner(snt.Module):
    """Owns the agent's weights, the value head, the optimiser and the frame count.

    Attributes:
      agent, head, q_head: what learns; `q_head` is None without pixel control.
      hyperparameters: variables; no part of the checkpoint.
      frames: int64 variable, environment frames learned from.
      num_updates: int64 variable, the version of the weights; copying another's weights counts,
        too.
    """

    def __init__(
        self,
        agent: Agent,
        head: popart.ValueHead,
        settings: LearnerSettings,
        spec: Rollout,
        batch_size: int,
        q_head: pixel_control.QHead | None = None,
        xla: bool = False,
    ):
        """Creates every variable, so that they can be restored before the first update.

        Args:
          agent: the policy to train, its variables created.
          head: with one head for all tasks, or one a task.
          settings: of the update.
          spec: of one environment's rollout.
          batch_size: rollouts a batch.
          q_head: of pixel control, if that is learned on the side.
          xla: whether XLA compiles the update.
        """
        super().__init__()
        self.agent = agent
        self.head = head
        self.q_head = q_head
        self._settings = settings
        self.hyperparameters = Hyperparameters.of(settings)
        self.frames = tf.Variable(0, dtype=tf.int64, trainable=False, name="frames")
        self.num_updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_updates")
        example = rollouts.example_batch(spec)
        features = agent.unroll(
            example.agent_outputs.action, example.env_outputs, example.agent_state
        ).features
        head(features, self._head_ids(example))
        self._parameters = (*agent.trainable_variables, *head.trainable_variables)
        if q_head is not None:
            q_head(features)
            self._parameters += q_head.trainable_variables
        self._optimiser = RMSProp(self._parameters, settings.decay, settings.momentum)
        self._compiled_update = tf.function(
            self._update,
            input_signature=[rollouts.batch_spec(spec, batch_size)],
            autograph=False,  # Nothing to convert, and looking for it takes seconds.
            jit_compile=xla or None,
        )
        self._compiled_norms = tf.function(
            self._norms, input_signature=[rollouts.batch_spec(spec, None)], autograph=False
        )

    def update(self, batch: Rollout) -> Mapping[str, tf.Tensor]:
        """Learns from one batch `[T + 1, B, ...]`; returns scalars to log."""
        return self._compiled_update(batch)

    def gradient_norms(self, batch: Rollout) -> Mapping[str, tf.Tensor]:
        """Measures what would move the agent's weights, before it is clipped; changes nothing.

        Advantages and values are scaled by the statistics as they are, also where an update would
        change those first.

        Args:
          batch: `[T + 1, B, ...]`, of any size B.

        Returns:
          The lengths of the gradients to the agent's weights: `policy_gradient_norm` of the
          policy's loss alone, `total_gradient_norm` of what an update minimises.
        """
        return self._compiled_norms(batch)

    @property
    def num_traces(self) -> int:
        """Counts the tracings of the update; one, unless something is wrong."""
        return self._compiled_update.experimental_get_tracing_count()

    def learning_rate(self) -> tf.Tensor:
        """Returns the rate: constant, or annealed to zero over `total_environment_frames`."""
        if self._settings.learning_rate_schedule == "constant":
            return self.hyperparameters.learning_rate.read_value()
        progress = tf.cast(self.frames / self._settings.total_environment_frames, tf.float32)
        return self.hyperparameters.learning_rate * tf.maximum(1.0 - progress, 0.0)

    def _update(self, batch: Rollout) -> dict[str, tf.Tensor]:
        settings = self._settings
        statistics_first = settings.popart_order == "statistics_first"
        with tf.GradientTape() as tape:
            parts, targets = self._losses(batch, statistics_first)
            total_loss = tf.add_n(list(parts.values()))
        gradients = tape.gradient(total_loss, self._parameters)
        gradient_norm = tf.linalg.global_norm(gradients)
        if settings.max_grad_norm > 0:
            gradients, _ = tf.clip_by_global_norm(
                gradients, self.hyperparameters.max_grad_norm, use_norm=gradient_norm
            )
        learning_rate = self.learning_rate()
        self._optimiser.apply(gradients, learning_rate, self.hyperparameters.epsilon)
        if not statistics_first:
            self.head.update(targets, self._head_ids(batch)[0])

        lag = tf.reduce_mean(tf.cast(self.num_updates - batch.policy_version, tf.float32))
        steps, batch_size = targets.shape
        self.frames.assign_add(steps * batch_size * settings.num_action_repeats)
        self.num_updates.assign_add(1)
        return {
            "total_loss": total_loss,
            **parts,
            "gradient_norm": gradient_norm,
            "learning_rate": learning_rate,
            "policy_lag": lag,
        }

    def _norms(self, batch: Rollout) -> dict[str, tf.Tensor]:
        weights = self.agent.trainable_variables
        with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
            tape.watch(weights)
            parts, _ = self._losses(batch, update_statistics=False)
            total_loss = tf.add_n(list(parts.values()))
        named = {"policy_gradient": parts["policy_gradient_loss"], "total_gradient": total_loss}
        return {
            f"{name}_norm": tf.linalg.global_norm(tape.gradient(loss, weights))
            for name, loss in named.items()
        }

    def _losses(
        self, batch: Rollout, update_statistics: bool
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Computes the weighted parts of the total loss, and the value targets `[T, B]`.

        Args:
          batch: `[T + 1, B, ...]`.
          update_statistics: whether to update them by these targets before they scale anything.
        """
        settings, env_outputs = self._settings, batch.env_outputs
        # Row t of env_outputs and agent_outputs is what led to step t, so the transition from
        # t to t + 1 has its action, reward and done in row t + 1.
        taken, led_to = tf.nest.map_structure(lambda t: t[1:], (batch.agent_outputs, env_outputs))
        unroll = self.agent.unroll(
            batch.agent_outputs.action, env_outputs, batch.agent_state, bootstrap=True
        )
        logits = unroll.policy_logits[:-1]  # [T, B, num_actions]
        head_ids = self._head_ids(batch)  # [T + 1, B]
        value = self.head(unroll.features, head_ids)  # [T + 1, B]
        returns = vtrace.from_logits(
            behaviour_policy_logits=taken.policy_logits,
            target_policy_logits=logits,
            actions=taken.action,
            discounts=tf.where(led_to.done, 0.0, settings.discounting),
            rewards=losses.clip_rewards(led_to.reward, settings.reward_clipping),
            values=value.unnormalised[:-1],
            bootstrap_value=value.unnormalised[-1],
        )
        if update_statistics:
            self.head.update(returns.vs, head_ids[0])
            value = self.head(unroll.features, head_ids)
        shift, scale = self.head.statistics(head_ids[0])  # [B]
        value_loss = losses.value_loss(returns.vs, value.normalised[:-1], shift, scale)
        parts = {
            "policy_gradient_loss": losses.policy_gradient_loss(
                returns.target_action_log_probs, returns.pg_advantages / scale
            ),
            "value_loss": settings.baseline_cost * value_loss,
            "entropy_loss": self.hyperparameters.entropy_cost * losses.entropy_loss(logits),
        }
        if self.q_head is not None:
            parts["pixel_control_loss"] = settings.pixel_control_cost * pixel_control.loss(
                self.q_head,
                unroll.features,
                image_of(env_outputs.observation),
                env_outputs.info.episode_end,
                taken.action,
                tf.where(led_to.done, 0.0, settings.pixel_control_discount),
            )
        return parts, returns.vs

    def _head_ids(self, batch: Rollout) -> tf.Tensor:
        """Returns the head of each step `[T + 1, B]`: the rollout's task, or the only one."""
        steps = batch.env_outputs.reward.shape[0]
        ids = batch.task_id if self.head.num_tasks > 1 else tf.zeros_like(batch.task_id)
        return tf.tile(ids[tf.newaxis], [steps, 1])
