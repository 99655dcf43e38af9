"""RMSProp against TensorFlow 1's rule in closed form, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.learning.rmsprop import RMSProp

_EPS = float(np.finfo(np.float32).eps)
_SHAPES = [(4, 3), (5,), ()]
_RATES = [0.5, 0.4, 0.1, 0.3, 0.2, 0.6]


def make_variables() -> list[tf.Variable]:
    """Float32 variables of several ranks."""
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.normal(size=shape), dtype=tf.float32) for shape in _SHAPES]


def make_gradients(num_steps: int) -> list[list[np.ndarray]]:
    """Gradients of every variable at every step, from 1e-3 to 10 in size."""
    rng = np.random.default_rng(1)
    sizes = 10.0 ** rng.uniform(-3, 1, num_steps)
    return [
        [np.float32(size * rng.normal(size=shape)) for shape in _SHAPES] for size in sizes.tolist()
    ]


def change_in_closed_form(
    gradients: list[np.ndarray], decay: float, momentum: float, epsilon: float
) -> np.ndarray:
    """The change of one variable, for its gradient at each step.

    ms_n = decay^n + (1 - decay) sum_j decay^(n - j) g_j^2, and a step taken at time j is taken
    again at every later time i, times momentum^(i - j).
    """
    squares = [np.float64(gradient) ** 2 for gradient in gradients]
    num_steps = len(gradients)
    change = np.zeros_like(squares[0])
    for j in range(num_steps):
        mean_square = decay ** (j + 1) + (1 - decay) * sum(
            decay ** (j - k) * squares[k] for k in range(j + 1)
        )
        step = _RATES[j] * np.float64(gradients[j]) / np.sqrt(mean_square + epsilon)
        change -= step * sum(momentum ** (i - j) for i in range(j, num_steps))
    return change


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("decay", "epsilon"), [(0.99, 0.1), (0.9, 1e-3), (0.5, 2.0)])
def test_several_steps_are_tensorflow_1_s(decay: float, epsilon: float, momentum: float) -> None:
    variables = make_variables()
    initial = [variable.numpy() for variable in variables]
    optimiser = RMSProp(variables, decay, momentum)
    gradients = make_gradients(len(_RATES))
    for rate, gradients_of_step in zip(_RATES, gradients, strict=True):
        optimiser.apply([tf.constant(g) for g in gradients_of_step], tf.constant(rate), epsilon)
    for variable, start, *own in zip(variables, initial, *gradients, strict=True):
        expected = start + change_in_closed_form(own, decay, momentum, epsilon)
        tolerance = 8 * _EPS * np.abs(expected).max()
        np.testing.assert_allclose(variable, expected, rtol=0, atol=tolerance)


def test_the_mean_square_starts_at_one_with_epsilon_inside_the_root() -> None:
    variable = tf.Variable([0.0, 0.0])
    optimiser = RMSProp([variable], decay=0.75, momentum=0.0)
    np.testing.assert_array_equal(optimiser.mean_square[0], [1.0, 1.0])
    optimiser.apply([tf.constant([6.0, -2.0])], tf.constant(3.5), epsilon=0.25)
    # ms = 0.75 + 0.25 g^2 = 9.75 and 1.75; the root of ms + 0.25 is sqrt(10) and sqrt(2).
    expected = [-3.5 * 6.0 / np.sqrt(10.0), 3.5 * 2.0 / np.sqrt(2.0)]
    np.testing.assert_allclose(variable, expected, rtol=4 * _EPS)
    np.testing.assert_array_equal(optimiser.mean_square[0], [9.75, 1.75])


def test_a_zero_gradient_changes_no_bit_without_momentum() -> None:
    values = np.float32([1 / 3, -1e-30, 1e30, 0.0, -0.0])
    still, moving = tf.Variable(values), tf.Variable(values)
    optimiser = RMSProp([still, moving], decay=0.9, momentum=0.0)
    for _ in range(3):
        optimiser.apply([tf.zeros([5]), tf.fill([5], 7.0)], tf.constant(0.1), epsilon=0.1)
        optimiser.apply([tf.zeros([5]), tf.ones([5])], tf.constant(1e30), epsilon=0.1)
    np.testing.assert_array_equal(still.numpy().view(np.uint32), values.view(np.uint32))
    assert (moving.numpy() != values).all()
    # Only the memory of past gradients fades.
    np.testing.assert_allclose(optimiser.mean_square[0], np.full(5, 0.9**6), rtol=8 * _EPS)


def test_a_zero_gradient_leaves_momentum_running() -> None:
    variable = tf.Variable([0.0])
    optimiser = RMSProp([variable], decay=1.0, momentum=0.5)
    for gradient in (8.0, 0.0, 0.0):
        optimiser.apply([tf.constant([gradient])], tf.constant(1.0), epsilon=3.0)
    np.testing.assert_array_equal(variable, [-(4.0 + 2.0 + 1.0)])


def test_slots_are_saved_but_not_trained() -> None:
    variables = make_variables()
    optimiser = RMSProp(variables, decay=0.9, momentum=0.0)
    slots = [*optimiser.mean_square, *optimiser.accumulator]
    assert [slot.shape for slot in slots] == _SHAPES * 2
    assert not any(slot.trainable for slot in slots)
    assert {slot.ref() for slot in slots} <= {variable.ref() for variable in optimiser.variables}


@pytest.mark.parametrize("count", [2, 4])
def test_one_gradient_a_variable_is_required(count: int) -> None:
    optimiser = RMSProp(make_variables(), decay=0.9, momentum=0.0)
    gradients = [tf.zeros(shape) for shape in [*_SHAPES, (2,)][:count]]
    with pytest.raises(ValueError, match="argument"):
        optimiser.apply(gradients, tf.constant(0.1), epsilon=0.1)
