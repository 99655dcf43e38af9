"""A trained agent as its users hold it: load a run, act, and ask for its policy and values.

    agent = scalable_agent_popart.load("runs/popart")
    environment = agent.make_environment("catch_1")
    observation, _ = environment.reset(seed=1)
    action = agent.act(observation)
    observation, reward, terminated, truncated, _ = environment.step(action)
    action = agent.act(observation, reward, terminated)

A batch is N observations, whose arrays have a first dimension N. An agent remembers the last
action, an LSTM's state and the newest frames of each environment. It keeps them itself, or in a
`State` that the caller holds.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
import tree

from environments import (
    BatchedEnvironment,
    EnvironmentPool,
    StepOutput,
    StepOutputInfo,
    image_of,
)
from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import compile_step
from scalable_agent_popart.agent.agent import AgentState
from scalable_agent_popart.errors import UnsavedError, UserError
from scalable_agent_popart.evaluation.drawing import in_colour
from scalable_agent_popart.runs import checkpoints
from scalable_agent_popart.runs.config import refuse_pattern
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.suites import EnvironmentOptions, Suite
from scalable_agent_popart.suites.checked import step_fault
from scalable_agent_popart.system import hardware

_WAIT_SECONDS = 1.0  # Each look whether an environment is ready ends after so long.


@dataclass
class State:
    """The memory of an agent in N environments, which `TrainedAgent.act` updates.

    Attributes:
      actions: int32 `[N]`, the last actions; 0 before the first.
      memory: the recurrent state `[N, ...]`, such as the LSTM's and the newest frames.
      seed: int32 `[2]`, the seed of the sampled actions, and how often any were sampled.
    """

    actions: np.ndarray
    memory: AgentState
    seed: np.ndarray


class TrainedAgent:
    """The agent of a run at one of its checkpoints.

    Attributes:
      config: the run's configuration.
      tasks: names of the tasks that it was trained on.
      frames: environment frames of its training.
      num_actions: number of actions; they are numbered from 0.
      observation_spec: nested `environments.ArraySpec`s of one observation.
    """

    def __init__(
        self,
        logdir: str,
        frames: int | None = None,
        level_name: str | None = None,
        dataset_path: str | os.PathLike[str] | None = None,
        level_cache_dir: str | os.PathLike[str] | None = None,
        network: str | None = None,
    ):
        """Restores a checkpoint; arguments and errors are those of `scalable_agent_popart.load`."""
        refuse_pattern(logdir)
        run = Run.open(logdir)
        config = run.config
        self._record = run.record.content
        hardware.share_gpus()
        config.refuse_network(network or "", logdir)
        factory.check_network(config)
        given: dict[str, Any] = {"level_name": level_name or None}
        given |= {"dataset_path": dataset_path, "level_cache_dir": level_cache_dir}
        given = {name: os.path.expanduser(v) for name, v in given.items() if v is not None}
        self._given = {**given, "network": config.network}
        if given:  # Another suite is refused before the checkpoint is read.
            config.for_test(self._given)
        self.config, self.tasks, self.num_actions = config, config.suite.tasks, config.num_actions
        self.observation_spec = config.suite.observation_spec(config.environment_options(False))
        self._saved = factory.make_saved_parts(config)
        run.restore(frames, learner=self._saved)
        self._agent, self._head = self._saved.agent, self._saved.head
        self.frames = int(self._saved.frames)
        self._step: Any = None  # The first step shows the inputs' shapes.
        look = self._agent.unroll_step
        self._look = tf.function(look, autograph=False, reduce_retracing=True)
        self._state: State | None = None

    def begin(self, num_environments: int = 1, seed: int | None = None) -> State:
        """Returns the state before the first episode of N environments.

        The seed of sampled actions is the run's own by default.
        """
        seed = self.config.seed if seed is None else seed
        return State(
            actions=np.zeros(num_environments, np.int32),
            memory=self._agent.initial_state(num_environments),
            seed=np.array([seed % 2**31, 0], np.int32),
        )

    def reset(self) -> None:
        """Forgets all that the agent itself remembers."""
        self._state = None

    def act(
        self,
        observation: Any,
        reward: Any = 0.0,
        done: Any = False,
        state: State | None = None,
        greedy: bool = False,
    ) -> Any:
        """Returns an action for one observation, or actions int32 `[N]` for a batch of them.

        Args:
          observation: of the shapes and types of `observation_spec`, or a batch of such.
          reward: the raw reward that came with the observation, or `[N]`.
          done: whether the observation is the first of a new episode, or `[N]`.
          state: what to remember; without it the agent remembers by itself, and begins again when
            the number of environments changes.
          greedy: whether to take the most probable action; otherwise it is sampled.

        Raises ValueError if the observation or the state's size does not fit, or if a reward is not
        finite.
        """
        keeps = state is None
        single, state, inputs = self._inputs(observation, reward, done, state)
        self._state = state if keeps else self._state
        state.seed[1] += 1
        inputs = (*inputs, tf.constant(state.seed))
        if self._step is None:
            self._step = compile_step(tf.function(self._agent.step, autograph=False), inputs)
        output, state.memory = self._step(*inputs)
        actions = np.argmax(output.policy_logits, axis=-1) if greedy else output.action.numpy()
        state.actions = actions.astype(np.int32)
        return int(actions[0]) if single else state.actions

    def policy(
        self, observation: Any, reward: Any = 0.0, done: Any = False, state: State | None = None
    ) -> np.ndarray:
        """Returns the probabilities of actions, float32 `[num_actions]` or `[N, num_actions]`.

        Arguments are those of `act`. Nothing is remembered, so ask before acting.
        """
        single, _, inputs = self._inputs(observation, reward, done, state)
        probabilities = tf.nn.softmax(self._look(*inputs).policy_logits[0]).numpy()
        return probabilities[0] if single else probabilities

    def value(
        self,
        observation: Any,
        task: str,
        reward: Any = 0.0,
        done: Any = False,
        state: State | None = None,
    ) -> Any:
        """Returns the value of an observation in a task, on the scale of the rewards learned from.

        It is a float, or float32 `[N]` for a batch. The other arguments are those of `act`. Nothing
        is remembered. Raises ValueError if the agent was not trained on the task.
        """
        single, _, inputs = self._inputs(observation, reward, done, state)
        values = self._values(self._look(*inputs).features[0], task).numpy()
        return float(values[0]) if single else values

    def make_environment(
        self, task: str, seed: int = 0, render_mode: str | None = None
    ) -> "TaskEnvironment":
        """Makes an environment that plays a task as the run's tests do.

        A level with a version that is held out for testing is played in that version.
        With the mode `rgb_array` its `render` returns what people see, Atari in its own colours.

        Raises ValueError if the agent was not trained on the task, and UserError if the module
        that plays it is missing or was not named.
        """
        self._task_id(task)
        config = self.config.for_test(self._given)
        version = config.suite.test_version(task)
        # DmLab's check loads only the first level, and cannot load one that is held out.
        played = config.suite.select(dict.fromkeys([task, version]))
        options = config.environment_options(training=False)
        played.check(options)
        return TaskEnvironment(options, played.select([version]), seed, render_mode)

    def save(self, output: str) -> None:
        """Writes a run directory of this agent alone, to be loaded, tested and started from.

        It has no optimiser and no logs, so the run cannot be resumed there. `output` must not
        exist. Raises UserError if it cannot be written, or if TensorFlow could not read it again.
        """
        flags = {**self._record["flags"], "logdir": str(Path(output).expanduser())}
        with _new_directory(output) as path:
            checkpoints.Checkpoints(path / "checkpoints", learner=self._saved).save()
            text = json.dumps({**self._record, "flags": flags}, indent=2)
            (path / "config.json").write_text(text + "\n")

    def export(self, output: str) -> None:
        """Writes a SavedModel, which acts where only TensorFlow is installed.

        Its signature `initial_state` takes `batch_size` and returns `state_0` and so on, none if
        the agent has no state, and `batch_size` again, which `act` does not take. The signature
        `act` takes `seed` int32 `[2]`, and of each of N environments `observation` (and
        `instruction`), `reward`, `done`, `last_action` and the states. It returns `action`,
        `probabilities` and the next states. The signature `values` takes the same without `seed`.
        It returns `values` float32 `[N, number of tasks]`, as `value` does for each of the tasks.
        `agent.json` has the shapes, the names of tasks, and those of actions if they have any.
        `output` must not exist. Raises UserError as `save`.
        """
        specs = tree.flatten(self.observation_spec)
        leaves = ["observation", "instruction"][: len(specs)]
        memory = self._agent.initial_state(1)
        states = [f"state_{i}" for i in range(len(memory))]
        each = [("last_action", (), tf.int32), ("reward", (), tf.float32), ("done", (), tf.bool)]
        each += [(n, spec.shape, spec.dtype) for n, spec in zip(leaves, specs, strict=True)]
        each += [(n, part.shape[1:], part.dtype) for n, part in zip(states, memory, strict=True)]
        inputs = {name: tf.TensorSpec((None, *shape), dtype, name) for name, shape, dtype in each}
        with_seed = {**inputs, "seed": tf.TensorSpec((2,), tf.int32, "seed")}

        def seen(given: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, StepOutput, AgentState]:
            observation = tree.unflatten_as(self.observation_spec, [given[n] for n in leaves])
            actions = given["last_action"]
            step = _step_output(actions, given["reward"], given["done"], observation)
            return actions, step, tuple(given[name] for name in states)

        def act(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            output, state = self._agent.step(*seen(given), given["seed"])
            probabilities = tf.nn.softmax(output.policy_logits)
            named = {"action": output.action, "probabilities": probabilities}
            return {**named, **dict(zip(states, state, strict=True))}

        def values(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            features = self._agent.unroll_step(*seen(given)).features[0]  # [N, D]
            of_each = [self._values(features, task) for task in self.tasks]
            return {"values": tf.stack(of_each, axis=1)}

        def initial_state(batch_size: tf.Tensor) -> dict[str, tf.Tensor]:
            parts = self._agent.initial_state(batch_size)
            # A signature has an output in any case.
            return {"batch_size": batch_size, **dict(zip(states, parts, strict=True))}

        module = tf.Module()
        module.agent, module.head = self._agent, self._head
        module.act = tf.function(act, autograph=False)
        module.values = tf.function(values, autograph=False)
        module.initial_state = tf.function(initial_state, autograph=False)
        size = tf.TensorSpec((), tf.int32, "batch_size")
        signatures = {
            "act": module.act.get_concrete_function(**with_seed),
            "values": module.values.get_concrete_function(**inputs),
            "initial_state": module.initial_state.get_concrete_function(size),
        }
        facts = {"tasks": list(self.tasks), "frames": self.frames, "num_actions": self.num_actions}
        facts["actions"] = list(self.config.suite.names_of_actions(self.config.action_set))
        shapes = {n: f"{spec.dtype.name} {spec.shape.as_list()}" for n, spec in with_seed.items()}
        shapes = {name: shape.replace("None", "N") for name, shape in shapes.items()}
        with _new_directory(output) as path:
            tf.saved_model.save(module, str(path), signatures)
            (path / "agent.json").write_text(json.dumps({**facts, "inputs": shapes}, indent=2))

    def _values(self, features: tf.Tensor, task: str) -> tf.Tensor:
        """Computes the values `[N]` of states in a task from features `[N, D]`."""
        task_id = self._task_id(task)
        head_id = task_id if self._head.num_tasks > 1 else 0
        return self._head(features, tf.fill(tf.shape(features)[:1], head_id)).unnormalised

    def _task_id(self, task: str) -> int:
        if task not in self.tasks:
            raise ValueError(f"the agent was not trained on {task}, but on {', '.join(self.tasks)}")
        return self.tasks.index(task)

    def _inputs(
        self, observation: Any, reward: Any, done: Any, state: State | None
    ) -> tuple[bool, State, tuple]:
        """Returns whether it is a single environment, the state, and what the network takes."""
        specs = tree.flatten(self.observation_spec)
        leaves = [np.asarray(leaf) for leaf in tree.flatten(observation)]
        single = leaves[0].ndim == len(specs[0].shape)
        leaves = [leaf[np.newaxis] for leaf in leaves] if single else leaves
        size = len(leaves[0])
        rewards = np.broadcast_to(np.asarray(reward, np.float32), size)
        if fault := step_fault(self.observation_spec, rewards, leaves, size):
            raise ValueError(fault)
        batch = tree.unflatten_as(self.observation_spec, leaves)
        if state is None:
            state = self._state
            if state is None or len(state.actions) != size:
                state = self.begin(size)
        if len(state.actions) != size:
            raise ValueError(f"the state is of {len(state.actions)} environments, not of {size}")
        ended = np.broadcast_to(np.asarray(done, bool), size)
        output = _step_output(state.actions, rewards, ended, batch)
        inputs = tf.nest.map_structure(tf.convert_to_tensor, (state.actions, output))
        return single, state, (*inputs, state.memory)


class TaskEnvironment(gymnasium.Env):
    """One task with the preprocessing of training; an episode is a whole game, as in tests.

    At an episode's end the observation is already the next episode's first, which `reset` returns
    again. `info` has `episode_return` and `episode_step`, the totals of the episode.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as in gymnasium.
        "render_modes": ["rgb_array"],
        "render_fps": 15,  # Agent steps of four frames at 60 Hz.
    }

    def __init__(
        self, options: EnvironmentOptions, suite: Suite, seed: int, render_mode: str | None = None
    ):
        """Takes a suite of one task, and makes nothing yet; the first `reset` does."""
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"the render mode must be rgb_array or None, got {render_mode}")
        self._options, self._suite, self.render_mode = options, suite, render_mode
        self._pool: EnvironmentPool | None = None
        # Plays the same, if people see other images.
        self._film: BatchedEnvironment | None = None
        self._picture = np.zeros((0, 0, 3), np.uint8)
        self._at_start, self._seeds = False, np.random.SeedSequence(seed)
        boxes = []
        for spec in tree.flatten(suite.observation_spec(options)):
            limits = np.iinfo(spec.dtype)
            boxes.append(gymnasium.spaces.Box(limits.min, limits.max, spec.shape, spec.dtype))
        nested = len(boxes) > 1
        self.observation_space = gymnasium.spaces.Tuple(boxes) if nested else boxes[0]
        self.action_space = gymnasium.spaces.Discrete(suite.action_sets[options.action_set])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, from the start of a new series if a seed is given."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._seeds = np.random.SeedSequence(seed)
        if seed is not None or not self._at_start:  # An episode cannot be left in its middle.
            self.close()
            (seeds,), (task,) = self._seeds.spawn(1), self._suite.tasks
            parts = self._options, self._suite
            self._pool = factory.make_environments(*parts, [0], seeds)
            if self.render_mode is not None:
                self._film = factory.make_films(*parts, {0: task}, seeds).get(0)
            self._pool.start()
            self._receive(self._film.reset if self._film else None)
        self._at_start = False
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays one agent step; see gymnasium. An environment that was lost is truncated."""
        if self._pool is None:
            raise RuntimeError("reset the environment before its first step")
        self._pool.send(np.zeros(1, np.int64), np.array([action], np.int32))
        if self._film is not None:
            self._film.send(np.array([action], np.int32))
        output, lost = self._receive(self._film.receive if self._film else None)
        self._at_start = lost or bool(output.done[0])
        totals = output.info.episode_return[0], output.info.episode_step[0]
        info = {"episode_return": float(totals[0]), "episode_step": int(totals[1])}
        terminated = self._at_start and not lost
        return self._observation, float(output.reward[0]), terminated, lost, info

    def render(self) -> Any:
        """Returns uint8 `[height, width, 3]`, what people see of the observation."""
        return in_colour(self._picture)

    def close(self) -> None:
        """Releases the environment; `reset` makes a new one."""
        for part in (self._pool, self._film):
            if part is not None:
                part.close()
        self._pool, self._film, self._at_start = None, None, False

    def _receive(self, film: Callable[[], StepOutput] | None) -> tuple[StepOutput, bool]:
        """Waits for a step and shows it, or the film's; returns it, and whether it is a restart."""
        assert self._pool is not None
        while not len((ready := self._pool.receive(_WAIT_SECONDS)).ids):
            pass
        self._observation = tree.map_structure(itemgetter(0), ready.output.observation)
        self._picture = image_of(film().observation[0] if film else self._observation)
        return ready.output, bool(ready.fresh[0])


def _step_output(actions: Any, reward: Any, done: Any, observation: Any) -> StepOutput:
    """Returns a step `[N, ...]`, whose `done` is also the end of an episode.

    An agent reads no return or length of its `info`, which are only of the right types.
    """
    return StepOutput(reward, StepOutputInfo(reward, actions, done), done, observation)


@contextlib.contextmanager
def _new_directory(output: str) -> Iterator[Path]:
    """Lends a path to write to, which becomes `output` once it is whole."""
    path = Path(output).expanduser()
    refuse_pattern(os.path.expanduser(output), "output")
    if os.path.exists(path):
        raise UserError(f"{output} exists: give another --output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            partial = Path(folder, path.name)
            partial.mkdir()
            yield partial
            partial.rename(path)
    except (OSError, tf.errors.OpError, UnsavedError) as error:
        raise UserError(f"{output} cannot be written ({error}); give another --output") from error
