"""Tests of a run: a frozen policy plays every task, once or repeatedly while others train it."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from time import monotonic
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from absl import logging

from environments import EnvironmentLostError, EnvironmentPool, reporting
from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import Policy, WeightStore
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.evaluation import summary as evaluation_summary
from scalable_agent_popart.evaluation.agent_view import AgentView
from scalable_agent_popart.evaluation.videos import VideoRecorder
from scalable_agent_popart.runs import json_lines
from scalable_agent_popart.runs.checkpoints import saved_frames
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.logs import write_events
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.suites.checked import name_some
from scalable_agent_popart.system.terminal import progress_bar

_POLL_SECONDS = 1.0
_MAX_RESTARTS = 8  # An environment may be lost so often before it finishes an episode.
_MAX_SILENT_SECONDS = 600.0  # After so long without an episode's end a test says what it waits for.


def follow(run: Run, config: Config) -> None:
    """Tests each newest checkpoint up to the run's end, for `evaluations.jsonl` and TensorBoard.

    A learner that is gone may be started again. So the evaluator ends as actor jobs do, with a
    warning, after `learner_timeout_hours` without a newer checkpoint.
    """
    directory, tester = run.directory, Tester(run, config)
    frames, waits_since = -1, monotonic()
    patience_seconds = 3600 * config.learner_timeout_hours + config.checkpoint_seconds
    directory.prepare_evaluation(config.record_video)  # TensorBoard's writer explains nothing.
    path = directory.path / "evaluator"
    writer = tf.summary.create_file_writer(str(path))
    while frames < config.total_environment_frames:
        saved = None
        with contextlib.suppress(UserError):  # The folder may be readable again soon.
            saved = saved_frames(directory.checkpoints)
        if saved in (None, frames):
            if monotonic() - waits_since > patience_seconds:
                logging.warning(
                    "the evaluator ends, as if the run were over: there was no newer checkpoint in "
                    "%s for %g hours (--learner_timeout_hours)",
                    directory.checkpoints,
                    config.learner_timeout_hours,
                )
                break
            time.sleep(_POLL_SECONDS)
            continue
        summary = tester.test()
        waits_since = monotonic()
        frames, scores = summary["frames"], summary["aggregate"]
        means = {level: result["mean_return"] for level, result in summary["tasks"].items()}
        record = {"time": time.time(), "frames": frames, "starts": summary["starts"], **scores}
        json_lines.append(directory.evaluations_log, {**record, "mean_return": means})
        points = {f"evaluation/{name}": score for name, score in scores.items()}
        points |= {f"evaluation_return/{level}": mean for level, mean in means.items()}
        with write_events(writer, path, frames):
            for name, value in points.items():
                if value is not None:
                    tf.summary.scalar(name, value)


class Tester:
    """Plays episodes of all tasks and their held-out versions with a run's newest checkpoint."""

    def __init__(self, run: Run, config: Config):
        factory.check_network(config)
        self._run, self._config, suite = run, config, config.suite
        originals = [task for task in suite.tasks if task in suite.test_versions]
        versions = [suite.test_version(task) for task in suite.tasks]
        self._played = suite.select(dict.fromkeys([*versions, *originals]))  # Tasks may share one.
        # Environments of the same task share its episodes.
        num_episodes, num_tasks = config.test_num_episodes, len(self._played.tasks)
        copies = min(num_episodes, max(1, config.num_actors // num_tasks))
        shares = [len(part) for part in np.array_split(np.arange(num_episodes), copies)]
        self._quotas = shares * num_tasks
        self._task_ids = np.repeat(range(num_tasks), copies).tolist()
        trained = run.config.suite  # A test may play only some of its tasks, or others.
        self._saved = saved = factory.make_saved_parts(replace(config, suite=trained))
        # The policy acts with the very variables that are restored, so it is never refreshed.
        self._weights = WeightStore(saved.agent.trainable_variables, version=0)
        self._policy = Policy(saved.agent, self._weights, config.seed, len(self._quotas))
        q_head = saved.q_head if config.record_video and config.pixel_control else None
        head = saved.head if config.video_policy else None
        view = AgentView(self._policy, saved.agent, q_head, head, trained)
        self.view = view if q_head or head else None  # Films show it.

    def restore(self) -> int:
        """Reads the newest checkpoint, or raises UserError; returns the run's frames."""
        self._run.restore(learner=self._saved)
        self._policy.restart(self._weights, self._config.seed)
        return int(self._saved.frames)

    def test(self) -> dict[str, Any]:
        """Plays; prints, writes and returns what `summarise` makes of it; completes films last."""
        config, tasks, ids = self._config, self._played.tasks, self._task_ids
        directory = self._run.directory
        frames = self.restore()
        directory.prepare_evaluation(config.record_video)
        filmed = {ids.index(i): tasks[i] for i in ids} if config.record_video else {}
        seed = np.random.SeedSequence([config.seed, 1])
        options = config.environment_options(training=False)
        with _showing("making environments", len(ids)):
            environments = factory.make_environments(options, self._played, ids, seed)
        with _showing("making films", len(filmed)):
            films = factory.make_films(options, self._played, filmed, seed)
        names = config.suite.names_of_actions(config.action_set)
        recorder = VideoRecorder(directory.videos, filmed, self.view, films, names)
        by_task: dict[str, list[float]] = {task: [] for task in tasks}
        with contextlib.ExitStack() as last, contextlib.closing(environments), recorder:
            returns = play(environments, self._policy, self._quotas, recorder, tasks)
            for task_id, of_environment in zip(ids, returns, strict=True):
                by_task[tasks[task_id]] += of_environment
            summary = evaluation_summary.summarise(config, frames, by_task)
            # A disk that is too full for the files of scores or films does not prevent this.
            last.callback(evaluation_summary.show, summary, self._played)
            directory.write_evaluation(summary)
        written_films = f"; films in {directory.videos}" * config.record_video
        print(f"written: {directory.evaluation} and evaluation.csv{written_films}", file=sys.stderr)
        return summary


@contextlib.contextmanager
def _showing(what: str, number: int) -> Iterator[None]:
    """Shows how many of a number of environments the block has made, or started."""
    how = {"desc": what, "leave": False, "disable": not number}
    with progress_bar(number, "", **how) as progress, reporting(progress.update):
        yield


def play(
    environments: EnvironmentPool,
    policy: Policy,
    quotas: Sequence[int],
    recorder: VideoRecorder,
    tasks: Sequence[str],
) -> list[list[float]]:
    """Returns the raw returns of the first `quotas[i]` episodes of each environment i.

    Each environment has a quota, because the first episodes to end anywhere would be short ones.
    If no episode ends for minutes, a line names the `tasks` that are waited for. Raises
    EnvironmentLostError if an environment is lost too often within an episode.
    """
    returns: list[list[float]] = [[] for _ in quotas]
    remaining, begun = np.array(quotas), np.zeros(len(quotas), bool)
    restarts = np.zeros_like(remaining)  # Up to the end of each environment's last episode.
    steps = np.zeros_like(remaining)  # Agent steps of each present episode.
    with _showing("starting environments", len(quotas)):
        environments.start()
    last_end, patience = monotonic(), _MAX_SILENT_SECONDS
    # The last episodes are the longest, and the mean rate falls while they are played.
    with progress_bar(int(remaining.sum()), " episodes", smoothing=0) as progress:
        while remaining.any():
            ids, env_output, fresh = ready = environments.receive(_POLL_SECONDS)
            policy.forget(ids[fresh])
            if not begun.all():  # Processes start their environments after the pool.
                begun[ids] = True
                text = f"{np.count_nonzero(begun)} of {len(begun)} environments ready"
                progress.set_description(None if begun.all() else text, refresh=False)
            recorder.watch(ready)
            info = env_output.info
            ended = info.episode_end & (remaining[ids] > 0)
            finished = ids[ended]
            for i, episode_return in zip(finished, info.episode_return[ended], strict=True):
                returns[i].append(float(episode_return))
            progress.update(len(finished))
            remaining[finished] -= 1
            steps[ids] = np.where(info.episode_end, 0, info.episode_step)
            if len(finished):
                last_end, patience = monotonic(), _MAX_SILENT_SECONDS
            elif (silent := monotonic() - last_end) >= patience:
                names = name_some([tasks[i] for i in environments.task_ids[remaining > 0]])
                progress.write(
                    f"{names}: no episode has ended for {silent / 60:.0f} minutes, and the longest "
                    f"has {steps[remaining > 0].max():,} agent steps; the test waits for the end",
                    file=progress.fp,
                )
                patience = 2 * silent
            restarts[finished] = environments.restarts[finished]
            if np.any(environments.restarts - restarts > _MAX_RESTARTS):
                how_often = f"more than {_MAX_RESTARTS} times before it could finish an episode"
                raise EnvironmentLostError(f"an environment was lost {how_often}")
            # An environment that has met its quota plays on, uncounted, if its group must.
            groups = environments.groups
            going_on = np.isin(groups[ids], groups[remaining > 0])
            if going_on.any():
                ids, env_output = tree.map_structure(itemgetter(going_on), (ids, env_output))
                actions = policy.act(ids, env_output).action
                environments.send(ids, actions)
                recorder.follow(ids, actions)
    return returns
