"""RMSProp as TensorFlow 1 defined it, which IMPALA's hyperparameters were tuned for.

  ms  <- decay ms + (1 - decay) g^2
  mom <- momentum mom + learning_rate g / sqrt(ms + epsilon)
  w   <- w - mom

It differs in two things from the optimisers of Sonnet 2 and Keras. Epsilon stands inside the
root, and ms starts at one rather than zero, which keeps the first steps small. With small gradients
ms needs some hundreds of steps to forget that start.

Short runs may begin at zero. Step t then divides by the root of ms / (1 - decay^t) + epsilon, where
ms / (1 - decay^t) is the average of g^2 over the steps so far, as Adam corrects it. Without
the correction the first steps would be up to 1 / sqrt(1 - decay) times as large, which can switch
off ReLUs for good.

With momentum above zero a weight whose gradient is zero keeps moving. So do the value heads of
tasks that are absent from a batch.
"""

from collections.abc import Sequence

import sonnet as snt
import tensorflow as tf


class RMSProp(snt.Module):
    """The update, and its slots of each variable: `mean_square` is ms, `accumulator` is mom.

    Where a mean square from zero is corrected, `num_steps` counts the steps.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        decay: float,
        momentum: float,
        initial_mean_square: float = 1.0,
    ):
        super().__init__(name="rmsprop")
        self._variables = list(variables)
        self._decay = decay
        self._momentum = momentum
        # A mean square that begins elsewhere, or never changes, is not corrected.
        self._corrects = initial_mean_square == 0 and decay < 1
        if self._corrects:
            self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")
        self.mean_square = [
            tf.Variable(
                initial_mean_square * tf.ones_like(variable), trainable=False, name="mean_square"
            )
            for variable in variables
        ]
        self.accumulator = [
            tf.Variable(tf.zeros_like(v), trainable=False, name="momentum") for v in variables
        ]

    def apply(
        self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor, epsilon: tf.Tensor
    ) -> None:
        """Takes one step, with gradients in the order of the variables."""
        if self._corrects:
            steps = tf.cast(self.num_steps.assign_add(1), tf.float64)
            decayed = tf.pow(tf.constant(self._decay, tf.float64), steps)
            weight = tf.cast(1.0 - decayed, tf.float32)
            # This is the same as to divide ms by the weight.
            learning_rate, epsilon = learning_rate * tf.sqrt(weight), epsilon * weight
        slots = zip(self._variables, self.mean_square, self.accumulator, gradients, strict=True)
        for variable, mean_square, accumulator, gradient in slots:
            tf.raw_ops.ResourceApplyRMSProp(
                var=variable.handle,
                ms=mean_square.handle,
                mom=accumulator.handle,
                lr=learning_rate,
                rho=self._decay,
                momentum=self._momentum,
                epsilon=epsilon,
                grad=gradient,
            )
