"""Counts the filters of the shallow network's first layer that images of random play switch on.

  python results/learning_speed/filters.py runs/learning/pong-impala-11

A filter that no image switches on passes no features and no gradients, so it stays off.
"""

import sys

import numpy as np
import tensorflow as tf

from scalable_agent_popart import load


def count(logdir: str, num_steps: int = 200) -> int:
    """Returns how many of the 16 filters are above zero at some place of some image."""
    agent = load(logdir)
    environment = agent.make_environment(agent.tasks[0], seed=1)
    actions = np.random.default_rng(0).integers(agent.num_actions, size=num_steps).tolist()
    frames = [environment.reset()[0], *(environment.step(action)[0] for action in actions)]
    environment.close()
    stacks = [np.concatenate(frames[i : i + 4], axis=-1) for i in range(20, num_steps - 20, 4)]
    images = np.stack(stacks).astype(np.float32) * (agent.config.image_scale / 255)
    layer = {v.name: v for v in agent._agent.trainable_variables if "/first/" in v.name}
    bias, weights = (layer[name] for name in sorted(layer))
    if agent.config.zero_mean_filters:
        weights = weights - tf.reduce_mean(weights, axis=[0, 1, 2])
    inputs = tf.nn.conv2d(images, weights, strides=4, padding="VALID") + bias  # [N, H, W, 16]
    return int(np.sum(tf.reduce_max(inputs, axis=[0, 1, 2]) > 0))


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(path, count(path), flush=True)
