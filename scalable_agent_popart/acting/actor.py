"""An actor thread's loop: plays a pool of environments and hands over a rollout of each."""

import contextlib
from typing import Protocol

import numpy as np

from environments import EnvironmentPool
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.rollouts import Rollout, RolloutBuffer
from scalable_agent_popart.system.stage_clock import StageClock

_WAIT_SECONDS = 0.2  # Between looks at whether the sink was closed.
_SHORT_WAIT_SECONDS = 0.02  # Between questions to the sink while a whole rollout waits.
# Rollouts that an environment which fell behind may catch up on. More would fill whole batches.
_MAX_TO_CATCH_UP = 10


class RolloutSink(Protocol):
    """Takes the rollouts of an actor thread; an environment's n-th rollout is of turn n, from 1."""

    newest_turn: int  # The largest turn that had capacity so far.

    @property
    def closed(self) -> bool:
        """Returns whether no more rollouts are wanted."""

    def reserve(self, count: int, seconds: float, turn: int) -> int:
        """Reserves capacity for up to `count` rollouts, waiting for the first; returns how much.

        Among waiting threads the lowest turn comes first. Rollouts behind the newest turn have
        additional capacity.
        """

    def put(self, rollouts: Rollout) -> None:
        """Copies rollouts `[M, T + 1, ...]` for which capacity is reserved."""

    def close(self) -> None:
        """Wakes all threads that wait; may be called twice."""


def run_actor(
    environments: EnvironmentPool,
    policy: Policy,
    sink: RolloutSink,
    spec: Rollout,
    clock: StageClock,
    seed: int,
) -> None:
    """Acts until the sink closes, with the latest weights at the start of each rollout.

    Environments that are ready share a call of the policy without waiting for others, so their
    rollouts may begin at different times. New weights serve all of them at once: `policy_version`
    is that of a rollout's first step.

    While the sink is full, an environment waits with its whole rollout. Those that have handed over
    fewer rollouts, perhaps after a slow reset, play meanwhile, come first and have capacity of
    their own. So the learner sees every environment equally often, as far as its speed allows.

    The environments are closed on return. The clock has the stages `environment`, `queue`,
    `refresh` and `policy`.
    """
    waiting = np.zeros(0, np.int64)  # Environments with a whole rollout.
    num_taken = np.zeros(len(environments.task_ids), np.int64)  # Rollouts of each.
    max_to_catch_up = 0  # Actors that join others late have missed nothing.
    generator = np.random.default_rng(seed)
    with contextlib.closing(environments):
        buffer = RolloutBuffer(spec, environments.task_ids)
        environments.start()
        clock.restart()
        while not sink.closed:
            wait = _SHORT_WAIT_SECONDS if len(waiting) else _WAIT_SECONDS
            ids, env_output, fresh = environments.receive(wait)
            policy.forget(ids[fresh])
            buffer.write(ids, env_output, policy.last_output(ids), fresh)
            clock.finish("environment")
            full = buffer.full(ids)
            # In the order of tasks, the first batch of a lockstep pool would always be of the same.
            waiting = np.concatenate([waiting, generator.permutation(ids[full])])
            if len(waiting):
                waiting = _in_turn(waiting, num_taken, environments.task_ids)
                taken = _hand_over(buffer, waiting, num_taken, sink, environments.lockstep)
                num_taken[taken] += 1
                np.maximum(num_taken, sink.newest_turn - max_to_catch_up, out=num_taken)
                max_to_catch_up = _MAX_TO_CATCH_UP if len(taken) else max_to_catch_up
                waiting = waiting[len(taken) :]
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


def _in_turn(waiting: np.ndarray, num_taken: np.ndarray, task_ids: np.ndarray) -> np.ndarray:
    """Sorts waiting environments `[M]` by the rollouts taken of each, then the tasks in turn.

    Copies of a task are neighbours in a pool, since one emulator steps them. Without the second
    rule a batch could be of a single task.
    """
    waiting = waiting[np.argsort(num_taken[waiting], kind="stable")]
    task = task_ids[waiting]
    earlier = np.tril(task[:, np.newaxis] == task, -1).sum(axis=1)  # Copies of its task, [M]
    return waiting[np.lexsort((earlier, num_taken[waiting]))]


def _hand_over(
    buffer: RolloutBuffer,
    waiting: np.ndarray,
    num_taken: np.ndarray,
    sink: RolloutSink,
    lockstep: bool,
) -> np.ndarray:
    """Puts rollouts of environments `waiting` `[M]`, in this order, while the sink takes them.

    It waits for the sink only if all environments wait: until one rollout is taken, or in lockstep
    until all are. Returns the environments whose rollouts were put.
    """
    all_wait = len(waiting) == len(num_taken)
    turns = num_taken[waiting] + 1  # Ascending.
    done = 0
    while done < len(waiting) and not sink.closed:
        count = int(np.searchsorted(turns, turns[done], "right")) - done
        must_wait = all_wait and (lockstep or not done)
        granted = sink.reserve(count, _WAIT_SECONDS if must_wait else 0.0, int(turns[done]))
        if granted:
            sink.put(buffer.take(waiting[done : done + granted]))
            done += granted
        elif not must_wait:
            break
    return waiting[:done]
