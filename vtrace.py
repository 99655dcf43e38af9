"""V-trace: off-policy corrected value targets and policy gradient advantages.

Implements equation 1 and section 4.2 of "IMPALA: Scalable Distributed Deep-RL with
Importance Weighted Actor-Learner Architectures" (Espeholt et al., 2018), which is the
return used by "Multi-task Deep Reinforcement Learning with PopArt" (Hessel et al., 2019):

  v_s = V(x_s) + sum_{t=s}^{s+n-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i) delta_t V
  delta_t V = rho_t (r_t + gamma V(x_{t+1}) - V(x_t))

with rho_t = min(rho_bar, pi(a_t|x_t) / mu(a_t|x_t)) and c_i = min(1, pi/mu).

Names, argument order and result tuples are those of `scalable_agent`'s module, so that
either can stand in for the other. All functions are pure; tensors are time-major, with T
the unroll length in agent steps, B the batch size and NUM_ACTIONS the number of actions.
"""

from typing import NamedTuple

import tensorflow as tf


class VTraceFromLogitsReturns(NamedTuple):
    """What `from_logits` returns; each `[T, B]`."""

    vs: tf.Tensor
    pg_advantages: tf.Tensor
    log_rhos: tf.Tensor
    behaviour_action_log_probs: tf.Tensor
    target_action_log_probs: tf.Tensor


class VTraceReturns(NamedTuple):
    """What `from_importance_weights` returns; each `[T, B]`."""

    vs: tf.Tensor
    pg_advantages: tf.Tensor


def log_probs_from_logits_and_actions(policy_logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Log-probabilities of the actions taken under softmax policies.

    Args:
      policy_logits: `[T, B, NUM_ACTIONS]` float, unnormalised log-probabilities.
      actions: `[T, B]` integer, the actions taken.

    Returns:
      `[T, B]` float, log pi(a_t | x_t).

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
    """V-trace for softmax policies.

    Args:
      behaviour_policy_logits: `[T, B, NUM_ACTIONS]`, the policy that acted (mu).
      target_policy_logits: `[T, B, NUM_ACTIONS]`, the policy being learned (pi).
      actions: `[T, B]` integer, sampled from the behaviour policy.
      discounts: `[T, B]`, the discount met on taking each action; 0 where the episode ended.
      rewards: `[T, B]`, the reward that followed each action.
      values: `[T, B]`, value estimates of the target policy, on the scale of the rewards.
      bootstrap_value: `[B]`, the value estimate at time T.
      clip_rho_threshold: rho_bar, or None not to clip.
      clip_pg_rho_threshold: rho_bar of the policy gradient, or None not to clip.
      name: of the name scope.

    Returns:
      Targets and advantages, both without gradient, and the log-probabilities they rest on.

    Raises:
      ValueError: if a shape has the wrong rank.
    """
    with tf.name_scope(name):
        behaviour_action_log_probs = log_probs_from_logits_and_actions(
            behaviour_policy_logits, actions
        )
        target_action_log_probs = log_probs_from_logits_and_actions(target_policy_logits, actions)
        log_rhos = target_action_log_probs - behaviour_action_log_probs
        returns = from_importance_weights(
            log_rhos=log_rhos,
            discounts=discounts,
            rewards=rewards,
            values=values,
            bootstrap_value=bootstrap_value,
            clip_rho_threshold=clip_rho_threshold,
            clip_pg_rho_threshold=clip_pg_rho_threshold,
        )
        return VTraceFromLogitsReturns(
            vs=returns.vs,
            pg_advantages=returns.pg_advantages,
            log_rhos=log_rhos,
            behaviour_action_log_probs=behaviour_action_log_probs,
            target_action_log_probs=target_action_log_probs,
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
    """V-trace from log importance weights.

    `[T, B]` may be followed by further dimensions, the same ones on every argument.

    Args:
      log_rhos: `[T, B, ...]`, log(pi(a_t|x_t) / mu(a_t|x_t)).
      discounts: `[T, B, ...]`, 0 where the episode ended.
      rewards: `[T, B, ...]`.
      values: `[T, B, ...]`, on the scale of the rewards.
      bootstrap_value: `[B, ...]`, the value estimate at time T.
      clip_rho_threshold: rho_bar, or None not to clip.
      clip_pg_rho_threshold: rho_bar of the policy gradient, or None not to clip.
      name: of the name scope.

    Returns:
      `vs`, the value targets, and `pg_advantages`, rho_t (r_t + gamma v_{t+1} - V(x_t)), both
      without gradient.

    Raises:
      ValueError: if ranks disagree, or a threshold is not a scalar.
    """
    with tf.name_scope(name):
        log_rhos = tf.convert_to_tensor(log_rhos, dtype=tf.float32)
        discounts = tf.convert_to_tensor(discounts, dtype=tf.float32)
        rewards = tf.convert_to_tensor(rewards, dtype=tf.float32)
        values = tf.convert_to_tensor(values, dtype=tf.float32)
        bootstrap_value = tf.convert_to_tensor(bootstrap_value, dtype=tf.float32)

        rank = log_rhos.shape.rank
        values.shape.assert_has_rank(rank)
        bootstrap_value.shape.assert_has_rank(rank - 1)
        discounts.shape.assert_has_rank(rank)
        rewards.shape.assert_has_rank(rank)

        rhos = tf.exp(log_rhos)
        clipped_rhos = _clip(rhos, clip_rho_threshold)
        cs = tf.minimum(1.0, rhos)

        # values[t + 1], the last of which is the bootstrap value.
        next_values = tf.concat([values[1:], bootstrap_value[tf.newaxis]], axis=0)
        deltas = clipped_rhos * (rewards + discounts * next_values - values)

        vs_minus_values = _accumulate(deltas, discounts * cs)
        vs = vs_minus_values + values

        next_vs = tf.concat([vs[1:], bootstrap_value[tf.newaxis]], axis=0)
        clipped_pg_rhos = _clip(rhos, clip_pg_rho_threshold)
        pg_advantages = clipped_pg_rhos * (rewards + discounts * next_vs - values)
        return VTraceReturns(vs=tf.stop_gradient(vs), pg_advantages=tf.stop_gradient(pg_advantages))


def _accumulate(deltas: tf.Tensor, decays: tf.Tensor) -> tf.Tensor:
    """v_s - V(x_s) `[T, B, ...]`, backwards in time (Remark 1 of the paper):

    v_s - V(x_s) = delta_s V + gamma c_s (v_{s+1} - V(x_{s+1})).
    """

    def step(following: tf.Tensor, elements: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        delta, decay = elements
        return delta + decay * following

    return tf.scan(
        step,
        elems=(deltas, decays),
        initializer=tf.zeros_like(deltas[0]),
        parallel_iterations=1,
        reverse=True,
    )


def _clip(rhos: tf.Tensor, threshold: float | tf.Tensor | None) -> tf.Tensor:
    if threshold is None:
        return rhos
    limit = tf.convert_to_tensor(threshold, dtype=tf.float32)
    limit.shape.assert_has_rank(0)
    return tf.minimum(limit, rhos)
