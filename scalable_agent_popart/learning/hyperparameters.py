"""The hyperparameters that may change while a run learns."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import tensorflow as tf


# Not a `tf.Module`: what a run's flags decide is no part of its checkpoints. Population-based
# training, which lets checkpoints decide, adds these variables to them itself.
@dataclass(frozen=True)
class Hyperparameters:
    """Float32 scalar variables; names and meanings are those of the flags."""

    learning_rate: tf.Variable
    entropy_cost: tf.Variable
    epsilon: tf.Variable
    max_grad_norm: tf.Variable

    @classmethod
    def of(cls, settings: Any) -> "Hyperparameters":
        """Creates variables that start at the attributes of these names."""
        names = [field.name for field in fields(cls)]
        return cls(
            *(
                tf.Variable(getattr(settings, name), trainable=False, dtype=tf.float32, name=name)
                for name in names
            )
        )

    def assign(self, values: Mapping[str, float]) -> None:
        """Changes those that are named."""
        for name, value in values.items():
            getattr(self, name).assign(value)

    def values(self) -> dict[str, float]:
        """Returns the present values by name."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}
