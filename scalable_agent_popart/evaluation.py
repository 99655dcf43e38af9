"""`--mode=test`: a frozen policy plays every task, and its scores are reported."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tqdm

from environments import BatchedEnvironment
from scalable_agent_popart import construction, scores
from scalable_agent_popart.checkpoints import Checkpoints
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.policy import Policy
from scalable_agent_popart.run_directory import RunDirectory, write_atomically
from scalable_agent_popart.weights import WeightStore

# Environments played side by side, as far as there are episodes for them.
_MAX_ENVIRONMENTS = 64


def evaluate(config: Config) -> None:
    """Plays `test_num_episodes` of each task with the run's newest checkpoint.

    Prints the scores and writes `evaluation.json` in the run directory.

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
    policy = Policy(construction.make_agent(config, spec), store, config.seed)
    quotas = _quotas(len(config.suite.tasks), config.test_num_episodes)
    seed = np.random.SeedSequence([config.seed, 1])
    environment = construction.make_environment(
        config, [task_id for task_id, _ in quotas], seed, training=False
    )
    try:
        returns = play(environment, policy, [quota for _, quota in quotas])
    finally:
        environment.close()
    by_task = {
        task: [r for (i, _), own in zip(quotas, returns, strict=True) if i == task_id for r in own]
        for task_id, task in enumerate(config.suite.tasks)
    }
    report = _report(config, int(frames), by_task)
    _print(report)
    write_atomically(directory.evaluation, report)


def play(
    environment: BatchedEnvironment, policy: Policy, quotas: Sequence[int]
) -> list[list[float]]:
    """Raw returns of the first `quotas[i]` episodes of each environment i.

    A quota for each environment, rather than the first episodes to end anywhere: those would
    be the short ones.
    """
    policy.refresh()
    returns: list[list[float]] = [[] for _ in quotas]
    remaining = np.array(quotas)
    env_output = environment.reset()
    actions = np.zeros(len(quotas), np.int32)
    state = policy.initial_state(len(quotas))
    with tqdm.tqdm(total=int(remaining.sum()), unit=" episodes") as progress:
        while remaining.any():  # Those that are through play on, uncounted, in lockstep.
            agent_output, state = policy.act(actions, env_output, state)
            actions = agent_output.action
            environment.send(actions)
            env_output = environment.receive()
            for i in np.flatnonzero(env_output.info.episode_end & (remaining > 0)):
                returns[i].append(float(env_output.info.episode_return[i]))
                remaining[i] -= 1
                progress.update()
    return returns


def _quotas(num_tasks: int, num_episodes: int) -> list[tuple[int, int]]:
    """(task id, episodes to play) of each environment; tasks in order."""
    copies = min(num_episodes, max(1, _MAX_ENVIRONMENTS // num_tasks))
    shares = [len(part) for part in np.array_split(np.arange(num_episodes), copies)]
    return [(task_id, share) for task_id in range(num_tasks) for share in shares]


def _report(config: Config, frames: int, returns: dict[str, list[float]]) -> dict:
    references = config.suite.reference_scores
    return {
        "frames": frames,
        "starts": "noop",
        "agent": config.agent_name,
        "tasks": {
            task: {
                "episodes": len(values),
                "mean_return": float(np.mean(values)),
                "normalised": scores.normalise(float(np.mean(values)), references[task]),
                "returns": values,
            }
            for task, values in returns.items()
        },
        "aggregate": scores.aggregate_returns(returns, references)._asdict(),
    }


def _print(report: dict) -> None:
    print(f"{report['agent']} after {report['frames']:,} environment frames")
    print(f"{'task':<24}{'episodes':>10}{'mean return':>14}{'normalised':>12}")
    for task, result in report["tasks"].items():
        print(
            f"{task:<24}{result['episodes']:>10}{result['mean_return']:>14,.4g}"
            f"{result['normalised']:>11.1f}%"
        )
    for name, value in report["aggregate"].items():
        print(f"{name.replace('_', ' ') + ' normalised score':<48}{value:>11.1f}%")
