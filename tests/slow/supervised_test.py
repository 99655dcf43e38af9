"""A pool of environments whose processes die again and again."""

import functools

import numpy as np

from tests.fakes.process_environments import Counting, Dying
from tests.unit.suites.process_pool_test import MakePool, make_pool, play, steps_of

__all__ = ["make_pool"]  # It is a fixture.


def test_a_pool_survives_a_hundred_deaths(make_pool: MakePool) -> None:
    pool = make_pool(*[functools.partial(Dying, 12, 7)] * 4, Counting)
    received = play(pool, lambda ready: pool.restarts.sum() == 100)
    for i in range(4):
        attempts = [output.observation["number"][2] for _, output, _ in steps_of(received, i)]
        counts = np.bincount(attempts)
        assert len(counts) >= pool.restarts[i]
        assert np.all(counts[:-1] == 13), "twelve steps and the first"
    assert sum(not step.fresh for step in steps_of(received, 4)) > 1000
