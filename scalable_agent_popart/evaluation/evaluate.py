"""`--mode=test`: a frozen policy plays every task, and its scores are reported."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm
import tree

from environments import EnvironmentLostError, EnvironmentPool, Ready
from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.acting.weights import WeightStore
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.evaluation import summary as evaluation_summary
from scalable_agent_popart.evaluation.pixel_control_view import PixelControlView
from scalable_agent_popart.evaluation.videos import VideoRecorder
from scalable_agent_popart.runs.checkpoints import Checkpoints
from scalable_agent_popart.runs.directory import RunDirectory

_WAIT_SECONDS = 1.0
# How often an environment may be lost within an episode and begin again.
_MOST_RESTARTS = 8

# Is shown the environments that have stepped, before the policy acts in them.
Watch = Callable[[Ready], None]


def evaluate(config: Config) -> dict[str, Any]:
    """Tests a run once; see `Tester`."""
    return Tester(config).test()


class Tester:
    """Plays `test_num_episodes` of each task with a run's newest checkpoint, as often as asked.

    Of a task with a version held out from training, both versions are played. The run may still be
    training. Agent, policy and graph are made once, since TensorFlow keeps what it has traced.
    """

    def __init__(self, config: Config):
        """Reads nothing yet.

        Args:
          config: to test with.
        """
        config = factory.settle(config)
        suite = config.suite
        held_out = [task for task in suite.tasks if task in suite.test_versions]
        self._config = config
        self._directory = RunDirectory(config.logdir)
        self._played = suite.select(
            [*(suite.test_version(task) for task in suite.tasks), *held_out]
        )
        num_tasks = len(self._played.tasks)
        self._quotas = _quotas(num_tasks, config.test_num_episodes, config.num_actors)
        with_q_head = config.pixel_control and config.record_video
        self._learned = _Learned(config, len(self._quotas), with_q_head)
        q_head = self._learned.q_head
        self._view = PixelControlView(self._learned.agent, q_head) if q_head is not None else None

    @property
    def num_traces(self) -> int:
        """Counts the tracings of the policy."""
        return self._learned.policy.num_traces

    def test(self) -> dict[str, Any]:
        """Prints the scores and writes them, and films each task if asked to.

        All of it goes to the run directory. Films of a run with pixel control show what that sees
        beside the picture.

        Returns:
          The `evaluation_summary`.

        Raises:
          UserError: if there is no run, it is of another architecture, or it is damaged.
        """
        config, played = self._config, self._played
        frames = self._learned.restore()
        policy = self._learned.policy
        self._directory.prepare_evaluation(config.record_video)
        seed = np.random.SeedSequence([config.seed, 1])
        ids = [task_id for task_id, _ in self._quotas]
        environments = factory.make_environments(config, played, ids, seed, training=False)
        with contextlib.ExitStack() as stack:
            stack.callback(environments.close)
            watch: Watch = _ignore
            if config.record_video:
                filmed = {ids.index(task_id): played.tasks[task_id] for task_id in ids}
                recorder = stack.enter_context(VideoRecorder(self._directory.videos, filmed))
                watch = _camera(recorder, policy, self._view)
            returns = play(environments, policy, [quota for _, quota in self._quotas], watch)
        by_task = {
            task: [r for i, own in zip(ids, returns, strict=True) if i == task_id for r in own]
            for task_id, task in enumerate(played.tasks)
        }
        summary = evaluation_summary.summarise(config, frames, by_task)
        evaluation_summary.show(summary)
        self._directory.write_evaluation(summary)
        return summary


def load_policy(config: Config, num_environments: int) -> tuple[Policy, int]:
    """The policy of a run's newest checkpoint, and the run's environment frames up to it.

    Raises:
      UserError: if there is no checkpoint, it is of another architecture, or it is damaged.
    """
    learned = _Learned(config, num_environments, with_q_head=False)
    return learned.policy, learned.restore()


class _Learned:
    """The parts of a run's checkpoints that act, in variables that are made once.

    Attributes:
      agent: with a checkpoint's weights.
      q_head: of pixel control, if asked for; likewise.
      policy: that acts with these weights.
    """

    def __init__(self, config: Config, num_environments: int, with_q_head: bool):
        self._directory = RunDirectory(config.logdir)
        self._seed = config.seed
        spec = factory.make_rollout_spec(config)
        self.agent = factory.make_agent(config, spec)
        self._frames = tf.Variable(0, dtype=tf.int64)
        # The writer's names, as far as they are needed.
        self._parts = {"agent": self.agent, "frames": self._frames}
        self.q_head = None
        if with_q_head:
            self._parts["q_head"] = self.q_head = factory.make_q_head(config)
            step = rollouts.example_batch(spec)
            inputs = (step.agent_outputs.action, step.env_outputs, step.agent_state)
            self.q_head(self.agent.unroll(*inputs).features)  # Creates the variables.
        own = factory.make_agent(config, spec)
        self.policy = Policy(own, self._weights(), self._seed, num_environments)

    def restore(self) -> int:
        """Takes the newest checkpoint, with which the policy begins anew; returns its frames.

        Raises:
          UserError: as `load_policy`.
        """
        saved = tf.train.Checkpoint(**self._parts)
        if not Checkpoints(self._directory.checkpoints, learner=saved).restore():
            raise UserError(f"there is no checkpoint in {self._directory.checkpoints}; train first")
        self.policy.restart(self._weights(), self._seed)
        self.policy.refresh()
        return int(self._frames)

    def _weights(self) -> WeightStore:
        """The agent's present weights."""
        return WeightStore(self.agent.trainable_variables, version=0)


def _camera(recorder: VideoRecorder, policy: Policy, view: PixelControlView | None) -> Watch:
    """Films this policy's play, with maps of pixel control if there is a view of that."""

    def watch(ready: Ready) -> None:
        filmed = recorder.is_filming(ready.ids)
        if not filmed.any():
            return
        ids, env_output, fresh = _rows(ready, filmed)
        maps = None
        if view is not None:
            view.forget(ids[fresh])
            maps = view.maps(ids, env_output, policy.last_output(ids).action, policy.state(ids))
        recorder.watch(ids, env_output, maps)

    return watch


def play(
    environments: EnvironmentPool,
    policy: Policy,
    quotas: Sequence[int],
    watch: Watch,
) -> list[list[float]]:
    """Raw returns of the first `quotas[i]` episodes of each environment i.

    `watch` is shown every step before the policy acts on it; the policy's last actions and states
    are then those that led to it.

    A quota for each environment, rather than the first episodes to end anywhere: those would
    be the short ones.

    Raises:
      EnvironmentLostError: if an environment cannot be kept going to the end of an episode.
    """
    returns: list[list[float]] = [[] for _ in quotas]
    remaining = np.array(quotas)
    restarts = np.zeros_like(remaining)  # Of each environment up to its last episode's end.
    groups = environments.groups
    environments.start()
    with tqdm.tqdm(total=int(remaining.sum()), unit=" episodes") as progress:
        while remaining.any():
            ready = environments.receive(_WAIT_SECONDS)
            ids, env_output, fresh = ready
            policy.forget(ids[fresh])
            watch(ready)
            ended = env_output.info.episode_end & (remaining[ids] > 0)
            for i, episode_return in zip(
                ids[ended], env_output.info.episode_return[ended], strict=True
            ):
                returns[i].append(float(episode_return))
                progress.update()
            remaining[ids[ended]] -= 1
            restarts[ids[ended]] = environments.restarts[ids[ended]]
            if np.any(environments.restarts - restarts > _MOST_RESTARTS):
                raise EnvironmentLostError(
                    f"an environment was lost more than {_MOST_RESTARTS} times before it could "
                    "finish an episode"
                )
            # Where others of its group go on, one that is through plays on, uncounted.
            going_on = np.isin(groups[ids], groups[remaining > 0])
            ids, env_output = ids[going_on], _rows(env_output, going_on)
            if not len(ids):
                continue
            agent_output = policy.act(ids, env_output)
            environments.send(ids, agent_output.action)
    return returns


def _rows(arrays: Any, where: np.ndarray) -> Any:
    return tree.map_structure(lambda array: array[where], arrays)


def _quotas(num_tasks: int, num_episodes: int, num_environments: int) -> list[tuple[int, int]]:
    """(task id, episodes to play) of each environment; tasks in order, each at least once."""
    copies = min(num_episodes, max(1, num_environments // num_tasks))
    shares = [len(part) for part in np.array_split(np.arange(num_episodes), copies)]
    return [(task_id, share) for task_id in range(num_tasks) for share in shares]


def _ignore(ready: Ready) -> None:
    """Watches nothing."""
