"""RMSProp against the rules of TensorFlow 1, and of Adam's correction, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.learning.rmsprop import RMSProp
from tests.fakes.oracles import EPS

_SHAPES = [(4, 3), (5,), ()]
_RATES = [0.5, 0.4, 0.1, 0.3, 0.2, 0.6]


def change_in_closed_form(
    gradients: list[np.ndarray], decay: float, momentum: float, epsilon: float, start: float
) -> np.ndarray:
    """Computes a variable's change: each step is taken again later, times momentum^delay."""
    squares, change = [np.float64(gradient) ** 2 for gradient in gradients], 0.0
    for j, gradient in enumerate(gradients):
        mean_square = start * decay ** (j + 1) + (1 - decay) * sum(
            decay ** (j - k) * squares[k] for k in range(j + 1)
        )
        if start == 0 and decay < 1:  # The weights of the squares become one in sum.
            mean_square /= sum((1 - decay) * decay ** (j - k) for k in range(j + 1))
        step = _RATES[j] * np.float64(gradient) / np.sqrt(mean_square + epsilon)
        change -= step * sum(momentum ** (i - j) for i in range(j, len(gradients)))
    return change


@pytest.mark.parametrize(
    ("decay", "epsilon", "momentum", "start"),
    [
        (0.99, 0.1, 0.0, 1.0),
        (0.9, 1e-3, 0.9, 1.0),
        (0.5, 2.0, 0.9, 1.0),
        (0.99, 1e-3, 0.9, 0),
        (1.0, 1e-3, 0.0, 0),
    ],
)
def test_several_steps_are_tensorflow_1_s(
    decay: float, epsilon: float, momentum: float, start: float
) -> None:
    rng = np.random.default_rng(0)
    variables = [tf.Variable(rng.normal(size=shape), dtype=tf.float32) for shape in _SHAPES]
    initial = [variable.numpy() for variable in variables]
    optimiser = RMSProp(variables, decay, momentum, start)
    sizes = 10.0 ** rng.uniform(-3, 1, len(_RATES))
    gradients = [[np.float32(s * rng.normal(size=shape)) for shape in _SHAPES] for s in sizes]
    for rate, gradients_of_step in zip(_RATES, gradients, strict=True):
        rates = tf.constant(rate), tf.constant(epsilon)
        optimiser.apply([tf.constant(g) for g in gradients_of_step], *rates)
    for variable, before, *steps in zip(variables, initial, *gradients, strict=True):
        expected = before + change_in_closed_form(steps, decay, momentum, epsilon, start)
        tolerance = 8 * EPS * np.abs(expected).max()
        np.testing.assert_allclose(variable, expected, rtol=0, atol=tolerance)
