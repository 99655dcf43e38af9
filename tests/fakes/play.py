"""Plays batched environments from beginning to end."""

from typing import Any

import numpy as np
import tree

from environments import BatchedEnvironment, StepOutput


def play(environment: BatchedEnvironment, actions: Any) -> StepOutput:
    """Resets, plays actions `[steps, N]` and closes twice; returns all outputs `[1 + steps, N]`."""
    outputs = [tree.map_structure(np.copy, environment.reset())]
    for row in np.asarray(actions, np.int32):
        environment.send(row)
        outputs.append(tree.map_structure(np.copy, environment.receive()))
    environment.close()
    environment.close()  # A second call is allowed.
    return tree.map_structure(lambda *arrays: np.stack(arrays), *outputs)
