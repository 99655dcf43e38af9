"""What a program shows on standard error: how far it is, and what it saved."""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import tqdm
from absl import logging


class _LossyStream(io.TextIOWrapper):
    """A stream that drops what cannot be written, as on a full disk or without a reader."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().flush()


def outlive_terminal() -> None:
    """Keeps failing output from raising or changing the exit code; call it before opening files."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # It is closed, and a file opened later would get what is printed.
            os.open(os.devnull, os.O_RDWR)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        encoding = getattr(getattr(sys, name), "encoding", None)
        file = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - held until the end.
        stream = _LossyStream(file, encoding, errors="backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
    # The handler still has the stream that it found at its import.
    logging.get_absl_handler().python_handler.setStream(sys.stderr)


def progress_bar(total: int, unit: str, **settings: Any) -> tqdm.tqdm:
    """Starts tqdm's bar with these settings; a log file gets it every ten seconds at most."""
    shown = sys.stderr.isatty()
    settings |= {"mininterval": 0.5 if shown else 10.0, "dynamic_ncols": shown}
    return tqdm.tqdm(total=total, unit=unit, **settings)


def show_saved(frames: int, where: Path) -> None:
    """Prints that all that was learned, from so many frames, is saved in a directory."""
    text = "stopped before the first update: there was nothing to save"
    if frames:
        text = f"saved at {frames:,} frames in {where}; the same command resumes"
    print(text, file=sys.stderr)
