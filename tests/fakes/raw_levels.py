"""Levels played by the module `deepmind_lab` itself, in processes of their own."""

import functools
import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

_STEPS_AFTER_END = 20


def play(
    levels: Sequence[str], config: Mapping[str, str], actions: np.ndarray
) -> list[Mapping[str, np.ndarray]]:
    """Plays each level with actions `[T, 7]`, each for four frames, until some steps after an end.

    The level of index i has the seeds of `DmLabLevel` for the seed i. Returns each level's `image`,
    `words`, `reward` and `end` `[1 + T, ...]`. At an end of an episode the observation is the first
    of the next; the very first counts as such an end.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as processes:
        one = functools.partial(_play, config=config, actions=actions)
        return list(processes.map(one, levels, range(len(levels))))


def _play(
    level: str, seed: int, config: Mapping[str, str], actions: np.ndarray
) -> Mapping[str, np.ndarray]:
    import deepmind_lab  # noqa: PLC0415 - it may end its process.

    random = np.random.default_rng([seed, 0])
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        observations = ["RGB_INTERLEAVED", "INSTR"]
        lab = deepmind_lab.Lab(level, observations, dict(config), temp_folder=folder)
        reward, end = 0.0, True
        for action in actions:
            if end:
                lab.reset(seed=int(random.integers(2**31)))
            seen = lab.observations()
            steps.append((seen["RGB_INTERLEAVED"], seen["INSTR"], reward, end))
            if len(steps) > _STEPS_AFTER_END + 1 and steps[-_STEPS_AFTER_END][3]:
                break
            reward = lab.step(action, num_steps=4)
            end = not lab.is_running()
        lab.close()
    names, columns = ("image", "words", "reward", "end"), zip(*steps, strict=True)
    return dict(zip(names, map(np.array, columns), strict=True))
