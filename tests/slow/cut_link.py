"""Cuts the link between a learner and an actor on another host for a minute: do they go on?

  sudo python -m tests.slow.cut_link --logdir=runs/cut_link

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

from tests.fakes.programs import ROOT, metrics, wait_until

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "runs/cut_link", "Run directory; must not exist.")
flags.DEFINE_float("seconds", 60.0, "How long the link is cut.")
flags.DEFINE_integer("port", 5799, "Of the learner.")

_SPACE, _HERE, _THERE = "popart-actor", "popart-here", "popart-there"
_LEARNER_IP, _ACTOR_IP = "10.213.7.1", "10.213.7.2"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def other_host() -> Iterator[list[str]]:
    """Makes a namespace with a link to this one; yields what begins a command that runs there."""
    _ip("netns", "add", _SPACE)
    try:
        _ip("link", "add", _HERE, "type", "veth", "peer", "name", _THERE)
        _ip("link", "set", _THERE, "netns", _SPACE)
        _ip("addr", "add", f"{_LEARNER_IP}/24", "dev", _HERE)
        _ip("link", "set", _HERE, "up")
        _ip("-n", _SPACE, "addr", "add", f"{_ACTOR_IP}/24", "dev", _THERE)
        _ip("-n", _SPACE, "link", "set", _THERE, "up")
        yield ["ip", "netns", "exec", _SPACE]
    finally:
        _ip("netns", "del", _SPACE)  # Takes both devices along.


def _frames(logdir: Path) -> int:
    lines = metrics(logdir)
    return lines[-1]["frames"] if lines else 0


def main(argv: list[str]) -> None:
    logdir = Path(FLAGS.logdir)
    settings = ["--level_name=catch5", "--use_popart", "--num_actors=10", "--log_seconds=0.5"]
    settings += [f"--learner_address={_LEARNER_IP}:{FLAGS.port}", *argv[1:]]
    program = [sys.executable, str(ROOT / "experiment.py"), *settings]
    jobs: list[subprocess.Popen] = []
    with other_host() as inside:
        try:
            jobs.append(subprocess.Popen([*program, "--job_name=learner", f"--logdir={logdir}"]))
            actor = [*inside, *program, "--job_name=actor", "--task=0"]
            jobs.append(subprocess.Popen(actor))
            wait_until(lambda: _frames(logdir) >= 5000)
            # As if the cable were pulled: the other side is not told, and its packets are dropped.
            _ip("link", "set", _HERE, "down")
            time.sleep(2.0)  # For what is on the way.
            before = _frames(logdir)
            time.sleep(FLAGS.seconds)
            last = _frames(logdir)
            _ip("link", "set", _HERE, "up")
            begin = time.monotonic()
            wait_until(lambda: _frames(logdir) >= last + 1000)
            back = time.monotonic() - begin
            alive = [job.poll() is None for job in jobs]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
    result = {
        "seconds_cut": FLAGS.seconds,
        "frames_while_cut": last - before,
        "seconds_until_1000_frames_more": back,
        "both_alive": all(alive),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    app.run(main)
