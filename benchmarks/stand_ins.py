"""The program's own work, with environments, networks and GPUs that only pretend.

They cost nothing, or they sleep as long as those of a machine with a GPU work. So this shows, on
any machine, what actors and learner take themselves, and how well they keep a GPU busy.
"""

import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import rates
import tensorflow as tf

import environments
from scalable_agent_popart import factory
from scalable_agent_popart.acting import batch_feed
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.agent import networks
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import AgentOutput
from scalable_agent_popart.runs.config import Config

_EPISODE_STEPS = 1000  # Agent steps between the ends of an environment's episodes.
_MEASURED = Path(__file__).resolve().parents[1] / "results/speed/gpu.json"
_MEASURED_CALL_SIZE = 32  # Environments per call of the policy.


class CostlessEnvironments:
    """A `BatchedEnvironment` that returns the same images again and again, without emulation."""

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


def _with_environments(
    config: Config,
    make: Callable[[np.ndarray, environments.ArraySpec], environments.BatchedEnvironment],
) -> Config:
    """Returns the configuration with environments made of task ids and an observation's spec."""
    suite = config.suite

    def make_pool(_: Any, task_ids: np.ndarray, seeds: Any, options: Any) -> environments.Lockstep:
        return environments.Lockstep(make(task_ids, suite.observation_spec(options)))

    replaced = dataclasses.replace(suite, environment_factory=make_pool)
    return dataclasses.replace(config, suite=replaced)


def measure_overhead(config: Config, seconds: float) -> dict[str, float]:
    """Measures training at next to no cost, with one actor thread and with two."""
    config, figures = _with_environments(config, CostlessEnvironments), {}
    with mock.patch.dict(networks.TORSOS, dict.fromkeys(networks.TORSOS, LinearTorso)):
        for threads, name in ((1, "one_thread"), (2, "two_threads")):
            threaded = dataclasses.replace(config, actor_threads=threads)
            training = rates.measure_training(threaded, seconds)
            figures[name] = training["agent_steps_per_second"]
    figures["agent_steps_per_second"] = max(figures.values())
    figures["ratio"] = figures["two_threads"] / figures["one_thread"]
    return figures


class _Resource:
    """A resource that does one piece of work at a time: a GPU's stream, or all cores as one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0

    def begin(self, seconds: float) -> float:
        """Begins work of so many seconds, after the work before it; returns when it is done."""
        with self._lock:
            self._free_at = max(time.perf_counter(), self._free_at) + seconds
            return self._free_at


def _wait_until(end: float) -> None:
    time.sleep(max(0.0, end - time.perf_counter()))


class Machine:
    """A GPU whose calls share one stream, and cores that emulate."""

    def __init__(self, emulation: float, update: float, forward: float):
        """Takes rates in agent steps per second: of all cores, of updates, and of the policy.

        The policy's is that of calls for 32 environments, two at a time. A third of an update's
        time is its forward pass, and the policy's further environments take as long as that.
        """
        self.emulation_seconds = 1 / emulation  # Per agent step, on all cores.
        self.update_seconds = 1 / update  # Per agent step.
        self._further_seconds = self.update_seconds / 3
        self._call_seconds = _MEASURED_CALL_SIZE * (1 / forward - self._further_seconds)
        self.stream, self.cores = _Resource(), _Resource()

    def policy_seconds(self, num_environments: int) -> float:
        """Returns how long the stream takes for a call of the policy."""
        return self._call_seconds + num_environments * self._further_seconds

    def bound(self, num_per_call: int) -> float:
        """Returns the agent steps per second of whichever of stream and emulators is slower."""
        call = self.policy_seconds(num_per_call) / num_per_call
        return min(1 / (self.update_seconds + call), 1 / self.emulation_seconds)


def make_machine(description: Sequence[str]) -> Machine:
    """Makes the machine of its rates, or of a row of `results/speed/gpu.json`; raises UserError."""
    with contextlib.suppress(ValueError):
        emulation, update, forward = map(float, description)
        return Machine(emulation, update, forward)
    for row in json.loads(_MEASURED.read_text())["rates"]:
        if [row["name"]] == description:
            training = row["training_64"]
            return Machine(training["emulation"], row["train_step"], training["forward"])
    raise UserError(f"--machine={','.join(description)} is no machine; see --help")


class SleepingEnvironments(CostlessEnvironments):
    """Environments whose steps take as long as on another machine."""

    def __init__(self, machine: Machine, task_ids: np.ndarray, spec: environments.ArraySpec):
        super().__init__(task_ids, spec)
        self._machine = machine

    def send(self, actions: np.ndarray) -> None:
        super().send(actions)
        self._end = self._machine.cores.begin(len(actions) * self._machine.emulation_seconds)

    def receive(self) -> environments.StepOutput:
        _wait_until(self._end)
        return super().receive()


def _step(agent: Agent, last_actions: tf.Tensor, env_outputs: Any, state: Any, seed: Any) -> Any:
    """Stands in for `Agent.step`: a GPU would compute what is left out."""
    logits = tf.zeros([tf.shape(last_actions)[0], agent.num_actions])
    action = tf.random.stateless_categorical(logits, 1, seed, dtype=tf.int32)[:, 0]
    return AgentOutput(action, logits), state


def measure_machine(config: Config, seconds: float, machine: Machine) -> dict[str, float]:
    """Measures training on a machine: its rate, the bound, and who waits for whom."""
    config = _with_environments(config, functools.partial(SleepingEnvironments, machine))
    host_act = Policy.act
    update_seconds = config.batch_size * config.unroll_length * machine.update_seconds

    def act(policy: Policy, ids: np.ndarray, env_output: Any) -> Any:
        output = host_act(policy, ids, env_output)
        _wait_until(machine.stream.begin(machine.policy_seconds(len(ids))))
        return output

    def update(learner: Learner, batch: Any) -> dict[str, tf.Tensor]:
        learner.num_updates.assign_add(1)
        _wait_until(machine.stream.begin(update_seconds))
        return {"total_loss": tf.zeros([])}

    with (
        mock.patch.object(Agent, "step", _step),
        mock.patch.object(Policy, "act", act),
        mock.patch.object(Learner, "update", update),
        mock.patch.object(batch_feed, "_time_major", lambda batch: batch),
    ):
        figures = rates.measure_training(config, seconds)
    figures["bound"] = machine.bound(config.num_actors // factory.num_actor_threads(config))
    figures["ratio"] = figures["agent_steps_per_second"] / figures["bound"]
    return figures
