"""What all contenders have in common, and how their rate is counted.

The setting is that of Espeholt et al. (2018) for Atari. It is imported in each peer's own
environment, so that it may use nothing but the standard library.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

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

# Updates that do not count: queues fill and empty, libraries choose their kernels.
WARM_UP_UPDATES = 8


# To measure the systems' own work: environments that cost nothing, and a linear layer on the two
# rows of pixels in the middle.
OVERHEAD_ENVIRONMENTS = 64
MIDDLE_ROWS = slice(FRAME_SIZE // 2 - 1, FRAME_SIZE // 2 + 1)


def num_parameters(overhead: bool) -> int:
    """Parameters on a stack of frames, with both heads, of one linear layer or the deep network."""
    if overhead:
        pixels = 2 * FRAME_SIZE * STACKED_FRAMES
        return (pixels + 1) * 256 + 257 * (NUM_ACTIONS + 1)
    count, channels, size = 0, STACKED_FRAMES, FRAME_SIZE
    for section in (16, 32, 32):
        # One convolution to the section's channels and four in its two residual blocks.
        count += (9 * channels + 1) * section + 4 * (9 * section + 1) * section
        channels, size = section, (size + 1) // 2
    count += (size * size * channels + 1) * 256
    return count + 257 * (NUM_ACTIONS + 1)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of a peer's script."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--game", default="pong", help="a game as in Atari-57: crazy_climber")
    made.add_argument("--seconds", type=float, default=60.0, help="measured after the warm-up")
    made.add_argument("--json", type=Path, help="file to write the result to")
    made.add_argument("--overhead", action="store_true", help="measure the system's own work")
    made.add_argument("--tuned", action="store_true", help="the best settings found")
    return made


def heed_signals() -> None:
    """Makes Ctrl-C and SIGTERM raise KeyboardInterrupt, also where a shell had them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def rom(game: str) -> str:
    """The emulator's name of a game: `crazy_climber` is `CrazyClimber`."""
    return "".join(word.capitalize() for word in game.split("_"))


class Updates:
    """The learner's updates: when each ended, what it was trained on, and its loss."""

    def __init__(self, seconds: float):
        """Counts for `seconds` after the warm-up."""
        self._seconds = seconds
        self._ends: list[float] = []
        self._steps: list[int] = []
        self._losses: list[float] = []

    def append(self, end: float, steps: int, loss: float) -> None:
        """Adds one gradient step on `steps` agent steps that no other was taken on."""
        self._ends.append(end)
        self._steps.append(steps)
        self._losses.append(loss)

    @property
    def complete(self) -> bool:
        """Tells whether there are updates enough."""
        start = WARM_UP_UPDATES - 1
        return len(self._ends) > start + 1 and self._ends[-1] - self._ends[start] >= self._seconds

    def report(
        self,
        settings: dict[str, Any],
        parameters: int,
        file: Path | None,
        overhead: bool = False,
        **more: Any,
    ) -> None:
        """Prints the result as one JSON object, and writes it to a file if there is one."""
        if not self.complete:
            raise SystemExit(f"only {len(self._ends)} updates were made")
        if parameters != (expected := num_parameters(overhead)):
            raise SystemExit(f"{parameters} parameters instead of {expected}")
        elapsed = self._ends[-1] - self._ends[WARM_UP_UPDATES - 1]
        steps = self._steps[WARM_UP_UPDATES:]
        tuning = {k: v for k, v in os.environ.items() if k.startswith(("MALLOC_", "OMP_"))}
        result = {
            "agent_steps_per_second": sum(steps) / elapsed,
            "settings": {**settings, **tuning},
            "parameters": parameters,
            "seconds": elapsed,
            "updates": len(steps),
            "agent_steps_per_update": sum(steps) / len(steps),
            "first_losses": self._losses[:3],
            "last_losses": self._losses[-3:],
            **more,
        }
        text = json.dumps(result, indent=2)
        print(text, flush=True)
        if file:
            file.write_text(text + "\n")


def now() -> float:
    """A clock that processes of one machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
