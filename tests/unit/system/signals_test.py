"""Signals that ask a run to stop."""

import os
import signal

import pytest

from scalable_agent_popart.system.signals import StopOnSignal


@pytest.mark.parametrize(
    ("before", "stopped_by"), [(signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, None)]
)
def test_a_closed_terminal_stops_a_run_unless_nohup_started_it(
    before: signal.Handlers, stopped_by: int | None
) -> None:
    handler = signal.signal(signal.SIGHUP, before)
    try:
        with StopOnSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal_number == stopped_by
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal_number == (stopped_by or signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, handler)
