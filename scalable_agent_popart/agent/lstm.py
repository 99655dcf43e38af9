"""An LSTM unrolled over rollouts, with a gradient that is fast even for few of them.

  i, f, o = sigmoid(...), g = tanh(...) of x_t W_x + b + h W_h
  c_t = f c + i g        h_t = o tanh(c_t)

where h and c are h_{t-1} and c_{t-1}, or zero where an episode has ended. Automatic differentiation
would add to the gradient of every weight at each step, which takes most of the time if the batch is
small. Here the gradients of W_x and W_h are one product each over all steps.
"""

from collections.abc import Callable

import sonnet as snt
import tensorflow as tf


class ResettingLSTM(snt.Module):
    """An LSTM whose state is reset to zero wherever an episode has ended."""

    def __init__(self, num_units: int, name: str):
        super().__init__(name=name)
        self._lstm = snt.LSTM(num_units)  # It has the weights, and makes their initial values.

    def initial_state(self, batch_size: int) -> snt.LSTMState:
        """Returns zeros `[batch_size, num_units]`, hidden and cell."""
        return self._lstm.initial_state(batch_size)

    def __call__(
        self, inputs: tf.Tensor, done: tf.Tensor, state: snt.LSTMState
    ) -> tuple[tf.Tensor, snt.LSTMState]:
        """Maps inputs `[T, B, D]` to outputs `[T, B, num_units]` and the state after them.

        The state before the first of them counts only where `done` `[T, B]` is False.
        """
        self._create(inputs.shape[-1])
        to_gates = snt.BatchApply(lambda x: tf.matmul(x, self._lstm.input_to_hidden))
        keep = tf.cast(tf.logical_not(done), tf.float32)[..., tf.newaxis]  # [T, B, 1]
        outputs, cell = _unroll(
            to_gates(inputs) + self._lstm.b, keep, *state, self._lstm.hidden_to_hidden
        )
        return outputs, snt.LSTMState(outputs[-1], cell)

    @snt.once
    def _create(self, num_inputs: int) -> None:
        self._lstm(tf.zeros([1, num_inputs]), self.initial_state(1))


@tf.custom_gradient
def _unroll(
    inputs: tf.Tensor, keep: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor, weights: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable]:
    """Computes h_t `[T, B, H]` and the last c_t `[B, H]`.

    Inputs are x_t W_x + b `[T, B, 4 H]`, and weights W_h `[H, 4 H]`. `keep` `[T, B, 1]` is 0 where
    an episode has ended and otherwise 1. The state before is `[B, H]`.
    """
    steps, size = inputs.shape[0], weights.shape[0]

    def array(num_columns: int) -> tf.TensorArray:
        return tf.TensorArray(tf.float32, steps, element_shape=[inputs.shape[1], num_columns])

    def forward(t: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor, *seen: tf.TensorArray) -> tuple:
        hidden, cell = keep[t] * hidden, keep[t] * cell
        i, f, g, o = tf.split(inputs[t] + tf.matmul(hidden, weights), 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        new_cell = f * cell + i * g
        new_hidden = o * tf.tanh(new_cell)
        values = (tf.concat([i, f, g, o], axis=1), cell, new_cell, new_hidden)
        seen = tuple(each.write(t, value) for each, value in zip(seen, values, strict=True))
        return t + 1, new_hidden, new_cell, *seen

    arrays = map(array, (4 * size, size, size, size))
    start = (tf.constant(0), hidden, cell, *arrays)
    if steps == 1:
        _, _, last_cell, *seen = forward(*start)
    else:
        _, _, last_cell, *seen = tf.while_loop(
            lambda t, *_: t < steps, forward, start, parallel_iterations=1, maximum_iterations=steps
        )
    gates, old_cells, new_cells, outputs = (each.stack() for each in seen)  # [T, B, ...]

    def gradient(d_outputs: tf.Tensor, d_cell: tf.Tensor) -> tuple:
        # These factors of all steps leave few operations for each step.
        i, f, g, o = tf.split(gates, 4, axis=2)
        squashed = tf.tanh(new_cells)
        through_output = o * (1.0 - squashed**2)
        through_gates = tf.concat(
            [
                g * i * (1.0 - i),
                old_cells * f * (1.0 - f),
                i * (1.0 - g**2),
                squashed * o * (1.0 - o),
            ],
            axis=2,
        )
        through_cell = keep * f

        def backward(t: tf.Tensor, d_hidden: tf.Tensor, d_cell: tf.Tensor, seen: tf.TensorArray):
            d_hidden += d_outputs[t]
            d_cell += d_hidden * through_output[t]
            d_gates = tf.concat([d_cell, d_cell, d_cell, d_hidden], axis=1) * through_gates[t]
            d_hidden = keep[t] * tf.matmul(d_gates, weights, transpose_b=True)
            return t - 1, d_hidden, through_cell[t] * d_cell, seen.write(t, d_gates)

        start = (tf.constant(steps - 1), tf.zeros_like(d_cell), d_cell, array(4 * size))
        _, d_hidden, d_cell, seen = tf.while_loop(
            lambda t, *_: t >= 0, backward, start, parallel_iterations=1, maximum_iterations=steps
        )
        d_gates = seen.stack()
        before = keep * tf.concat([hidden[tf.newaxis], outputs[:-1]], axis=0)
        d_weights = tf.einsum("tbh,tbg->hg", before, d_gates)
        return d_gates, None, d_hidden, d_cell, d_weights

    return (outputs, last_cell), gradient
