"""Actor threads of one process, with the environments and policies they own."""

import functools
from collections.abc import Sequence

import numpy as np

from environments import EnvironmentPool, reporting
from scalable_agent_popart import factory
from scalable_agent_popart.acting.actor import RolloutSink, run_actor
from scalable_agent_popart.acting.policy import Policy, WeightSource
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system.stage_clock import StageClock
from scalable_agent_popart.system.threads import Threads
from scalable_agent_popart.training.actors import Actors


class LocalActors(Actors):
    """Actor threads of the learner's own process."""

    def __init__(
        self,
        config: Config,
        spec: Rollout,
        learner: Learner,
        policies: dict[int, Policy] | None = None,
    ):
        super().__init__(config, spec, learner)
        # The version keeps a resumed run from replaying its past.
        seed = np.random.SeedSequence([config.seed, int(learner.num_updates)])
        ends = [(self._store, self.rollout_queue)] * factory.num_actor_threads(config)
        self.threads = ActorThreads(config, spec, ends, seed, policies)
        self._threads.insert(0, self.threads)

    def describe_start(self) -> str:
        threads, num_actors = self.threads, self._config.num_actors
        if len(threads.pools) < len(threads.clocks):
            return f"making environments: {sum(threads.made)} of {num_actors}"
        policies = list(threads.policies.values())
        begun = sum(int(np.count_nonzero(policy.begun)) for policy in policies)
        # A pool in lockstep is received only after its last environment has started.
        if (started := max(begun, sum(threads.started))) < num_actors:
            return f"{started} of {num_actors} environments ready"
        batch_size = self._config.batch_size
        return f"{batch_size - self.rollout_queue.free()} of {batch_size} rollouts"

    def restarts(self) -> dict[str, int]:
        tasks = self._config.suite.tasks
        counts = np.zeros(len(tasks), np.int64)
        for pool in self.threads.pools:
            np.add.at(counts, pool.task_ids, pool.restarts)
        return {task: int(n) for task, n in zip(tasks, counts, strict=True) if n}


class ActorThreads(Threads):
    """Threads that act, each with environments and a policy of its own."""

    def __init__(
        self,
        config: Config,
        spec: Rollout,
        ends: Sequence[tuple[WeightSource, RolloutSink]],
        seed: np.random.SeedSequence,
        policies: dict[int, Policy] | None = None,
    ):
        """Prepares a thread for each source of weights and sink of rollouts.

        `policies` of ended threads with the same agent and tasks, by thread number, are used
        again; missing ones are added.
        """
        super().__init__()
        self._config = config
        self._spec = spec
        self._ends = ends
        self._seeds = seed.spawn(len(ends))
        self.clocks = [StageClock() for _ in ends]  # They measure where each thread's time goes.
        self.policies = {} if policies is None else policies
        self.pools: list[EnvironmentPool] = []  # Threads that have begun add theirs.
        # Numbers of environments, of which all threads add those that they make and start.
        self.made: list[int] = []
        self.started: list[int] = []

    def start(self) -> None:
        config = self._config
        dealt = factory.deal_tasks(
            config.num_actors, len(config.suite.tasks), len(self._ends), max(0, config.task)
        )
        for i, task_ids in enumerate(dealt):
            self.start_thread(f"actor-{i}", functools.partial(self._act, i, task_ids))

    def stop(self) -> None:
        for _, sink in self._ends:
            sink.close()

    def _act(self, i: int, task_ids: np.ndarray) -> None:
        (source, sink), seed = self._ends[i], self._seeds[i]
        actor_seed = int(seed.spawn(1)[0].generate_state(1)[0])
        policy = self.policies.get(i)
        if policy is None:
            agent = factory.make_agent(self._config, self._spec)
            policy = self.policies[i] = Policy(agent, source, actor_seed, len(task_ids))
        else:
            policy.restart(source, actor_seed)
        options = self._config.environment_options(training=True)
        with reporting(self.made.append):
            environments = factory.make_environments(
                options, self._config.suite, task_ids, seed, len(self._ends)
            )
        self.pools.append(environments)
        with reporting(self.started.append):
            run_actor(environments, policy, sink, self._spec, self.clocks[i], actor_seed)
