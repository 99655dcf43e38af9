"""The papers' mathematics in NumPy and float64, written slowly, as in the papers."""

from typing import Any

import numpy as np

from scalable_agent_popart.learning.pixel_control import QHead

EPS = float(np.finfo(np.float32).eps)


def vtrace(
    log_rhos: np.ndarray,
    discounts: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    bootstrap_value: np.ndarray,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the sums v_s = V_s + sum_t (prod_{i=s}^{t-1} gamma_i c_i) delta_t, and A_s."""
    rhos = np.exp(np.float64(log_rhos))
    clipped = rhos if clip_rho_threshold is None else np.minimum(clip_rho_threshold, rhos)
    pg_rhos = rhos if clip_pg_rho_threshold is None else np.minimum(clip_pg_rho_threshold, rhos)
    cs = np.minimum(1.0, rhos)
    discounts, rewards, values = np.float64(discounts), np.float64(rewards), np.float64(values)
    next_values = np.concatenate([values[1:], bootstrap_value[np.newaxis]])
    targets = values.copy()
    for s in range(len(values)):
        for t in range(s, len(values)):
            delta = clipped[t] * (rewards[t] + discounts[t] * next_values[t] - values[t])
            targets[s] += np.prod(discounts[s:t] * cs[s:t], axis=0) * delta
    next_targets = np.concatenate([targets[1:], bootstrap_value[np.newaxis]])
    return targets, pg_rhos * (rewards + discounts * next_targets - values)


def log_softmax(logits: Any) -> np.ndarray:
    """Computes logarithms of the softmax over the last axis."""
    shifted = np.float64(logits) - np.max(logits, axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def cell_rewards(images: np.ndarray, ends: np.ndarray, top: int, left: int) -> np.ndarray:
    """Computes each cell's mean change `[T, B, rows, columns]` in images `[T + 1, B, ...]`."""
    steps, batch_size, height, width, _ = images.shape
    rows, columns = (height - 2 * top) // 4, (width - 2 * left) // 4
    rewards = np.zeros((steps - 1, batch_size, rows, columns))
    for t, b, i, j in np.ndindex(rewards.shape):
        y, x = top + 4 * i, left + 4 * j
        before = images[t, b, y : y + 4, x : x + 4].astype(np.float64)
        after = images[t + 1, b, y : y + 4, x : x + 4].astype(np.float64)
        if not ends[t + 1, b]:
            rewards[t, b, i, j] = np.abs(after - before).mean() / 255
    return rewards


def q_targets(rewards: np.ndarray, discounts: np.ndarray, q_last: np.ndarray) -> np.ndarray:
    """Computes the return `[T, B, rows, columns]` from each step on as a sum."""
    targets = np.zeros_like(rewards)
    for t in range(len(rewards)):
        weight = np.ones_like(discounts[0])
        for k in range(t, len(rewards)):
            targets[t] += weight[:, np.newaxis, np.newaxis] * rewards[k]
            weight = weight * discounts[k]
        targets[t] += weight[:, np.newaxis, np.newaxis] * q_last.max(axis=-1)
    return targets


def deconvolution(inputs: np.ndarray, module: Any, stride: int, shape: tuple) -> np.ndarray:
    """Adds each input's kernel, times itself, to the outputs from (i, j) * stride on."""
    kernel = np.float64(module.w)  # [height, width, outputs, inputs]
    outputs = np.zeros((len(inputs), *shape, kernel.shape[2]))
    for i, j in np.ndindex(inputs.shape[1:3]):
        y, x = i * stride, j * stride
        patch = np.einsum("nc,hwoc->nhwo", inputs[:, i, j], kernel)
        outputs[:, y : y + kernel.shape[0], x : x + kernel.shape[1]] += patch
    return outputs + np.float64(module.b)


def q_values(head: QHead, features: np.ndarray) -> np.ndarray:
    """Computes Q-values `[T, B, rows, columns, num_actions]` of features `[T, B, D]`."""
    linear, (rows, columns, channels) = head._linear, head._first_shape
    hidden = np.maximum(np.float64(features) @ np.float64(linear.w) + np.float64(linear.b), 0)
    hidden = hidden.reshape(-1, rows, columns, channels)
    hidden = np.maximum(deconvolution(hidden, head._hidden, 1, (rows + 2, columns + 2)), 0)
    outputs = deconvolution(hidden, head._dueling, 2, (2 * rows + 6, 2 * columns + 6))
    value, advantage = outputs[..., :1], outputs[..., 1:]
    values = value + advantage - advantage.mean(axis=-1, keepdims=True)
    return values.reshape(*features.shape[:2], *values.shape[1:])
