"""Stopping on request: SIGINT, SIGTERM and SIGHUP end a run after its checkpoint is saved."""

import signal
from types import FrameType


class StopOnSignal:
    """While entered, keeps the first of these signals; a SIGINT after that acts as usual.

    SIGHUP, which a terminal sends as it closes, stays ignored under `nohup`. A second SIGTERM, as a
    group's processes may send each other, does not cut the saving short.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None  # The signal received.

    def __enter__(self) -> "StopOnSignal":
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal_number = number
        signal.signal(signal.SIGINT, self._previous[signal.SIGINT])
