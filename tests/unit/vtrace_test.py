"""V-trace against the paper's equation, written as the double sum that it is, in float64."""

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import vtrace

# The rounding errors of a float32 sum, in units of its largest result's last place.
_ULPS = 16


def assert_close(actual: Any, expected: np.ndarray) -> None:
    """Equality up to the rounding of float32 arithmetic."""
    tolerance = _ULPS * np.finfo(np.float32).eps * np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=tolerance)


def double_sum(
    log_rhos: np.ndarray,
    discounts: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    bootstrap_value: np.ndarray,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Targets and advantages: v_s = V_s + sum_t (prod_{i=s}^{t-1} gamma_i c_i) delta_t."""
    rhos = np.exp(np.float64(log_rhos))
    clipped = rhos if clip_rho_threshold is None else np.minimum(clip_rho_threshold, rhos)
    pg_rhos = rhos if clip_pg_rho_threshold is None else np.minimum(clip_pg_rho_threshold, rhos)
    cs = np.minimum(1.0, rhos)
    discounts, rewards, values = np.float64(discounts), np.float64(rewards), np.float64(values)
    next_values = np.concatenate([values[1:], bootstrap_value[np.newaxis]])
    num_steps = len(values)
    targets = values.copy()
    for s in range(num_steps):
        for t in range(s, num_steps):
            delta = clipped[t] * (rewards[t] + discounts[t] * next_values[t] - values[t])
            targets[s] += np.prod(discounts[s:t] * cs[s:t], axis=0) * delta
    next_targets = np.concatenate([targets[1:], bootstrap_value[np.newaxis]])
    return targets, pg_rhos * (rewards + discounts * next_targets - values)


def random_inputs(
    num_steps: int, batch_size: int, trailing: tuple[int, ...] = (), seed: int = 0
) -> dict[str, np.ndarray]:
    """Float32 arguments of `from_importance_weights`, a fifth of the steps ending an episode."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, batch_size, *trailing)
    ends = rng.random(shape) < 0.2
    inputs = {
        "log_rhos": rng.uniform(-2.5, 2.5, shape),
        "discounts": np.where(ends, 0.0, rng.uniform(0.8, 1.0, shape)),
        "rewards": rng.normal(size=shape),
        "values": rng.normal(scale=3.0, size=shape),
        "bootstrap_value": rng.normal(scale=3.0, size=shape[1:]),
    }
    return {name: value.astype(np.float32) for name, value in inputs.items()}


def random_logits_inputs(seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 arguments of `from_logits`, for 7 steps, 3 rollouts and 4 actions."""
    inputs = random_inputs(7, 3, seed=seed)
    del inputs["log_rhos"]
    rng = np.random.default_rng(seed)
    return {
        "behaviour_policy_logits": rng.normal(size=(7, 3, 4)).astype(np.float32),
        "target_policy_logits": rng.normal(size=(7, 3, 4)).astype(np.float32),
        "actions": rng.integers(4, size=(7, 3)).astype(np.int32),
        **inputs,
    }


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64, over the last axis."""
    shifted = np.float64(logits) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def of_actions(per_action: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Entries `[T, B]` of the actions taken, from `[T, B, num_actions]`."""
    return np.take_along_axis(per_action, actions[..., np.newaxis], axis=-1)[..., 0]


@pytest.mark.parametrize(("num_steps", "batch_size"), [(1, 1), (1, 4), (5, 1), (13, 5), (40, 3)])
def test_agrees_with_the_double_sum_of_the_paper(num_steps: int, batch_size: int) -> None:
    inputs = random_inputs(num_steps, batch_size, seed=num_steps)
    returns = vtrace.from_importance_weights(**inputs)
    targets, advantages = double_sum(**inputs)
    assert_close(returns.vs, targets)
    assert_close(returns.pg_advantages, advantages)


@pytest.mark.parametrize(
    ("rho", "pg_rho"),
    [(1.0, None), (None, 1.0), (None, None), (3.7, 2.2), (2.2, 3.7), (0.4, 1.0), (1.0, 0.4)],
)
def test_each_threshold_clips_its_own_weights_and_never_the_trace(
    rho: float | None, pg_rho: float | None
) -> None:
    inputs = random_inputs(9, 4)
    returns = vtrace.from_importance_weights(
        **inputs, clip_rho_threshold=rho, clip_pg_rho_threshold=pg_rho
    )
    targets, advantages = double_sum(**inputs, clip_rho_threshold=rho, clip_pg_rho_threshold=pg_rho)
    assert_close(returns.vs, targets)
    assert_close(returns.pg_advantages, advantages)


def test_thresholds_are_one_unless_given() -> None:
    inputs = random_inputs(9, 4)
    returns = vtrace.from_importance_weights(**inputs)
    given = vtrace.from_importance_weights(
        **inputs, clip_rho_threshold=tf.constant(1.0), clip_pg_rho_threshold=tf.constant(1.0)
    )
    np.testing.assert_array_equal(returns.vs, given.vs)
    np.testing.assert_array_equal(returns.pg_advantages, given.pg_advantages)


@pytest.mark.parametrize("trailing", [(1,), (6,), (2, 3)])
def test_trailing_dimensions_are_batches_of_their_own(trailing: tuple[int, ...]) -> None:
    inputs = random_inputs(6, 2, trailing)
    returns = vtrace.from_importance_weights(**inputs)
    targets, advantages = double_sum(**inputs)
    assert returns.vs.shape == (6, 2, *trailing)
    assert_close(returns.vs, targets)
    assert_close(returns.pg_advantages, advantages)


def test_on_policy_targets_are_n_step_bellman_returns() -> None:
    inputs = random_inputs(8, 3)
    inputs["log_rhos"] = np.zeros_like(inputs["log_rhos"])
    discounts = np.float64(inputs["discounts"])
    expected = np.zeros((8, 3))
    for s in range(8):
        for t in range(s, 8):
            expected[s] += np.prod(discounts[s:t], axis=0) * inputs["rewards"][t]
        expected[s] += np.prod(discounts[s:], axis=0) * inputs["bootstrap_value"]
    assert_close(vtrace.from_importance_weights(**inputs).vs, expected)


def test_nothing_after_an_episode_end_changes_what_came_before() -> None:
    inputs = random_inputs(8, 2)
    inputs["discounts"][:] = 0.9
    inputs["discounts"][3, 0] = 0.0
    other = random_inputs(8, 2, seed=1)
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


def test_no_gradient_flows_through_targets_and_advantages() -> None:
    inputs = {name: tf.constant(value) for name, value in random_logits_inputs().items()}
    sources = [value for value in inputs.values() if value.dtype.is_floating]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        returns = vtrace.from_logits(**inputs)
    assert tape.gradient(returns.vs, sources) == [None] * len(sources)
    assert tape.gradient(returns.pg_advantages, sources) == [None] * len(sources)
    # The tape did watch: log-probabilities keep their gradient.
    logits = inputs["target_policy_logits"]
    assert tape.gradient(returns.target_action_log_probs, logits) is not None


def test_no_gradient_flows_from_importance_weights() -> None:
    inputs = {name: tf.constant(value) for name, value in random_inputs(4, 2).items()}
    sources = list(inputs.values())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        returns = vtrace.from_importance_weights(**inputs)
    assert tape.gradient(returns.vs, sources) == [None] * len(sources)
    assert tape.gradient(returns.pg_advantages, sources) == [None] * len(sources)


def test_from_logits_agrees_with_from_importance_weights() -> None:
    inputs = random_logits_inputs()
    returns = vtrace.from_logits(**inputs, clip_rho_threshold=1.7, clip_pg_rho_threshold=0.6)
    names = ("discounts", "rewards", "values", "bootstrap_value")
    expected = vtrace.from_importance_weights(
        returns.log_rhos,
        *(inputs[name] for name in names),
        clip_rho_threshold=1.7,
        clip_pg_rho_threshold=0.6,
    )
    np.testing.assert_array_equal(returns.vs, expected.vs)
    np.testing.assert_array_equal(returns.pg_advantages, expected.pg_advantages)


def test_importance_weights_are_target_over_behaviour() -> None:
    inputs = random_logits_inputs()
    returns = vtrace.from_logits(**inputs)
    target = of_actions(log_softmax(inputs["target_policy_logits"]), inputs["actions"])
    behaviour = of_actions(log_softmax(inputs["behaviour_policy_logits"]), inputs["actions"])
    assert_close(returns.target_action_log_probs, target)
    assert_close(returns.behaviour_action_log_probs, behaviour)
    assert_close(returns.log_rhos, target - behaviour)
    # Both signs occur, or the weights would never be clipped.
    assert (target > behaviour).any()
    assert (target < behaviour).any()


@pytest.mark.parametrize("magnitude", [1.0, 80.0])
def test_log_probs_are_the_explicit_log_softmax(magnitude: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=magnitude, size=(5, 3, 6)).astype(np.float32)
    actions = rng.integers(6, size=(5, 3)).astype(np.int32)
    log_probs = vtrace.log_probs_from_logits_and_actions(logits, actions)
    assert log_probs.shape == (5, 3)
    assert_close(log_probs, of_actions(log_softmax(logits), actions))


@pytest.mark.parametrize(
    ("logits_shape", "actions_shape"), [((5, 3), (5, 3)), ((5, 3, 6), (5,)), ((6,), ())]
)
def test_log_probs_refuse_the_wrong_rank(
    logits_shape: tuple[int, ...], actions_shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="rank"):
        vtrace.log_probs_from_logits_and_actions(
            tf.zeros(logits_shape), tf.zeros(actions_shape, tf.int32)
        )


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


@pytest.mark.parametrize("name", ["behaviour_policy_logits", "target_policy_logits", "actions"])
def test_from_logits_refuses_the_wrong_rank(name: str) -> None:
    inputs = random_logits_inputs()
    inputs[name] = inputs[name][0]
    with pytest.raises(ValueError, match="rank"):
        vtrace.from_logits(**inputs)


def test_results_have_the_names_of_scalable_agent() -> None:
    assert vtrace.VTraceReturns._fields == ("vs", "pg_advantages")
    assert vtrace.VTraceFromLogitsReturns._fields == (
        "vs",
        "pg_advantages",
        "log_rhos",
        "behaviour_action_log_probs",
        "target_action_log_probs",
    )
    assert type(vtrace.from_logits(**random_logits_inputs())) is vtrace.VTraceFromLogitsReturns
    assert type(vtrace.from_importance_weights(**random_inputs(2, 2))) is vtrace.VTraceReturns


def test_arguments_have_the_names_and_order_of_scalable_agent() -> None:
    common = ["discounts", "rewards", "values", "bootstrap_value"]
    options = ["clip_rho_threshold", "clip_pg_rho_threshold", "name"]
    policies = ["behaviour_policy_logits", "target_policy_logits", "actions"]
    assert list(inspect.signature(vtrace.from_logits).parameters) == [*policies, *common, *options]
    assert list(inspect.signature(vtrace.from_importance_weights).parameters) == [
        "log_rhos",
        *common,
        *options,
    ]
    assert list(inspect.signature(vtrace.log_probs_from_logits_and_actions).parameters) == [
        "policy_logits",
        "actions",
    ]
