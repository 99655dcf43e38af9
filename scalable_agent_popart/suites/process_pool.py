"""Environments in processes of their own, so that a slow or dying one holds up nobody else.

See `environment_process` for what passes between parent and children. A child that is gone is
started again, later with each death in a row, and counted. One that hangs is killed first.
"""

import contextlib
import os
import pickle
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from environments import EnvironmentLostError, EpisodeCounter, Ready, StepOutput
from scalable_agent_popart.suites.environment_process import (
    ANSWER,
    REFUSED,
    Hold,
    MakeEnvironment,
    Rows,
    Task,
)

_TURN = b"."
_CHILD = "from scalable_agent_popart.suites.environment_process import play; play()"
_PIPE_BYTES = 2**16  # As much as Linux keeps.
# How long environments that are ready wait for others to share a call of the policy.
_GATHER_SECONDS = 0.01
# Who has had the turn for so long is busy with more than a step, and not waited for.
_SLOW_SECONDS = 0.1
# Starting again after a death: how long it takes, doubling from the first in a row.
_FIRST_DELAY_SECONDS = 0.1
_MOST_DEATHS_IN_A_ROW = 8
# A death is not one in a row with those before if this many steps came between.
_SOUND_STEPS = 10
# How long a step or reset may take: a map that is compiled on a busy machine takes minutes.
_MOST_TURN_SECONDS = 15 * 60.0
_CHECK_SECONDS = 1.0
_UNSEEN_SECONDS = 5.0
# How long a process may take to end, when it is told to, and when it has said that it does.
_GRACE_SECONDS = 5.0
_LAST_GRACE_SECONDS = 0.5
# Of what a process has said at the end: an engine shows all that its map compiler printed (10 kB).
_READ_BYTES = 2**18
_MOST_LINES = 5
_MOST_REASONS = 3
# Stack traces of Python, Lua and abseil: the message stands above Lua's and below Python's.
_STACK_TRACE = re.compile(
    r"^\s*(Traceback \(most recent call last\)|stack traceback|\*\*\* Check failure stack trace)"
    r".*\n(?:[ \t]+.*(?:\n|$))*",
    re.MULTILINE,
)
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")
# A line that says why, among others that say what was done. Warnings of the map compiler do not.
_REASON = re.compile(
    r"(?!WARNING).*(\bfatal\b|\berror\b|fail|\bcannot\b|could ?n[o']t|unable to|no space"
    r"|no such file|out of memory|permission denied|(command|:) not found)",
    re.IGNORECASE,
)


class _Child:
    """An environment's process, as its parent sees it."""

    def __init__(
        self, attempt: int, directory: Path, connection: socket.socket, process: subprocess.Popen
    ):
        self.attempt = attempt
        self.directory = directory
        self.connection = connection
        self.process = process
        self.hung = False

    def give_turn(self) -> None:
        """Lets it step."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # Its end is found out.
            self.connection.send(_TURN)

    def kill(self) -> None:
        """Ends it at once, with the programs it runs."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, seconds: float) -> str:
        """Waits so long for the process to end, then kills it; returns what it said last."""
        self.connection.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        try:
            with open(self.directory / "output", "rb") as output:
                output.seek(max(0, output.seek(0, os.SEEK_END) - _READ_BYTES))
                words = last_words(output.read().decode(errors="replace"))
        except OSError:
            words = last_words("")
        shutil.rmtree(self.directory, ignore_errors=True)
        return words


class ProcessPool:
    """N environments, each in a process of its own: an `environments.EnvironmentPool`."""

    lockstep = False

    def __init__(
        self,
        names: Sequence[str],
        make: Sequence[MakeEnvironment],
        task_ids: np.ndarray,
        observation: Any,
    ):
        """Prepares the pool; `start` starts the processes.

        Args:
          names: what the environments play, for messages.
          make: makes each environment, in its process; must pickle.
          task_ids: int32 `[N]`.
          observation: nested `ArraySpec`s of one environment.
        """
        self.task_ids = task_ids
        self.restarts = np.zeros(len(task_ids), np.int64)
        self.groups = np.arange(len(task_ids))
        self._names = names
        self._make = make
        self._observation = observation
        self._hold: Hold | None = None  # Of the directory, once started.
        self._memory = os.memfd_create("environments")
        # Children write to it the numbers of environments that have given the turn back.
        self._answers, self._answer = os.pipe()
        self._rows = Rows(self._memory, len(task_ids), observation)
        self._counter = EpisodeCounter(len(task_ids))
        self._files = [self._memory, self._answers, self._answer]
        self._selector = select.epoll()
        self._selector.register(self._answers, select.EPOLLIN)
        self._children: dict[int, _Child] = {}
        self._child_of: dict[int, int] = {}  # Socket to environment.
        # Of the present processes; the first turn they give back is no step.
        self._steps = np.zeros(len(task_ids), np.int64)
        self._due: dict[int, float] = {}  # Environment to when it is started again.
        self._deaths = np.zeros(len(task_ids), np.int64)  # In a row.
        self._has_turn = np.zeros(len(task_ids), bool)
        self._answered = np.zeros(len(task_ids), bool)  # And were not received yet.
        self._turn_began = np.zeros(len(task_ids))
        self._checked = 0.0  # When hung ones were last looked for.
        self._ended: set[int] = set()  # While they did not have the turn.

    def start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="environment_processes_"))
        self._hold = Hold(self._directory)
        for i in range(len(self.task_ids)):
            self._start(i, attempt=0)

    def receive(self, seconds: float) -> Ready:
        """As in the protocol; once one is ready, waits a little for more than half to be.

        Raises:
          EnvironmentLostError: if an environment could not even begin, or died too often in a
            row.
        """
        ids = self._gather(seconds)
        self._answered[ids] = False
        self._steps[ids] += 1
        self._has_turn[ids] = False
        reward, done, observation = self._rows.read(ids)
        fresh = self._steps[ids] == 0
        info = self._counter.step(reward, done & ~fresh, ids, begins=fresh)
        return Ready(ids, StepOutput(reward, info, done, observation), fresh)

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        self._rows.action[ids] = actions
        self._has_turn[ids] = True
        self._turn_began[ids] = time.monotonic()
        for i in ids.tolist():
            if i in self._ended:
                self._ended.remove(i)
                self._bury(i)
            else:
                self._children[i].give_turn()

    def close(self) -> None:
        self._selector.close()
        if self._hold is not None:
            self._hold.release()
        for child in self._children.values():
            child.connection.close()  # All of them end at the same time.
        end = time.monotonic() + _GRACE_SECONDS
        for child in self._children.values():
            child.end(max(0.0, end - time.monotonic()))
        self._children.clear()
        if self._hold is not None:  # Nobody else removes it if the last had to be killed.
            shutil.rmtree(self._directory, ignore_errors=True)
        while self._files:
            os.close(self._files.pop())

    def _gather(self, seconds: float) -> np.ndarray:
        """Environments that have given the turn back."""
        end = time.monotonic() + seconds
        wait = 0.0  # Even if many are ready, those that ended are seen to.
        any_ready = False
        while True:
            self._attend(wait)
            ids = np.flatnonzero(self._answered)
            now = time.monotonic()
            expected = self._answered | (self._has_turn & (now - self._turn_began < _SLOW_SECONDS))
            if len(ids) and not any_ready:
                any_ready = True
                end = min(end, now + _GATHER_SECONDS)
            if 2 * len(ids) > np.count_nonzero(expected) or now >= end:
                return ids
            wait = min([end, *self._due.values()]) - now

    def _attend(self, seconds: float) -> None:
        """Waits at most so long for something to happen, and sees to processes that end."""
        events = dict(self._selector.poll(max(0.0, seconds)))
        if events.pop(self._answers, None):
            # First, and all there is, since a child may have answered before it died.
            self._answered[np.frombuffer(os.read(self._answers, _PIPE_BYTES), ANSWER)] = True
        for file in events:
            self._selector.unregister(file)  # Nothing but an end of file ever comes from a child.
            i = self._child_of.pop(file)
            if self._has_turn[i]:
                self._bury(i)
            else:
                self._ended.add(i)
        now = time.monotonic()
        if now - self._checked > _CHECK_SECONDS:
            self._kill_hung(now)
        for i in [i for i, due in self._due.items() if due <= now]:
            del self._due[i]
            self._start(i, int(self.restarts[i]))

    def _kill_hung(self, now: float) -> None:
        """Kills children that have taken too long; their ends are then found out."""
        unseen = now - self._checked
        if unseen > _UNSEEN_SECONDS:  # Does not count: the whole machine may have stood still.
            self._turn_began = np.minimum(self._turn_began + unseen, now)
        self._checked = now
        busy = self._has_turn & ~self._answered
        for i in np.flatnonzero(busy & (now - self._turn_began > _MOST_TURN_SECONDS)).tolist():
            self._children[i].hung = True
            self._children[i].kill()

    def _start(self, i: int, attempt: int) -> None:
        self._steps[i] = -1
        self._has_turn[i] = True
        self._turn_began[i] = time.monotonic()
        self._answered[i] = False
        ours, theirs = socket.socketpair()
        directory = self._directory / f"{i}_{attempt}"
        directory.mkdir(parents=True)
        task = Task(
            self._make[i],
            attempt,
            i,
            theirs.fileno(),
            self._answer,
            self._memory,
            len(self.task_ids),
            self._observation,
        )
        with theirs, open(directory / "output", "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=child_environment(directory),
                pass_fds=(theirs.fileno(), self._answer, self._memory),
                start_new_session=True,  # Ctrl-C is for the parent.
            )
        assert process.stdin
        with contextlib.suppress(BrokenPipeError), process.stdin:
            pickle.dump(task, process.stdin)
        self._children[i] = _Child(attempt, directory, ours, process)
        self._child_of[ours.fileno()] = i
        self._selector.register(ours, select.EPOLLIN)

    def _bury(self, i: int) -> None:
        """Sees to a child that is gone, and to its successor."""
        child = self._children.pop(i)
        self._has_turn[i] = False
        self._answered[i] = False
        words = child.end(_LAST_GRACE_SECONDS)
        code = child.process.returncode
        if child.hung:
            how = f"was killed, having hung for {_MOST_TURN_SECONDS:g} s"
        elif code < 0:
            how = f"was killed by signal {-code}"
        else:
            how = f"ended with exit code {code}"
        if child.attempt == 0 and code == REFUSED and self._steps[i] < 0:
            raise EnvironmentLostError(f"{self._names[i]} cannot be played: {words}")
        self._deaths[i] = 1 if self._steps[i] >= _SOUND_STEPS else self._deaths[i] + 1
        if self._deaths[i] > _MOST_DEATHS_IN_A_ROW:
            raise EnvironmentLostError(
                f"the process of {self._names[i]} {how}, the last of {self._deaths[i]} in a row; "
                f"its last words: {words}"
            )
        delay = _FIRST_DELAY_SECONDS * 2 ** int(self._deaths[i] - 1)
        self.restarts[i] += 1
        logging.warning(
            "the process of %s %s; starting another in %g s: %s", self._names[i], how, delay, words
        )
        self._due[i] = time.monotonic() + delay


def last_words(output: str) -> str:
    """Tells in one line why a process ended.

    Args:
      output: all that it has printed.

    Returns:
      The exception that ended it, or else its last lines, both without stack traces; before them
      earlier lines that name a cause, as a missing program or library.
    """
    lines = [line.strip() for line in _STACK_TRACE.sub("", output).splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if _EXCEPTION.match(line)]
    end = raised[-1] if raised else max(0, len(lines) - _MOST_LINES)
    reasons = list(dict.fromkeys(line[:300] for line in lines[:end] if _REASON.match(line)))
    if len(reasons) > _MOST_REASONS:  # A cause stands above what came of it.
        reasons = [reasons[0], *reasons[1 - _MOST_REASONS :]]
    told = [*reasons, " ".join(lines[end:][:_MOST_LINES])]
    return "; ".join(filter(None, told))[:1000] or "(none)"


def child_environment(directory: Path) -> dict[str, str]:
    """The environment variables of a child."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    # Its arrays are small, and there are as many children as there are environments.
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    # Mesa's software renderer (llvmpipe) draws in the thread that asks, not in one for each core.
    threads["LP_NUM_THREADS"] = "0"
    return {**os.environ, **threads, "PYTHONPATH": path, "TMPDIR": str(directory)}
