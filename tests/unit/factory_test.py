"""The parts of a run are those that its configuration and the machine ask for."""

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.agent import networks
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system import hardware
from tests.fakes.agent_inputs import make_inputs


def make_config(level_name: str = "catch5", **flags: Any) -> Config:
    """Makes the configuration of a small run."""
    given = {"network": "shallow", "precision": "float32", **flags}
    return Config.from_flags({"level_name": level_name, **given})


@pytest.mark.parametrize(
    ("level_name", "use_lstm", "stacks"),
    [("atari57", False, True), ("atari57", True, True), ("catch5", True, False)],
)
def test_a_run_on_atari_stacks_frames_and_one_on_catch_does_not(
    level_name: str, use_lstm: bool, stacks: bool
) -> None:
    config = make_config(level_name, use_lstm=use_lstm)
    spec = factory.make_rollout_spec(config)
    frame = spec.env_outputs.observation.shape[1:]
    agent = factory.make_agent(config, spec)
    state = agent.initial_state(1)
    shapes = [(tensor.shape[1:], tensor.dtype) for tensor in state]
    assert [(leaf.shape, leaf.dtype) for leaf in spec.agent_state] == shapes
    assert shapes == [((256,), tf.float32)] * 2 * use_lstm + [((84, 84), tf.uint32)] * stacks
    assert not any(tensor.numpy().any() for tensor in state)
    kernel = next(v for v in agent.trainable_variables if v.shape[:2] == (8, 8))
    assert kernel.shape[2] == (4 if stacks else frame[-1])
    assert not stacks or frame == (84, 84, 1)


def test_seeds_decide_how_episodes_begin_where_threads_do_not_race() -> None:
    config = make_config()
    make = mock.Mock(wraps=config.suite.environment_factory)
    suite = dataclasses.replace(config.suite, environment_factory=make)
    for training, num_pools in ((True, 1), (True, 2), (False, 2)):
        random = np.random.SeedSequence(1)
        options = config.environment_options(training)
        factory.make_environments(options, suite, [0], random, num_pools).close()
    assert [call.args[3].reproducible for call in make.call_args_list] == [True, False, True]


def convolutions(config: Config, num_steps: int) -> list[str]:
    """Returns the types of the convolutions in an unroll of a run's agent, as for learning."""
    spec = factory.make_rollout_spec(config)
    agent = factory.make_agent(config, spec)
    actions, env_outputs = make_inputs(num_steps, 2, spec.env_outputs.observation.shape[1:])

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        return agent.unroll(actions, env_outputs, agent.initial_state(2)).features

    operations = run.get_concrete_function().graph.get_operations()
    return [op.outputs[0].dtype.name for op in operations if op.type == "Conv2D"]


@pytest.mark.parametrize(
    ("gpu", "cores", "num_parts", "precision"),
    [
        (False, 1, 9, "float32"),
        (False, 4, 12, "bfloat16"),
        (False, 16, 16, "float32"),
        (True, 4, 1, "float32"),
    ],
)
def test_a_run_has_parts_for_all_cores_of_a_processor_and_the_precision_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, cores: int, num_parts: int, precision: str
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: gpu)
    monkeypatch.setattr(factory.cores, "num_cores", lambda: cores)
    config, layers = make_config(precision=precision), 2
    assert convolutions(config, 21) == [precision] * layers * num_parts
    # There is no more than a part for each step.
    assert convolutions(config, 3) == [precision] * layers * min(3, num_parts)


@pytest.mark.parametrize(
    ("level_name", "flags", "num_microbatches"),
    [
        ("atari57", {}, 1),
        ("dmlab30", {}, 4),
        ("dmlab30", {"batch_size": 13}, 2),
        ("dmlab30", {"batch_size": 3, "unroll_length": 5000}, 3),
        ("dmlab30", {"network": "shallow"}, 1),
    ],
)
def test_a_batch_is_split_into_microbatches_where_the_deep_network_sees_many_pixels(
    monkeypatch: pytest.MonkeyPatch, level_name: str, flags: dict, num_microbatches: int
) -> None:
    config = make_config(level_name, **{"network": "deep", **flags})
    assert factory._num_microbatches(config) == num_microbatches
    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    assert factory._num_microbatches(config) == 1


def test_a_type_that_cannot_be_computed_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for network in ("shallow", "deep"):
        factory.check_network(make_config(network=network, precision="bfloat16"))
    error = tf.errors.UnimplementedError(None, None, "no such kernel")
    monkeypatch.setattr(networks.Torso, "_convolved", mock.Mock(side_effect=error))
    factory.check_network(make_config())
    with pytest.raises(UserError, match=r"bfloat16.*--precision=float32"):
        factory.check_network(make_config(precision="bfloat16"))


def test_actors_need_not_know_of_pixel_control() -> None:
    parts = []
    for pixel_control in (False, True):
        config = make_config("pong", pixel_control=pixel_control)
        spec = factory.make_rollout_spec(config)
        learner = factory.make_learner(config, spec)
        assert (learner.q_head is not None) == pixel_control
        parts.append((spec, [(v.name, v.shape) for v in learner.agent.variables]))
    assert parts[0] == parts[1]


def test_popart_learns_statistics_as_the_flags_say() -> None:
    config = make_config(
        use_popart=True,
        popart_step_size=0.25,
        popart_scale_lower_bound=0.9,
        popart_scale_upper_bound=2.0,
        popart_second_moment_of="mean",
        popart_start="fixed",
    )
    spec = factory.make_rollout_spec(config)
    assert not factory.make_learner(make_config(multi_head=True), spec).head.normalise
    head = factory.make_learner(config, spec).head
    head.update(tf.constant([[0.0, 0.0, 90.0], [4.0, 0.0, 110.0]]), tf.constant([0, 1, 2]))
    np.testing.assert_allclose(head.shift, [0.5, 0, 25, 0, 0])
    # The square of the first mean is 4, and 0.75 + 0.25 * 4 - 0.5^2 = 1.5.
    np.testing.assert_allclose(head.scale, [1.5**0.5, 0.9, 2, 1, 1])
    head = factory.make_learner(config.with_flags({"popart_start": "average"}), spec).head
    head.update(tf.constant([[3.0], [5.0]]), tf.constant([1]))
    np.testing.assert_allclose(head.shift, [0, 2, 0, 0, 0])


@pytest.mark.parametrize("zero_mean", [False, True])
def test_an_even_background_is_seen_unless_filters_have_a_mean_of_zero(zero_mean: bool) -> None:
    config = make_config("pong", network="shallow", zero_mean_filters=zero_mean)
    torso = factory.make_agent(config, factory.make_rollout_spec(config))._torso
    images = np.zeros([2, 1, 84, 84, 4], np.uint8)
    images[1] = 90
    black, grey = torso(tf.constant(images)).numpy()
    assert np.allclose(black, grey, rtol=0, atol=1e-6) == zero_mean


@pytest.mark.parametrize(("padding", "parameters"), [("valid", 1_230_446), ("same", 1_541_742)])
def test_the_shallow_network_is_as_large_as_published(padding: str, parameters: int) -> None:
    config = make_config("dmlab30", network="shallow", padding=padding, action_set="impala")
    learner = factory.make_learner(config, factory.make_rollout_spec(config))
    size = sum(np.size(variable) for variable in learner._parameters)
    assert (config.num_actions, size) == (9, parameters)
