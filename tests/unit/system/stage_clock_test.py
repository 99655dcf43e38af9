"""Time that threads spend in their stages, under a clock that the test moves."""

from types import SimpleNamespace

import pytest

from scalable_agent_popart.system import stage_clock
from scalable_agent_popart.system.stage_clock import StageClock, shares


def test_shares_are_of_the_time_of_all_clocks_since_they_were_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(stage_clock, "time", SimpleNamespace(perf_counter=lambda: now))
    first, second = StageClock(), StageClock()
    assert shares([]) == shares([first]) == {}
    for stage, seconds in (("policy", 1.0), ("environment", 2.0)):
        now += seconds
        first.finish(stage)
    second.restart()
    for stage, seconds in (("policy", 4.0), ("queue", 1.0)):
        now += seconds
        second.finish(stage)
    assert shares([first, second]) == {"policy": 5 / 8, "environment": 2 / 8, "queue": 1 / 8}
