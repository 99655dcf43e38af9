"""An actor thread's work: play a pool of environments, hand over a rollout of each."""

from typing import Protocol

import numpy as np

from environments import EnvironmentPool
from scalable_agent_popart.policy import Policy
from scalable_agent_popart.rollouts import Rollout, RolloutBuffer
from scalable_agent_popart.stage_clock import StageClock

# How long to wait, before looking whether the sink has closed, for any environment to be ready
# or for room in the sink; and for an environment while a rollout of another waits for room.
_WAIT_SECONDS = 0.2
_GLANCE_SECONDS = 0.02


class RolloutSink(Protocol):
    """Where rollouts go."""

    closed: bool  # whether nobody listens any more

    def reserve(self, count: int, seconds: float) -> int:
        """Sets room aside for up to `count` rollouts, waiting at most so long for the first."""
        ...

    def put(self, rollouts: Rollout) -> None:
        """Copies rollouts `[M, T + 1, ...]` into reserved room."""
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

    While the learner is busy and the sink is full, an environment waits with its rollout, and
    those that are behind, after a slow reset perhaps, catch up.

    Args:
      environments: closed on return.
      policy: used by this actor alone.
      sink: takes the rollouts, one for each environment, every T steps.
      spec: of one environment's rollout.
      clock: is told where the time goes: `environment`, `queue`, `refresh`, `policy`.
    """
    buffer = RolloutBuffer(spec, environments.task_ids)
    waiting = np.zeros(0, np.int64)  # Environments with a whole rollout, longest first.
    try:
        environments.start()
        clock.restart()
        while not sink.closed:
            wait = _GLANCE_SECONDS if len(waiting) else _WAIT_SECONDS
            ids, env_output, fresh = environments.receive(wait)
            policy.forget(ids[fresh])
            buffer.write(ids, env_output, policy.recall(ids).agent_output, fresh)
            clock.finish("environment")
            full = buffer.full(ids)
            waiting = np.concatenate([waiting, ids[full]])
            if len(waiting):
                all_wait = len(waiting) == len(environments.task_ids)
                num_taken = _hand_over(buffer, waiting, sink, all_wait)
                ids = np.sort(np.concatenate([ids[~full], waiting[:num_taken]]))
                waiting = waiting[num_taken:]
                clock.finish("queue")
            if sink.closed or not len(ids):
                continue
            memory = policy.recall(ids)
            begins = buffer.at_start(ids)
            if begins.any():
                version = policy.refresh()
                buffer.begin(ids[begins], tuple(part[begins] for part in memory.state), version)
                clock.finish("refresh")
            agent_output = policy.act(ids, buffer.newest(ids), memory)
            clock.finish("policy")
            environments.send(ids, agent_output.action)
    finally:
        environments.close()


def _hand_over(
    buffer: RolloutBuffer, waiting: np.ndarray, sink: RolloutSink, all_wait: bool
) -> int:
    """Puts the rollouts of environments `[M]` in order; returns how many there was room for.

    If no other environment is left to go on with, waits until there is room for all.
    """
    num_taken = 0
    while num_taken < len(waiting) and not sink.closed:
        room = sink.reserve(len(waiting) - num_taken, _WAIT_SECONDS if all_wait else 0.0)
        if room:
            sink.put(buffer.take(waiting[num_taken : num_taken + room]))
            num_taken += room
        elif not all_wait:
            break
    return num_taken
