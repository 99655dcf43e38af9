"""Kills actor jobs and learners of one run at random: does it reach its end, and what is lost?

  python benchmarks/chaos.py --logdir=runs/chaos

Trains PopArt-IMPALA on `catch5` with a learner and four actor jobs on this machine. Each kill
(`kill -9`) comes once the run has moved on since the last; what was killed is started again at
once. Prints what became of it as JSON, and fails if a promise was broken. Flags after `--` go
to every job.
"""

import json
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "runs/chaos", "Run directory; must not exist.")
flags.DEFINE_integer("actor_jobs", 4, "Actor jobs.")
flags.DEFINE_integer("actor_kills", 50, "Actor jobs killed.")
flags.DEFINE_integer("learner_kills", 10, "Learners killed.")
flags.DEFINE_integer("frames_between_kills", 4000, "Environment frames from kill to kill.")
flags.DEFINE_integer("total_environment_frames", 500_000, "Frames to end at.")
flags.DEFINE_float("checkpoint_seconds", 5.0, "Seconds between checkpoints.")

_EXPERIMENT = Path(__file__).parent.parent / "experiment.py"
_DEADLINE_SECONDS = 300.0
# A kill may cut off the saving of a checkpoint, and the update before it.
_SAVING_SECONDS = 1.0


class Jobs:
    """The processes of a run."""

    def __init__(self, logdir: Path, settings: list[str]):
        self.port = _free_port()
        self._logdir = logdir
        self._settings = [*settings, f"--learner_address=localhost:{self.port}"]
        self._output = open(logdir.parent / f"{logdir.name}.log", "w")  # noqa: SIM115
        self.learner = self.start("--job_name=learner", f"--logdir={logdir}")
        self.actors = [self.start_actor(task) for task in range(FLAGS.actor_jobs)]

    def start(self, *own: str) -> subprocess.Popen:
        command = [sys.executable, str(_EXPERIMENT), *self._settings, *own]
        return subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT)

    def start_actor(self, task: int) -> subprocess.Popen:
        return self.start("--job_name=actor", f"--task={task}")

    def kill_actor(self, task: int) -> None:
        _kill(self.actors[task])
        self.actors[task] = self.start_actor(task)

    def kill_learner(self) -> None:
        _kill(self.learner)
        self.learner = self.start("--job_name=learner", f"--logdir={self._logdir}")

    def resident_mebibytes(self) -> float:
        """Memory of the learner's process."""
        status = Path(f"/proc/{self.learner.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def end(self) -> list[int]:
        """Exit codes once the learner has ended; actors that came too late to hear are asked."""
        codes = [self.learner.wait(_DEADLINE_SECONDS)]
        for process in self.actors:
            if process.poll() is None:
                process.terminate()
            codes.append(process.wait(_DEADLINE_SECONDS))
        return codes

    def close(self) -> None:
        for process in (self.learner, *self.actors):
            _kill(process)
        self._output.close()


def _kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Lost(NamedTuple):
    """What a kill of the learner cost: from its last checkpoint to its last word."""

    frames: int
    seconds: float


def _records(logdir: Path) -> list[dict[str, Any]]:
    """The whole lines of the learner's log."""
    path = logdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _wait_for(frames: int, logdir: Path) -> int:
    """Waits until the run has come so far; returns how far."""
    end = time.monotonic() + _DEADLINE_SECONDS
    while not (records := _records(logdir)) or records[-1]["frames"] < frames:
        if time.monotonic() > end:
            raise RuntimeError(f"the run hangs before {frames} frames")
        time.sleep(0.1)
    return records[-1]["frames"]


def _wait_for_resumed(before: list[dict[str, Any]], logdir: Path) -> Lost:
    """Waits until the log is cut back to the checkpoint; returns what went with the rest."""
    end = time.monotonic() + _DEADLINE_SECONDS
    while (after := _records(logdir)) == before:
        if time.monotonic() > end:
            raise RuntimeError("the learner does not come back")
        time.sleep(0.05)
    kept = sum(1 for a, b in zip(after, before, strict=False) if a == b)
    checkpoint, last = before[max(kept - 1, 0)], before[-1]
    return Lost(last["frames"] - checkpoint["frames"], last["time"] - checkpoint["time"])


def torment(jobs: Jobs, logdir: Path) -> dict[str, Any]:
    """Kills as asked; returns what was seen."""
    chance = random.Random(0)
    victims = ["actor"] * FLAGS.actor_kills + ["learner"] * FLAGS.learner_kills
    chance.shuffle(victims)
    lost: list[Lost] = []
    memory = []
    seen = _wait_for(1, logdir)
    for victim in victims:
        seen = _wait_for(min(seen + FLAGS.frames_between_kills, _last_kill()), logdir)
        if victim == "actor":
            jobs.kill_actor(chance.randrange(FLAGS.actor_jobs))
            continue
        memory.append(jobs.resident_mebibytes())
        jobs.kill_learner()
        lost.append(_wait_for_resumed(_records(logdir), logdir))
        seen = _wait_for(1, logdir)
    return {
        "frames_lost": [kill.frames for kill in lost],
        "seconds_lost": [round(kill.seconds, 2) for kill in lost],
        "learner_mebibytes": memory,
    }


def _last_kill() -> int:
    """Frames by which all kills are to be over."""
    return int(0.9 * FLAGS.total_environment_frames)


def main(argv: list[str]) -> None:
    logdir = Path(FLAGS.logdir)
    logdir.parent.mkdir(parents=True, exist_ok=True)
    settings = ["--level_name=catch5", "--use_popart", "--num_actors=10", "--log_seconds=0.5"]
    settings += [f"--total_environment_frames={FLAGS.total_environment_frames}"]
    settings += [f"--checkpoint_seconds={FLAGS.checkpoint_seconds}", *argv[1:]]
    begin = time.monotonic()
    jobs = Jobs(logdir, settings)
    try:
        result = torment(jobs, logdir)
        _wait_for(FLAGS.total_environment_frames, logdir)
        codes = jobs.end()
    finally:
        jobs.close()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", jobs.port))  # Nobody listens any more.
    last = _records(logdir)[-1]
    result |= {
        "seconds": time.monotonic() - begin,
        "exit_codes": codes,
        "frames": last["frames"],
        "mean": last["mean"],
    }
    print(json.dumps(result, indent=2))
    worst = max(result["seconds_lost"], default=0.0)
    if worst > FLAGS.checkpoint_seconds + _SAVING_SECONDS:
        sys.exit(f"error: {worst} s of training were lost, more than between two checkpoints")
    if any(code not in (0, 128 + signal.SIGTERM) for code in codes):
        sys.exit("error: a job did not end well")


if __name__ == "__main__":
    app.run(main)
