"""Suites of Gymnasium environments whose observations are images (see `docs/own_suite.md`)."""

import copy
import functools
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import environments
from scalable_agent_popart.errors import UserError, describe
from scalable_agent_popart.suites import checked, environment_process
from scalable_agent_popart.suites.process_pool import ProcessPool, run_child
from scalable_agent_popart.suites.suite import EnvironmentOptions, Suite
from scalable_agent_popart.system import outside, supervisor

_MARK = "\0"


class GymnasiumEnvironment:
    """A Gymnasium environment as an `Environment`; truncation ends an episode like termination."""

    def __init__(
        self, make: Callable[[], gymnasium.Env], seed: int, attempt: int = 0, _: Path | None = None
    ):
        self._environment = make()
        self._seed: int | None = int(np.random.default_rng([seed, attempt]).integers(2**31))

    def reset(self) -> np.ndarray:
        seed, self._seed = self._seed, None  # Later episodes keep the same generator.
        return np.asarray(self._environment.reset(seed=seed)[0])

    def step(self, action: int) -> tuple[float, bool, np.ndarray]:
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        done = bool(terminated or truncated)
        return reward, done, self.reset() if done else np.asarray(observation)  # type: ignore

    def close(self) -> None:
        self._environment.close()


def check_environment(
    make: Callable[[], gymnasium.Env], num_steps: int = 1000, seed: int = 0
) -> tuple[tuple[int, int, int], int]:
    """Plays an environment at random, and returns its image's shape and its number of actions.

    Raises UserError for exceptions and for what a suite cannot take: spaces that are not images and
    discrete actions, observations outside of their space, and rewards that are not finite numbers.
    """
    shape, num_actions = _declared(make, name := "the environment")
    makers = [functools.partial(GymnasiumEnvironment, make, seed)]
    spec, step = environments.ArraySpec(shape, np.uint8), 0
    actions = np.random.default_rng(seed).integers(num_actions, size=(num_steps, 1))
    try:
        played = checked.SerialEnvironments(makers, np.zeros(1, np.int32), [name], spec)
        played.reset()
        for action in actions:
            step += 1
            played.send(action)
            played.receive()
    except environments.EnvironmentLostError as error:
        raise UserError(f"at step {step} {error}") from error
    outside.call(played.close, f"{name} cannot be closed")
    return shape, num_actions


def pad_images(environment: gymnasium.Env, height: int, width: int) -> gymnasium.Env:
    """Puts the images of an environment in the middle of larger black ones."""
    shape = environment.observation_space.shape or ()
    if len(shape) != 3:
        message = f"pad_images needs (height, width, channels), not {environment.observation_space}"
        raise ValueError(message)
    rows, columns, num_channels = shape
    below, right = height - rows, width - columns
    if min(below, right) < 0:
        raise ValueError(f"images of {rows}x{columns} do not fit into {height}x{width}")
    margins = ((below // 2, below - below // 2), (right // 2, right - right // 2), (0, 0))
    pad = functools.partial(np.pad, pad_width=margins)
    padded = spaces.Box(0, 255, (height, width, num_channels), np.uint8)
    return gymnasium.wrappers.TransformObservation(environment, pad, padded)


def map_actions(environment: gymnasium.Env, actions: Sequence[Any]) -> gymnasium.Env:
    """Maps action i of a suite to action `actions[i]` of an environment, which may take other ones.

    If the suite has the union of several environments' actions, the missing ones may be no-ops.
    """
    if not all(environment.action_space.contains(action) for action in actions):
        raise ValueError(f"not all of {actions} are actions of {environment.action_space}")
    # Some environments clip or scale an action in place, so each step takes a copy.
    return gymnasium.wrappers.TransformAction(
        environment, lambda action: copy.deepcopy(actions[action]), spaces.Discrete(len(actions))
    )


def _declared(make: Callable[[], gymnasium.Env], name: str) -> tuple[tuple[int, int, int], int]:
    """Returns an environment's image shape and number of actions, as its spaces declare them.

    Raises UserError if it cannot be made, or if a suite cannot take its spaces.
    """

    def read_spaces() -> tuple[Any, Any]:
        environment = make()
        declared = environment.observation_space, environment.action_space
        environment.close()
        return declared

    images, actions = outside.call(read_spaces, f"{name} cannot be made")
    for space in (images, actions):
        if not isinstance(space, spaces.Space):
            raise UserError(f"{name} is not Gymnasium's: it has {type(space)} as a space")
    shape: tuple[int, ...] = images.shape or ()
    if len(shape) != 3 or images != spaces.Box(0, 255, shape, np.uint8):
        form = "must be spaces.Box(0, 255, (height, width, channels), np.uint8)"
        message = f"observation_space {form}, not {images}"
    elif not (isinstance(actions, spaces.Discrete) and actions.start == 0):
        message = f"action_space must be spaces.Discrete, from 0, not {actions}"
    else:
        height, width, channels = shape
        return (height, width, channels), int(actions.n)
    raise UserError(f"{name}: {' '.join(message.split())}; see docs/own_suite.md")


def _check_tasks(tasks: Mapping[str, Callable[[], gymnasium.Env]], expected: tuple) -> None:
    """Raises UserError if a task's environment does not have the suite's images and actions."""
    images_and_actions = "images of {} and {} actions"
    for task, make in tasks.items():
        declared = _declared(make, f"the environment of {task}")
        if declared != expected:
            suite = f"its suite is for {images_and_actions.format(*expected)}"
            raise UserError(f"{task} has {images_and_actions.format(*declared)}, but {suite}")


def _check_in_child(tasks: Mapping[str, Callable[[], gymnasium.Env]], expected: tuple) -> None:
    """Checks tasks in a process of their own, which may crash.

    Mesa's software renderer, for one, crashes in a process that also loads TensorFlow.
    """
    try:
        pickled = {task: pickle.dumps(make) for task, make in tasks.items()}
    except Exception as error:
        raise UserError(f"what makes a suite's tasks must pickle ({describe(error)})") from error
    command = f"import {__name__} as suite; suite._check_for_parent()"
    code, output = run_child(command, payload=(pickled, expected))
    last, _, printed = output.rpartition(_MARK)[2].partition("\n")
    if code == environment_process.REFUSED:
        raise UserError(last)
    if code:
        why = f"(its process {supervisor.describe_exit(code)}: {supervisor.last_words(printed)})"
        raise UserError(f"the environment of {last} cannot be made {why}")


def _check_for_parent() -> None:
    """Checks tasks in a child; marks each in the output, and at the end why one is refused."""
    _, (pickled, expected) = supervisor.begin()
    code = 0
    try:
        for task, make in pickled.items():
            os.write(1, f"{_MARK}{task}\n".encode())
            _check_tasks({task: pickle.loads(make)}, expected)
    except UserError as error:
        os.write(1, f"{_MARK}{error}\n".encode())
        code = environment_process.REFUSED
    os._exit(code)  # Threads that an environment leaves behind could hold up or crash the exit.


def make_suite(
    name: str,
    tasks: Mapping[str, Callable[[], gymnasium.Env]],
    image_shape: tuple[int, int, int],
    num_actions: int,
    total_frames: int,
    processes: bool = False,
    defaults: Mapping[str, Any] | None = None,
    action_names: Sequence[str] = (),
    **fields: Any,
) -> Suite:
    """Returns a suite of Gymnasium environments.

    Args:
      name: see `Suite`, also for `total_frames`, `defaults` and other fields.
      tasks: name of each task to a function that makes its environment. Observations must be a
        `Box` of uint8 in [0, 255], actions `Discrete`, the same in all tasks. Those that are
        versions in `test_versions` are only tested.
      image_shape: height, width and channels of the observations.
      num_actions: their number in every task.
      processes: gives each environment a process of its own, which pays if steps are slow and
        protects the run from crashes; functions in `tasks` must then pickle.
      action_names: what films and exported agents call the actions, in their order.
      **fields: further ones of `Suite`, such as `reference_scores`.
    """
    if len(action_names) not in (0, num_actions):
        raise ValueError(f"action_names has {len(action_names)} of {num_actions} actions' names")
    height, width, num_channels = image_shape
    image = environments.ArraySpec((height, width, num_channels), np.uint8)
    versions = fields.get("test_versions", {})
    held_out = {*versions.values()}
    if missing := {*versions, *held_out} - tasks.keys():
        raise ValueError(f"test_versions has {', '.join(sorted(missing))}, which tasks lacks")

    def make_environments(
        names: Sequence[str], task_ids: np.ndarray, seeds: Sequence[int], _: EnvironmentOptions
    ) -> environments.EnvironmentPool:
        makers = [
            functools.partial(GymnasiumEnvironment, tasks[name], seed)
            for name, seed in zip(names, seeds, strict=True)
        ]
        if processes:
            return ProcessPool(names, makers, task_ids, image)
        return environments.Lockstep(checked.SerialEnvironments(makers, task_ids, names, image))

    def check(names: Sequence[str], _: EnvironmentOptions) -> None:
        # After training it would be too late to find out that a version cannot be tested.
        levels = [level for task in names for level in (task, versions.get(task, task))]
        check_tasks = _check_in_child if processes else _check_tasks
        check_tasks({level: tasks[level] for level in levels}, (image.shape, num_actions))

    size, burn_in = {"height": height, "width": width}, max(1, total_frames // 20)
    return Suite(
        name=name,
        tasks=tuple(task for task in tasks if task not in held_out),
        action_sets={"discrete": num_actions},
        action_names=lambda: action_names,
        num_channels=num_channels,
        total_frames=total_frames,
        defaults={"pbt_burn_in_frames": burn_in, **(defaults or {}), **size},
        environment_factory=make_environments,
        check_tasks=check,
        **fields,
    )
