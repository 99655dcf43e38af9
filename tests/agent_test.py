"""The agent over time: resets, single steps against unrolls, inputs and shapes."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from environments import StepOutput, StepOutputInfo
from scalable_agent_popart import networks
from scalable_agent_popart.agent import Agent, AgentState

_NUM_ACTIONS = 3
_SMALL = (10, 5, 3)
_ATARI = (84, 84, 4)

# Two ways to the same number through kernels for other batch sizes.
_TOLERANCE = 2e-6


@pytest.fixture(autouse=True)
def _seed() -> None:
    tf.random.set_seed(0)


def make_inputs(
    num_steps: int, batch_size: int, shape: tuple[int, ...] = _SMALL, seed: int = 0
) -> tuple[tf.Tensor, StepOutput]:
    """Random last actions and environment outputs `[T, B, ...]`; no episode ends."""
    rng = np.random.default_rng(seed)
    leading = (num_steps, batch_size)
    env_outputs = StepOutput(
        reward=tf.constant(rng.normal(size=leading), tf.float32),
        info=StepOutputInfo(
            episode_return=tf.zeros(leading),
            episode_step=tf.zeros(leading, tf.int32),
            episode_end=tf.zeros(leading, tf.bool),
        ),
        done=tf.zeros(leading, tf.bool),
        observation=tf.constant(rng.integers(256, size=(*leading, *shape)), tf.uint8),
    )
    return tf.constant(rng.integers(_NUM_ACTIONS, size=leading), tf.int32), env_outputs


def with_done(env_outputs: StepOutput, *at: tuple[int, int]) -> StepOutput:
    """The same outputs with episodes that end at these (time, environment)."""
    done = env_outputs.done.numpy()
    for index in at:
        done[index] = True
    return env_outputs._replace(done=tf.constant(done))


def part(inputs: Any, index: Any) -> Any:
    """The same slice of every tensor."""
    return tf.nest.map_structure(lambda tensor: tensor[index], inputs)


def random_state(batch_size: int, seed: int = 0) -> AgentState:
    """An LSTM's state in the middle of an episode."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(2, batch_size, 256))
    return tuple(tf.constant(draw, tf.float32) for draw in draws)


def assert_close(actual: Any, expected: Any) -> None:
    """Equality up to the rounding of float32."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=_TOLERANCE)


def test_the_lstm_starts_again_at_zero_where_an_episode_ended() -> None:
    agent = Agent(_NUM_ACTIONS, "shallow", use_lstm=True)
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
    agent = Agent(_NUM_ACTIONS, "shallow", use_lstm=True)
    actions, env_outputs = make_inputs(2, 2)
    ended = with_done(env_outputs, (0, 0), (0, 1))
    forgot = agent.unroll(actions, ended, random_state(2))
    started = agent.unroll(actions, env_outputs, agent.initial_state(2))
    np.testing.assert_array_equal(forgot.policy_logits, started.policy_logits)
    remembered = agent.unroll(actions, env_outputs, random_state(2))
    assert np.abs(remembered.features - started.features).max() > 0.01


def test_the_initial_state_is_zero_and_absent_without_an_lstm() -> None:
    state = Agent(_NUM_ACTIONS, "shallow", use_lstm=True).initial_state(5)
    assert [tensor.shape for tensor in state] == [(5, 256), (5, 256)]
    assert all(not tensor.numpy().any() for tensor in state)
    assert Agent(_NUM_ACTIONS, "shallow", use_lstm=False).initial_state(5) == ()


@pytest.mark.parametrize("use_lstm", [False, True])
def test_an_unroll_is_its_single_steps_with_the_state_carried(use_lstm: bool) -> None:
    agent = Agent(_NUM_ACTIONS, "shallow", use_lstm=use_lstm)
    actions, env_outputs = make_inputs(5, 3)
    env_outputs = with_done(env_outputs, (2, 1), (0, 2))
    start = random_state(3) if use_lstm else ()
    unroll = agent.unroll(actions, env_outputs, start)
    state = start
    for t in range(5):
        output, state = agent.step(
            actions[t], part(env_outputs, t), state, tf.constant([0, t], tf.int32)
        )
        assert_close(output.policy_logits, unroll.policy_logits[t])
    assert len(state) == len(unroll.state) == (2 if use_lstm else 0)
    for carried, unrolled in zip(state, unroll.state, strict=True):
        assert_close(carried, unrolled)


@pytest.mark.parametrize("name", ["deep", "shallow"])
@pytest.mark.parametrize(
    ("shape", "flat"),
    # Of the last layer of 32 channels: 84 / 8 and 10 / 8, 5 / 8, each rounded up.
    [(_ATARI, 11 * 11 * 32), (_SMALL, 2 * 1 * 32)],
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
@pytest.mark.parametrize("shape", [_ATARI, _SMALL])
@pytest.mark.parametrize("use_lstm", [False, True])
def test_an_unroll_gives_features_and_logits_at_every_step(
    network: str, shape: tuple[int, ...], use_lstm: bool
) -> None:
    agent = Agent(_NUM_ACTIONS, network, use_lstm)
    actions, env_outputs = make_inputs(2, 3, shape)
    unroll = agent.unroll(actions, env_outputs, agent.initial_state(3))
    assert unroll.policy_logits.shape == (2, 3, _NUM_ACTIONS)
    # Without an LSTM: the torso's features, the reward and the one-hot last action.
    assert unroll.features.shape == (2, 3, 256 if use_lstm else 256 + 1 + _NUM_ACTIONS)
    assert unroll.policy_logits.dtype == unroll.features.dtype == tf.float32


def test_the_last_reward_is_clipped_to_one_in_size() -> None:
    agent = Agent(_NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = make_inputs(1, 2)

    def logits(reward: float) -> np.ndarray:
        inputs = env_outputs._replace(reward=tf.fill([1, 2], reward))
        return agent.unroll(actions, inputs, ()).policy_logits.numpy()

    np.testing.assert_array_equal(logits(5.0), logits(1.0))
    np.testing.assert_array_equal(logits(-300.0), logits(-1.0))
    assert (np.abs(logits(0.5) - logits(1.0)) > 1e-4).all()
    assert (np.abs(logits(-1.0) - logits(1.0)) > 1e-4).all()


def test_the_features_hold_the_clipped_reward_and_the_last_action() -> None:
    agent = Agent(_NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = make_inputs(4, 2)
    features = agent.unroll(actions, env_outputs, ()).features.numpy()
    np.testing.assert_array_equal(features[..., 256], np.clip(env_outputs.reward, -1, 1))
    np.testing.assert_array_equal(features[..., 257:], np.eye(_NUM_ACTIONS)[actions])


def test_bytes_are_seen_as_fractions_of_255() -> None:
    agent = Agent(_NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = make_inputs(2, 2)
    fractions = tf.cast(env_outputs.observation, tf.float32) / 255.0
    of_bytes = agent.unroll(actions, env_outputs, ())
    of_fractions = agent.unroll(actions, env_outputs._replace(observation=fractions), ())
    assert_close(of_bytes.features, of_fractions.features)
    assert of_bytes.features[..., :256].numpy().any()


def test_the_same_seed_samples_the_same_actions() -> None:
    agent = Agent(_NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = part(make_inputs(1, 64), 0)
    first, _ = agent.step(actions, env_outputs, (), tf.constant([3, 5]))
    tf.random.set_seed(7)  # The global generator has no say.
    again, _ = agent.step(actions, env_outputs, (), tf.constant([3, 5]))
    np.testing.assert_array_equal(first.action, again.action)
    for seed in ([3, 6], [4, 5]):
        other, _ = agent.step(actions, env_outputs, (), tf.constant(seed))
        assert (first.action.numpy() != other.action.numpy()).any()


def test_actions_are_drawn_from_the_policy() -> None:
    agent = Agent(_NUM_ACTIONS, "shallow", use_lstm=False)
    actions, env_outputs = part(make_inputs(1, 1000), 0)
    agent.step(actions, env_outputs, (), tf.constant([0, 0]))
    bias = next(
        variable for variable in agent.trainable_variables if variable.shape == (_NUM_ACTIONS,)
    )
    bias.assign([0.0, -100.0, 1.0])
    output, _ = agent.step(actions, env_outputs, (), tf.constant([0, 0]))
    assert output.action.dtype == tf.int32
    assert output.action.shape == (1000,)
    counts = np.bincount(output.action, minlength=_NUM_ACTIONS)
    expected = tf.nn.softmax(output.policy_logits).numpy().sum(axis=0)
    assert counts[1] == 0
    # Four standard deviations of a thousand draws, under a fixed seed.
    assert abs(counts[0] - expected[0]) < 4 * np.sqrt(1000 / 4)
    assert counts[0] > 0


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize("network", ["deep", "shallow"])
def test_every_variable_of_the_agent_is_one_of_its_policy(network: str, use_lstm: bool) -> None:
    agent = Agent(_NUM_ACTIONS, network, use_lstm)
    actions, env_outputs = make_inputs(2, 2)
    with tf.GradientTape() as tape:
        logits = agent.unroll(actions, env_outputs, agent.initial_state(2)).policy_logits
    variables = agent.trainable_variables
    # A value head, or anything else that no action depends on, would have no gradient here.
    assert all(gradient is not None for gradient in tape.gradient(logits, variables))
    assert {v.ref() for v in variables} == {v.ref() for v in agent.variables}
    torso = {"deep": 15 * 2 + 2, "shallow": 2 * 2 + 2}[network]
    assert len(variables) == torso + (3 if use_lstm else 0) + 2
