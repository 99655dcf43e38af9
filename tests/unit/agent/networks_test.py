"""Convolutions against TensorFlow's own, torsos in both types, instructions word by word."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from environments import MAX_WORDS, NUM_WORD_BUCKETS
from scalable_agent_popart.agent.networks import (
    TORSOS,
    Convolution,
    InstructionEncoder,
    ShallowTorso,
    Torso,
)
from tests.fakes.oracles import EPS

# bfloat16 rounds every operation by up to one part in 256. What is left of fifteen convolutions was
# at most 1% of the features' size.
_BFLOAT16_FEATURES = 0.03
# A gradient mostly cancels over pixels: up to 35% was seen. Half of it would be off by 50%.
_BFLOAT16_GRADIENTS = 0.45


def normal(shape: Any, seed: int = 0) -> tf.Tensor:
    """Random numbers in float32."""
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def computed(convolution: Convolution, inputs: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
    """Outputs and gradients of inputs, weights and bias, in a graph as the learner runs it."""

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = convolution(inputs)
        sources = [inputs, convolution.weights, convolution.bias]
        return [outputs, *tape.gradient(outputs, sources, upstream)]

    return run()


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
    ],
)
def test_a_convolution_and_its_gradients_are_tensorflows_own(
    shape: tuple[int, ...], kernel: int, stride: int
) -> None:
    inputs = normal(shape)
    convolution = Convolution(8, kernel, stride, name="convolution")
    convolution(inputs)
    convolution.bias.assign(normal([8], seed=1))
    weights, bias = tf.constant(convolution.weights), tf.constant(convolution.bias)
    with tf.GradientTape() as tape:
        tape.watch([inputs, weights, bias])
        outputs = tf.nn.bias_add(tf.nn.conv2d(inputs, weights, stride, "SAME"), bias)
    upstream = normal(outputs.shape, seed=2)
    expected = [outputs, *tape.gradient(outputs, [inputs, weights, bias], upstream)]
    actual = computed(convolution, inputs, upstream)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=16 * EPS * np.abs(other).max())


def test_weights_start_as_a_truncated_normal_of_the_inputs_number_and_biases_at_zero() -> None:
    tf.random.set_seed(0)
    convolution = Convolution(64, kernel=8, name="convolution")
    convolution(tf.zeros([1, 8, 8, 64]))
    assert not convolution.bias.numpy().any()
    weights = np.float64(convolution.weights) * np.sqrt(8 * 8 * 64)  # Deviation 1, cut at 2.
    assert 1.99 < np.abs(weights).max() <= 2.0 + EPS
    assert (abs(weights.mean()), weights.std()) == pytest.approx((0.0, 0.8796), abs=0.008)


def test_the_bias_gradient_counts_every_pixel_of_a_large_batch() -> None:
    """A sum in bfloat16 itself would stop at 256."""
    inputs = tf.zeros([4, 84, 84, 2], tf.bfloat16)
    convolution = Convolution(3, kernel=1, name="convolution")
    convolution(inputs)
    *_, gradient = computed(convolution, inputs, tf.ones([4, 84, 84, 3], tf.bfloat16))
    np.testing.assert_allclose(gradient, [4 * 84 * 84] * 3, rtol=2.0**-8)


def test_gradients_of_several_calls_are_added_in_float32() -> None:
    inputs = tf.ones([1, 1, 1, 1], tf.bfloat16)
    convolution = Convolution(1, kernel=1, name="convolution")
    convolution(inputs)
    with tf.GradientTape() as tape:
        outputs = tf.concat([convolution(inputs), convolution(inputs)], axis=0)
    upstream = tf.constant([1.0, 2.0**-12], tf.bfloat16, [2, 1, 1, 1])
    for gradient in tape.gradient(outputs, [convolution.weights, convolution.bias], upstream):
        assert gradient.dtype == tf.float32
        np.testing.assert_array_equal(np.ravel(gradient), [1 + 2.0**-12])


def features_of(torso: Torso, images: Any) -> tf.Tensor:
    """Features `[T * B, 256]` of images `[T, B, H, W, C]`."""
    return tf.reshape(torso(tf.constant(images)), [-1, 256])


@pytest.mark.parametrize("name", TORSOS)
def test_a_torso_in_bfloat16_is_near_the_one_in_float32(name: str) -> None:
    tf.random.set_seed(0)
    images = np.random.default_rng(0).integers(256, size=(2, 2, 42, 42, 4)).astype(np.uint8)
    torsos = [TORSOS[name](dtype) for dtype in (tf.float32, tf.bfloat16)]
    results = []
    for torso in torsos:
        features_of(torso, images)
        for one, other in zip(torsos[0].variables, torso.variables, strict=True):
            other.assign(one)
        with tf.GradientTape() as tape:
            features = features_of(torso, images)
        upstream = normal(features.shape, seed=3)
        gradients = tape.gradient(features, torso.trainable_variables, upstream)
        assert {tensor.dtype for tensor in (features, *gradients)} == {tf.float32}
        results.append((features, gradients))
    (exact, exact_gradients), (rough, rough_gradients) = results
    assert 1e-4 < relative_error(rough, exact) < _BFLOAT16_FEATURES, "below: not in bfloat16 at all"
    for one, other in zip(rough_gradients, exact_gradients, strict=True):
        assert relative_error(one, other) < _BFLOAT16_GRADIENTS

    fractions = np.float32(images) / np.float32(255)
    assert relative_error(features_of(torsos[0], fractions), exact) < 16 * EPS
    scaled = TORSOS[name](tf.float32, image_scale=0.5)
    features_of(scaled, images)
    for variable, value in zip(scaled.variables, torsos[0].variables, strict=True):
        variable.assign(value)
    expected = features_of(torsos[0], fractions * np.float32(0.5))
    for halved in (images, fractions):
        assert relative_error(features_of(scaled, halved), expected) < 16 * EPS


@pytest.mark.parametrize("name", TORSOS)
def test_zero_mean_filters_are_the_first_layers_weights_less_their_mean(name: str) -> None:
    tf.random.set_seed(0)
    images = np.random.default_rng(0).random((1, 2, 42, 42, 4), np.float32)
    plain, torso = TORSOS[name](tf.float32), TORSOS[name](tf.float32, zero_mean_filters=True)
    for each in (plain, torso):
        features_of(each, images)
    for variable, value in zip(plain.variables, torso.variables, strict=True):
        variable.assign(value)
    for_plain, for_zero_mean = (
        each._first if isinstance(each, ShallowTorso) else each._sections[0][0]
        for each in (plain, torso)
    )
    weights = for_zero_mean.weights.numpy()
    for_plain.weights.assign(weights - weights.mean((0, 1, 2)))
    with tf.GradientTape() as tape:
        features = features_of(torso, images)
    assert relative_error(features, features_of(plain, images)) < 16 * EPS
    upstream = normal(features.shape)
    gradient = np.float64(tape.gradient(features, for_zero_mean.weights, upstream))
    total = np.abs(gradient.sum((0, 1, 2)))
    assert (total < 1e-5 * np.abs(gradient).sum((0, 1, 2))).all(), "nothing moves a whole filter"


def features_of_figure_3(torso: Any, images: np.ndarray, padding: str) -> tf.Tensor:
    """Computes the features by TensorFlow's own layers, as IMPALA's figure shows them."""

    def convolved(inputs: tf.Tensor, layer: Convolution, stride: int = 1) -> tf.Tensor:
        return tf.nn.conv2d(inputs, layer.weights, stride, padding) + layer.bias

    hidden = tf.constant(images[0])
    if isinstance(torso, ShallowTorso):
        hidden = convolved(tf.nn.relu(convolved(hidden, torso._first, 4)), torso._second, 2)
    else:
        for first, *blocks in torso._sections:
            hidden = tf.nn.max_pool2d(convolved(hidden, first), 3, 2, "SAME")
            for block in blocks:
                inner = convolved(tf.nn.relu(hidden), block._first)
                hidden += convolved(tf.nn.relu(inner), block._second)
    flat = tf.reshape(tf.nn.relu(hidden), [len(hidden), -1])
    return tf.nn.relu(flat @ torso._linear.w + torso._linear.b)


@pytest.mark.parametrize(
    ("name", "shape", "padding", "flat"),
    # The last layer has 32 channels: 84 / 8 and 10 / 8, 5 / 8, each rounded up. Without padding
    # 20 pixels remain of 84, and then 9.
    [
        ("deep", (84, 84, 4), "SAME", 11 * 11 * 32),
        ("deep", (10, 5, 3), "SAME", 2 * 1 * 32),
        ("shallow", (10, 5, 3), "SAME", 2 * 1 * 32),
        ("shallow", (84, 84, 4), "VALID", 9 * 9 * 32),
    ],
)
def test_torsos_have_the_layers_of_the_paper(
    name: str, shape: tuple[int, ...], padding: str, flat: int
) -> None:
    torso, channels = TORSOS[name](tf.float32, padding), shape[-1]
    images = np.random.default_rng(0).random((1, 2, *shape), np.float32)
    features_of(torso, images)
    for i, variable in enumerate(torso.trainable_variables):  # Biases would start at zero.
        variable.assign(0.1 * normal(variable.shape, seed=i))
    features = features_of(torso, images)
    assert features.shape == (2, 256)
    assert relative_error(features, features_of_figure_3(torso, images, padding)) < 16 * EPS
    kernels = [tuple(v.shape) for v in torso.trainable_variables if len(v.shape) > 1]
    expected = [(8, 8, channels, 16), (4, 4, 16, 32)]
    if name == "deep":
        sections = ((channels, 16), (16, 32), (32, 32))
        expected = [(3, 3, *section) for section in sections]
        expected += [(3, 3, width, width) for _, width in sections for _ in range(4)]
    assert sorted(kernels) == sorted([*expected, (flat, 256)])


def random_words(*lengths: int) -> np.ndarray:
    """Instructions of so many words, `[N, MAX_WORDS]`."""
    buckets = np.random.default_rng(0).integers(1, NUM_WORD_BUCKETS + 1, (len(lengths), MAX_WORDS))
    present = np.arange(MAX_WORDS) < np.array(lengths)[:, np.newaxis]
    return np.where(present, buckets, 0).astype(np.int32)


def encoded_slowly(encoder: InstructionEncoder, instruction: np.ndarray) -> tf.Tensor:
    """Reads one instruction `[MAX_WORDS]`, word by word, to its end; `[64]`."""
    state = encoder._core.initial_state(1)
    for word in instruction[instruction > 0]:
        _, state = encoder._core(encoder._embedding(tf.constant([word])), state)
    return state.hidden[0]


def test_instructions_are_encoded_to_their_true_length_in_any_number() -> None:
    encoder = InstructionEncoder()
    shapes = {tuple(v.shape) for v in encoder.trainable_variables}
    assert shapes == {(NUM_WORD_BUCKETS + 1, 20), (20, 4 * 64), (64, 4 * 64), (4 * 64,)}
    call = tf.function(encoder, input_signature=[tf.TensorSpec((None, MAX_WORDS), tf.int32)])
    for lengths in ((5, 1, 0, 12, MAX_WORDS), (3,), (0, 0)):
        instructions = random_words(*lengths)
        encoded = call(tf.constant(instructions)).numpy()
        for row, instruction in zip(encoded, instructions, strict=True):
            expected = encoded_slowly(encoder, instruction)
            np.testing.assert_allclose(row, expected, atol=1e-5)
            assert np.any(instruction) == np.any(row)


def test_gradients_reach_the_words_that_were_read_and_no_others_also_by_xla() -> None:
    encoder, instructions = InstructionEncoder(), random_words(4, 0, 2)

    @tf.function(jit_compile=True)
    def gradients(inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(inputs))
        return tape.gradient(loss, encoder.trainable_variables)

    *others, embedding = gradients(tf.constant(instructions))
    read = sorted(set(instructions[instructions > 0].tolist()))
    np.testing.assert_array_equal(np.flatnonzero(np.any(embedding != 0, axis=1)), read)
    assert all(np.any(gradient != 0) for gradient in others)
