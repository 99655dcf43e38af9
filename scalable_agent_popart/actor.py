"""An actor thread's work: step a batch of environments, hand over a rollout of each."""

from typing import Protocol

import numpy as np
import tensorflow as tf

from environments import BatchedEnvironment
from scalable_agent_popart.policy import Policy
from scalable_agent_popart.rollouts import AgentOutput, Rollout, RolloutBuffer
from scalable_agent_popart.stage_clock import StageClock


class RolloutSink(Protocol):
    """Where rollouts go."""

    def put(self, rollouts: Rollout) -> bool:
        """Copies N rollouts `[N, T + 1, ...]`, waiting for room; False once nobody listens."""
        ...


def run_actor(
    environment: BatchedEnvironment,
    policy: Policy,
    sink: RolloutSink,
    spec: Rollout,
    clock: StageClock,
) -> None:
    """Acts until the sink closes, with the latest weights at the start of each rollout.

    Args:
      environment: closed on return.
      policy: used by this actor alone.
      sink: takes the rollouts, one for each environment, every T steps.
      spec: of one environment's rollout.
      clock: is told where the time goes: `refresh`, `policy`, `environment`, `queue`.
    """
    num_environments = len(environment.task_ids)
    unroll_length = spec.env_outputs.reward.shape[0] - 1
    buffer = RolloutBuffer(spec, num_environments)
    try:
        env_output = environment.reset()
        agent_output = AgentOutput(
            action=np.zeros(num_environments, np.int32),
            policy_logits=np.zeros(
                (num_environments, *spec.agent_outputs.policy_logits.shape[1:]), np.float32
            ),
        )
        state = policy.initial_state(num_environments)
        clock.restart()
        while True:
            version = policy.refresh()
            first_state = tf.nest.map_structure(lambda tensor: tensor.numpy(), state)
            # Step 0 is the last step of the rollout before.
            buffer.write(0, env_output, agent_output)
            clock.finish("refresh")
            for step in range(1, unroll_length + 1):
                agent_output, state = policy.act(agent_output.action, env_output, state)
                clock.finish("policy")
                environment.send(agent_output.action)
                env_output = environment.receive()
                buffer.write(step, env_output, agent_output)
                clock.finish("environment")
            if not sink.put(buffer.rollouts(environment.task_ids, first_state, version)):
                return
            clock.finish("queue")
    finally:
        environment.close()
