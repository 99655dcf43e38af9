"""Stopping on request: SIGINT, SIGTERM and SIGHUP end a run after its checkpoint is saved."""

import os
import signal
from types import FrameType


class StopOnSignal:
    """While entered, keeps the first of these signals; a SIGINT after that acts as usual.

    SIGHUP, sent by a terminal that closes, stays ignored under `nohup`. Processes of a group may
    send each other a second SIGTERM, which does not cut the saving short.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None  # The first received.

    def __enter__(self) -> "StopOnSignal":
        hangs_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
        numbers = [signal.SIGINT, signal.SIGTERM, *[signal.SIGHUP] * hangs_up]
        self._previous = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.signal_number = self.signal_number or number
        signal.signal(signal.SIGINT, self._previous[signal.SIGINT])


def end_at_ctrl_c() -> None:
    """Makes SIGINT, unless it is ignored, end a program without a traceback while it loads."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_at_ctrl_c() -> None:
    """Makes SIGINT raise KeyboardInterrupt again after `end_at_ctrl_c`."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)  # An import may lose an exception, or show it.
