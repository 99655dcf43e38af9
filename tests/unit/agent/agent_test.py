"""The agent over time: resets, single steps against unrolls, inputs and shapes."""

import numpy as np
import pytest
import tensorflow as tf

from environments import ArraySpec
from scalable_agent_popart import factory
from scalable_agent_popart.agent import frame_stack, networks
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.config import Config
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

_ATARI = (84, 84, 4)


@pytest.fixture(autouse=True)
def _seed() -> None:
    tf.random.set_seed(0)


def test_the_lstm_starts_again_at_zero_where_an_episode_ended() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=True)
    actions, env_outputs = make_inputs(6, 2)
    cut = with_done(env_outputs, (3, 0))
    whole = agent.unroll(actions, cut, random_state(2))
    fresh = agent.unroll(actions[3:], part(env_outputs, slice(3, None)), agent.initial_state(2))
    assert_close(whole.policy_logits[3:, 0], fresh.policy_logits[:, 0])
    assert_close(whole.features[3:, 0], fresh.features[:, 0])
    assert_close(part(whole.state, 0), part(fresh.state, 0))
    # The environment without an end remembers, and the end reaches back to no earlier step.
    assert np.abs(whole.features[3, 1] - fresh.features[0, 1]).max() > 0.01
    uncut = agent.unroll(actions, env_outputs, random_state(2))
    np.testing.assert_array_equal(whole.policy_logits[:3], uncut.policy_logits[:3])
    np.testing.assert_array_equal(whole.policy_logits[:, 1], uncut.policy_logits[:, 1])
    assert np.abs(whole.features[3, 0] - uncut.features[3, 0]).max() > 0.01


def test_an_end_at_the_first_step_forgets_the_given_state() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=True)
    actions, env_outputs = make_inputs(2, 2)
    ended = with_done(env_outputs, (0, 0), (0, 1))
    forgot = agent.unroll(actions, ended, random_state(2))
    started = agent.unroll(actions, env_outputs, agent.initial_state(2))
    np.testing.assert_array_equal(forgot.policy_logits, started.policy_logits)
    remembered = agent.unroll(actions, env_outputs, random_state(2))
    assert np.abs(remembered.features - started.features).max() > 0.01


@pytest.mark.parametrize("stacked_frame", [None, FRAME])
@pytest.mark.parametrize("use_lstm", [False, True])
def test_the_initial_state_is_zero_and_holds_what_the_agent_remembers(
    use_lstm: bool, stacked_frame: ArraySpec | None
) -> None:
    state = Agent(NUM_ACTIONS, "shallow", use_lstm, stacked_frame).initial_state(5)
    expected = [((5, 256), tf.float32)] * 2 if use_lstm else []
    expected += [((5, *FRAME.shape[:2]), tf.uint32)] if stacked_frame else []
    assert isinstance(state, tuple)
    assert [(tensor.shape, tensor.dtype) for tensor in state] == expected
    assert all(not tensor.numpy().any() for tensor in state)


@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("use_lstm", [False, True])
def test_an_unroll_is_its_single_steps_with_the_state_carried(use_lstm: bool, stacks: bool) -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm, FRAME if stacks else None)
    actions, env_outputs = make_inputs(5, 3, FRAME.shape if stacks else SMALL)
    env_outputs = with_game_over(with_done(env_outputs, (2, 1), (0, 2)), (3, 0))
    start = random_state(3, use_lstm, stacks)
    unroll = agent.unroll(actions, env_outputs, start)
    state = start
    for t in range(5):
        output, state = agent.step(
            actions[t], part(env_outputs, t), state, tf.constant([0, t], tf.int32)
        )
        assert_close(output.policy_logits, unroll.policy_logits[t])
    assert len(state) == len(unroll.state) == 2 * use_lstm + stacks
    for carried, unrolled in zip(state, unroll.state, strict=True):
        assert_close(np.float64(carried), np.float64(unrolled))
    if stacks:
        np.testing.assert_array_equal(state[-1], unroll.state[-1])


def test_an_agent_that_stacks_frames_sees_what_one_that_is_given_stacks_sees() -> None:
    stacking = Agent(NUM_ACTIONS, "shallow", use_lstm=True, stacked_frame=FRAME)
    given = Agent(NUM_ACTIONS, "shallow", use_lstm=True)
    actions, env_outputs = make_inputs(8, 2, FRAME.shape)
    env_outputs = with_game_over(with_done(env_outputs, (5, 1)), (3, 0), (6, 0))
    state = random_state(2, use_lstm=True, stacks=True)
    stacks, last = frame_stack.unroll(
        env_outputs.observation, env_outputs.info.episode_end, state[-1]
    )
    stacked_outputs = env_outputs._replace(observation=stacks)
    given.unroll(actions, stacked_outputs, state[:2])
    stacking.unroll(actions, env_outputs, state)
    for one, other in zip(given.variables, stacking.variables, strict=True):
        other.assign(one)
    expected = given.unroll(actions, stacked_outputs, state[:2])
    unroll = stacking.unroll(actions, env_outputs, state)
    assert_close(unroll.policy_logits, expected.policy_logits)
    assert_close(unroll.features, expected.features)
    assert_close(unroll.state[0], expected.state[0])
    np.testing.assert_array_equal(unroll.state[2], last)


def test_a_lost_life_leaves_the_stack_of_frames_and_the_end_of_a_game_clears_it() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=False, stacked_frame=FRAME)
    actions, env_outputs = make_inputs(7, 2, FRAME.shape)
    state = random_state(2, use_lstm=False, stacks=True)
    going_on = agent.unroll(actions, env_outputs, state)
    lost = agent.unroll(actions, with_done(env_outputs, (3, 0)), state)
    np.testing.assert_array_equal(lost.features, going_on.features)
    np.testing.assert_array_equal(lost.state[0], going_on.state[0])
    over = agent.unroll(actions, with_game_over(env_outputs, (3, 0)), state)
    fresh = agent.unroll(actions[3:], part(env_outputs, slice(3, None)), agent.initial_state(2))
    assert_close(over.features[3:, 0], fresh.features[:, 0])
    changed = np.abs(over.features - going_on.features).max(axis=-1) > 1e-3
    assert changed[:, 0].tolist() == [False, False, False, True, True, True, False]
    assert not changed[:, 1].any(), "the other game goes on"


def test_a_lost_life_restarts_the_lstm_beside_a_stack_that_goes_on() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=True, stacked_frame=FRAME)
    actions, env_outputs = make_inputs(1, 2, FRAME.shape)
    memory, stack = random_state(2), random_state(2, use_lstm=False, stacks=True)
    lost = with_done(env_outputs, (0, 0), (0, 1))
    after = agent.unroll(actions, lost, (*memory, *stack))
    expected = agent.unroll(actions, env_outputs, (*agent.initial_state(2)[:2], *stack))
    np.testing.assert_array_equal(after.policy_logits, expected.policy_logits)
    np.testing.assert_array_equal(after.state[2], expected.state[2])
    black = agent.unroll(actions, env_outputs, agent.initial_state(2))
    assert np.abs(after.features - black.features).max() > 1e-3, "the stack is looked at"


@pytest.mark.parametrize("name", ["deep", "shallow"])
@pytest.mark.parametrize(
    ("shape", "flat"),
    # Of the last layer of 32 channels: 84 / 8 and 10 / 8, 5 / 8, each rounded up.
    [(_ATARI, 11 * 11 * 32), (SMALL, 2 * 1 * 32)],
)
def test_torsos_give_256_features(name: str, shape: tuple[int, ...], flat: int) -> None:
    torso = networks.TORSOS[name]()
    features = torso(tf.random.stateless_uniform((2, *shape), [0, 0]))
    assert features.shape == (2, 256)
    assert (features.numpy() >= 0).all()
    assert (features.numpy() > 0).any()
    kernels = [v.shape for v in torso.trainable_variables if len(v.shape) > 1]
    assert (flat, 256) in kernels
    convolutions = sorted(tuple(kernel) for kernel in kernels if len(kernel) == 4)
    channels = shape[-1]
    if name == "shallow":
        assert convolutions == sorted([(8, 8, channels, 16), (4, 4, 16, 32)])
    else:
        sections = ((channels, 16), (16, 32), (32, 32))
        expected = [(3, 3, *section) for section in sections]
        expected += [(3, 3, width, width) for _, width in sections for _ in range(4)]
        assert convolutions == sorted(expected)


@pytest.mark.parametrize("network", ["deep", "shallow"])
@pytest.mark.parametrize("shape", [_ATARI, SMALL])
@pytest.mark.parametrize("use_lstm", [False, True])
def test_an_unroll_gives_features_and_logits_at_every_step(
    network: str, shape: tuple[int, ...], use_lstm: bool
) -> None:
    agent = Agent(NUM_ACTIONS, network, use_lstm)
    actions, env_outputs = make_inputs(2, 3, shape)
    unroll = agent.unroll(actions, env_outputs, agent.initial_state(3))
    assert unroll.policy_logits.shape == (2, 3, NUM_ACTIONS)
    # Without an LSTM: the torso's features, the reward and the one-hot last action.
    assert unroll.features.shape == (2, 3, 256 if use_lstm else 256 + 1 + NUM_ACTIONS)
    assert unroll.policy_logits.dtype == unroll.features.dtype == tf.float32


def test_the_last_reward_is_clipped_to_one_in_size() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = make_inputs(1, 2)

    def logits(reward: float) -> np.ndarray:
        inputs = env_outputs._replace(reward=tf.fill([1, 2], reward))
        return agent.unroll(actions, inputs, ()).policy_logits.numpy()

    np.testing.assert_array_equal(logits(5.0), logits(1.0))
    np.testing.assert_array_equal(logits(-300.0), logits(-1.0))
    assert (np.abs(logits(0.5) - logits(1.0)) > 1e-4).all()
    assert (np.abs(logits(-1.0) - logits(1.0)) > 1e-4).all()


def test_the_features_hold_the_clipped_reward_and_the_last_action() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = make_inputs(4, 2)
    features = agent.unroll(actions, env_outputs, ()).features.numpy()
    np.testing.assert_array_equal(features[..., 256], np.clip(env_outputs.reward, -1, 1))
    np.testing.assert_array_equal(features[..., 257:], np.eye(NUM_ACTIONS)[actions])


def test_bytes_are_seen_as_fractions_of_255() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = make_inputs(2, 2)
    fractions = tf.cast(env_outputs.observation, tf.float32) / 255.0
    of_bytes = agent.unroll(actions, env_outputs, ())
    of_fractions = agent.unroll(actions, env_outputs._replace(observation=fractions), ())
    assert_close(of_bytes.features, of_fractions.features)
    assert of_bytes.features[..., :256].numpy().any()


def test_the_same_seed_samples_the_same_actions() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = part(make_inputs(1, 64), 0)
    first, _ = agent.step(actions, env_outputs, (), tf.constant([3, 5]))
    tf.random.set_seed(7)  # The global generator has no say.
    again, _ = agent.step(actions, env_outputs, (), tf.constant([3, 5]))
    np.testing.assert_array_equal(first.action, again.action)
    for seed in ([3, 6], [4, 5]):
        other, _ = agent.step(actions, env_outputs, (), tf.constant(seed))
        assert (first.action.numpy() != other.action.numpy()).any()


def test_actions_are_drawn_from_the_policy() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = part(make_inputs(1, 1000), 0)
    agent.step(actions, env_outputs, (), tf.constant([0, 0]))
    bias = next(
        variable for variable in agent.trainable_variables if variable.shape == (NUM_ACTIONS,)
    )
    bias.assign([0.0, -100.0, 1.0])
    output, _ = agent.step(actions, env_outputs, (), tf.constant([0, 0]))
    assert output.action.dtype == tf.int32
    assert output.action.shape == (1000,)
    counts = np.bincount(output.action, minlength=NUM_ACTIONS)
    expected = tf.nn.softmax(output.policy_logits).numpy().sum(axis=0)
    assert counts[1] == 0
    # Four standard deviations of a thousand draws, under a fixed seed.
    assert abs(counts[0] - expected[0]) < 4 * np.sqrt(1000 / 4)
    assert counts[0] > 0


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize("network", ["deep", "shallow"])
def test_every_variable_of_the_agent_is_one_of_its_policy(network: str, use_lstm: bool) -> None:
    agent = Agent(NUM_ACTIONS, network, use_lstm)
    actions, env_outputs = make_inputs(2, 2)
    with tf.GradientTape() as tape:
        logits = agent.unroll(actions, env_outputs, agent.initial_state(2)).policy_logits
    variables = agent.trainable_variables
    # A value head, or anything else that no action depends on, would have no gradient here.
    assert all(gradient is not None for gradient in tape.gradient(logits, variables))
    assert {v.ref() for v in variables} == {v.ref() for v in agent.variables}
    torso = {"deep": 15 * 2 + 2, "shallow": 2 * 2 + 2}[network]
    assert len(variables) == torso + (3 if use_lstm else 0) + 2


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize(("level_name", "stacks"), [("atari57", True), ("catch5", False)])
def test_a_run_on_atari_stacks_frames_and_one_on_catch_does_not(
    level_name: str, stacks: bool, use_lstm: bool
) -> None:
    flags = {"level_name": level_name, "network": "shallow", "use_lstm": use_lstm}
    config = Config.from_flags(flags)
    spec = factory.make_rollout_spec(config)
    frame = spec.env_outputs.observation.shape[1:]
    agent = factory.make_agent(config, spec)
    state = agent.initial_state(1)
    assert [(leaf.shape, leaf.dtype) for leaf in spec.agent_state] == [
        (tensor.shape[1:], tensor.dtype) for tensor in state
    ]
    assert len(state) == 2 * use_lstm + stacks
    kernel = next(v for v in agent.trainable_variables if v.shape[:2] == (8, 8))
    if stacks:
        assert frame == (84, 84, 1)
        assert (state[-1].shape, state[-1].dtype) == ((1, 84, 84), tf.uint32)
        assert kernel.shape[2] == 4
    else:
        assert kernel.shape[2] == frame[-1]
