"""Weights that act change only when the policy takes others."""

import numpy as np
import pytest
import tensorflow as tf

from environments import StepOutput
from scalable_agent_popart.acting.policy import Policy, WeightStore
from scalable_agent_popart.errors import DivergenceError
from scalable_agent_popart.learning.rmsprop import RMSProp
from scalable_agent_popart.rollouts import Rollout
from tests.fakes.small_learner import snapshot
from tests.unit.acting.actor_test import make_agent


def _zero_step(spec: Rollout) -> StepOutput:
    """One environment's step, of zeros."""
    return tf.nest.map_structure(
        lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype.as_numpy_dtype), spec.env_outputs
    )


def test_a_policy_acts_with_the_weights_that_were_published_when_it_refreshed() -> None:
    learned, acting = (make_agent()[0] for _ in range(2))
    variables = learned.trainable_variables
    optimiser = RMSProp(variables, decay=0.9, momentum=0.0)
    store = WeightStore(variables, version=1)
    policy = Policy(acting, store, seed=0, num_environments=1)

    def assert_acts_with(version: int, weights: list[np.ndarray]) -> None:
        assert policy.refresh() == version
        for variable, expected in zip(acting.trainable_variables, weights, strict=True):
            np.testing.assert_array_equal(variable, expected)

    # The second learner goes back to older weights, and the third has others of the same version.
    for before, version in ((1, 2), (2, 0), (0, 0)):
        published = snapshot(variables)
        # The learner changes them in place.
        optimiser.apply([tf.ones_like(variable) for variable in variables], 1.0, 0.1)
        assert_acts_with(before, published)
        store.publish(version)
        if version == before:
            policy.restart(store, seed=0)
        assert_acts_with(version, snapshot(variables))


def test_a_policy_that_can_choose_no_action_says_that_training_diverged() -> None:
    agent, spec = make_agent()
    weights = agent.trainable_variables
    policy = Policy(agent, WeightStore(weights, version=1), seed=0, num_environments=1)
    for variable in weights:  # Finite, but not the sums of products.
        variable.assign(tf.fill(variable.shape, 1e30))
    with pytest.raises(DivergenceError, match="logits"):
        policy.act(np.array([0]), _zero_step(spec))


def test_actions_are_sampled_anew_at_every_step_and_decided_by_the_seed() -> None:
    agent, spec = make_agent()
    store = WeightStore(agent.trainable_variables, version=1)
    ids, step = np.array([0]), _zero_step(spec)

    def actions(seed: int) -> list[int]:
        policy, sampled = Policy(agent, store, seed, num_environments=1), []
        for _ in range(30):
            sampled.append(int(policy.act(ids, step).action[0]))
            policy.forget(ids)
        return sampled

    assert len(set(actions(1))) > 1, "at the same step"
    assert actions(1) == actions(1) != actions(2)
