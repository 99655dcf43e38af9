"""Rollouts in the making record their own beginning."""

import numpy as np
import tensorflow as tf

from scalable_agent_popart.rollouts import AgentOutput, RolloutBuffer, rollout_spec
from tests.fakes.counting_environment import OBSERVATION, CountingEnvironments


def test_a_rollout_records_the_state_and_the_weights_that_it_began_with() -> None:
    environments, ids = CountingEnvironments(np.array([5, 6, 7])), np.arange(3)
    spec = rollout_spec(OBSERVATION, (tf.zeros([1, 2]),), 3, unroll_length=1)
    buffer = RolloutBuffer(spec, environments.task_ids)
    answer = AgentOutput(np.zeros(3, np.int32), np.zeros((3, 3), np.float32))
    buffer.write(ids, environments.reset(), answer, fresh=np.ones(3, bool))
    for version, begun in ((4, [0, 2]), (9, [1])):
        buffer.begin(np.array(begun), (np.full((len(begun), 2), version),), version)
    environments.send(answer.action)
    buffer.write(ids, environments.receive(), answer, fresh=np.zeros(3, bool))
    assert buffer.full(ids).all()
    taken = buffer.take(ids)
    assert taken.policy_version.tolist() == [4, 9, 4]
    assert taken.agent_state[0].tolist() == [[4, 4], [9, 9], [4, 4]]
    assert taken.task_id.tolist() == [5, 6, 7]
    numbers = taken.env_outputs.observation[:, :, 0, 0, 0]
    assert numbers.tolist() == [[0, 0], [1, 1], [2, 2]]
