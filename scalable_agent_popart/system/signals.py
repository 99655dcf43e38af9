"""Stopping on request: SIGINT and SIGTERM end a run after its checkpoint is saved."""

import contextlib
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any


class StopOnSignal:
    """While entered, keeps the first SIGINT or SIGTERM; a SIGINT after that acts as usual.

    A second SIGTERM, as a group's processes may send each other, does not cut the saving short.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None  # The signal received.

    def __enter__(self) -> "StopOnSignal":
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._previous = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal_number = number
        signal.signal(signal.SIGINT, self._previous[signal.SIGINT])


class Terminal:
    """Standard error, whose reader may be gone: Ctrl-C ends a `tee` behind a pipe as well."""

    def write(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def show_saved(frames: int, where: Path) -> None:
    """Says on the terminal that `frames`, all that were learned from, are saved in a directory."""
    text = "stopped before the first update: there was nothing to save"
    if frames:
        text = f"saved at {frames:,} frames in {where}; the same command goes on"
    print(text, file=Terminal())
