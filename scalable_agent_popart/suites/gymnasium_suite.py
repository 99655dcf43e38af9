"""Suites of Gymnasium environments whose observations are images (see `docs/own_suite.md`)."""

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from environments import ArraySpec, EnvironmentPool, Lockstep, SerialEnvironments
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites.process_pool import ProcessPool
from scalable_agent_popart.suites.suite import EnvironmentOptions, Suite


class GymnasiumEnvironment:
    """A Gymnasium environment as an `Environment`; truncation ends an episode like termination."""

    def __init__(
        self, make: Callable[[], gymnasium.Env], seed: int, attempt: int = 0, _: Path | None = None
    ):
        self._environment = make()
        self._seed: int | None = int(np.random.default_rng([seed, attempt]).integers(2**31))

    def reset(self) -> np.ndarray:
        seed, self._seed = self._seed, None  # Later episodes go on with the same generator.
        return self._environment.reset(seed=seed)[0]

    def step(self, action: int) -> tuple[float, bool, np.ndarray]:
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        done = terminated or truncated
        return float(reward), done, self.reset() if done else observation

    def close(self) -> None:
        self._environment.close()


def make_suite(
    name: str,
    tasks: Mapping[str, Callable[[], gymnasium.Env]],
    image_shape: tuple[int, int, int],
    num_actions: int,
    total_frames: int,
    processes: bool = False,
    defaults: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Suite:
    """Returns a suite of Gymnasium environments.

    Args:
      name: see `Suite`, as for `total_frames`, `defaults` and other fields.
      tasks: name of each task to a function that makes its environment. Observations must be a
        `Box` of uint8 in [0, 255], actions `Discrete`, the same in all tasks.
      image_shape: height, width and channels of the observations.
      num_actions: of every task.
      processes: gives each environment a process of its own, which pays where steps are slow and
        keeps the run going if one crashes; functions in `tasks` must then pickle.
      **fields: of `Suite`, such as `reference_scores`.
    """
    height, width, num_channels = image_shape

    def make_environments(
        names: Sequence[str], task_ids: np.ndarray, seeds: Sequence[int], _: EnvironmentOptions
    ) -> EnvironmentPool:
        own = zip(names, seeds, strict=True)
        makers = [functools.partial(GymnasiumEnvironment, tasks[name], seed) for name, seed in own]
        if processes:
            return ProcessPool(names, makers, task_ids, ArraySpec(image_shape, np.uint8))
        return Lockstep(SerialEnvironments([make() for make in makers], task_ids))

    def check(names: Sequence[str], _: EnvironmentOptions) -> None:
        expected = (spaces.Box(0, 255, image_shape, np.uint8), spaces.Discrete(num_actions))
        for task in names:
            try:
                environment = tasks[task]()
                found = (environment.observation_space, environment.action_space)
                environment.close()
                if processes:
                    pickle.dumps(tasks[task])
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise UserError(f"the environment of {task} cannot be made ({reason})") from error
            if found != expected:
                raise UserError(f"{task} has the spaces {found}, but its suite is for {expected}")

    burn_in, given = max(1, total_frames // 20), defaults or {}
    return Suite(
        name=name,
        tasks=tuple(tasks),
        action_sets={"discrete": num_actions},
        num_channels=num_channels,
        total_frames=total_frames,
        defaults={"pbt_burn_in_frames": burn_in, **given, "height": height, "width": width},
        environment_factory=make_environments,
        check_tasks=check,
        **fields,
    )
