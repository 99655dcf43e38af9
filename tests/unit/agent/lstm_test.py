"""The LSTM against Sonnet's, step by step and differentiated automatically."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from scalable_agent_popart.agent.lstm import ResettingLSTM

_SIZE = 4


@pytest.mark.parametrize("steps", [1, 6])
def test_outputs_states_and_gradients_are_those_of_an_lstm_that_is_reset(steps: int) -> None:
    tf.random.set_seed(0)
    rng = np.random.default_rng(0)
    batch_size, num_inputs = 3, 5

    def normal(*shape: int) -> tf.Tensor:
        return tf.constant(rng.normal(size=shape), tf.float32)

    inputs, done = normal(steps, batch_size, num_inputs), rng.uniform(size=(steps, 3)) < 0.3
    done[0], done[-1] = (False, True, False), (False, True, True)
    state = snt.LSTMState(normal(batch_size, _SIZE), normal(batch_size, _SIZE))
    weights = normal(steps + 2, batch_size, _SIZE)  # They weight every number in a sum.
    lstm = ResettingLSTM(_SIZE, name="core")
    lstm(inputs, done, state)
    lstm._lstm.b.assign(rng.normal(size=4 * _SIZE))

    def one_by_one() -> tuple[tf.Tensor, snt.LSTMState]:
        outputs, last = [], state
        for each, ends in zip(inputs, done, strict=True):
            kept = [tf.where(ends[:, np.newaxis], 0.0, part) for part in last]
            output, last = lstm._lstm(each, snt.LSTMState(*kept))
            outputs.append(output)
        return tf.stack(outputs), last

    results = []
    for unroll in (one_by_one, tf.function(lambda: lstm(inputs, done, state), autograph=False)):
        with tf.GradientTape() as tape:
            tape.watch((inputs, state))
            outputs, last = unroll()
            total = tf.reduce_sum(weights * tf.concat([outputs, tf.stack(last)], axis=0))
        of = (inputs, *state, *lstm.trainable_variables)
        results.append([outputs, *last, *tape.gradient(total, of)])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
