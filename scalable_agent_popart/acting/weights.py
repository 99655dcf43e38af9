"""Weights on their way from the learner back to the actors of the same process."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf


class Weights(NamedTuple):
    """A frozen copy of the agent's weights."""

    version: int  # learner updates behind them
    tensors: Sequence[tf.Tensor]  # in the order of `Agent.trainable_variables`


class WeightSource(Protocol):
    """Gives a policy its weights."""

    def latest(self) -> Weights:
        """Returns the newest weights published."""
        ...


class WeightStore:
    """The newest published weights; one thread publishes, any number read."""

    def __init__(self, variables: Sequence[tf.Variable], version: int):
        self._variables = list(variables)
        self.publish(version)

    def publish(self, version: int) -> None:
        """Makes the variables' present values the newest weights."""
        # TensorFlow copies on write: a value read stays what it was when the variable moves
        # on. Readers see the old tuple or the new one, never a mixture.
        self._newest = Weights(version, [variable.read_value() for variable in self._variables])

    def latest(self) -> Weights:
        return self._newest
