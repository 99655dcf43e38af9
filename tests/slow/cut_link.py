"""Cuts the link between a learner and an actor on another host for a minute: do they go on?

  sudo python tests/slow/cut_link.py --logdir=runs/cut_link

The other host is a network namespace of this machine, joined to it by a pair of virtual devices of
which one is down while the link is cut. Needs root and `ip`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "runs/cut_link", "Run directory; must not exist.")
flags.DEFINE_float("seconds", 60.0, "How long the link is cut.")
flags.DEFINE_integer("port", 5799, "Of the learner.")

_EXPERIMENT = Path(__file__).parents[2] / "experiment.py"
_SPACE, _HERE, _THERE = "popart-actor", "popart-here", "popart-there"
_LEARNER_IP, _ACTOR_IP = "10.213.7.1", "10.213.7.2"
_DEADLINE_SECONDS = 300.0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def other_host() -> Iterator[list[str]]:
    """A namespace with a link to this one; gives what begins a command that runs there."""
    _ip("netns", "add", _SPACE)
    try:
        _ip("link", "add", _HERE, "type", "veth", "peer", "name", _THERE)
        _ip("link", "set", _THERE, "netns", _SPACE)
        _ip("addr", "add", f"{_LEARNER_IP}/24", "dev", _HERE)
        _ip("link", "set", _HERE, "up")
        inside = ["ip", "netns", "exec", _SPACE]
        for command in (f"addr add {_ACTOR_IP}/24 dev {_THERE}", f"link set {_THERE} up"):
            subprocess.run([*inside, "ip", *command.split()], check=True)
        yield inside
    finally:
        _ip("netns", "del", _SPACE)  # Takes both devices along.


@contextmanager
def cut_link() -> Iterator[None]:
    """As if the cable were pulled here: the other side is not told, and its packets are dropped."""
    _ip("link", "set", _HERE, "down")
    try:
        yield
    finally:
        _ip("link", "set", _HERE, "up")


def _frames(logdir: Path) -> int:
    path = logdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [json.loads(line)["frames"] for line in lines if line.endswith("\n")]
    return whole[-1] if whole else 0


def _wait_for(frames: int, logdir: Path) -> float:
    """Waits until the run has come so far; returns for how many seconds."""
    begin = time.monotonic()
    while _frames(logdir) < frames:
        if time.monotonic() - begin > _DEADLINE_SECONDS:
            raise RuntimeError(f"the run hangs at {_frames(logdir)} frames")
        time.sleep(0.1)
    return time.monotonic() - begin


def main(argv: list[str]) -> None:
    logdir = Path(FLAGS.logdir)
    settings = ["--level_name=catch5", "--use_popart", "--num_actors=10", "--log_seconds=0.5"]
    settings += [f"--learner_address={_LEARNER_IP}:{FLAGS.port}", *argv[1:]]
    program = [sys.executable, str(_EXPERIMENT), *settings]
    jobs: list[subprocess.Popen] = []
    with other_host() as inside:
        try:
            jobs.append(subprocess.Popen([*program, "--job_name=learner", f"--logdir={logdir}"]))
            actor = [*inside, *program, "--job_name=actor", "--task=0"]
            jobs.append(subprocess.Popen(actor))
            _wait_for(5000, logdir)
            with cut_link():
                time.sleep(2.0)  # For what is on the way.
                before = _frames(logdir)
                time.sleep(FLAGS.seconds)
                during = _frames(logdir) - before
            back = _wait_for(before + during + 1000, logdir)
            alive = [job.poll() is None for job in jobs]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
    result = {
        "seconds_cut": FLAGS.seconds,
        "frames_while_cut": during,
        "seconds_until_1000_frames_more": back,
        "both_alive": all(alive),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    app.run(main)
