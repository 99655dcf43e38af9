"""The agent over time: resets, single steps and parts against unrolls, inputs and gradients."""

import numpy as np
import pytest
import tensorflow as tf

from environments import MAX_WORDS, Observation
from scalable_agent_popart.agent import frame_stack
from scalable_agent_popart.agent.agent import Agent, Unroll
from scalable_agent_popart.agent.networks import ShallowTorso
from scalable_agent_popart.rollouts import AgentOutput
from tests.fakes.agent_inputs import (
    FRAME,
    NUM_ACTIONS,
    SMALL,
    assert_close,
    make_inputs,
    part,
    random_state,
    with_done,
    with_game_over,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    tf.random.set_seed(0)


def test_the_lstm_starts_again_at_zero_where_an_episode_ended() -> None:
    agent = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), use_lstm=True)
    actions, env_outputs = make_inputs(6, 2)
    uncut = agent.unroll(actions, env_outputs, random_state(2))
    for start in (3, 0):
        cut = agent.unroll(actions, with_done(env_outputs, (start, 0)), random_state(2))
        rest = part(env_outputs, slice(start, None))
        fresh = agent.unroll(actions[start:], rest, agent.initial_state(2))
        assert_close(cut.policy_logits[start:, 0], fresh.policy_logits[:, 0])
        assert_close(part(cut.state, 0), part(fresh.state, 0))
        # The environment without an end remembers, and the end reaches back to no earlier step.
        np.testing.assert_array_equal(cut.policy_logits[:start], uncut.policy_logits[:start])
        np.testing.assert_array_equal(cut.policy_logits[:, 1], uncut.policy_logits[:, 1])
        assert np.abs(cut.features[start, 0] - uncut.features[start, 0]).max() > 0.01


def test_an_agent_that_stacks_frames_sees_what_one_that_is_given_stacks_sees() -> None:
    stacking = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), use_lstm=True, stacked_frame=FRAME)
    given = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), use_lstm=True)
    actions, env_outputs = make_inputs(8, 2, FRAME.shape)
    # A lost life restarts the LSTM but not the stack; a game's end restarts both.
    env_outputs = with_game_over(with_done(env_outputs, (5, 1), (0, 1)), (3, 0), (6, 0))
    state = random_state(2, use_lstm=True, stacks=True)
    ends = env_outputs.info.episode_end
    stacks, last = frame_stack.unroll(env_outputs.observation, ends, state[-1])
    stacked_outputs = env_outputs._replace(observation=stacks)
    given.unroll(actions, stacked_outputs, state[:2])
    stacking.unroll(actions, env_outputs, state)
    for one, other in zip(given.variables, stacking.variables, strict=True):
        other.assign(one)
    expected = given.unroll(actions, stacked_outputs, state[:2])
    unroll = stacking.unroll(actions, env_outputs, state)
    assert_close(unroll.policy_logits, expected.policy_logits)
    assert_close(unroll.state[0], expected.state[0])
    np.testing.assert_array_equal(unroll.state[2], last)


def test_the_features_hold_the_clipped_reward_and_the_last_action() -> None:
    agent = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), use_lstm=False)
    actions, env_outputs = make_inputs(4, 2)
    features = agent.unroll(actions, env_outputs, ()).features.numpy()
    rewards = env_outputs.reward.numpy()
    assert np.abs(rewards).max() > 1
    np.testing.assert_array_equal(features[..., 256], np.clip(rewards, -1, 1))
    np.testing.assert_array_equal(features[..., 257:], np.eye(NUM_ACTIONS)[actions])
    assert features[..., :256].any()


def test_actions_are_sampled_from_the_policy_by_the_given_seed() -> None:
    agent = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), use_lstm=False)
    actions, env_outputs = part(make_inputs(1, 1000), 0)

    def sample(*seed: int) -> AgentOutput:
        return agent.step(actions, env_outputs, (), tf.constant(seed))[0]

    first = sample(3, 5)
    tf.random.set_seed(7)  # The global generator has no say.
    np.testing.assert_array_equal(first.action, sample(3, 5).action)
    for other in (sample(3, 6), sample(4, 5)):
        assert (first.action.numpy() != other.action.numpy()).any()
    agent._policy_head.b.assign([0.0, -100.0, 1.0])
    output = sample(0, 0)
    assert (output.action.dtype, output.action.shape) == (tf.int32, (1000,))
    counts = np.bincount(output.action, minlength=NUM_ACTIONS)
    expected = tf.nn.softmax(output.policy_logits).numpy().sum(axis=0)
    # Four standard deviations of a thousand samples, under a fixed seed.
    assert 0 < abs(counts[0] - expected[0]) < 4 * np.sqrt(1000 / 4)
    assert counts[1] == 0


def test_the_agent_reads_the_instruction_of_each_step() -> None:
    agent = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), use_lstm=True, reads_instructions=True)
    actions, env_outputs = make_inputs(4, 2)
    words = np.zeros((2, 4, 2, MAX_WORDS), np.int32)
    words[1, 2, 1, :6] = 7
    logits = []
    for instruction in words:
        seen = Observation(env_outputs.observation, tf.constant(instruction))
        inputs = env_outputs._replace(observation=seen)
        logits.append(agent.unroll(actions, inputs, agent.initial_state(2)).policy_logits.numpy())
    differs = np.any(logits[0] != logits[1], axis=-1)
    # The LSTM remembers it.
    np.testing.assert_array_equal(differs, [[False, False]] * 2 + [[False, True]] * 2)


def unroll_and_differentiate(
    num_parts: int, use_lstm: bool, stacks: bool
) -> tuple[Unroll, dict[str, np.ndarray]]:
    """Unrolls 7 steps with ends of both kinds; returns also each weight's gradient.

    It is that of a sum of the outputs, every number with a weight of its own. The agent has the
    same weights whatever the number of parts.
    """
    torso = ShallowTorso(tf.float32, num_parts=num_parts)
    agent = Agent(NUM_ACTIONS, torso, use_lstm, FRAME if stacks else None)
    actions, env_outputs = make_inputs(7, 3, FRAME.shape if stacks else SMALL)
    env_outputs = with_game_over(with_done(env_outputs, (2, 1)), (4, 0))
    inputs = (actions, env_outputs, random_state(3, use_lstm, stacks))
    agent.unroll(*inputs)
    rng = np.random.default_rng(1)
    for variable in agent.variables:
        variable.assign(rng.normal(scale=0.2, size=variable.shape))
    with tf.GradientTape() as tape:
        result = agent.unroll(*inputs)
        outputs = tf.concat([result.features, result.policy_logits], axis=-1)
        loss = tf.reduce_sum(outputs * tf.constant(rng.normal(size=outputs.shape), tf.float32))
    gradients = tape.gradient(loss, agent.trainable_variables)
    pairs = zip(agent.trainable_variables, gradients, strict=True)
    return result, {variable.name: gradient.numpy() for variable, gradient in pairs}


@pytest.mark.parametrize(
    ("num_parts", "use_lstm", "stacks"),
    [(2, False, False), (3, True, False), (20, True, True)],
)
def test_parts_change_neither_outputs_nor_gradients(
    num_parts: int, use_lstm: bool, stacks: bool
) -> None:
    whole, gradients = unroll_and_differentiate(1, use_lstm, stacks)
    in_parts, others = unroll_and_differentiate(num_parts, use_lstm, stacks)
    assert_close(in_parts.policy_logits, whole.policy_logits)
    assert_close(in_parts.features, whole.features)
    for name, gradient in gradients.items():
        size = np.abs(gradient).max()
        assert size > 0, "a test of nothing"
        # Sums of a few hundred terms in another order.
        np.testing.assert_allclose(others[name], gradient, rtol=0, atol=1e-5 * size)
