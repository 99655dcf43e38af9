"""What both peers have in common, and how their rate is counted.

The setting is that of Espeholt et al. (2018) for Atari. Each peer's own environment imports it.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium

NUM_ENVIRONMENTS = 32
UNROLL_LENGTH = 20
BATCH_SIZE = 32  # Rollouts.
STEPS_PER_UPDATE = BATCH_SIZE * UNROLL_LENGTH
FRAME_SKIP = 4
FRAME_SIZE = 84
STACKED_FRAMES = 4
NUM_ACTIONS = 18
DISCOUNT = 0.99
ENTROPY_COST = 0.01

# These updates do not count, since queues fill and empty, and libraries choose their kernels.
WARM_UP_UPDATES = 8

# A system's own work is measured with so many environments that cost nothing, and with a linear
# layer on the two rows of pixels in the middle.
OVERHEAD_ENVIRONMENTS = 64
MIDDLE_ROWS = slice(FRAME_SIZE // 2 - 1, FRAME_SIZE // 2 + 1)

# The deep network has so many parameters with both heads, and the linear layer these.
DEEP_PARAMETERS = 1_094_115
OVERHEAD_PARAMETERS = 177_171


def parser(description: str | None) -> argparse.ArgumentParser:
    """Declares the options of a peer's script."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--seconds", type=float, default=60.0, help="measured after the warm-up")
    made.add_argument("--json", type=Path, help="file to write the result to")
    made.add_argument("--overhead", action="store_true", help="measure the system's own work")
    made.add_argument("--tuned", action="store_true", help="the best settings found")
    return made


def heed_signals() -> None:
    """Makes Ctrl-C and SIGTERM raise KeyboardInterrupt, also where a shell had them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def make_game(render_mode: str | None = None) -> gymnasium.Env:
    """Makes Pong with all 18 actions, as `[84, 84]` bytes per step, which are not stacked yet."""
    game = gymnasium.make(
        "ale_py:ALE/Pong-v5",
        frameskip=1,
        repeat_action_probability=0.0,
        full_action_space=True,
        render_mode=render_mode,
    )
    return gymnasium.wrappers.AtariPreprocessing(
        game, frame_skip=FRAME_SKIP, screen_size=FRAME_SIZE, terminal_on_life_loss=True
    )


# An update of the learner is the time of its end, and its agent steps that no other was made of.
Updates = list[tuple[float, int]]


def complete(updates: Updates, seconds: float) -> bool:
    """Returns whether updates were made for so long after the warm-up."""
    return len(updates) > WARM_UP_UPDATES and _elapsed(updates) >= seconds


def _elapsed(updates: Updates) -> float:
    return updates[-1][0] - updates[WARM_UP_UPDATES - 1][0]


def report(
    updates: Updates,
    options: argparse.Namespace,
    parameters: int,
    settings: dict[str, Any],
    **more: Any,
) -> None:
    """Prints the result as one JSON object, and writes it to a file if there is one."""
    if not complete(updates, options.seconds):
        raise SystemExit(f"only {len(updates)} updates were made")
    expected = OVERHEAD_PARAMETERS if options.overhead else DEEP_PARAMETERS
    if parameters != expected:
        raise SystemExit(f"{parameters} parameters instead of {expected}")
    tuning = {k: v for k, v in os.environ.items() if k.startswith(("MALLOC_", "OMP_"))}
    seconds = _elapsed(updates)
    result = {
        "agent_steps_per_second": sum(n for _, n in updates[WARM_UP_UPDATES:]) / seconds,
        "settings": {**settings, **tuning},
        "seconds": seconds,
        "updates": len(updates) - WARM_UP_UPDATES,
        **more,
    }
    text = json.dumps(result, indent=2)
    print(text, flush=True)
    if options.json:
        options.json.write_text(text + "\n")


def now() -> float:
    """Reads a clock that all processes of one machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
