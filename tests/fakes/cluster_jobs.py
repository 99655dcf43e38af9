"""Jobs whose processes are stand-ins, started by the programs under test."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.fakes.fake_cluster_program import starts
from tests.fakes.programs import ROOT, is_alive, wait_until

FAKE = ROOT / "tests" / "fakes" / "fake_cluster_program.py"
_PROCESSES = ("learner", "actor0", "actor1", "evaluator")


class ClusterJobs:
    """Starts programs that start the stand-in; kills what is left of them."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._programs: list[subprocess.Popen[str]] = []

    def popen(
        self, command: Sequence[str], environment: Mapping[str, str], behaviour: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Starts a program; `behaviour` maps roles to the words that say what they do."""
        words = {f"FAKE_{role.upper()}": words for role, words in behaviour.items()}
        program = subprocess.Popen(
            command,
            env={**os.environ, **environment, **words, "FAKE_DIR": str(self.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._programs.append(program)
        return program

    def num_starts(self) -> list[int]:
        """Returns how often learner, both actors and evaluator were started."""
        return [len(starts(self.directory, each)) for each in _PROCESSES]

    def wait_for_all(self) -> list[int]:
        wait_until(lambda: all(self.num_starts()))
        return self.all()

    def all(self) -> list[int]:
        return [start["pid"] for each in _PROCESSES for start in starts(self.directory, each)]

    def any_alive(self) -> bool:
        return any(map(is_alive, self.all()))

    def check_told(self, flags: Sequence[str], **own: Sequence[str]) -> None:
        """Asserts that processes were given these flags, and GPUs to the learner only."""
        for process in _PROCESSES:
            start = starts(self.directory, process)[0]
            role = process.rstrip("01")
            task = [f"--task={process[-1]}"] * (role == "actor")
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES") if role == "learner" else "-1"
            assert start["devices"] == gpus
            told = [*flags, f"--job_name={role}", *own[role], *task]
            assert sorted(start["arguments"]) == sorted(told)

    def close(self) -> None:
        for program in self._programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.communicate(timeout=60)
        wait_until(lambda: not self.any_alive())
