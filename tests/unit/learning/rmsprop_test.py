"""RMSProp against TensorFlow 1's rule in closed form, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.learning.rmsprop import RMSProp
from tests.fakes.oracles import EPS

_SHAPES = [(4, 3), (5,), ()]
_RATES = [0.5, 0.4, 0.1, 0.3, 0.2, 0.6]


def change_in_closed_form(
    gradients: list[np.ndarray], decay: float, momentum: float, epsilon: float
) -> np.ndarray:
    """Computes the change of one variable, for its gradient at each step.

    ms_n = decay^n + (1 - decay) sum_j decay^(n - j) g_j^2, and a step taken at time j is taken
    again at every later time i, times momentum^(i - j).
    """
    squares, change = [np.float64(gradient) ** 2 for gradient in gradients], 0.0
    for j, gradient in enumerate(gradients):
        mean_square = decay ** (j + 1) + (1 - decay) * sum(
            decay ** (j - k) * squares[k] for k in range(j + 1)
        )
        step = _RATES[j] * np.float64(gradient) / np.sqrt(mean_square + epsilon)
        change -= step * sum(momentum ** (i - j) for i in range(j, len(gradients)))
    return change


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("decay", "epsilon"), [(0.99, 0.1), (0.9, 1e-3), (0.5, 2.0)])
def test_several_steps_are_tensorflow_1_s(decay: float, epsilon: float, momentum: float) -> None:
    rng = np.random.default_rng(0)
    variables = [tf.Variable(rng.normal(size=shape), dtype=tf.float32) for shape in _SHAPES]
    initial = [variable.numpy() for variable in variables]
    optimiser = RMSProp(variables, decay, momentum)
    sizes = 10.0 ** rng.uniform(-3, 1, len(_RATES))
    gradients = [[np.float32(s * rng.normal(size=shape)) for shape in _SHAPES] for s in sizes]
    for rate, gradients_of_step in zip(_RATES, gradients, strict=True):
        optimiser.apply([tf.constant(g) for g in gradients_of_step], tf.constant(rate), epsilon)
    for variable, start, *own in zip(variables, initial, *gradients, strict=True):
        expected = start + change_in_closed_form(own, decay, momentum, epsilon)
        tolerance = 8 * EPS * np.abs(expected).max()
        np.testing.assert_allclose(variable, expected, rtol=0, atol=tolerance)


def test_a_zero_gradient_changes_no_bit_without_momentum() -> None:
    values = np.float32([1 / 3, -1e-30, 1e30, 0.0, -0.0])
    still, moving = tf.Variable(values), tf.Variable(values)
    optimiser = RMSProp([still, moving], decay=0.9, momentum=0.0)
    for _ in range(3):
        optimiser.apply([tf.zeros([5]), tf.fill([5], 7.0)], tf.constant(1e30), epsilon=0.1)
    assert still.numpy().tobytes() == values.tobytes()
    assert (moving.numpy() != values).all()
    # Only the memory of past gradients fades.
    np.testing.assert_allclose(optimiser.mean_square[0], np.full(5, 0.9**3), rtol=8 * EPS)


def test_slots_are_saved_but_not_trained() -> None:
    optimiser = RMSProp([tf.Variable([0.0, 0.0])], decay=0.9, momentum=0.0)
    slots = [*optimiser.mean_square, *optimiser.accumulator]
    np.testing.assert_array_equal(slots, [[1.0, 1.0], [0.0, 0.0]])
    assert not any(slot.trainable for slot in slots)
    assert {slot.ref() for slot in slots} <= {variable.ref() for variable in optimiser.variables}


@pytest.mark.parametrize("count", [0, 2])
def test_one_gradient_a_variable_is_required(count: int) -> None:
    optimiser = RMSProp([tf.Variable(0.0)], decay=0.9, momentum=0.0)
    with pytest.raises(ValueError, match="argument"):
        optimiser.apply([tf.zeros([])] * count, tf.constant(0.1), epsilon=0.1)
