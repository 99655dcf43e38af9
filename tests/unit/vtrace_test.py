"""V-trace against the paper's equation, written as the double sum that it is, in float64."""

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import vtrace
from tests.fakes import oracles

_COMMON = ["discounts", "rewards", "values", "bootstrap_value"]
_OPTIONS = ["clip_rho_threshold", "clip_pg_rho_threshold", "name"]
_POLICIES = ["behaviour_policy_logits", "target_policy_logits", "actions"]


def assert_close(actual: Any, expected: np.ndarray) -> None:
    """Checks equality up to the rounding of float32, in units of the largest result."""
    tolerance = 16 * oracles.EPS * np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=tolerance)


def random_inputs(*shape: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 arguments of `from_importance_weights`, a fifth of the steps ending an episode."""
    rng = np.random.default_rng(seed)
    ends = rng.random(shape) < 0.2
    inputs = {
        "log_rhos": rng.uniform(-2.5, 2.5, shape),
        "discounts": np.where(ends, 0.0, rng.uniform(0.8, 1.0, shape)),
        "rewards": rng.normal(size=shape),
        "values": rng.normal(scale=3.0, size=shape),
        "bootstrap_value": rng.normal(scale=3.0, size=shape[1:]),
    }
    return {name: value.astype(np.float32) for name, value in inputs.items()}


def random_logits_inputs() -> dict[str, np.ndarray]:
    """Float32 arguments of `from_logits`, for 7 steps, 3 rollouts and 4 actions."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 7, 3, 4)).astype(np.float32)
    actions = rng.integers(4, size=(7, 3)).astype(np.int32)
    inputs = random_inputs(7, 3)
    return dict(zip(_POLICIES, (*logits, actions), strict=True)) | {n: inputs[n] for n in _COMMON}


def of_actions(logits: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Log-probabilities `[T, B]` of the actions taken."""
    log_probs = oracles.log_softmax(logits)
    return np.take_along_axis(log_probs, actions[..., np.newaxis], axis=-1)[..., 0]


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 4), (5, 1), (13, 5), (40, 3), (6, 2, 1), (6, 2, 2, 3)]
)
def test_agrees_with_the_double_sum_of_the_paper(shape: tuple[int, ...]) -> None:
    inputs = random_inputs(*shape, seed=shape[0])
    returns = vtrace.from_importance_weights(**inputs)
    targets, advantages = oracles.vtrace(**inputs)
    assert type(returns) is vtrace.VTraceReturns
    assert returns.vs.shape == returns.pg_advantages.shape == shape
    assert_close(returns.vs, targets)
    assert_close(returns.pg_advantages, advantages)


@pytest.mark.parametrize(
    ("rho", "pg_rho"), [(1.0, None), (None, 1.0), (3.7, 2.2), (2.2, 3.7), (0.4, 1.0), (1.0, 0.4)]
)
def test_each_threshold_clips_its_own_weights_and_never_the_trace(
    rho: float | None, pg_rho: float | None
) -> None:
    inputs = random_inputs(9, 4)
    thresholds = {"clip_rho_threshold": rho, "clip_pg_rho_threshold": pg_rho}
    returns = vtrace.from_importance_weights(**inputs, **thresholds)
    targets, advantages = oracles.vtrace(**inputs, **thresholds)
    assert_close(returns.vs, targets)
    assert_close(returns.pg_advantages, advantages)


def test_on_policy_targets_are_n_step_bellman_returns() -> None:
    inputs = random_inputs(8, 3)
    inputs["log_rhos"] = np.zeros_like(inputs["log_rhos"])
    following, expected = np.float64(inputs["bootstrap_value"]), np.zeros((8, 3))
    for t in reversed(range(8)):
        expected[t] = following = inputs["rewards"][t] + inputs["discounts"][t] * following
    assert_close(vtrace.from_importance_weights(**inputs).vs, expected)


def test_nothing_after_an_episode_end_changes_what_came_before() -> None:
    inputs, other = random_inputs(8, 2), random_inputs(8, 2, seed=1)
    inputs["discounts"][:] = 0.9
    inputs["discounts"][3, 0] = 0.0
    changed = {name: value.copy() for name, value in inputs.items()}
    for name in ("log_rhos", "rewards", "values"):
        changed[name][4:] = other[name][4:]
    changed["bootstrap_value"] = other["bootstrap_value"]
    before = vtrace.from_importance_weights(**inputs)
    after = vtrace.from_importance_weights(**changed)
    for old, new in zip(np.asarray(before), np.asarray(after), strict=True):
        np.testing.assert_array_equal(old[:4, 0], new[:4, 0])
        assert (old[:4, 1] != new[:4, 1]).all()  # the rollout without an end
        assert (old[4:] != new[4:]).all()


def test_only_log_probabilities_have_a_gradient() -> None:
    inputs = {name: tf.constant(value) for name, value in random_logits_inputs().items()}
    weights = tf.constant(random_inputs(7, 3)["log_rhos"])
    sources = [weights, *(value for value in inputs.values() if value.dtype.is_floating)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        returns = vtrace.from_logits(**inputs)
        direct = vtrace.from_importance_weights(weights, *(inputs[name] for name in _COMMON))
    for result in (returns.vs, returns.pg_advantages, direct.vs, direct.pg_advantages):
        assert tape.gradient(result, sources) == [None] * len(sources)
    logits = inputs["target_policy_logits"]
    assert tape.gradient(returns.target_action_log_probs, logits) is not None


def test_from_logits_weighs_by_target_over_behaviour() -> None:
    inputs = random_logits_inputs()
    returns = vtrace.from_logits(**inputs, clip_rho_threshold=1.7, clip_pg_rho_threshold=0.6)
    behaviour, target = (of_actions(inputs[name], inputs["actions"]) for name in _POLICIES[:2])
    assert_close(returns.target_action_log_probs, target)
    assert_close(returns.behaviour_action_log_probs, behaviour)
    assert_close(returns.log_rhos, target - behaviour)
    common = [inputs[name] for name in _COMMON]
    targets, advantages = oracles.vtrace(target - behaviour, *common, 1.7, 0.6)
    assert_close(returns.vs, targets)
    assert_close(returns.pg_advantages, advantages)


@pytest.mark.parametrize("magnitude", [1.0, 80.0])
def test_log_probs_are_the_explicit_log_softmax(magnitude: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=magnitude, size=(5, 3, 6)).astype(np.float32)
    actions = rng.integers(6, size=(5, 3)).astype(np.int32)
    log_probs = vtrace.log_probs_from_logits_and_actions(logits, actions)
    assert_close(log_probs, of_actions(logits, actions))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("log_rhos", (4, 2, 1)),
        ("discounts", (4,)),
        ("rewards", (4, 2, 1)),
        ("values", (4,)),
        ("bootstrap_value", ()),
        ("bootstrap_value", (2, 1)),
        ("clip_rho_threshold", (1,)),
        ("clip_pg_rho_threshold", (1,)),
    ],
)
def test_importance_weights_refuse_the_wrong_rank(name: str, shape: tuple[int, ...]) -> None:
    inputs = {**random_inputs(4, 2), name: np.ones(shape, np.float32)}
    with pytest.raises(ValueError, match="rank"):
        vtrace.from_importance_weights(**inputs)


@pytest.mark.parametrize("name", _POLICIES)
def test_from_logits_refuses_the_wrong_rank(name: str) -> None:
    inputs = random_logits_inputs()
    with pytest.raises(ValueError, match="rank"):
        vtrace.from_logits(**{**inputs, name: inputs[name][0]})


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (vtrace.from_logits, [*_POLICIES, *_COMMON, *_OPTIONS]),
        (vtrace.from_importance_weights, ["log_rhos", *_COMMON, *_OPTIONS]),
        (vtrace.log_probs_from_logits_and_actions, ["policy_logits", "actions"]),
    ],
)
def test_arguments_have_the_names_and_order_of_scalable_agent(
    function: Any, names: list[str]
) -> None:
    assert list(inspect.signature(function).parameters) == names


def test_results_have_the_names_of_scalable_agent() -> None:
    names = ("vs", "pg_advantages")
    assert vtrace.VTraceReturns._fields == names
    log_probs = ("behaviour_action_log_probs", "target_action_log_probs")
    assert vtrace.VTraceFromLogitsReturns._fields == (*names, "log_rhos", *log_probs)
