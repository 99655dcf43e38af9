"""Plays batched environments and pools from beginning to end."""

import contextlib
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import tree

from environments import BatchedEnvironment, EnvironmentPool, StepOutput


def play(environment: BatchedEnvironment, actions: Any) -> StepOutput:
    """Resets, plays actions `[steps, N]` and closes twice; returns all outputs `[1 + steps, N]`."""
    outputs = [tree.map_structure(np.copy, environment.reset())]
    for row in np.asarray(actions, np.int32):
        environment.send(row)
        outputs.append(tree.map_structure(np.copy, environment.receive()))
    environment.close()
    environment.close()  # A second call is allowed.
    return tree.map_structure(lambda *arrays: np.stack(arrays), *outputs)


def play_pool(pool: EnvironmentPool, actions: Any, lengths: Sequence[int]) -> list[StepOutput]:
    """Plays the same actions in every environment of a pool, none of which is lost, and closes.

    Returns so many outputs of each environment, `[length, ...]`.
    """
    outputs: list[list[Any]] = [[] for _ in lengths]
    with contextlib.closing(pool):
        pool.start()
        while any(len(outputs[i]) < length for i, length in enumerate(lengths)):
            ids, output, _ = pool.receive(1.0)
            for row, i in enumerate(ids.tolist()):
                outputs[i].append(tree.map_structure(itemgetter(row), output))
            if len(ids := np.array([i for i in ids if len(outputs[i]) < lengths[i]], np.int64)):
                pool.send(ids, np.array([actions[len(outputs[i]) - 1] for i in ids], np.int32))
    assert not pool.restarts.any()
    return [tree.map_structure(lambda *steps: np.stack(steps), *steps) for steps in outputs]
