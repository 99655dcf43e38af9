"""What a program shows on standard error: how far it is, and what it saved."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import tqdm


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


def progress_bar(total: int, unit: str, **settings: Any) -> tqdm.tqdm:
    """Starts a progress bar; where no terminal shows it, it is written every ten seconds at most.

    `settings` are tqdm's other arguments.
    """
    terminal = Terminal()
    shown = terminal.isatty()
    return tqdm.tqdm(
        file=terminal,
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
    print(text, file=Terminal())
