"""Owners of processes whose processes die, or that die themselves, again and again."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.process_environments import Counting, Dying
from tests.fakes.programs import wait_until
from tests.unit.bazel.run_local_test import Jobs
from tests.unit.suites.process_pool_test import MakePool, make_pool, play, steps_of

__all__ = ["make_pool"]  # A fixture.


def test_a_pool_goes_on_through_a_hundred_deaths(make_pool: MakePool) -> None:
    pool = make_pool(*[functools.partial(Dying, 12, 7)] * 4, Counting)
    received = play(pool, lambda ready: pool.restarts.sum() == 100)
    for i in range(4):
        attempts = [output.observation["number"][2] for _, output, _ in steps_of(received, i)]
        counts = np.bincount(attempts)
        assert len(counts) >= pool.restarts[i]
        assert np.all(counts[:-1] == 13), "twelve steps and the first"
    assert sum(not step.fresh for step in steps_of(received, 4)) > 1000


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


def test_nothing_is_left_of_a_local_job_whenever_it_is_killed(jobs: Jobs) -> None:
    """Killed while it starts processes, again and again."""
    for count in range(1, 20):
        process = jobs.start(actor="1")
        wait_until(lambda count=count: len(jobs.all()) >= 4 * count)  # type: ignore[misc]
        process.kill()
    wait_until(lambda: not jobs.any_alive())
