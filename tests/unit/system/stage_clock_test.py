"""Where a thread's time goes, under a clock that the tests move."""

from types import SimpleNamespace

import pytest

from scalable_agent_popart.system import stage_clock
from scalable_agent_popart.system.stage_clock import StageClock, shares


class Time:
    """Stands still until it is told to pass."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(stage_clock, "time", SimpleNamespace(perf_counter=time.perf_counter))
    return time


def spend(clock: StageClock, time: Time, **seconds: float) -> None:
    """Lets time pass in these stages, one after the other."""
    for stage, duration in seconds.items():
        time.now += duration
        clock.finish(stage)


def test_a_new_clock_has_counted_nothing(time: Time) -> None:
    assert StageClock().seconds == {}


def test_time_since_the_last_call_is_the_finished_stages(time: Time) -> None:
    clock = StageClock()
    spend(clock, time, policy=2.0, environment=3.0)
    assert clock.seconds == {"policy": 2.0, "environment": 3.0}


def test_every_visit_to_a_stage_adds_to_it(time: Time) -> None:
    clock = StageClock()
    for _ in range(3):
        spend(clock, time, policy=2.0, environment=0.5)
    spend(clock, time, queue=0.0)
    assert clock.seconds == {"policy": 6.0, "environment": 1.5, "queue": 0.0}


def test_restarting_forgets_what_was_counted_and_the_time_since(time: Time) -> None:
    clock = StageClock()
    spend(clock, time, policy=2.0)
    time.now += 7.0
    clock.restart()
    assert clock.seconds == {}
    spend(clock, time, environment=1.0)
    assert clock.seconds == {"environment": 1.0}


def test_time_before_the_clock_was_made_is_nobodys(time: Time) -> None:
    time.now += 50.0
    clock = StageClock()
    spend(clock, time, policy=1.0)
    assert clock.seconds == {"policy": 1.0}


def test_shares_are_of_all_clocks_time_together(time: Time) -> None:
    first, second = StageClock(), StageClock()
    spend(first, time, policy=1.0, environment=2.0)
    second.restart()
    spend(second, time, policy=4.0, queue=1.0)
    assert shares([first, second]) == {"policy": 5 / 8, "environment": 2 / 8, "queue": 1 / 8}
    assert shares([first]) == {"policy": 1 / 3, "environment": 2 / 3}


def test_there_are_no_shares_before_any_time_has_passed(time: Time) -> None:
    clock = StageClock()
    assert shares([]) == shares([clock]) == {}
    spend(clock, time, policy=0.0)
    assert shares([clock]) == {}


def test_shares_leave_the_clocks_as_they_are(time: Time) -> None:
    clock = StageClock()
    spend(clock, time, policy=3.0, queue=1.0)
    assert shares(iter([clock])) == {"policy": 0.75, "queue": 0.25}
    assert clock.seconds == {"policy": 3.0, "queue": 1.0}
