"""A torso from outside of the package, as `docs/own_network.md` describes it."""

import sonnet as snt
import tensorflow as tf

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import outside


def make(network: str) -> snt.Module:
    """Makes the torso that MODULE:NAME names; raises UserError if it cannot be made."""
    module, _, name = network.rpartition(":")
    torso = outside.call(
        outside.load("network", module, name), f"--network: {network} cannot be made"
    )
    if not isinstance(torso, tf.Module):
        made = type(torso).__name__
        raise UserError(f"--network: {network} must make a sonnet.Module, not {made}")
    return torso


def check(network: str, image_shape: tuple[int, ...]) -> None:
    """Calls the torso with black images.

    Raises UserError if that fails, or if features or weights are not what the agent can take.
    """
    torso, images = make(network), tf.zeros([2, 3, *image_shape], tf.uint8)
    spec = tf.TensorSpec([2, None, *image_shape], tf.uint8)

    def compute() -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        torso(images[:1, :1])  # Functions, such as the learner's update, make no variables.
        run = tf.function(torso, [spec], autograph=False)
        with tf.GradientTape() as tape:
            features = run(images)
        return features, tape.gradient(features, torso.variables)

    features, gradients = outside.call(
        compute, f"--network: {network} fails with images of {images.shape}"
    )
    of_tensor = isinstance(features, tf.Tensor)
    returned = f"{features.dtype.name} {features.shape}" if of_tensor else type(features).__name__
    if not (of_tensor and features.dtype == tf.float32 and features.shape[:-1] == (2, 3)):
        problem = f"returns {returned} for images of {images.shape}"
        raise UserError(f"--network: {network} {problem}, and must return float32 (2, 3, D)")
    if fixed := [each.name for each in torso.variables if not each.trainable]:
        problem = f"has variables that are not trainable, so actors never get them: {fixed[0]}"
        raise UserError(f"--network: {network} {problem}")
    reached = zip(torso.variables, gradients, strict=True)
    if unused := [each.name for each, gradient in reached if gradient is None]:
        problem = f"has variables that no gradient of its features reaches: {unused[0]}"
        raise UserError(f"--network: {network} {problem}")
