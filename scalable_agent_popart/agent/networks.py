"""Networks that turn observations into features (Espeholt et al., 2018, Figure 3).

Torsos turn an image into 256 features, and the instruction encoder turns words into 64.
Convolutions, pooling and residual sums run in the torso's compute type, float32 or bfloat16. All
weights and the rest are float32.
"""

from collections.abc import Callable

import numpy as np
import sonnet as snt
import tensorflow as tf

from environments import NUM_WORD_BUCKETS


class Convolution(snt.Module):
    """A convolution whose float32 weights are cast to the type of the input."""

    def __init__(
        self, num_channels: int, kernel: int, stride: int = 1, padding: str = "SAME", *, name: str
    ):
        super().__init__(name=name)
        self._num_channels = num_channels
        self._kernel = kernel
        self._stride = stride
        self._padding = padding

    def __call__(
        self, inputs: tf.Tensor, input_scale: float = 1.0, zero_mean: bool = False
    ) -> tf.Tensor:
        """Maps scaled inputs `[N, H, W, C]` to `[N, ceil(h / stride), ceil(w / stride), F]`.

        With SAME padding h and w are H and W, with VALID H - kernel + 1 and W - kernel + 1. With
        `zero_mean` each filter is its weights less their mean. Where the inputs that a filter sees
        are all alike, the output is then the bias, and the filter's gradient is zero.
        """
        self._create(inputs.shape[-1])
        filters = self.weights * input_scale
        if zero_mean:
            filters -= tf.reduce_mean(filters, axis=[0, 1, 2])
        # The cast at every call lets gradients of several calls be added in float32.
        weights = tf.cast(filters, inputs.dtype)
        outputs = tf.nn.conv2d(inputs, weights, self._stride, self._padding)
        return _add_bias(outputs, tf.cast(self.bias, inputs.dtype))

    @snt.once
    def _create(self, num_inputs: int) -> None:
        shape = (self._kernel, self._kernel, num_inputs, self._num_channels)
        deviation = 1.0 / np.sqrt(np.prod(shape[:-1]))  # The same as Sonnet's.
        weights = snt.initializers.TruncatedNormal(stddev=deviation)(shape, tf.float32)
        self.weights = tf.Variable(weights, name="weights")
        self.bias = tf.Variable(tf.zeros([self._num_channels]), name="bias")


@tf.custom_gradient
def _add_bias(outputs: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Adds a bias `[C]` to outputs `[N, H, W, C]`; its gradient is a product with ones.

    TensorFlow's own sum over `[N, H, W]` counts in bfloat16 on processors, and so not above 256.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.reshape(upstream, [-1, upstream.shape[-1]])  # [N * H * W, C]
        ones = tf.ones([1, tf.shape(rows)[0]], rows.dtype)
        return upstream, tf.matmul(ones, rows)[0]

    return tf.nn.bias_add(outputs, bias), gradient


class Torso(snt.Module):
    """Convolutions and one linear layer."""

    def __init__(
        self,
        dtype: tf.DType,
        padding: str = "SAME",
        *,
        image_scale: float = 1.0,
        zero_mean_filters: bool = False,
        num_parts: int = 1,
    ):
        """Builds the layers.

        Args:
          dtype: of the convolutions, float32 or bfloat16.
          padding: SAME or VALID, of the shallow network's convolutions.
          image_scale: factor of images, after bytes are scaled to [0, 1].
          zero_mean_filters: whether the filters that see the images have a mean of zero.
          num_parts: max number of parts of a sequence that pass through the convolutions in
            parallel. Processor cores that each take a part need not wait for one another within
            a convolution, and find in their cache what the layer before has left there.
        """
        super().__init__()
        self._dtype = dtype
        self._image_scale = image_scale
        self._zero_mean_filters = zero_mean_filters
        self._num_parts = num_parts
        self._linear = snt.Linear(256)
        self._build(padding)

    def _build(self, padding: str) -> None:
        """Builds the convolutions, which a torso may do without."""

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Maps images `[T, B, H, W, C]`, uint8 or float in [0, 1], to float32 `[T, B, 256]`."""
        steps = images.shape[0]
        parts = [
            self._convolved(images[part[0] : part[-1] + 1])
            for part in np.array_split(range(steps), min(steps, self._num_parts))
        ]
        hidden = tf.nn.relu(self._linear(tf.concat(parts, axis=0)))  # [T * B, 256]
        return tf.reshape(hidden, [steps, -1, hidden.shape[-1]])  # [T, B, 256]

    def _convolved(self, images: tf.Tensor) -> tf.Tensor:
        """Maps images `[T, B, H, W, C]` to the last convolution's output `[T * B, F]`."""
        # bfloat16 also holds bytes exactly, so the first layer's few weights are scaled in place of
        # all the pixels.
        scale = self._image_scale / (255.0 if images.dtype == tf.uint8 else 1.0)
        images = tf.reshape(images, [-1, *images.shape[2:]])  # [T * B, H, W, C]
        hidden = self._convolve(tf.cast(images, self._dtype), scale)  # [T * B, h, w, 32]
        return tf.cast(snt.flatten(tf.nn.relu(hidden)), tf.float32)  # [T * B, F]

    def _convolve(self, images: tf.Tensor, scale: float) -> tf.Tensor:
        """Maps images `[N, H, W, C]`, times `scale`, to `[N, h, w, 32]`."""
        raise NotImplementedError


class ResidualBlock(snt.Module):
    """x + conv(relu(conv(relu(x)))), with 3x3 kernels and an identity skip."""

    def __init__(self, num_channels: int, name: str):
        super().__init__(name=name)
        self._first = Convolution(num_channels, kernel=3, name="first")
        self._second = Convolution(num_channels, kernel=3, name="second")

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps `[N, H, W, num_channels]` to the same shape."""
        return inputs + self._second(tf.nn.relu(self._first(tf.nn.relu(inputs))))


class DeepTorso(Torso):
    """IMPALA's deep network: three sections of 16, 32 and 32 channels, fifteen convolutions.

    Its padding is always SAME, as in the code that was released with IMPALA.
    """

    def _build(self, padding: str) -> None:
        self._sections = [
            (
                Convolution(num_channels, kernel=3, name=f"section_{i}"),
                ResidualBlock(num_channels, name=f"section_{i}_block_0"),
                ResidualBlock(num_channels, name=f"section_{i}_block_1"),
            )
            for i, num_channels in enumerate((16, 32, 32))
        ]

    def _convolve(self, images: tf.Tensor, scale: float) -> tf.Tensor:
        hidden, zero_mean = images, self._zero_mean_filters
        for convolution, first_block, second_block in self._sections:
            hidden = convolution(hidden, scale, zero_mean)
            scale, zero_mean = 1.0, False  # Later layers do not see the images.
            hidden = tf.nn.max_pool2d(hidden, ksize=3, strides=2, padding="SAME")
            hidden = second_block(first_block(hidden))
        return hidden


class ShallowTorso(Torso):
    """IMPALA's shallow network: convolutions 8x8/4 with 16 and 4x4/2 with 32 channels.

    With VALID padding it has the 1.2 million parameters of Figure 3, with an LSTM and nine actions
    on images of 72x96. Images of fewer than 20 pixels per side, as Catch's boards, need SAME.
    """

    def _build(self, padding: str) -> None:
        self._first = Convolution(16, kernel=8, stride=4, padding=padding, name="first")
        self._second = Convolution(32, kernel=4, stride=2, padding=padding, name="second")

    def _convolve(self, images: tf.Tensor, scale: float) -> tf.Tensor:
        return self._second(tf.nn.relu(self._first(images, scale, self._zero_mean_filters)))


TORSOS: dict[str, type[Torso]] = {"deep": DeepTorso, "shallow": ShallowTorso}


class InstructionEncoder(snt.Module):
    """Word embeddings of 20 features, and an LSTM of 64 read out after the last word."""

    def __init__(self) -> None:
        super().__init__()
        # Bucket 0 stands for the lack of a word and never reaches the output.
        self._embedding = snt.Embed(NUM_WORD_BUCKETS + 1, 20, densify_gradients=True)
        self._core = snt.LSTM(64)
        # This creates the variables, which cannot be done within a loop.
        self._core(self._embedding(tf.zeros([1], tf.int32)), self._core.initial_state(1))

    def __call__(self, words: tf.Tensor) -> tf.Tensor:
        """Maps word buckets `[N, W]`, 0 after the last word, to `[N, 64]`; no words to zeros."""
        lengths = tf.math.count_nonzero(words, axis=1, dtype=tf.int32)  # [N]
        features = tf.transpose(self._embedding(words), [1, 0, 2])  # [N, W, 20] -> [W, N, 20]

        def read(i: tf.Tensor, state: snt.LSTMState) -> tuple[tf.Tensor, snt.LSTMState]:
            _, new = self._core(features[i], state)
            has_word = (i < lengths)[:, tf.newaxis]  # [N, 1]
            return i + 1, tf.nest.map_structure(lambda a, b: tf.where(has_word, a, b), new, state)

        _, state = tf.while_loop(  # It takes as many steps as the longest instruction has words.
            lambda i, _: i < tf.reduce_max(lengths),
            read,
            (tf.constant(0), self._core.initial_state(tf.shape(words)[0])),
            maximum_iterations=words.shape[1],
        )
        return state.hidden
