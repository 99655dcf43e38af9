"""Torsos: from an image to a vector of 256 features (Espeholt et al., 2018, Figure 3)."""

from collections.abc import Callable

import sonnet as snt
import tensorflow as tf

_NUM_FEATURES = 256


class ResidualBlock(snt.Module):
    """x + conv(relu(conv(relu(x)))), with 3x3 kernels and an identity skip."""

    def __init__(self, num_channels: int, name: str = "residual_block"):
        super().__init__(name=name)
        self._first = snt.Conv2D(num_channels, kernel_shape=3, name="first")
        self._second = snt.Conv2D(num_channels, kernel_shape=3, name="second")

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps `[N, H, W, num_channels]` to the same shape."""
        return inputs + self._second(tf.nn.relu(self._first(tf.nn.relu(inputs))))


class DeepTorso(snt.Module):
    """IMPALA's deep network: three sections of 16, 32 and 32 channels, fifteen convolutions."""

    def __init__(self, name: str = "deep_torso"):
        super().__init__(name=name)
        self._sections = [
            (
                snt.Conv2D(num_channels, kernel_shape=3, name=f"section_{i}"),
                ResidualBlock(num_channels, name=f"section_{i}_block_0"),
                ResidualBlock(num_channels, name=f"section_{i}_block_1"),
            )
            for i, num_channels in enumerate((16, 32, 32))
        ]
        self._linear = snt.Linear(_NUM_FEATURES)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Maps `[N, H, W, C]` float in [0, 1] to `[N, 256]`."""
        hidden = images
        for convolution, first_block, second_block in self._sections:
            hidden = convolution(hidden)
            hidden = tf.nn.max_pool2d(hidden, ksize=3, strides=2, padding="SAME")
            hidden = second_block(first_block(hidden))
        hidden = snt.flatten(tf.nn.relu(hidden))  # [N, ceil(H / 8) * ceil(W / 8) * 32]
        return tf.nn.relu(self._linear(hidden))


class ShallowTorso(snt.Module):
    """IMPALA's shallow network: convolutions 8x8/4 with 16 and 4x4/2 with 32 channels."""

    def __init__(self, name: str = "shallow_torso"):
        super().__init__(name=name)
        self._first = snt.Conv2D(16, kernel_shape=8, stride=4, name="first")
        self._second = snt.Conv2D(32, kernel_shape=4, stride=2, name="second")
        self._linear = snt.Linear(_NUM_FEATURES)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Maps `[N, H, W, C]` float in [0, 1] to `[N, 256]`."""
        hidden = tf.nn.relu(self._second(tf.nn.relu(self._first(images))))
        return tf.nn.relu(self._linear(snt.flatten(hidden)))  # [N, ceil(H / 8) * ceil(W / 8) * 32]


TORSOS: dict[str, Callable[[], snt.Module]] = {"deep": DeepTorso, "shallow": ShallowTorso}
