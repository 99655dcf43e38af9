"""Convolutions against TensorFlow's own, and torsos in float32 and bfloat16."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.agent import networks
from scalable_agent_popart.agent.networks import TORSOS, Convolution, Torso

_EPS = float(np.finfo(np.float32).eps)

# bfloat16 keeps eight bits, so that every operation rounds by up to one part in 256. Some of it
# averages out; what is left of fifteen convolutions was at most 1% of the features' size.
_BFLOAT16_FEATURES = 0.03
# A gradient goes through twice as many, through units that are on in one type and off in the
# other, and mostly cancels over pixels: up to 35% was seen, over several seeds. Zero would be
# off by 100%, as would twice the gradient.
_BFLOAT16_GRADIENTS = 0.6


class Numbers(NamedTuple):
    """What a convolution computes, forwards and backwards."""

    outputs: np.ndarray
    inputs_gradient: np.ndarray
    weights_gradient: np.ndarray
    bias_gradient: np.ndarray


def images(batch_size: int, height: int, width: int, channels: int) -> tf.Tensor:
    """Random bytes `[N, H, W, C]`."""
    rng = np.random.default_rng(0)
    return tf.constant(rng.integers(256, size=(batch_size, height, width, channels)), tf.uint8)


def normal(shape: Any, seed: int = 0) -> tf.Tensor:
    """Random numbers in float32."""
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def created(convolution: Convolution, inputs: tf.Tensor) -> Convolution:
    """The same convolution, its variables created and its bias random."""
    convolution(inputs)
    convolution.bias.assign(normal(convolution.bias.shape, seed=1))
    return convolution


def computed(convolution: Convolution, inputs: tf.Tensor, upstream: tf.Tensor) -> Numbers:
    """By the convolution itself, in a graph as the learner runs it."""

    @tf.function(autograph=False)
    def run() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = convolution(inputs)
        sources = [inputs, convolution.weights, convolution.bias]
        return outputs, tape.gradient(outputs, sources, upstream)

    outputs, gradients = run()
    return Numbers(outputs.numpy(), *(gradient.numpy() for gradient in gradients))


def plain(convolution: Convolution, inputs: tf.Tensor, upstream: tf.Tensor, stride: int) -> Numbers:
    """By TensorFlow's convolution and bias, and its derivatives of them."""
    weights, bias = tf.constant(convolution.weights), tf.constant(convolution.bias)
    with tf.GradientTape() as tape:
        tape.watch([inputs, weights, bias])
        outputs = tf.nn.bias_add(tf.nn.conv2d(inputs, weights, stride, "SAME"), bias)
    gradients = tape.gradient(outputs, [inputs, weights, bias], upstream)
    return Numbers(outputs.numpy(), *(gradient.numpy() for gradient in gradients))


def relative_error(actual: Any, expected: Any) -> float:
    """Size of the difference over that of what is expected."""
    expected = np.float64(expected)
    return float(np.linalg.norm(np.float64(actual) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("shape", "kernel", "stride"),
    [
        ((2, 10, 5, 3), 3, 1),
        ((3, 21, 16, 4), 8, 4),  # The first layer of the shallow network,
        ((3, 11, 7, 16), 4, 2),  # and its second.
        ((1, 1, 1, 2), 3, 1),
        ((2, 6, 6, 1), 2, 3),
    ],
)
def test_a_convolution_and_its_gradients_are_tensorflows_own(
    shape: tuple[int, ...], kernel: int, stride: int
) -> None:
    inputs = normal(shape)
    convolution = created(Convolution(8, kernel, stride, name="convolution"), inputs)
    batch_size, height, width, _ = shape
    upstream = normal((batch_size, -(-height // stride), -(-width // stride), 8), seed=2)
    actual = computed(convolution, inputs, upstream)
    assert actual.outputs.shape == upstream.shape
    expected = plain(convolution, inputs, upstream, stride)
    for name, value in expected._asdict().items():
        size = np.abs(value).max()
        np.testing.assert_allclose(
            getattr(actual, name), value, rtol=0, atol=16 * _EPS * size, err_msg=name
        )
    total = np.float64(upstream).sum(axis=(0, 1, 2))
    np.testing.assert_allclose(actual.bias_gradient, total, rtol=0, atol=16 * _EPS * 8)


def test_gradients_of_several_calls_add_up_to_those_of_one() -> None:
    inputs = normal((6, 5, 5, 3))
    convolution = created(Convolution(4, kernel=3, name="convolution"), inputs)
    upstream = normal((6, 5, 5, 4), seed=2)
    with tf.GradientTape() as tape:
        outputs = tf.concat([convolution(inputs[:2]), convolution(inputs[2:])], axis=0)
    weights, bias = tape.gradient(outputs, [convolution.weights, convolution.bias], upstream)
    whole = computed(convolution, inputs, upstream)
    np.testing.assert_allclose(weights, whole.weights_gradient, rtol=0, atol=200 * _EPS)
    np.testing.assert_allclose(bias, whole.bias_gradient, rtol=0, atol=200 * _EPS)


def test_weights_start_as_a_truncated_normal_of_the_inputs_number_and_biases_at_zero() -> None:
    tf.random.set_seed(0)
    convolution = Convolution(64, kernel=8, name="convolution")
    convolution(tf.zeros([1, 8, 8, 64]))
    assert not convolution.bias.numpy().any()
    # In units of 1 / sqrt(fan in).
    weights = np.float64(convolution.weights).ravel() * np.sqrt(8 * 8 * 64)
    assert weights.size == 8 * 8 * 64 * 64
    assert 1.99 < np.abs(weights).max() <= 2.0 + _EPS
    # Four standard deviations of such a sample's mean and of a share in it.
    error = 4 / np.sqrt(weights.size)
    assert abs(weights.mean()) < error
    for bound, share in ((0.5, 0.3829), (1.0, 0.6827), (1.5, 0.8664)):
        assert abs((np.abs(weights) < bound).mean() - share / 0.9545) < error
    assert abs(weights.std() - 0.8796) < error


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_the_bias_gradient_counts_every_pixel_of_a_large_batch(dtype: tf.DType) -> None:
    """A sum in bfloat16 itself would stop at 256."""
    inputs = tf.zeros([4, 84, 84, 2], dtype)
    convolution = created(Convolution(3, kernel=1, name="convolution"), inputs)
    upstream = tf.ones([4, 84, 84, 3], dtype)
    gradient = computed(convolution, inputs, upstream).bias_gradient
    assert gradient.dtype == np.float32
    rounding = 2.0**-8 if dtype == tf.bfloat16 else 0.0
    np.testing.assert_allclose(gradient, [4 * 84 * 84] * 3, rtol=rounding)


def test_gradients_of_several_calls_are_added_in_float32() -> None:
    inputs = tf.ones([1, 1, 1, 1], tf.bfloat16)
    convolution = created(Convolution(1, kernel=1, name="convolution"), inputs)
    with tf.GradientTape() as tape:
        outputs = tf.concat([convolution(inputs), convolution(inputs)], axis=0)
    upstream = tf.constant([1.0, 2.0**-12], tf.bfloat16, [2, 1, 1, 1])
    for gradient in tape.gradient(outputs, [convolution.weights, convolution.bias], upstream):
        assert gradient.dtype == tf.float32
        np.testing.assert_array_equal(np.ravel(gradient), [1 + 2.0**-12])


def torsos_alike(name: str, seen: tf.Tensor) -> tuple[Torso, Torso]:
    """A torso in float32 and one in bfloat16 with the same weights."""
    tf.random.set_seed(0)
    exact, rough = TORSOS[name](tf.float32), TORSOS[name](tf.bfloat16)
    exact(seen)
    rough(seen)
    for one, other in zip(exact.variables, rough.variables, strict=True):
        assert one.name.replace(exact.name, rough.name) == other.name
        other.assign(one)
    return exact, rough


def features_and_gradients(torso: Torso, seen: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Features `[N, 256]`, and the gradients of every weight for a random gradient of them."""
    with tf.GradientTape() as tape:
        features = torso(seen)
    upstream = normal(features.shape, seed=3)
    return features, tape.gradient(features, torso.trainable_variables, upstream)


@pytest.mark.parametrize("name", TORSOS)
def test_a_torso_in_bfloat16_is_near_the_one_in_float32(name: str) -> None:
    seen = images(4, 42, 42, 4)
    exact, rough = torsos_alike(name, seen)
    features, gradients = features_and_gradients(rough, seen)
    expected, expected_gradients = features_and_gradients(exact, seen)
    assert features.dtype == expected.dtype == tf.float32
    error = relative_error(features, expected)
    assert 1e-4 < error < _BFLOAT16_FEATURES, "below: not in bfloat16 at all"
    for variable, gradient, wanted in zip(
        rough.trainable_variables, gradients, expected_gradients, strict=True
    ):
        assert variable.dtype == gradient.dtype == tf.float32
        assert relative_error(gradient, wanted) < _BFLOAT16_GRADIENTS, variable.name


@pytest.mark.parametrize("name", TORSOS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_only_the_convolutions_are_in_the_compute_type(name: str, dtype: tf.DType) -> None:
    torso = TORSOS[name](dtype)
    seen = images(2, 20, 20, 4)
    torso(seen)
    graph = tf.function(torso).get_concrete_function(seen).graph
    types = {"Conv2D": set(), "MatMul": set()}
    for operation in graph.get_operations():
        if operation.type in types:
            types[operation.type].add(operation.outputs[0].dtype)
    assert types == {"Conv2D": {dtype}, "MatMul": {tf.float32}}


@pytest.mark.parametrize(("name", "convolutions"), [("deep", 97_744), ("shallow", 12_336)])
def test_torsos_have_the_parameters_of_their_layers(name: str, convolutions: int) -> None:
    """For 84x84x4. Deep, for each section of width c after one of width b:
    9bc + c for its convolution, and four times 9cc + c in its two residual blocks."""
    torso = TORSOS[name]()
    torso(images(1, 84, 84, 4))
    linear = 11 * 11 * 32 * 256 + 256
    sizes = [int(np.prod(variable.shape)) for variable in torso.trainable_variables]
    assert sum(sizes) == convolutions + linear


@pytest.mark.parametrize("name", TORSOS)
def test_bytes_and_their_fractions_of_255_give_the_same_features(name: str) -> None:
    seen = images(3, 20, 20, 4)
    fractions = tf.cast(seen, tf.float32) / 255
    exact, rough = torsos_alike(name, seen)
    assert relative_error(exact(seen), exact(fractions)) < 16 * _EPS
    # Each way rounds the pixels in its own way.
    assert relative_error(rough(seen), rough(fractions)) < _BFLOAT16_FEATURES


@pytest.mark.parametrize("name", TORSOS)
def test_images_may_pass_the_convolutions_in_parts(name: str) -> None:
    seen = images(5, 20, 20, 4)
    torso = TORSOS[name]()
    whole = torso(seen)
    parts = [torso.convolve(seen[:1]), torso.convolve(seen[1:3]), torso.convolve(seen[3:])]
    np.testing.assert_allclose(
        torso.project(tf.concat(parts, axis=0)), whole, rtol=0, atol=64 * _EPS
    )


def test_a_residual_block_adds_to_what_it_is_given() -> None:
    inputs = normal((2, 6, 5, 4))
    block = networks.ResidualBlock(4)
    changed = block(inputs)
    assert changed.shape == inputs.shape
    assert np.abs(changed - inputs).max() > 0.01
    for variable in block.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    np.testing.assert_array_equal(block(inputs), inputs)
