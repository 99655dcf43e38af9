"""Plays a level that compiles its map, and prints how fast; fails if frames are of one colour."""

import time

import deepmind_lab
import numpy as np

_LEVEL = "contributed/dmlab30/explore_goal_locations_small"
_STEPS = 200
_FORWARD = np.array([20, 0, 0, 1, 0, 0, 0], np.intc)  # And to the right.

lab = deepmind_lab.Lab(
    _LEVEL, ["RGB_INTERLEAVED"], {"width": "96", "height": "72", "logLevel": "warn"}
)
lab.reset(seed=1)
start = time.perf_counter()
for _ in range(_STEPS):
    lab.step(_FORWARD, num_steps=4)
    frame = lab.observations()["RGB_INTERLEAVED"]
    if frame.shape != (72, 96, 3) or frame.std() < 1:
        raise ValueError(f"a frame of shape {frame.shape} is of one colour or none")
seconds = time.perf_counter() - start
lab.close()
print(f"played {_LEVEL}: {_STEPS / seconds:.0f} steps of four frames a second")
