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
    """A stream that drops what cannot be written: its disk may be full, or its reader gone."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().flush()


def outlive_terminal() -> None:
    """Lets no failure of standard output or error raise, nor change the program's exit code.

    It is for the main function of a program, before that opens files.
    """
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
    # The handler keeps the stream that it found when it was imported.
    logging.get_absl_handler().python_handler.setStream(sys.stderr)


def progress_bar(total: int, unit: str, **settings: Any) -> tqdm.tqdm:
    """Starts a progress bar; where no terminal shows it, it is written every ten seconds at most.

    `settings` are tqdm's other arguments.
    """
    shown = sys.stderr.isatty()
    return tqdm.tqdm(
        total=total,
        unit=unit,
        mininterval=0.5 if shown else 10.0,
        dynamic_ncols=shown,
        **settings,
    )


def show_saved(frames: int, where: Path) -> None:
    """Says on the terminal that `frames`, all that were learned from, are saved in a directory."""
    text = "stopped before the first update: there was nothing to save"
    if frames:
        text = f"saved at {frames:,} frames in {where}; the same command goes on"
    print(text, file=sys.stderr)
