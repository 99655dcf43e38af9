"""PopArt: the multi-task value head and its normalisation statistics, in one object.

"Multi-task Deep Reinforcement Learning with PopArt" (Hessel et al., 2019), section "Scale
invariant updates for multi-task learning". For task i and the features f(s) of a state the head
computes (equations 5 and 10)

    n_i(s) = w_i . f(s) + b_i            the normalised value, learned by gradient descent
    v_i(s) = sigma_i n_i(s) + mu_i       the unnormalised value, on the scale of the rewards

`update` moves the statistics towards the value targets G of a task's rollouts (equation 6). Then
it rescales w and b so that every v_i(s) stays what it was (equations 9 and 13):

    mu' = (1 - beta) mu + beta G         nu' = (1 - beta) nu + beta G^2
    sigma = sqrt(nu - mu^2), clipped
    w' = (sigma / sigma') w              b' = (sigma b + mu - mu') / sigma'

Choices that the paper leaves open or allows to be made either way:

* The start (`start`). With "fixed", mu = 0 and nu = 1, so that training starts unnormalised. Their
  share in the statistics is (1 - beta)^n after n rollouts of a task. With "average" the n-th
  rollout has the weight max(beta, 1 / n) in nu. That is the plain average of a task's rollouts up
  to 1 / beta of them, and the paper's moving average from then on. The shift mu averages one more
  rollout, whose targets are 0, so its weight is max(beta, 1 / (n + 1)). Without this sigma would be
  0 after a first rollout of one constant target. With it sigma starts at the size of the targets.
  If they do not vary it shrinks as 1 / sqrt(n) up to 1 / beta rollouts, and then as
  exp(-beta n / 2). Rollouts count from the first one that has a reward other than 0. Before it a
  task has no scale yet, and keeps mu = 0 and sigma = 1. The variance of targets that are all about
  0 would make sigma so small that the first reward became a target of hundreds of sigma.
* "We average the targets within a rollout" (section "Implementation notes"): nu tracks the mean
  of the squared targets (`second_moment_of="squares"`), which keeps the variance within a rollout,
  or by option the square of their mean (`second_moment_of="mean"`).
* The statistics are updated after the gradient step, as in the implementation notes. The order is
  the caller's: calling `update` first gives the "just-in-time" variant. An average begins before
  the gradient step (`begin`), since a task's first rewards would otherwise be learned from on their
  own scale, whatever that is.
* The weights start a hundred times smaller than a linear layer's usually do. The rescaling would
  preserve a first value far above the rewards' scale: while sigma fell from 1 to 0.01 the weights
  would grow a hundredfold, and their gradients would drown the policy's.
"""

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf


class Value(NamedTuple):
    """A value estimate on both scales; both tensors have the shape of the task ids."""

    normalised: tf.Tensor
    unnormalised: tf.Tensor


class ValueHead(snt.Module):
    """One linear value function per task, normalised by that task's running statistics.

    Attributes:
      shift: mu, non-trainable float64 variable `[num_tasks]`.
      second_moment: nu, non-trainable float64 variable `[num_tasks]`.
      count: n, the rollouts in the average of each task, non-trainable float64 variable
        `[num_tasks]`; None with a fixed start or without normalisation.
      weights: w, float32 variable `[num_tasks, D]`, created at the first call.
      bias: b, float32 variable `[num_tasks]`, created at the first call.
    """

    def __init__(
        self,
        num_tasks: int,
        normalise: bool = True,
        step_size: float = 3e-4,
        scale_lower_bound: float = 1e-4,
        scale_upper_bound: float = 1e6,
        second_moment_of: str = "squares",
        start: str = "average",
        name: str = "value_head",
    ):
        """Creates the statistics.

        Args:
          num_tasks: number of heads.
          normalise: if False the statistics stay at mu = 0, sigma = 1 and `update` does nothing.
          step_size: beta, a rollout's weight in the statistics.
          scale_lower_bound, scale_upper_bound: smallest and largest sigma.
          second_moment_of: "squares" or "mean", what nu averages; see the module's docstring.
          start: "average" or "fixed", how the statistics begin; see the module's docstring.

        Raises:
          ValueError: if an argument is out of its range.
        """
        super().__init__(name=name)
        if num_tasks < 1:
            raise ValueError(f"num_tasks must be at least 1, got {num_tasks}")
        if not 0.0 < step_size <= 1.0:
            raise ValueError(f"step_size must lie in (0, 1], got {step_size}")
        if not 0.0 < scale_lower_bound <= scale_upper_bound:
            bounds = f"(0, {scale_upper_bound}]"
            raise ValueError(f"scale_lower_bound must lie in {bounds}, got {scale_lower_bound}")
        if second_moment_of not in ("squares", "mean"):
            raise ValueError(f"second_moment_of must be squares or mean, got {second_moment_of}")
        if start not in ("fixed", "average"):
            raise ValueError(f"start must be fixed or average, got {start}")
        self.num_tasks = num_tasks
        self.normalise = normalise
        self._step_size = step_size
        self._variance_bounds = (scale_lower_bound**2, scale_upper_bound**2)
        self._second_moment_of = second_moment_of
        self.weights = self.bias = None  # The first call knows the number of features.
        # Both are float64, because nu and mu^2 are close if sigma is small compared with mu.
        self.shift = tf.Variable(tf.zeros([num_tasks], tf.float64), trainable=False, name="shift")
        self.second_moment = tf.Variable(
            tf.ones([num_tasks], tf.float64), trainable=False, name="second_moment"
        )
        # A fixed start needs no count, and checkpoints of older versions have none.
        self.count = None
        if normalise and start == "average":
            zeros = tf.zeros([num_tasks], tf.float64)
            self.count = tf.Variable(zeros, trainable=False, name="count")

    @property
    def scale(self) -> tf.Tensor:
        """sigma in float32 `[num_tasks]`: sqrt(nu - mu^2), clipped; 1 without normalisation."""
        return tf.cast(self._precise_scale(), tf.float32)

    def _precise_scale(self) -> tf.Tensor:
        """Computes sigma in float64 `[num_tasks]`."""
        if not self.normalise:
            return tf.ones_like(self.shift)
        # Clipping comes before the root because rounding may leave the difference below zero.
        variance = self.second_moment - tf.square(self.shift)
        return tf.sqrt(tf.clip_by_value(variance, *self._variance_bounds))

    @snt.once
    def _create_parameters(self, num_features: int) -> None:
        initial = snt.initializers.TruncatedNormal(stddev=0.01 * num_features**-0.5)
        weights = initial([self.num_tasks, num_features], tf.float32)
        self.weights = tf.Variable(weights, name="weights")
        self.bias = tf.Variable(tf.zeros([self.num_tasks]), name="bias")

    def __call__(self, features: tf.Tensor, task_ids: tf.Tensor) -> Value:
        """Computes the values of states, each under its own task's head.

        No gradient flows into the statistics.

        Args:
          features: f(s), `[..., D]` float32.
          task_ids: `[...]` integer in [0, num_tasks), broadcast over time by the caller.
        """
        features, task_ids = tf.convert_to_tensor(features), tf.convert_to_tensor(task_ids)
        self._create_parameters(features.shape[-1])
        # [..., D] x [num_tasks, D] -> [..., num_tasks]
        all_tasks = tf.tensordot(features, self.weights, axes=[[-1], [1]]) + self.bias
        normalised = tf.gather(all_tasks, task_ids, axis=-1, batch_dims=task_ids.shape.rank)
        return Value(normalised, self.unnormalise(normalised, task_ids))

    def unnormalise(self, normalised: tf.Tensor, task_ids: tf.Tensor) -> tf.Tensor:
        """Computes sigma n + mu `[...]` for normalised values `[...]` and task ids `[...]`."""
        shift, scale = self.statistics(task_ids)
        return scale * normalised + shift

    def statistics(self, task_ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (mu, sigma) of each task id in float32, without gradient; shaped as the ids."""
        shift = tf.stop_gradient(tf.cast(self.shift, tf.float32))
        return tf.gather(shift, task_ids), tf.gather(tf.stop_gradient(self.scale), task_ids)

    def begin(self, targets: tf.Tensor, task_ids: tf.Tensor, rewarded: tf.Tensor) -> tf.Tensor:
        """Updates the tasks whose average is still empty, by rollouts from the first reward on.

        Returns `[B]` bool, which rollouts these are; `update` is to leave them out. A task without
        any reward yet is among them, and its average stays empty. A fixed start has none. The
        arguments are those of `update`.
        """
        if self.count is None:
            return tf.zeros_like(task_ids, tf.bool)
        begins = tf.gather(self.count, task_ids) == 0
        self.update(targets, task_ids, rewarded, begins)
        return begins

    def update(
        self,
        targets: tf.Tensor,
        task_ids: tf.Tensor,
        rewarded: tf.Tensor | None = None,
        included: tf.Tensor | None = None,
    ) -> None:
        """Moves the statistics towards a batch's value targets and preserves the outputs.

        Each rollout makes one online update, in the batch's order, with its mean (section
        "Implementation notes"). Tasks absent from the batch keep their statistics,
        weights and bias bit for bit, whatever the targets of the others are.

        Args:
          targets: G, `[T, B]` float32, on the scale of the rewards.
          task_ids: `[B]` integer, the task of each rollout.
          rewarded: `[B]` bool, whether a rollout has a reward other than 0; by default all have. A
            task's rollouts before the first such one are left out of an average.
          included: `[B]` bool, the rollouts to update with; by default all.
        """
        if not self.normalise:
            return
        old_shift, old_scale = tf.identity(self.shift), self._precise_scale()
        changed = self._adapt_scale(targets, task_ids, rewarded, included)
        self._preserve_outputs(old_shift, old_scale, changed)

    def _adapt_scale(
        self,
        targets: tf.Tensor,
        task_ids: tf.Tensor,
        rewarded: tf.Tensor | None,
        included: tf.Tensor | None,
    ) -> tf.Tensor:
        """Moves the statistics (equation 6); returns which tasks they changed for, `[num_tasks]`.

        The arguments are those of `update`.
        """
        targets = tf.cast(tf.stop_gradient(targets), tf.float64)
        mean = tf.reduce_mean(targets, axis=0)  # [B]
        if self._second_moment_of == "squares":
            square = tf.reduce_mean(tf.square(targets), axis=0)  # [B]
        else:
            square = tf.square(mean)

        # The B updates in closed form. Rollouts m_1, ..., m_k of one task with the step sizes
        # a_1, ..., a_k leave
        #   mu_k = prod_j (1 - a_j) mu_0 + sum_j a_j prod_{i > j} (1 - a_i) m_j.
        one_hot = tf.one_hot(task_ids, self.num_tasks, dtype=tf.float64)  # [B, num_tasks]
        if included is not None:
            one_hot *= tf.cast(included, tf.float64)[:, tf.newaxis]
        counted, step_sizes = one_hot, 2 * [one_hot * self._step_size]
        if self.count is not None:
            if rewarded is not None:
                rewards = one_hot * tf.cast(rewarded, tf.float64)[:, tf.newaxis]
                has_scale = (self.count > 0) | (tf.cumsum(rewards, axis=0) > 0)
                counted = tf.where(has_scale, one_hot, 0.0)
            count = self.count + tf.cumsum(counted, axis=0)  # [B, num_tasks]
            averaged = (count + 1.0, tf.maximum(count, 1.0))  # The mean's first is all zeros.
            step_sizes = [counted * tf.maximum(1.0 / n, self._step_size) for n in averaged]
            self.count.assign_add(tf.reduce_sum(counted, axis=0))
        moments = ((self.shift, mean), (self.second_moment, square))
        for (variable, observed), step_size in zip(moments, step_sizes, strict=True):
            kept = tf.math.cumprod(1.0 - step_size, axis=0, exclusive=True, reverse=True)
            # Selected rather than multiplied by zero, which would spread one task's NaN to all.
            added = tf.where(counted > 0, step_size * kept * observed[:, tf.newaxis], 0.0)
            memory = tf.reduce_prod(1.0 - step_size, axis=0)  # [num_tasks], 1 where absent
            variable.assign(memory * variable + tf.reduce_sum(added, axis=0))
        return tf.reduce_any(counted > 0, axis=0)

    def _preserve_outputs(
        self, old_shift: tf.Tensor, old_scale: tf.Tensor, changed: tf.Tensor
    ) -> None:
        """Rescales w and b of tasks whose statistics changed (equations 9 and 13)."""
        if self.weights is None:
            return  # Never called: there are no outputs to preserve yet.
        new_shift, new_scale = tf.identity(self.shift), self._precise_scale()
        # The product is computed in float64 and rounded once.
        weights = (old_scale / new_scale)[:, tf.newaxis] * tf.cast(self.weights, tf.float64)
        bias = (old_scale * tf.cast(self.bias, tf.float64) + old_shift - new_shift) / new_scale
        weights = tf.where(changed[:, tf.newaxis], tf.cast(weights, tf.float32), self.weights)
        self.weights.assign(weights)
        self.bias.assign(tf.where(changed, tf.cast(bias, tf.float32), self.bias))
