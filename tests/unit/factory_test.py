"""The parts of a run are those that its configuration and the machine ask for."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import hardware
from tests.fakes.agent_inputs import make_inputs


@pytest.mark.parametrize(
    ("level_name", "use_lstm", "stacks"),
    [("atari57", False, True), ("atari57", True, True), ("catch5", True, False)],
)
def test_a_run_on_atari_stacks_frames_and_one_on_catch_does_not(
    level_name: str, use_lstm: bool, stacks: bool
) -> None:
    flags = {"level_name": level_name, "network": "shallow", "use_lstm": use_lstm}
    config = Config.from_flags({**flags, "precision": "float32"})
    spec = factory.make_rollout_spec(config)
    frame = spec.env_outputs.observation.shape[1:]
    agent = factory.make_agent(config, spec)
    state = agent.initial_state(1)
    assert [(leaf.shape, leaf.dtype) for leaf in spec.agent_state] == [
        (tensor.shape[1:], tensor.dtype) for tensor in state
    ]
    assert len(state) == 2 * use_lstm + stacks
    kernel = next(v for v in agent.trainable_variables if v.shape[:2] == (8, 8))
    assert kernel.shape[2] == (4 if stacks else frame[-1])
    if stacks:
        assert frame == (84, 84, 1)
        assert (state[-1].shape, state[-1].dtype) == ((1, 84, 84), tf.uint32)


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


@pytest.mark.parametrize(
    ("cores", "num_parts", "precision"),
    [(1, 9, "float32"), (4, 12, "bfloat16"), (16, 16, "float32")],
)
def test_a_run_on_a_processor_has_parts_for_all_cores_and_the_precision_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, cores: int, num_parts: int, precision: str
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


def test_actors_need_not_know_of_pixel_control() -> None:
    parts = []
    for pixel_control in (False, True):
        flags = {"level_name": "pong", "network": "shallow", "precision": "float32"}
        config = Config.from_flags({**flags, "pixel_control": pixel_control})
        spec = factory.make_rollout_spec(config)
        learner = factory.make_learner(config, spec)
        assert (learner.q_head is not None) == pixel_control
        parts.append((spec, [(v.name, v.shape) for v in learner.agent.variables]))
    assert parts[0] == parts[1]
