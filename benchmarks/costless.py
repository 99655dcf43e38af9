"""The program's own work, with environments and a network that cost next to nothing."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import rates
import tensorflow as tf

import environments
from scalable_agent_popart import factory
from scalable_agent_popart.agent import networks
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.suites import EnvironmentOptions, Suite

# So many agent steps lie between the ends of an environment's episodes.
_EPISODE_STEPS = 1000


class CostlessEnvironments:
    """N environments that return the same images again and again, without any emulation.

    An `environments.BatchedEnvironment`. Episodes end, out of step with one another, after
    1,000 agent steps.
    """

    def __init__(self, task_ids: np.ndarray, observation: environments.ArraySpec):
        self.task_ids = task_ids
        generator = np.random.default_rng(0)
        shape = (len(task_ids), *observation.shape)
        self._images = generator.integers(256, size=shape).astype(observation.dtype)
        self._counter = environments.EpisodeCounter(len(task_ids))
        self._steps = generator.integers(_EPISODE_STEPS, size=len(task_ids))
        self._rewards = np.ones(len(task_ids), np.float32)

    def reset(self) -> environments.StepOutput:
        return self._counter.start(self._images)

    def send(self, actions: np.ndarray) -> None:
        self._steps += 1

    def receive(self) -> environments.StepOutput:
        done = self._steps % _EPISODE_STEPS == 0
        info = self._counter.step(self._rewards, done)
        return environments.StepOutput(self._rewards, info, done, self._images)

    def close(self) -> None:
        pass


class LinearTorso(networks.Torso):
    """A linear layer on two rows of pixels in the middle, after all pixels were converted."""

    def _convolve(self, images: tf.Tensor, scale: float) -> tf.Tensor:
        middle = images.shape[1] // 2
        return images[:, middle - 1 : middle + 1] * tf.cast(scale, images.dtype)


def environments_replaced(
    make: Callable[[np.ndarray, environments.ArraySpec], environments.BatchedEnvironment],
) -> contextlib.AbstractContextManager[Any]:
    """Lets runs play environments made of task ids and an observation's spec, while entered."""

    def make_environments(
        options: EnvironmentOptions, suite: Suite, task_ids: np.ndarray, *_: Any
    ) -> environments.Lockstep:
        return environments.Lockstep(make(task_ids, suite.observation_spec(options)))

    return mock.patch.object(factory, "make_environments", make_environments)


def measure(config: Config, seconds: float) -> dict[str, float]:
    """Measures training at next to no cost, with one actor thread and with two."""
    figures = {}
    with (
        environments_replaced(CostlessEnvironments),
        mock.patch.dict(networks.TORSOS, dict.fromkeys(networks.TORSOS, LinearTorso)),
    ):
        for threads, name in ((1, "one_thread"), (2, "two_threads")):
            threaded = dataclasses.replace(config, actor_threads=threads)
            training = rates.measure_training(threaded, seconds)
            figures[name] = training["agent_steps_per_second"]
    figures["agent_steps_per_second"] = max(figures.values())
    figures["ratio"] = figures["two_threads"] / figures["one_thread"]
    return figures
