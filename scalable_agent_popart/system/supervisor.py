"""Child processes: how their owner starts, watches, ends and restarts them.

Only the standard library is used, because processes of environments and the tools of clusters
import this. Processes of `multiprocessing` have neither a group to end with, nor a file for what
they print, nor the memory that they used.
"""

import contextlib
import math
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_MAX_MESSAGE_BYTES = 2**16
_MAX_LINES, _MAX_REASONS = 5, 3
_MAX_PAUSE_SECONDS = 60.0  # Before a restart.
_POLL_SECONDS = 0.01
# These are stack traces of Python, Lua and abseil. Python's message follows, Lua's comes before.
_STACK_TRACE = re.compile(
    r"^[ \t]*(Traceback \(most recent call last\)|stack traceback|\*\*\* Check failure stack trace)"
    r".*\n(?:[ \t]+.*(?:\n|$))*",
    re.MULTILINE,
)
_FRAME = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Exit)\b")
# Such a line says why, but warnings of map compilers do not.
_REASON = re.compile(
    r"(?!WARNING).*(\bfatal\b|\berror\b|fail|\bcannot\b|could ?n[o']t|unable to|no space"
    r"|no such file|out of memory|permission denied|(command|:) not found)",
    re.IGNORECASE,
)

# This leads a group of processes, ends only after its parent, and then kills them all.
_GUARD = """\
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(0, b"+")
os.read(0, 1)
os.killpg(0, signal.SIGKILL)
"""


class Child:
    """A process that this one has started.

    It leads a process group, so that Ctrl-C reaches only the parent. What is left of the group at
    its end is killed. `connection` is a socket to its standard input, by whose end it notices that
    the parent is gone.
    """

    def __init__(
        self,
        command: Sequence[str],
        payload: Any = None,
        files: Sequence[int] = (),
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        group: int | None = None,
    ):
        """Starts the process; raises OSError if the command cannot be executed.

        Args:
          payload: pickled and sent over the connection, for `begin`.
          files: descriptors that it inherits.
          output: a file for all that it prints; by default this process's own output.
          group: the process group that it joins instead of leading its own.
        """
        self._leads = group is None
        self.connection, child_end = socket.socketpair()
        with child_end:
            self._process = subprocess.Popen(
                command,
                stdin=child_end.fileno(),
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env=environment,
                pass_fds=files,
                process_group=group or 0,
            )
        self.pid = self._process.pid
        self.began = time.monotonic()
        # `wait` sets the following. Signals count from 128 on, as in shells.
        self.exit_code: int | None = None
        self.message = ""  # All that the child has written to the connection.
        self.max_memory_kib = 0
        if payload is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.connection.sendall(pickle.dumps(payload))

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits for the end, at most so long; returns the exit code, or None if it still runs."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while self.exit_code is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                self._finish()
            elif (remaining := end - time.monotonic()) > 0:
                time.sleep(min(remaining, _POLL_SECONDS))
            else:
                break
        return self.exit_code

    def _finish(self) -> None:
        if self._leads:
            os.killpg(self.pid, signal.SIGKILL)  # No other group has the number before `wait4`.
        _, status, usage = os.wait4(self.pid, 0)  # `Popen` measures no memory.
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.exit_code = code if code >= 0 else 128 - code
        self.max_memory_kib = usage.ru_maxrss
        with contextlib.suppress(OSError):  # There may be nothing, or the connection is closed.
            message = self.connection.recv(_MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            self.message = message.decode()
        self.connection.close()

    def send_signal(self, number: int) -> None:
        """Sends a signal to this process alone, unless it has ended."""
        if self.exit_code is None:
            os.kill(self.pid, number)  # No other process has the number before `wait`.

    def kill(self) -> None:
        """Ends it at once, with all of the group that it leads."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def begin() -> tuple[socket.socket, Any]:
    """Returns this `Child`'s connection and payload; programs that it starts read nothing."""
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    with connection.makefile("rb") as payload:
        return connection, pickle.load(payload)


def end(children: Iterable[Child], seconds: float) -> None:
    """Waits at most so long for children that were asked to end, and kills the rest."""
    deadline = time.monotonic() + seconds
    try:
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
    finally:  # A second Ctrl-C does not wait.
        for child in children:
            child.kill()


@contextlib.contextmanager
def group() -> Iterator[int]:
    """Makes a process group that is killed as soon as this process is gone; yields its number.

    Its leader only reads from a connection that this process holds. So even programs that a
    launcher has started end with their owner. Processes that leave the group, such as those of
    environments, must care for themselves.
    """
    guard = Child([sys.executable, "-P", "-S", "-c", _GUARD])
    try:
        guard.connection.recv(1)  # It outlives SIGTERM from now on.
        yield guard.pid
    finally:
        guard.kill()


@dataclass
class Restarts:
    """Decides when a process that died is started again: later with each death in a row."""

    max_in_a_row: int  # Restarts; the next death is the last.
    first_pause: float = 0.0  # Seconds before the first restart; doubles with each further one.
    deaths: int = 0  # so far, in a row

    def pause(self, healthy: bool) -> float | None:
        """Counts a death, in a new row if `healthy`; returns seconds up to a restart, or None."""
        self.deaths = 1 if healthy else self.deaths + 1
        if self.deaths > self.max_in_a_row:
            return None
        return min(self.first_pause * 2 ** (self.deaths - 1), _MAX_PAUSE_SECONDS)


def python_environment() -> dict[str, str]:
    """Returns environment variables with which `python -P` finds the modules of this process.

    Without `-P` it would prefer those of the current folder, such as another checkout's.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def describe_exit(code: int) -> str:
    """Returns in words what a child's exit code means."""
    if 128 < code <= 128 + signal.NSIG:
        return f"was ended by signal {code - 128}"
    return f"ended with exit code {code}"


def tail(path: Path, max_bytes: int) -> str:
    """Returns the end of a text file; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def where_raised(output: str) -> str:
    """Returns file and line, in brackets, of a Python traceback's last frame; nothing without."""
    frames = _FRAME.findall(output)
    return f" ({', line '.join(frames[-1])})" if frames else ""


def last_words(output: str) -> str:
    """Returns in one line why a process ended, given what it printed last.

    Earlier lines that name a cause, such as a missing library, come first. Then comes the exception
    that ended it, or otherwise its last lines. Stack traces are left out.
    """
    lines = [line.strip() for line in _STACK_TRACE.sub("", output).splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if _EXCEPTION.match(line)]
    end = raised[-1] if raised else max(0, len(lines) - _MAX_LINES)
    reasons = list(dict.fromkeys(line[:300] for line in lines[:end] if _REASON.match(line)))
    if len(reasons) > _MAX_REASONS:  # A cause stands above its consequences.
        reasons = [reasons[0], *reasons[1 - _MAX_REASONS :]]
    message = [*reasons, " ".join(lines[end:][:_MAX_LINES])]
    return "; ".join(filter(None, message))[:1000] or "(none)"
