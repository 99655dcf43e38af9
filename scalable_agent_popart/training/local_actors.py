"""The actor threads of one process, and the environments and policies they own."""

import functools
from collections.abc import Callable

import numpy as np

from environments import EnvironmentPool
from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.acting.actor import RolloutSink, run_actor
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.acting.weights import WeightSource
from scalable_agent_popart.config import Config
from scalable_agent_popart.system.stage_clock import StageClock
from scalable_agent_popart.system.threads import WorkerThreads


class ActorThreads:
    """Threads that act with a source's weights and hand their rollouts to a sink.

    Attributes:
      clocks: where the time of each thread goes.
    """

    def __init__(
        self,
        config: Config,
        spec: rollouts.Rollout,
        connect: Callable[[], tuple[WeightSource, RolloutSink]],
        seed: np.random.SeedSequence,
        stop: Callable[[], None],
        policies: dict[int, Policy] | None = None,
    ):
        """Prepares the threads.

        Args:
          config: of the run.
          spec: of one environment's rollout.
          connect: gives a thread where its weights come from and its rollouts go.
          seed: of everything random.
          stop: closes the sinks, on the first exception and on `close`.
          policies: those of ended threads with the same agent and tasks, by thread number, to be
            used again; missing ones are added.
        """
        self._config = config
        self._spec = spec
        self._connect = connect
        self._dealt = factory.deal_tasks(
            config.num_actors,
            len(config.suite.tasks),
            factory.num_actor_threads(config),
            max(0, config.task),
        )
        self._seeds = seed.spawn(len(self._dealt))
        self.clocks = [StageClock() for _ in self._dealt]
        self._policies = {} if policies is None else policies
        self._pools: list[EnvironmentPool] = []
        self._workers = WorkerThreads(stop)

    def start(self) -> None:
        """Starts the threads, which `close` ends."""
        threads = zip(self._dealt, self._seeds, self.clocks, strict=True)
        for i, (task_ids, seed, clock) in enumerate(threads):
            work = functools.partial(self._act, i, task_ids, seed, clock)
            self._workers.start(f"actor-{i}", work)

    def close(self) -> None:
        """Stops all threads and waits for them."""
        self._workers.close()

    def raise_error(self) -> None:
        """Raises the first exception of a thread, if there was one."""
        self._workers.raise_error()

    @property
    def num_traces(self) -> int:
        """Counts the tracings of all policies."""
        return sum(policy.num_traces for policy in self._policies.values())

    @property
    def num_begun(self) -> int:
        """Counts the environments that have returned their first observation."""
        policies = list(self._policies.values())  # Its thread may be adding one.
        return sum(int(np.count_nonzero(policy.begun)) for policy in policies)

    def restarts(self) -> dict[str, int]:
        """How often environments were lost and started again, by task, where that happened."""
        tasks = self._config.suite.tasks
        counts = np.zeros(len(tasks), np.int64)
        for pool in self._pools:
            np.add.at(counts, pool.task_ids, pool.restarts)
        return {task: int(n) for task, n in zip(tasks, counts, strict=True) if n}

    def _act(
        self, i: int, task_ids: np.ndarray, seed: np.random.SeedSequence, clock: StageClock
    ) -> None:
        source, sink = self._connect()
        policy_seed = int(seed.spawn(1)[0].generate_state(1)[0])
        policy = self._policies.get(i)
        if policy is None:
            agent = factory.make_agent(self._config, self._spec)
            policy = self._policies[i] = Policy(agent, source, policy_seed, len(task_ids))
        else:
            policy.restart(source, policy_seed)
        environments = factory.make_environments(
            self._config, self._config.suite, task_ids, seed, training=True
        )
        self._pools.append(environments)
        run_actor(environments, policy, sink, self._spec, clock)
