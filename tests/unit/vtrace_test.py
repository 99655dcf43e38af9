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


@pytest.mark.parametrize(
    ("shape", "rho", "pg_rho"),
    [
        ((1, 1), 1.0, 1.0),
        ((13, 5), 1.0, 1.0),
        ((40, 3), 1.0, None),
        ((9, 4), None, 1.0),
        ((9, 4), 3.7, 2.2),
        ((6, 2, 1), 2.2, 3.7),
        ((6, 2, 2, 3), 0.4, 1.0),
        ((9, 4), 1.0, 0.4),
    ],
)
def test_agrees_with_the_double_sum_of_the_paper(
    shape: tuple[int, ...], rho: float | None, pg_rho: float | None
) -> None:
    """Each threshold clips its own weights, and neither the trace; both are one by default."""
    inputs = random_inputs(*shape, seed=shape[0])
    given = {"clip_rho_threshold": rho, "clip_pg_rho_threshold": pg_rho}
    thresholds = {name: value for name, value in given.items() if value != 1.0}
    returns = vtrace.from_importance_weights(**inputs, **thresholds)
    targets, advantages = oracles.vtrace(**inputs, **thresholds)
    assert type(returns) is vtrace.VTraceReturns
    assert returns.vs.shape == returns.pg_advantages.shape == shape
    assert_close(returns.vs, targets)
    assert_close(returns.pg_advantages, advantages)


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
    chosen = inputs["actions"][..., np.newaxis]
    behaviour, target = (
        np.take_along_axis(oracles.log_softmax(inputs[name]), chosen, axis=-1)[..., 0]
        for name in _POLICIES[:2]
    )
    assert_close(returns.target_action_log_probs, target)
    assert_close(returns.behaviour_action_log_probs, behaviour)
    assert_close(returns.log_rhos, target - behaviour)
    common = [inputs[name] for name in _COMMON]
    targets, advantages = oracles.vtrace(target - behaviour, *common, 1.7, 0.6)
    assert_close(returns.vs, targets)
    assert_close(returns.pg_advantages, advantages)


@pytest.mark.parametrize("name", [*_POLICIES, "log_rhos", *_COMMON, *_OPTIONS[:2]])
def test_tensors_of_the_wrong_rank_are_refused(name: str) -> None:
    function = vtrace.from_logits if name in _POLICIES else vtrace.from_importance_weights
    inputs = random_logits_inputs() if name in _POLICIES else random_inputs(4, 2)
    wrong = inputs[name][0] if name in inputs else np.ones(1, np.float32)
    with pytest.raises(ValueError, match="rank"):
        function(**{**inputs, name: wrong})


def test_arguments_and_results_have_the_names_and_order_of_scalable_agent() -> None:
    for function, names in (
        (vtrace.from_logits, [*_POLICIES, *_COMMON, *_OPTIONS]),
        (vtrace.from_importance_weights, ["log_rhos", *_COMMON, *_OPTIONS]),
        (vtrace.log_probs_from_logits_and_actions, ["policy_logits", "actions"]),
    ):
        assert list(inspect.signature(function).parameters) == names
    results = ("vs", "pg_advantages")
    assert vtrace.VTraceReturns._fields == results
    log_probs = ("behaviour_action_log_probs", "target_action_log_probs")
    assert vtrace.VTraceFromLogitsReturns._fields == (*results, "log_rhos", *log_probs)
