"""`--mode=test`: a frozen policy plays every task, and its scores are reported."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm
import tree

from environments import EnvironmentLostError, EnvironmentPool, StepOutput
from scalable_agent_popart import construction, scores
from scalable_agent_popart.checkpoints import Checkpoints
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.policy import Policy
from scalable_agent_popart.run_directory import RunDirectory, write_atomically
from scalable_agent_popart.weights import WeightStore

_WAIT_SECONDS = 1.0
# How often an environment may be lost within an episode and begin again.
_MOST_RESTARTS = 8


def evaluate(config: Config) -> None:
    """Plays `test_num_episodes` of each task with the run's newest checkpoint.

    Of a task with a version held out from training, both versions are played. Prints the
    scores and writes `evaluation.json` in the run directory.

    Raises:
      UserError: if there is no run, it is of another architecture, or it is damaged.
    """
    directory = RunDirectory(config.logdir)
    spec = construction.make_rollout_spec(config)
    agent = construction.make_agent(config, spec)
    frames = tf.Variable(0, dtype=tf.int64)
    # The writer's names, as far as a policy needs them.
    saved = tf.train.Checkpoint(agent=agent, frames=frames)
    if not Checkpoints(directory.checkpoints, learner=saved).restore():
        raise UserError(f"there is no checkpoint in {directory.checkpoints}; train first")
    store = WeightStore(agent.trainable_variables, version=0)
    suite = config.suite
    held_out = [task for task in suite.tasks if task in suite.test_versions]
    played = suite.select([*(suite.test_version(task) for task in suite.tasks), *held_out])
    quotas = _quotas(len(played.tasks), config.test_num_episodes, config.num_actors)
    policy = Policy(construction.make_agent(config, spec), store, config.seed, len(quotas))
    seed = np.random.SeedSequence([config.seed, 1])
    environments = construction.make_environments(
        config, played, [task_id for task_id, _ in quotas], seed, training=False
    )
    try:
        returns = play(environments, policy, [quota for _, quota in quotas])
    finally:
        environments.close()
    by_task = {
        task: [r for (i, _), own in zip(quotas, returns, strict=True) if i == task_id for r in own]
        for task_id, task in enumerate(played.tasks)
    }
    report = _report(config, int(frames), by_task)
    _print(report)
    write_atomically(directory.evaluation, report)


def play(environments: EnvironmentPool, policy: Policy, quotas: Sequence[int]) -> list[list[float]]:
    """Raw returns of the first `quotas[i]` episodes of each environment i.

    A quota for each environment, rather than the first episodes to end anywhere: those would
    be the short ones.

    Raises:
      EnvironmentLostError: if an environment cannot be kept going to the end of an episode.
    """
    policy.refresh()
    returns: list[list[float]] = [[] for _ in quotas]
    remaining = np.array(quotas)
    restarts = np.zeros_like(remaining)  # Of each environment up to its last episode's end.
    environments.start()
    with tqdm.tqdm(total=int(remaining.sum()), unit=" episodes") as progress:
        while remaining.any():
            ids, env_output, fresh = environments.receive(_WAIT_SECONDS)
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
            policy.forget(ids[fresh])
            if not environments.together:  # Else those that are through play on, uncounted.
                going_on = remaining[ids] > 0
                ids, env_output = ids[going_on], _rows(env_output, going_on)
            if not len(ids):
                continue
            agent_output = policy.act(ids, env_output)
            environments.send(ids, agent_output.action)
    return returns


def _rows(env_output: StepOutput, where: np.ndarray) -> StepOutput:
    return tree.map_structure(lambda array: array[where], env_output)


def _quotas(num_tasks: int, num_episodes: int, num_environments: int) -> list[tuple[int, int]]:
    """(task id, episodes to play) of each environment; tasks in order, each at least once."""
    copies = min(num_episodes, max(1, num_environments // num_tasks))
    shares = [len(part) for part in np.array_split(np.arange(num_episodes), copies)]
    return [(task_id, share) for task_id in range(num_tasks) for share in shares]


def _report(config: Config, frames: int, returns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """What `evaluation.json` holds; `tasks` and `aggregate` are of the test levels."""
    suite = config.suite
    of_version = {
        version: reference
        for task, reference in suite.reference_scores.items()
        for version in (task, suite.test_version(task))
    }
    tasks = {}
    for task, values in returns.items():
        mean = float(np.mean(values))
        reference = of_version.get(task)
        normalised = None if reference is None else scores.normalise(mean, reference)
        tasks[task] = {
            "episodes": len(values),
            "mean_return": mean,
            "normalised": normalised,
            "returns": values,
        }

    def column(levels: Sequence[str]) -> dict[str, float | None]:
        aggregate = scores.aggregate_returns(
            {level: returns[level] for level in levels}, of_version
        )
        return dict.fromkeys(scores.Aggregate._fields) if aggregate is None else aggregate._asdict()

    test_levels = [suite.test_version(task) for task in suite.tasks]
    report = {
        "frames": frames,
        "starts": "noop",
        "agent": config.agent_name,
        "tasks": {level: tasks[level] for level in test_levels},
        "aggregate": column(test_levels),
    }
    if suite.test_versions:
        trained = {task: tasks[task] for task in suite.tasks if task in suite.test_versions}
        report["train"] = {"tasks": trained, "aggregate": column(suite.tasks)}
    return report


def _print(report: Mapping[str, Any]) -> None:
    print(f"{report['agent']} after {report['frames']:,} environment frames")
    print(f"{'level':<40}{'episodes':>10}{'mean return':>14}{'normalised':>12}")
    train = report.get("train", {"tasks": {}})
    for task, result in {**report["tasks"], **train["tasks"]}.items():
        print(
            f"{task:<40}{result['episodes']:>10}{result['mean_return']:>14,.4g}"
            f"{_percent(result['normalised']):>12}"
        )
    for name, value in report["aggregate"].items():
        label = f"{name.replace('_', ' ')} normalised score"
        if "aggregate" in train:
            trained = f"{_percent(train['aggregate'][name])} on train levels"
            print(f"{label:<40}{trained:>24}, {_percent(value)} on test levels")
        else:
            print(f"{label:<40}{_percent(value):>36}")


def _percent(score: float | None) -> str:
    return "unknown" if score is None else f"{score:.1f}%"
