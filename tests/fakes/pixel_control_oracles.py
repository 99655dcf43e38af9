"""Pixel control in NumPy and float64, written as the paper's appendix puts it, cell by cell."""

from typing import Any

import numpy as np

from scalable_agent_popart.learning.pixel_control import QHead


def oracle_rewards(images: np.ndarray, ends: np.ndarray, top: int, left: int) -> np.ndarray:
    """Mean absolute change of each cell, `[T, B, rows, columns]`, of images `[T + 1, B, ...]`."""
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


def oracle_targets(rewards: np.ndarray, discounts: np.ndarray, q_last: np.ndarray) -> np.ndarray:
    """n-step returns from each step on, as sums written out: `[T, B, rows, columns]`."""
    targets = np.zeros_like(rewards)
    for t in range(len(rewards)):
        weight = np.ones_like(discounts[0])
        for k in range(t, len(rewards)):
            targets[t] += weight[:, np.newaxis, np.newaxis] * rewards[k]
            weight = weight * discounts[k]
        targets[t] += weight[:, np.newaxis, np.newaxis] * q_last.max(axis=-1)
    return targets


def oracle_deconvolution(inputs: np.ndarray, module: Any, stride: int, shape: tuple) -> np.ndarray:
    """Every input adds its kernel, times itself, to the outputs from (i, j) * stride on."""
    kernel = np.float64(module.w)  # [height, width, outputs, inputs]
    outputs = np.zeros((len(inputs), *shape, kernel.shape[2]))
    for i, j in np.ndindex(inputs.shape[1:3]):
        y, x = i * stride, j * stride
        patch = np.einsum("nc,hwoc->nhwo", inputs[:, i, j], kernel)
        outputs[:, y : y + kernel.shape[0], x : x + kernel.shape[1]] += patch
    return outputs + np.float64(module.b)


def oracle_q_values(head: QHead, features: np.ndarray) -> np.ndarray:
    """Q-values `[N, rows, columns, num_actions]` of features `[N, D]`."""
    linear = head._linear
    hidden = np.maximum(np.float64(features) @ np.float64(linear.w) + np.float64(linear.b), 0)
    rows, columns, channels = head._first_shape
    hidden = hidden.reshape(-1, rows, columns, channels)
    hidden = np.maximum(oracle_deconvolution(hidden, head._hidden, 1, (rows + 2, columns + 2)), 0)
    outputs = oracle_deconvolution(hidden, head._dueling, 2, (2 * rows + 6, 2 * columns + 6))
    value, advantage = outputs[..., :1], outputs[..., 1:]
    return value + advantage - advantage.mean(axis=-1, keepdims=True)
