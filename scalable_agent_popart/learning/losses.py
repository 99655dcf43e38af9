"""The actor-critic losses, summed over batch and time as the published settings assume.

Their gradients are equations 11 and 12 of Hessel et al. (2019). Without PopArt mu = 0 and
sigma = 1, and they are IMPALA's. Tensors are `[T, B]` unless said otherwise, and every loss is a
scalar.
"""

import tensorflow as tf
import tensorflow_probability as tfp


def clip_rewards(rewards: tf.Tensor, clipping: str, scale: float = 1.0) -> tf.Tensor:
    """Scales raw rewards `[...]`, and clips them to those that the agent learns from.

    `abs_one` clips to [-1, 1], and `none` changes nothing. `soft_asymmetric` is 5 tanh(r / 5),
    times 0.3 if negative, as in IMPALA's released code. `oar` is the papers' optimistic asymmetric
    reward, 0.3 min(tanh r, 0) + 5 max(tanh r, 0). The table in Hessel et al. (2019) has the wrong
    sign in the first term. Raises ValueError for any other clipping.
    """
    rewards *= scale
    if clipping == "abs_one":
        return tf.clip_by_value(rewards, -1.0, 1.0)
    if clipping == "none":
        return rewards
    if clipping == "soft_asymmetric":
        squeezed = tf.tanh(rewards / 5.0)
        return 5.0 * tf.where(rewards < 0.0, 0.3 * squeezed, squeezed)
    if clipping == "oar":
        squeezed = tf.tanh(rewards)
        return 0.3 * tf.minimum(squeezed, 0.0) + 5.0 * tf.maximum(squeezed, 0.0)
    raise ValueError(f"there is no reward clipping {clipping!r}")


def value_loss(
    targets: tf.Tensor, normalised_values: tf.Tensor, shift: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    """Computes sum 1/2 ((v_s - mu) / sigma - n)^2, whose gradient flows into n alone.

    The targets v_s are on the scale of the rewards; mu and sigma, `shift` and `scale` `[B]`, are
    those of each rollout's task.
    """
    normalised_targets = tf.stop_gradient((targets - shift) / scale)
    return 0.5 * tf.reduce_sum(tf.square(normalised_targets - normalised_values))


def policy_gradient_loss(action_log_probs: tf.Tensor, advantages: tf.Tensor) -> tf.Tensor:
    """Computes sum -A log pi(a|x) of the actions taken.

    Advantages A are in units of the task's sigma, and no gradient flows into them.
    """
    return -tf.reduce_sum(action_log_probs * tf.stop_gradient(advantages))


def entropy_loss(logits: tf.Tensor) -> tf.Tensor:
    """Computes sum -H(pi) for logits `[T, B, num_actions]`."""
    return -tf.reduce_sum(_entropy(logits))


def diagnostics(
    behaviour_logits: tf.Tensor,
    logits: tf.Tensor,
    log_rhos: tf.Tensor,
    targets: tf.Tensor,
    values: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Computes diagnostics of each rollout `[B]`, without gradient.

    Logits are `[T, B, num_actions]` of mu, which acted, and of pi, which learns. Targets v_s and
    values V(x_s) are on the scale of the rewards. The results are means over time: the `entropy` of
    pi in nats, the `behaviour_kl` KL(mu || pi), the `clipped_rho` min(1, pi(a|x) / mu(a|x)), and
    the first two moments of targets and of errors v_s - V(x_s), in float64.
    """
    behaviour = tfp.distributions.Categorical(logits=behaviour_logits)
    divergence = behaviour.kl_divergence(tfp.distributions.Categorical(logits=logits))
    targets, values = tf.cast(targets, tf.float64), tf.cast(values, tf.float64)
    by_step = {
        "entropy": _entropy(logits),
        "behaviour_kl": divergence,
        "clipped_rho": tf.minimum(1.0, tf.exp(log_rhos)),
        "target": targets,
        "squared_target": tf.square(targets),
        "error": targets - values,
        "squared_error": tf.square(targets - values),
    }
    return {n: tf.stop_gradient(tf.reduce_mean(each, axis=0)) for n, each in by_step.items()}


def _entropy(logits: tf.Tensor) -> tf.Tensor:
    """Computes H(pi) `[T, B]` in nats."""
    return tfp.distributions.Categorical(logits=logits).entropy()
