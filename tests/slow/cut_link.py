"""Cuts the link between a learner and an actor on another host for a minute: do they go on?

  sudo python -m tests.slow.cut_link LOGDIR

The other host is a network namespace of this machine, joined to it by a pair of virtual devices of
which one is down while the link is cut. Needs root and `ip`.
"""

import subprocess
import sys
import time
from pathlib import Path

from tests.fakes.programs import ROOT, metrics, wait_until

_SPACE, _HERE, _THERE = "popart-actor", "popart-here", "popart-there"
_LEARNER_IP, _ACTOR_IP = "10.213.7.1", "10.213.7.2"
_CUT_SECONDS = 60.0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def main(logdir: Path) -> None:
    def frames() -> int:
        lines = metrics(logdir)
        return lines[-1]["frames"] if lines else 0

    program = [sys.executable, str(ROOT / "experiment.py"), "--level_name=catch5", "--use_popart"]
    program += ["--num_actors=10", "--log_seconds=0.5", f"--learner_address={_LEARNER_IP}:5799"]
    actor = ["ip", "netns", "exec", _SPACE, *program, "--job_name=actor", "--task=0"]
    jobs: list[subprocess.Popen] = []
    _ip("netns", "add", _SPACE)
    try:
        _ip("link", "add", _HERE, "type", "veth", "peer", "name", _THERE)
        _ip("link", "set", _THERE, "netns", _SPACE)
        _ip("addr", "add", f"{_LEARNER_IP}/24", "dev", _HERE)
        _ip("link", "set", _HERE, "up")
        _ip("-n", _SPACE, "addr", "add", f"{_ACTOR_IP}/24", "dev", _THERE)
        _ip("-n", _SPACE, "link", "set", _THERE, "up")
        jobs.append(subprocess.Popen([*program, "--job_name=learner", f"--logdir={logdir}"]))
        jobs.append(subprocess.Popen(actor))
        wait_until(lambda: frames() >= 5000)
        # As if the cable were pulled: the other side is not told, and its packets are dropped.
        _ip("link", "set", _HERE, "down")
        time.sleep(2.0)  # For what is on the way.
        before = frames()
        time.sleep(_CUT_SECONDS)
        last = frames()
        _ip("link", "set", _HERE, "up")
        begin = time.monotonic()
        wait_until(lambda: frames() >= last + 1000)
        seconds, alive = time.monotonic() - begin, [job.poll() is None for job in jobs]
        print(f"{last - before} frames while cut; {seconds:.0f} s until 1000 frames more; {alive=}")
    finally:
        for job in jobs:
            job.kill()
            job.wait()
        _ip("netns", "del", _SPACE)  # Takes both devices along.


if __name__ == "__main__":
    main(Path(sys.argv[1]))
