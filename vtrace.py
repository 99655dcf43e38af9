"""V-trace: off-policy corrected value targets and policy gradient advantages.

"IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures"
(Espeholt et al., 2018), equation 1 and section 4.2; the return that "Multi-task Deep
Reinforcement Learning with PopArt" (Hessel et al., 2019) uses as G^v (section "Off-policy
corrections"). For a rollout of n steps, acted by the policy mu and learned by the policy pi:

    v_s       = V(x_s) + sum_{t=s}^{s+n-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i) delta_t V
    delta_t V = rho_t (r_t + gamma V(x_{t+1}) - V(x_t))
    rho_t     = min(rho_bar, pi(a_t|x_t) / mu(a_t|x_t))
    c_i       = min(1, pi(a_i|x_i) / mu(a_i|x_i))

The advantage of the action a_t is rho_t (r_t + gamma v_{t+1} - V(x_t)), with a rho_bar of its
own. Where gamma is 0 an episode has ended, and nothing flows back over that step.

Names, argument order and result tuples are those of `scalable_agent`'s module, so that either can
stand in for the other. All functions are pure. Tensors are time-major: T is the length of the
rollouts in agent steps, B their number, NUM_ACTIONS the number of actions.
"""

from typing import NamedTuple

import tensorflow as tf


class VTraceFromLogitsReturns(NamedTuple):
    """The result of `from_logits`; every tensor is float32 `[T, B]`."""

    vs: tf.Tensor
    pg_advantages: tf.Tensor
    log_rhos: tf.Tensor
    behaviour_action_log_probs: tf.Tensor
    target_action_log_probs: tf.Tensor


class VTraceReturns(NamedTuple):
    """The result of `from_importance_weights`; both tensors are float32 `[T, B, ...]`."""

    vs: tf.Tensor
    pg_advantages: tf.Tensor


def log_probs_from_logits_and_actions(policy_logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Computes log pi(a_t|x_t) of the actions taken, under softmax policies.

    Args:
      policy_logits: `[T, B, NUM_ACTIONS]` float, unnormalised log-probabilities.
      actions: `[T, B]` integer.

    Returns:
      `[T, B]` float.

    Raises:
      ValueError: if the ranks are not 3 and 2.
    """
    policy_logits = tf.convert_to_tensor(policy_logits, dtype_hint=tf.float32)
    actions = tf.convert_to_tensor(actions, dtype_hint=tf.int32)
    policy_logits.shape.assert_has_rank(3)
    actions.shape.assert_has_rank(2)
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=policy_logits)


def from_logits(
    behaviour_policy_logits: tf.Tensor,
    target_policy_logits: tf.Tensor,
    actions: tf.Tensor,
    discounts: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    clip_rho_threshold: float | tf.Tensor | None = 1.0,
    clip_pg_rho_threshold: float | tf.Tensor | None = 1.0,
    name: str = "vtrace_from_logits",
) -> VTraceFromLogitsReturns:
    """Computes V-trace for softmax policies.

    Args:
      behaviour_policy_logits: `[T, B, NUM_ACTIONS]` of mu, the policy that acted.
      target_policy_logits: `[T, B, NUM_ACTIONS]` of pi, the policy being learned.
      actions: `[T, B]` integer, sampled from mu.
      discounts, rewards, values, bootstrap_value, clip_rho_threshold, clip_pg_rho_threshold:
        as in `from_importance_weights`, without further dimensions.

    Returns:
      Targets and advantages, both without gradient, and the log-probabilities that they rest on,
      through which gradients do flow.

    Raises:
      ValueError: if a tensor has the wrong rank.
    """
    with tf.name_scope(name):
        behaviour_action_log_probs = log_probs_from_logits_and_actions(
            behaviour_policy_logits, actions
        )
        target_action_log_probs = log_probs_from_logits_and_actions(target_policy_logits, actions)
        log_rhos = target_action_log_probs - behaviour_action_log_probs
        thresholds = (clip_rho_threshold, clip_pg_rho_threshold)
        vs, pg_advantages = from_importance_weights(
            log_rhos, discounts, rewards, values, bootstrap_value, *thresholds
        )
        return VTraceFromLogitsReturns(
            vs, pg_advantages, log_rhos, behaviour_action_log_probs, target_action_log_probs
        )


def from_importance_weights(
    log_rhos: tf.Tensor,
    discounts: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    clip_rho_threshold: float | tf.Tensor | None = 1.0,
    clip_pg_rho_threshold: float | tf.Tensor | None = 1.0,
    name: str = "vtrace_from_importance_weights",
) -> VTraceReturns:
    """Computes V-trace from log importance weights.

    The sum runs backwards in time, as in Remark 1 of the paper:

      v_s - V(x_s) = delta_s V + gamma c_s (v_{s+1} - V(x_{s+1}))

    `[T, B]` may be followed by further dimensions, the same ones on every tensor.

    Args:
      log_rhos: `[T, B, ...]`, log(pi(a_t|x_t) / mu(a_t|x_t)), not clipped.
      discounts: `[T, B, ...]`, gamma, and 0 where the action ended an episode.
      rewards: `[T, B, ...]`, what each action was followed by.
      values: `[T, B, ...]`, V(x_t) under pi, on the scale of the rewards.
      bootstrap_value: `[B, ...]`, V(x_T).
      clip_rho_threshold: rho_bar of the targets, or None not to clip.
      clip_pg_rho_threshold: rho_bar of the advantages, or None not to clip.

    Returns:
      The targets v_s and the advantages, both without gradient.

    Raises:
      ValueError: if ranks disagree, or a threshold is not a scalar.
    """
    with tf.name_scope(name):
        log_rhos, discounts, rewards, values, bootstrap_value = (
            tf.convert_to_tensor(tensor, dtype=tf.float32)
            for tensor in (log_rhos, discounts, rewards, values, bootstrap_value)
        )
        for tensor in (discounts, rewards, values):
            tensor.shape.assert_has_rank(log_rhos.shape.rank)
        bootstrap_value.shape.assert_has_rank(log_rhos.shape.rank - 1)

        rhos = tf.exp(log_rhos)
        cs = tf.minimum(1.0, rhos)
        clipped_rhos = _clip(rhos, clip_rho_threshold)
        # Row t holds V(x_{t+1}), the last row the bootstrap value.
        next_values = tf.concat([values[1:], bootstrap_value[tf.newaxis]], axis=0)
        deltas = clipped_rhos * (rewards + discounts * next_values - values)
        vs_minus_values = tf.scan(
            lambda following, step: step[0] + step[1] * following,
            elems=(deltas, discounts * cs),
            initializer=tf.zeros_like(bootstrap_value),
            parallel_iterations=1,
            reverse=True,
        )
        vs = values + vs_minus_values

        # Row t holds v_{t+1}, the last row the bootstrap value.
        next_vs = tf.concat([vs[1:], bootstrap_value[tf.newaxis]], axis=0)
        clipped_pg_rhos = _clip(rhos, clip_pg_rho_threshold)
        pg_advantages = clipped_pg_rhos * (rewards + discounts * next_vs - values)
        return VTraceReturns(tf.stop_gradient(vs), tf.stop_gradient(pg_advantages))


def _clip(rhos: tf.Tensor, threshold: float | tf.Tensor | None) -> tf.Tensor:
    if threshold is None:
        return rhos
    limit = tf.convert_to_tensor(threshold, dtype=tf.float32)
    limit.shape.assert_has_rank(0)
    return tf.minimum(limit, rhos)
