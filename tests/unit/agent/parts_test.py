"""An unroll in parts, and without a gradient through its last step, is the same unroll."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.agent import networks
from scalable_agent_popart.agent.agent import Agent, Unroll
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import hardware
from tests.fakes.agent_inputs import (
    FRAME,
    NUM_ACTIONS,
    SMALL,
    assert_close,
    make_inputs,
    random_state,
    with_done,
    with_game_over,
)

_STEPS = 7
_BATCH_SIZE = 3

# Sums of a few hundred terms in another order, in units of the largest of a variable's gradients.
_GRADIENT_TOLERANCE = 1e-5

Loss = Callable[[Unroll], tf.Tensor]


def make_agent(num_parts: int, use_lstm: bool = False, stacks: bool = False) -> Agent:
    """An agent that has the same weights whatever the number of parts."""
    tf.random.set_seed(0)
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm, FRAME if stacks else None, num_parts=num_parts)
    actions, env_outputs = make_inputs(1, 1, FRAME.shape if stacks else SMALL)
    agent.unroll(actions, env_outputs, agent.initial_state(1))
    rng = np.random.default_rng(1)
    for variable in agent.variables:
        variable.assign(rng.normal(scale=0.2, size=variable.shape))
    return agent


def unroll(agent: Agent, loss: Loss, bootstrap: bool = False) -> tuple[Unroll, list[np.ndarray]]:
    """An unroll with ends of both kinds, and the loss's gradient of every weight."""
    types = [tensor.dtype for tensor in agent.initial_state(1)]
    use_lstm, stacks = tf.float32 in types, tf.uint32 in types
    actions, env_outputs = make_inputs(_STEPS, _BATCH_SIZE, FRAME.shape if stacks else SMALL)
    env_outputs = with_game_over(with_done(env_outputs, (2, 1)), (4, 0))
    state = random_state(_BATCH_SIZE, use_lstm, stacks)
    with tf.GradientTape() as tape:
        result = agent.unroll(actions, env_outputs, state, bootstrap=bootstrap)
        value = loss(result)
    gradients = tape.gradient(value, agent.trainable_variables, unconnected_gradients="zero")
    return result, [gradient.numpy() for gradient in gradients]


def weighted(tensor: tf.Tensor) -> tf.Tensor:
    """A scalar that every number of the tensor, and no two alike, has a say in."""
    rng = np.random.default_rng(2)
    return tf.reduce_sum(tensor * tf.constant(rng.normal(size=tensor.shape), tf.float32))


def of_all_steps(result: Unroll) -> tf.Tensor:
    """A loss of features and logits at every step."""
    return weighted(result.features) + weighted(result.policy_logits)


def of_all_but_the_last_step(result: Unroll) -> tf.Tensor:
    """A loss such as the learner's."""
    return weighted(result.features[:-1]) + weighted(result.policy_logits[:-1])


def of_the_last_step(result: Unroll) -> tf.Tensor:
    """A loss that the learner must not have."""
    return weighted(result.features[-1])


def assert_same_unroll(actual: Unroll, expected: Unroll) -> None:
    assert_close(actual.policy_logits, expected.policy_logits)
    assert_close(actual.features, expected.features)
    for one, other in zip(actual.state, expected.state, strict=True):
        assert_close(np.float64(one), np.float64(other))


def assert_same_gradients(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(actual, expected, strict=True):
        size = np.abs(other).max()
        assert size > 0, "a test of nothing"
        np.testing.assert_allclose(one, other, rtol=0, atol=_GRADIENT_TOLERANCE * size)


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("num_parts", [2, 3, _STEPS, _STEPS + 1, 20])
def test_the_number_of_parts_changes_neither_outputs_nor_gradients(
    num_parts: int, bootstrap: bool
) -> None:
    whole, gradients = unroll(make_agent(1), of_all_steps, bootstrap)
    in_parts, their_gradients = unroll(make_agent(num_parts), of_all_steps, bootstrap)
    assert_same_unroll(in_parts, whole)
    assert_same_gradients(their_gradients, gradients)


@pytest.mark.parametrize(("use_lstm", "stacks"), [(True, False), (False, True), (True, True)])
def test_parts_go_with_memory_and_stacks(use_lstm: bool, stacks: bool) -> None:
    whole, gradients = unroll(make_agent(1, use_lstm, stacks), of_all_steps)
    in_parts, their_gradients = unroll(make_agent(4, use_lstm, stacks), of_all_steps)
    assert_same_unroll(in_parts, whole)
    assert_same_gradients(their_gradients, gradients)


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("use_lstm", [False, True])
def test_a_bootstrap_step_changes_no_output_and_no_gradient_of_the_steps_before(
    use_lstm: bool, stacks: bool, num_parts: int
) -> None:
    agent = make_agent(num_parts, use_lstm, stacks)
    plain, gradients = unroll(agent, of_all_but_the_last_step)
    bootstrapped, their_gradients = unroll(agent, of_all_but_the_last_step, bootstrap=True)
    assert_same_unroll(bootstrapped, plain)
    assert_same_gradients(their_gradients, gradients)


def test_no_gradient_of_a_bootstrap_step_reaches_the_convolutions() -> None:
    agent = make_agent(num_parts=2)
    kernels = [len(variable.shape) == 4 for variable in agent.trainable_variables]
    assert sum(kernels) == 2
    for bootstrap in (False, True):
        _, gradients = unroll(agent, of_the_last_step, bootstrap)
        for variable, gradient in zip(agent.trainable_variables, gradients, strict=True):
            if "first" in variable.name or "second" in variable.name:
                assert gradient.any() != bootstrap, variable.name


def test_a_loss_of_the_bootstrap_step_still_learns_from_the_steps_before_through_the_lstm() -> None:
    agent = make_agent(num_parts=2, use_lstm=True)
    _, stopped = unroll(agent, of_the_last_step, bootstrap=True)
    _, whole = unroll(agent, of_the_last_step)
    kernels = [i for i, v in enumerate(agent.trainable_variables) if len(v.shape) == 4]
    for i in kernels:
        assert stopped[i].any()
        assert np.abs(stopped[i] - whole[i]).max() > 1e-3 * np.abs(whole[i]).max()


def convolutions(config: Config, num_steps: int, bootstrap: bool) -> list[tf.DType]:
    """Types of the convolutions in an unroll of a run's agent."""
    spec = factory.make_rollout_spec(config)
    agent = factory.make_agent(config, spec)
    actions, env_outputs = make_inputs(num_steps, 2, spec.env_outputs.observation.shape[1:])

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        return agent.unroll(actions, env_outputs, agent.initial_state(2), bootstrap).features

    operations = run.get_concrete_function().graph.get_operations()
    return [op.outputs[0].dtype for op in operations if op.type == "Conv2D"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("cores", "num_parts"), [(1, 9), (2, 10), (4, 12), (16, 16)])
def test_a_run_on_a_processor_has_parts_for_all_cores_and_the_precision_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, precision: str, cores: int, num_parts: int
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    monkeypatch.setattr(hardware, "num_cores", lambda: cores)
    config = Config.from_flags(
        {"level_name": "catch5", "network": "shallow", "precision": precision}
    )
    layers = 2
    for num_steps, bootstrap, parts in (
        (21, True, num_parts + 1),
        (21, False, num_parts),
        (3, True, 3),  # No more than a part for each step, and one for the last.
    ):
        types = convolutions(config, num_steps, bootstrap)
        assert types == [tf.as_dtype(precision)] * layers * parts


def test_a_gpu_is_given_all_steps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    flags = {"level_name": "catch5", "network": "shallow", "precision": "float32"}
    assert convolutions(Config.from_flags(flags), 21, bootstrap=True) == [tf.float32] * 2 * 2


def test_auto_is_measured_with_the_images_and_the_network_of_the_run_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def faster_type(make_work: Callable[[tf.DType], Callable[[], object]]) -> tf.DType:
        for dtype in (tf.float32, tf.bfloat16):
            assert np.isfinite(make_work(dtype)())
        asked.append(make_work.args)  # type: ignore[attr-defined]
        return tf.bfloat16

    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    monkeypatch.setattr(hardware, "faster_type", faster_type)
    factory._faster_type.cache_clear()
    try:
        for network in ("shallow", "deep"):
            config = Config.from_flags({"level_name": "pong", "network": network})
            for _ in range(2):
                assert factory.settle(config) == replace(config, precision="bfloat16")
        assert [network for network, _ in asked] == ["shallow", "deep"]
        assert {shape[1:] for _, shape in asked} == {(84, 84, 4)}
        config = Config.from_flags({"level_name": "catch5"})
        assert set(convolutions(config, 3, bootstrap=True)) == {tf.bfloat16}
        assert asked[-1][1][1:] == (config.height, config.width, config.suite.num_channels)
        named = replace(config, precision="float32")
        assert factory.settle(named) is named
        assert len(asked) == 3
    finally:
        factory._faster_type.cache_clear()


def test_a_type_that_was_taken_elsewhere_and_cannot_be_computed_here_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "prepare_work", lambda make_work, dtype: None)
    config = Config.from_flags({"level_name": "catch5", "precision": "bfloat16"})
    factory._computes_bfloat16.cache_clear()
    try:
        with pytest.raises(UserError, match=r"cannot compute .* give --precision=float32"):
            factory.settle(config)
    finally:
        factory._computes_bfloat16.cache_clear()


def test_measuring_takes_no_random_number_of_the_run() -> None:
    drawn = []
    for measures in (False, True):
        tf.random.set_seed(3)
        if measures:
            networks.sample_work("shallow", (2, 21, 21, 1), tf.bfloat16)()
        drawn.append(tf.random.uniform([4]).numpy().tolist())
    assert drawn[0] == drawn[1]
