"""Rollouts in the making record their own beginning."""

import numpy as np
import tensorflow as tf

from environments import ArraySpec, StepOutput, StepOutputInfo
from scalable_agent_popart.rollouts import AgentOutput, RolloutBuffer, rollout_spec


def test_a_rollout_records_the_state_and_the_weights_that_it_began_with() -> None:
    spec = rollout_spec(ArraySpec((), np.uint8), (tf.zeros([1, 2]),), 3, unroll_length=1)
    buffer = RolloutBuffer(spec, np.array([5, 6, 7], np.int32))
    environments = np.arange(3)

    def write(ids: np.ndarray) -> None:
        zeros = np.zeros(len(ids), np.float32)
        info = StepOutputInfo(zeros, zeros.astype(np.int32), zeros > 0)
        step = StepOutput(zeros, info, zeros > 0, ids.astype(np.uint8))
        answer = AgentOutput(zeros.astype(np.int32), np.zeros((len(ids), 3), np.float32))
        buffer.write(ids, step, answer, fresh=zeros > 0)

    write(environments)
    for version, ids in ((4, np.array([0, 2])), (9, np.array([1]))):
        buffer.begin(ids, (np.full((len(ids), 2), version, np.float32),), version)
    write(environments)
    assert buffer.full(environments).all()
    taken = buffer.take(environments)
    assert taken.policy_version.tolist() == [4, 9, 4]
    assert taken.agent_state[0].tolist() == [[4, 4], [9, 9], [4, 4]]
    assert taken.task_id.tolist() == [5, 6, 7]
    np.testing.assert_array_equal(taken.env_outputs.observation, [[i, i] for i in range(3)])
