"""An actor thread's work: play a pool of environments, hand over a rollout of each."""

from typing import Protocol

import numpy as np

from environments import EnvironmentPool
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.rollouts import Rollout, RolloutBuffer
from scalable_agent_popart.system.stage_clock import StageClock

# How long to wait, before looking whether the sink has closed, for any environment to be ready
# or for room in the sink; and for an environment while a rollout of another waits for room.
_WAIT_SECONDS = 0.2
_GLANCE_SECONDS = 0.02
# Rollouts that an environment may be behind and still catch up with; those of one that was gone
# for longer would fill whole batches.
_MOST_TO_CATCH_UP = 10


class RolloutSink(Protocol):
    """Where rollouts go."""

    @property
    def closed(self) -> bool:
        """Whether nobody listens any more."""
        ...

    def reserve(self, count: int, seconds: float, behind: bool) -> int:
        """Sets room aside for up to `count` rollouts, waiting at most so long for the first.

        There is more for those of environments that are behind others.
        """
        ...

    def put(self, rollouts: Rollout) -> None:
        """Copies rollouts `[M, T + 1, ...]` into reserved places."""
        ...

    def close(self) -> None:
        """Wakes all who wait; may be called twice."""
        ...


def run_actor(
    environments: EnvironmentPool,
    policy: Policy,
    sink: RolloutSink,
    spec: Rollout,
    clock: StageClock,
) -> None:
    """Acts until the sink closes, with the latest weights at the start of each rollout.

    Environments that are ready share a call of the policy and those that are not hold up
    nobody, so rollouts of different environments may begin at different times. New weights
    serve all of them at once: `policy_version` is that of a rollout's first step.

    While the learner is busy and the sink is full, an environment waits with its rollout. Those
    that are behind, after a slow reset perhaps, go on meanwhile and find room of their own, so
    that the learner sees each of them equally often. Of rollouts that are whole together, those of
    one task take turns with those of the others, so that batches mix the tasks.

    Args:
      environments: closed on return.
      policy: used by this actor alone.
      sink: takes the rollouts, one for each environment, every T steps.
      spec: of one environment's rollout.
      clock: is told where the time goes: `environment`, `queue`, `refresh`, `policy`.
    """
    waiting = np.zeros(0, np.int64)  # Environments with a whole rollout.
    num_taken = np.zeros(len(environments.task_ids), np.int64)  # Rollouts of each.
    try:
        buffer = RolloutBuffer(spec, environments.task_ids)
        environments.start()
        clock.restart()
        while not sink.closed:
            wait = _GLANCE_SECONDS if len(waiting) else _WAIT_SECONDS
            ids, env_output, fresh = environments.receive(wait)
            policy.forget(ids[fresh])
            buffer.write(ids, env_output, policy.last_output(ids), fresh)
            clock.finish("environment")
            full = buffer.full(ids)
            waiting = np.concatenate([waiting, ids[full]])
            if len(waiting):
                waiting = _in_turn(waiting, num_taken, environments.task_ids)
                taken = _hand_over(buffer, waiting, num_taken, sink, environments.together)
                num_taken[taken] += 1
                np.maximum(num_taken, num_taken.max() - _MOST_TO_CATCH_UP, out=num_taken)
                waiting = waiting[~np.isin(waiting, taken)]
                ids = np.sort(np.concatenate([ids[~full], taken]))
                env_output = buffer.newest(ids)
                clock.finish("queue")
            if sink.closed or not len(ids):
                continue
            begins = buffer.at_start(ids)
            if begins.any():
                version = policy.refresh()
                buffer.begin(ids[begins], policy.state(ids[begins]), version)
                clock.finish("refresh")
            agent_output = policy.act(ids, env_output)
            clock.finish("policy")
            environments.send(ids, agent_output.action)
    finally:
        environments.close()


def _in_turn(waiting: np.ndarray, num_taken: np.ndarray, task_ids: np.ndarray) -> np.ndarray:
    """Waiting environments `[M]` by how many rollouts were taken of each, then the tasks in turn.

    Copies of a task stand together, since one emulator steps them; in their order a batch could be
    of a single task.
    """
    waiting = waiting[np.argsort(num_taken[waiting], kind="stable")]
    task = task_ids[waiting]
    earlier = np.tril(task[:, np.newaxis] == task, -1).sum(axis=1)  # Of the same task, [M]
    return waiting[np.lexsort((earlier, num_taken[waiting]))]


def _hand_over(
    buffer: RolloutBuffer,
    waiting: np.ndarray,
    num_taken: np.ndarray,
    sink: RolloutSink,
    together: bool,
) -> np.ndarray:
    """Puts the rollouts of waiting environments `[M]`, as far as there is room.

    They must come sorted by how many were taken of each, `num_taken` `[N]`. If all environments
    wait, so that there is no other to go on with, waits for room for one; for room for all, if
    they must go on together.

    Returns:
      The environments whose rollouts were put.
    """
    all_wait = len(waiting) == len(num_taken)
    # One less is nothing: somebody is always first.
    num_behind = int(np.count_nonzero(num_taken[waiting] < num_taken.max() - 1))
    done = 0
    while done < len(waiting) and not sink.closed:
        behind = done < num_behind
        count = (num_behind if behind else len(waiting)) - done
        must_wait = all_wait and (together or not done)
        room = sink.reserve(count, _WAIT_SECONDS if must_wait else 0.0, behind)
        if room:
            sink.put(buffer.take(waiting[done : done + room]))
            done += room
        elif not must_wait:
            break
    return waiting[:done]
