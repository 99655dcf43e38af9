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
        except OSError:  # A file opened later would get what is printed to the closed descriptor.
            os.open(os.devnull, os.O_RDWR)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        encoding = getattr(getattr(sys, name), "encoding", None)
        file = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - held until the end.
        stream = _LossyStream(file, encoding, errors="backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
    # The handler still has the stream that it found at its import.
    logging.get_absl_handler().python_handler.setStream(sys.stderr)


class _Lines(tqdm.tqdm):
    """A bar for log files: a whole line every ten seconds at most, and one to leave at the end."""

    def __init__(self, leave: bool = True, **settings: Any):
        self._leaves = leave
        # The delay leaves out tqdm's line at the start, and `close` replaces the one at the end.
        super().__init__(mininterval=10.0, miniters=0, delay=1e-9, leave=False, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is not None:  # An empty message clears a line.
            return
        now = self.format_dict
        shown = [self.desc.removesuffix(": "), f"{self.n:,} of {self.total:,}{self.unit}"]
        if rate := now["rate"] or (self.n - self.initial) / max(now["elapsed"], 1e-9):
            shown.append(f"{rate:,.0f}{self.unit}/s" if rate >= 10 else f"{rate:.2g}{self.unit}/s")
            shown.append(f"{self.format_interval(max(0, self.total - self.n) / rate)} left")
        self.fp.write(", ".join(filter(None, [*shown, self.postfix])) + "\n")

    def close(self) -> None:
        if self._leaves and not self.disable and self.n > self.last_print_n:
            self.display()
        super().close()

    write = staticmethod(print)  # No bar must be cleared for it.


def progress_bar(total: int, unit: str, **settings: Any) -> tqdm.tqdm:
    """Starts tqdm's bar, or whole lines if standard error is no terminal."""
    if not sys.stderr.isatty():
        return _Lines(total=total, unit=unit, **settings)
    return tqdm.tqdm(total=total, unit=unit, mininterval=0.5, dynamic_ncols=True, **settings)


def show_saved(frames: int, where: Path) -> None:
    """Prints that all that was learned, from so many frames, is saved in a directory."""
    text = "stopped before the first update: there was nothing to save"
    if frames:
        text = f"saved at {frames:,} frames in {where}; the same command resumes"
    print(text, file=sys.stderr)
