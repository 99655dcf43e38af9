"""Environments in processes of their own: in step, on their own, lost, and gone for good."""

import functools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tree

from environments import EnvironmentLostError, InvalidStepError, Ready
from scalable_agent_popart.errors import FAILS_AGAIN
from scalable_agent_popart.suites import process_pool
from scalable_agent_popart.suites.environment_process import REFUSED, MakeEnvironment
from scalable_agent_popart.suites.process_pool import ProcessPool
from scalable_agent_popart.system.program import exit_code
from tests.fakes.process_environments import (
    EPISODE_STEPS,
    OBSERVATION,
    Counting,
    Dying,
    Refusing,
    Undeclared,
    Waiting,
)
from tests.fakes.programs import DEADLINE_SECONDS, ROOT, is_alive, wait_until

MakePool = Callable[..., ProcessPool]


@pytest.fixture
def make_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePool]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(process_pool, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(process_pool, "_FIRST_PAUSE_SECONDS", 1e-3)
    pools: list[ProcessPool] = []

    def make(*environments: MakeEnvironment) -> ProcessPool:
        names = [f"level_{i}" for i in range(len(environments))]
        task_ids = np.arange(len(environments), dtype=np.int32) % 2
        pools.append(ProcessPool(names, environments, task_ids, OBSERVATION))
        pools[-1].start()
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def waiting(tmp_path: Path) -> MakeEnvironment:
    return functools.partial(Waiting, tmp_path / "may_begin")


def play(pool: ProcessPool, until: Callable[[Ready], bool]) -> list[Ready]:
    """Sends every environment action 5 plus its number whenever it is ready."""
    end = time.monotonic() + DEADLINE_SECONDS
    received = []
    while True:
        assert time.monotonic() < end, "what was waited for did not come about"
        received.append(pool.receive(0.2))
        pool.send(received[-1].ids, (5 + received[-1].ids).astype(np.int32))
        if until(received[-1]):
            return received


def steps_of(received: list[Ready], environment: int) -> list[Ready]:
    """Returns what was received of one environment, one by one, without the batch dimension."""
    return [
        Ready(environment, tree.map_structure(lambda a, m=m: a[m], ready.output), ready.fresh[m])
        for ready in received
        for m in np.flatnonzero(ready.ids == environment)
    ]


def has_steps(environment: int, steps: int) -> Callable[[Ready], bool]:
    def reached(ready: Ready) -> bool:
        numbers = ready.output.observation["number"][ready.ids == environment, 0]
        return bool(np.any(numbers >= steps))

    return reached


@pytest.mark.parametrize("after", [0, 20])
def test_what_was_not_declared_is_not_converted_nor_tried_again(
    make_pool: MakePool, after: int
) -> None:
    pool = make_pool(Counting, functools.partial(Undeclared, after))
    message = r"^level_1 \(environment 1\): .* uint8 \(2, 3\), and is float64 \(2, 3\)$"
    with pytest.raises(InvalidStepError, match=message) as error:
        play(pool, has_steps(1, 21))
    assert pool.restarts.tolist() == [0, 0]
    assert exit_code(error.value) == FAILS_AGAIN


def test_steps_pass_through_in_order(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes are of this checkout wherever they are started."""
    (tmp_path / "scalable_agent_popart.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    pool = make_pool(*[Counting] * 3)
    received = play(pool, lambda ready: bool(np.all(pool._steps > 10)))
    assert all(np.all(np.diff(ready.ids) > 0) for ready in received)
    processes = set()
    for i in range(3):
        for t, (_, output, fresh) in enumerate(steps_of(received, i)):
            place = (t - 1) % EPISODE_STEPS + 1 if t else 0
            ended = place == EPISODE_STEPS
            assert fresh == (t == 0)
            assert (output.reward, output.done) == (place, ended or t == 0)
            assert output.info == (sum(range(place + 1)), place, ended)
            step, action, attempt, process = output.observation["number"]
            assert (step, action, attempt) == (t, 5 + i if t else -1, 0)
            np.testing.assert_array_equal(output.observation["picture"], np.full((2, 3), t % 256))
            processes.add(int(process))
    assert pool.restarts.tolist() == [0, 0, 0]
    assert len(processes - {os.getpid()}) == 3
    for _ in range(2):  # Again is harmless.
        pool.close()
        assert not any(map(is_alive, processes))


def test_one_that_is_slow_to_begin_holds_up_nobody(
    make_pool: MakePool, tmp_path: Path, waiting: MakeEnvironment
) -> None:
    """Only the kernel tells who is ready: memory may show a flag before the frames before it."""
    pool = make_pool(waiting, *[Counting] * 2)
    memory = pool._shared[0]
    os.pwrite(memory, b"\1" * os.fstat(memory).st_size, 0)
    assert not len(pool.receive(0.0).ids)
    assert not steps_of(play(pool, has_steps(2, 50)), 0)
    (tmp_path / "may_begin").touch()
    assert steps_of(play(pool, has_steps(0, 20)), 0)[0].fresh


def test_a_lost_environment_starts_again_and_is_counted(
    make_pool: MakePool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them ends its process, and one raises, also in a Python for an older Linux."""
    monkeypatch.delattr(os, "memfd_create")
    dying = [functools.partial(Dying, 13, code) for code in (7, 0)]
    pool = make_pool(*dying, *[Counting] * 3)

    with caplog.at_level(logging.WARNING, logger="absl"):
        received = play(pool, lambda _: bool(np.all(pool.restarts[:2] >= 2)))
    for i, words in enumerate(("no such file", "wrong status")):
        steps = steps_of(received, i)
        starts = [t for t, step in enumerate(steps) if step.fresh]
        for t in starts:
            output = steps[t].output
            assert (output.reward, output.done, output.info) == (0, True, (0, 0, False))
        assert np.diff(starts).tolist()[0] == 14, "thirteen steps: none lost, none twice"
        attempts = [int(steps[t].output.observation["number"][2]) for t in starts]
        assert attempts == list(range(len(starts)))
        first, *others = [m for m in caplog.messages if f"level_{i}" in m]
        assert 1 + len(others) == pool.restarts[i]
        assert words in first
        assert ("process_environments.py, line " in first) == (words == "wrong status")
        assert all(message.endswith("as before") for message in others)
    assert pool.restarts[2:].tolist() == [0, 0, 0]
    assert not any(step.fresh for step in steps_of(received, 2)[1:])


def test_too_many_deaths_in_a_row_and_one_that_cannot_begin_are_the_end(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_MAX_RESTARTS_IN_A_ROW", 2)
    pool = make_pool(functools.partial(Dying, 3, REFUSED), Counting)
    with pytest.raises(EnvironmentLostError, match=r"level_0 .* last of 3 in a row.*: no such"):
        play(pool, lambda ready: False)
    assert pool.restarts.tolist() == [2, 0]
    with pytest.raises(EnvironmentLostError, match=r"level_1 cannot be played: .*no such level"):
        play(make_pool(Counting, Refusing), lambda ready: False)


def test_one_that_hangs_is_killed_and_counted(
    make_pool: MakePool, waiting: MakeEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    """One in a step, and one while it begins."""
    pool = make_pool(Counting, waiting, Counting)
    play(pool, has_steps(0, 3))
    os.kill(pool._children[0].pid, signal.SIGSTOP)
    before = play(pool, has_steps(2, 20))
    assert pool.restarts.tolist() == [0, 0, 0], "they have their time"
    pool._turn_began[:2] -= process_pool._MAX_TURN_SECONDS
    with caplog.at_level(logging.WARNING, logger="absl"):
        after = play(pool, lambda ready: pool.restarts.tolist() == [1, 1, 0])
    for level in ("level_0", "level_1"):
        assert f"{level} was killed, having hung for 900 s; starting another" in caplog.text
    assert not any(step.fresh for step in steps_of([*before, *after], 2)[1:])


_PARENT = """
import functools, sys
from pathlib import Path
import numpy as np
from tests.fakes import process_environments
from scalable_agent_popart.suites.process_pool import ProcessPool

waiting = functools.partial(process_environments.Waiting, Path(sys.argv[1]) / "may_begin")
make = [process_environments.Counting, waiting]
pool = ProcessPool(["a", "b"], make, np.zeros(2, np.int32), process_environments.OBSERVATION)
pool.start()
while True:
    ready = pool.receive(0.2)
    if len(ready.ids):
        print(ready.output.observation["number"][0, 3], flush=True)
    pool.send(ready.ids, ready.ids.astype(np.int32))
"""


def test_processes_notice_that_their_parent_was_killed(tmp_path: Path) -> None:
    """One of them while it begins, and so only once it has begun."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    counting = int(parent.stdout.readline())
    wait_until(lambda: bool(list(tmp_path.glob("waiting_*"))))
    waiting = int(next(tmp_path.glob("waiting_*")).name.split("_")[1])
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_alive(counting))
    assert is_alive(waiting)
    (tmp_path / "may_begin").touch()
    wait_until(lambda: not is_alive(waiting))
    assert not list(tmp_path.glob("environment_processes_*")), "nothing is left behind"
