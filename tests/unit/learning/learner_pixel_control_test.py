"""The learner with pixel control: what it learns from, what learns from it, and who has it."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from environments import Observation
from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.acting.weights import WeightStore
from scalable_agent_popart.config import Config
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.training import remote_actors
from tests.fakes.pixel_control_oracles import oracle_q_values, oracle_rewards, oracle_targets

EPS = float(np.finfo(np.float32).eps)
COST = 0.25
_PIXEL = {"pixel_control": True, "pixel_control_cost": COST}
_SMALL = {"batch_size": 3, "unroll_length": 4, "network": "shallow", "precision": "float32"}


def config(level_name: str = "dmlab30", **given: Any) -> Config:
    size = {"height": 32, "width": 41} if level_name == "dmlab30" else {}
    return Config.from_flags({"level_name": level_name, **_SMALL, **size, **given})


def make_learner(config: Config) -> Learner:
    tf.random.set_seed(0)
    return factory.make_learner(config, factory.make_rollout_spec(config))


def make_batch(config: Config, seed: int = 0) -> Rollout:
    """Noise, with an episode's end and a lost life in it."""
    rng = np.random.default_rng(seed)
    spec = rollouts.batch_spec(factory.make_rollout_spec(config), config.batch_size)

    def noise(leaf: tf.TensorSpec) -> tf.Tensor:
        high = {tf.uint8: 256, tf.bool: 1}.get(leaf.dtype, config.num_actions)
        return tf.constant(rng.integers(high, size=leaf.shape).astype(leaf.dtype.as_numpy_dtype))

    batch = tf.nest.map_structure(noise, spec)
    done, episode_end = (np.zeros(batch.env_outputs.done.shape, bool) for _ in "12")
    done[[1, 3], [0, 2]] = episode_end[1, 0] = True
    info = batch.env_outputs.info._replace(episode_end=tf.constant(episode_end))
    return batch._replace(
        env_outputs=batch.env_outputs._replace(done=tf.constant(done), info=info),
        task_id=tf.zeros_like(batch.task_id),
    )


def images_of(batch: Rollout) -> np.ndarray:
    seen = batch.env_outputs.observation
    return (seen.image if isinstance(seen, Observation) else seen).numpy()


def expected_loss(learner: Learner, config: Config, batch: Rollout, margins: tuple) -> float:
    """The unweighted loss, in float64, from the agent's own features."""
    features = learner._unroll(batch).features.numpy()
    steps, batch_size, size = features.shape
    q_values = oracle_q_values(learner.q_head, features.reshape(-1, size))
    q_values = q_values.reshape(steps, batch_size, *q_values.shape[1:])
    rewards = oracle_rewards(images_of(batch), batch.env_outputs.info.episode_end.numpy(), *margins)
    discounts = np.where(batch.env_outputs.done[1:], 0.0, config.pixel_control_discount)
    targets = oracle_targets(rewards, discounts, q_values[-1])
    loss = 0.0
    for t, b in np.ndindex(steps - 1, batch_size):
        # The action taken at step t stands beside what it led to.
        action = batch.agent_outputs.action[t + 1, b]
        loss += 0.5 * ((targets[t, b] - q_values[t, b, ..., action]) ** 2).sum()
    return loss


@pytest.mark.parametrize(
    ("level_name", "agent", "margins"),
    [
        ("dmlab30", {}, (0, 0)),
        ("dmlab30", {"use_popart": True, "pixel_control_discount": 0.5}, (0, 0)),
        ("pong", {"use_popart": True}, (2, 2)),
    ],
)
def test_the_loss_is_that_of_the_appendix(level_name: str, agent: dict, margins: tuple) -> None:
    settings = config(level_name, **_PIXEL, **agent)
    learner, batch = make_learner(settings), make_batch(settings)
    expected = COST * expected_loss(learner, settings, batch, margins)
    metrics = learner.update(batch)
    np.testing.assert_allclose(metrics["pixel_control_loss"], expected, rtol=1e-5)
    parts = ("policy_gradient_loss", "value_loss", "entropy_loss", "pixel_control_loss")
    total = sum(float(metrics[part]) for part in parts)
    np.testing.assert_allclose(metrics["total_loss"], total, rtol=16 * EPS)


def gradients(learner: Learner, batch: Rollout) -> list[Any]:
    """Of the pixel control loss alone, for all of the learner's parameters."""
    with tf.GradientTape() as tape:
        loss = learner._pixel_control_loss(learner.q_head, batch, learner._unroll(batch).features)
    return tape.gradient(loss, learner._parameters)


def test_gradients_reach_torso_instructions_and_lstm_but_neither_policy_nor_values() -> None:
    settings = config(**_PIXEL)
    learner = make_learner(settings)
    by_parameter = zip(learner._parameters, gradients(learner, make_batch(settings)), strict=True)
    without = {variable.name for variable, gradient in by_parameter if gradient is None}
    heads = (learner.agent._policy_head, learner.head)
    assert without == {v.name for head in heads for v in head.trainable_variables}
    for variable, gradient in zip(
        learner._parameters, gradients(learner, make_batch(settings)), strict=True
    ):
        if gradient is not None:
            assert np.abs(gradient).max() > 0, variable.name


@pytest.mark.parametrize("level_name", ["dmlab30", "pong"])
def test_gradients_of_single_rollouts_add_up_to_those_of_the_batch(level_name: str) -> None:
    settings = config(level_name, **_PIXEL)
    learner, batch = make_learner(settings), make_batch(settings)
    whole = learner.gradients(batch).total
    parts = [learner.gradients(rollouts.select(batch, np.array([b]))).total for b in range(3)]
    for variable, total, *own in zip(learner.agent.trainable_variables, whole, *parts, strict=True):
        scale = max(np.abs(part).max() for part in own)
        np.testing.assert_allclose(
            np.sum(own, axis=0), total, rtol=0, atol=1e-4 * scale, err_msg=variable.name
        )


def test_what_is_bootstrapped_from_has_no_gradient() -> None:
    settings = config("pong", **_PIXEL)
    learner, batch = make_learner(settings), make_batch(settings)
    features = learner._unroll(batch).features
    with tf.GradientTape() as tape:
        tape.watch(features)
        loss = learner._pixel_control_loss(learner.q_head, batch, features)
    gradient = tape.gradient(loss, features).numpy()
    np.testing.assert_array_equal(gradient[-1], 0)
    assert (np.abs(gradient[:-1]).max(axis=-1) > 0).all()


def test_one_update_is_the_same_as_without_but_for_what_pixel_control_adds() -> None:
    plain, pixel = config("pong", use_popart=True), config("pong", use_popart=True, **_PIXEL)
    free = config("pong", use_popart=True, **{**_PIXEL, "pixel_control_cost": 0.0})
    batch, weights = make_batch(plain), {}
    for name, settings in (("plain", plain), ("free", free), ("pixel", pixel)):
        learner = make_learner(settings)
        for i, variable in enumerate((*learner.agent.variables, *learner.head.variables)):
            rng = np.random.default_rng(i)
            if variable.shape.rank > 1:
                variable.assign(rng.normal(scale=0.05, size=variable.shape))
        learner.update(batch)
        weights[name] = [v.numpy() for v in learner.agent.trainable_variables]
    for without, free_of_cost in zip(weights["plain"], weights["free"], strict=True):
        np.testing.assert_allclose(free_of_cost, without, rtol=0, atol=16 * EPS)
    assert np.abs(weights["pixel"][0] - weights["plain"][0]).max() > 1e-4


def test_updates_teach_the_action_values() -> None:
    settings = config("pong", **_PIXEL, learning_rate=1e-3, baseline_cost=0.0)
    learner, batch = make_learner(settings), make_batch(settings)
    lost = [float(learner.update(batch)["pixel_control_loss"]) for _ in range(40)]
    assert lost[10] < 0.97 * lost[0]
    assert lost[39] < 0.9 * lost[0]  # Of images of noise, which are learned slowly.
    assert learner.num_traces == 1


@pytest.mark.parametrize("level_name", ["dmlab30", "pong"])
def test_an_actors_graph_does_not_contain_the_head(level_name: str) -> None:
    operations = {}
    for pixel in (False, True):
        settings = config(level_name, pixel_control=pixel)
        spec = factory.make_rollout_spec(settings)
        learner = make_learner(settings)
        store = WeightStore(learner.agent.trainable_variables, 0)
        policy = Policy(factory.make_agent(settings, spec), store, 0, 2)
        policy.refresh()
        step = tf.nest.map_structure(
            lambda leaf: np.zeros((2, *leaf.shape[1:]), leaf.dtype.as_numpy_dtype),
            spec.env_outputs,
        )
        policy.act(np.arange(2), step)
        (graph,) = [trace.graph for trace in policy._step._list_all_concrete_functions()]
        operations[pixel] = sorted(operation.type for operation in graph.get_operations())
        sizes = [tensor.shape for tensor in store.latest().tensors]
        operations[pixel] += [str(size) for size in sizes]
        assert (learner.q_head is not None) == pixel
    assert operations[True] == operations[False]
    assert "Conv2DBackpropInput" not in operations[True]


def test_actor_jobs_need_not_know_of_it() -> None:
    cards = []
    for pixel in (False, True):
        settings = config("pong", pixel_control=pixel)
        spec = factory.make_rollout_spec(settings)
        cards.append(remote_actors._handshake(settings, factory.make_agent(settings, spec), spec))
    assert cards[0] == cards[1]


def test_an_update_that_xla_compiled_is_the_same_update() -> None:
    plain, by_xla = (config("pong", **_PIXEL, xla=xla) for xla in (False, True))
    learners = [make_learner(settings) for settings in (plain, by_xla)]
    for one, other in zip(*(learner.variables for learner in learners), strict=True):
        other.assign(one)
    metrics = [learner.update(make_batch(plain)) for learner in learners]
    for name, value in metrics[0].items():
        np.testing.assert_allclose(metrics[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for one, other in zip(*(learner.variables for learner in learners), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5, err_msg=one.name)


def test_the_agent_knows_nothing_of_the_head() -> None:
    learner = make_learner(config("pong", **_PIXEL))
    of_head = {id(variable) for variable in learner.q_head.variables}
    assert of_head
    assert not of_head & {id(variable) for variable in learner.agent.variables}
    assert of_head <= {id(variable) for variable in learner._parameters}
