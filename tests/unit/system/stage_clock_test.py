"""Time that threads spend in their stages, under a clock that the tests move."""

from types import SimpleNamespace

import pytest

from scalable_agent_popart.system import stage_clock
from scalable_agent_popart.system.stage_clock import StageClock, shares


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    time = SimpleNamespace(now=100.0)
    time.perf_counter = lambda: time.now
    monkeypatch.setattr(stage_clock, "time", time)
    return time


def spend(clock: StageClock, time: SimpleNamespace, **seconds: float) -> None:
    """Lets time pass in these stages, one after the other."""
    for stage, duration in seconds.items():
        time.now += duration
        clock.finish(stage)


def test_a_clock_adds_up_the_time_of_each_stage_since_it_was_made_or_restarted(
    time: SimpleNamespace,
) -> None:
    clock = StageClock()
    assert clock.seconds == {}
    for _ in range(3):
        spend(clock, time, policy=2.0, environment=0.5)
    assert clock.seconds == {"policy": 6.0, "environment": 1.5}
    time.now += 7.0
    clock.restart()
    assert clock.seconds == {}
    spend(clock, time, environment=1.0)
    assert clock.seconds == {"environment": 1.0}


def test_shares_are_of_the_time_of_all_clocks(time: SimpleNamespace) -> None:
    first, second = StageClock(), StageClock()
    assert shares([]) == shares([first]) == {}
    spend(first, time, policy=1.0, environment=2.0)
    second.restart()
    spend(second, time, policy=4.0, queue=1.0)
    assert shares([first, second]) == {"policy": 5 / 8, "environment": 2 / 8, "queue": 1 / 8}
    assert shares([first]) == {"policy": 1 / 3, "environment": 2 / 3}
