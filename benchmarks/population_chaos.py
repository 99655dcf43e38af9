"""Kills members of a population at random: does it reach its end, and is what they leave whole?

  python benchmarks/population_chaos.py --logdir=runs/population_chaos

Trains a population on `catch5`, each member in a process of its own, with a comparison every second
or so. Each kill (`kill -9`) is of a random member at a random time after its first progress; every
second one waits for the member to publish its fitness, and comes within a moment, so that many
fall into a comparison. What the dead member left is examined before it is started again. Prints
what became of it as JSON, and fails if a promise was broken. Flags after `--` go to every member.
"""

import functools
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "runs/population_chaos", "Directory; must not exist.")
flags.DEFINE_integer("population_size", 4, "Members.")
flags.DEFINE_integer("kills", 30, "Members killed.")
flags.DEFINE_float("longest_wait_seconds", 4.0, "From a member's first progress to its death.")
flags.DEFINE_integer("total_environment_frames", 400_000, "Frames of each member.")
flags.DEFINE_integer("seed", 1, "Of the population and of the kills.")

_EXPERIMENT = Path(__file__).parent.parent / "experiment.py"
_DEADLINE_SECONDS = 600.0
_FACTORS = (1.0, 1.2, 1 / 1.2)
# A comparison takes about so long.
_MOMENT_SECONDS = 0.3
# What a run keeps when it copies another one.
_OWN = ("learner/frames", "learner/num_updates")


class Members:
    """The members' processes."""

    def __init__(self, logdir: Path, settings: list[str]):
        self.logdir = logdir
        self._settings = settings
        self._output = open(logdir.parent / f"{logdir.name}.log", "w")  # noqa: SIM115
        self._processes = [self._start(number) for number in range(FLAGS.population_size)]

    def _start(self, number: int) -> subprocess.Popen:
        command = [sys.executable, str(_EXPERIMENT), *self._settings, f"--pbt_member={number}"]
        return subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT)

    def training(self) -> list[int]:
        """Those that have not come to their end."""
        alive = [n for n, process in enumerate(self._processes) if process.poll() is None]
        if not alive:
            sys.exit("error: the population came to its end; give more frames or fewer kills")
        return alive

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def start(self, number: int) -> None:
        self._processes[number] = self._start(number)

    def end(self) -> list[int]:
        """Exit codes, once all have ended."""
        return [process.wait(_DEADLINE_SECONDS) for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._output.close()


def directory(logdir: Path, number: int) -> Path:
    return logdir / f"member-{number:02d}"


def frames(logdir: Path, number: int) -> int:
    """In the last whole line of the member's log."""
    path = directory(logdir, number) / "metrics.jsonl"
    *lines, _ = path.read_text().split("\n") if path.exists() else [""]
    return json.loads(lines[-1])["frames"] if lines else 0


def lineage(logdir: Path, number: int, length: int | None = None) -> list[dict[str, Any]]:
    """A member's events, those that its checkpoint knows if that knows `length` bytes."""
    content = (directory(logdir, number) / "lineage.jsonl").read_bytes()[:length]
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def examine(logdir: Path, number: int) -> list[str]:
    """Fails unless the checkpoint is whole and agrees with the lineage, and so is what others see.

    The member must not be training.

    Returns:
      Where it was: `comparison` if it had published and its comparison was not saved; `copy` if
      its checkpoint is that of a copy, which was then compared with its source, value by value.
    """
    own = directory(logdir, number)
    newest = newest_checkpoint(own / "checkpoints")
    if newest is None:
        return []  # It died before the first.
    found = []
    values = read(newest)
    events = lineage(logdir, number, int(values["lineage_length"]))
    assert [event["comparison"] for event in events] == list(range(len(events)))
    assert values["num_comparisons"] == len(events) - 1
    for name, value in events[-1]["hyperparameters"].items():
        assert values[f"hyperparameters/{name}"] == value, (name, value)
    if (own / "fitness.json").exists():
        published = json.loads((own / "fitness.json").read_text())
        seen = read(str(own / "snapshots" / published["checkpoint"]))
        assert seen["learner/frames"] == published["frames"] <= values["learner/frames"]
        unfinished = values["learner/frames"] < FLAGS.total_environment_frames
        if seen["num_comparisons"] == values["num_comparisons"] and unfinished:
            found.append("comparison")
        assert seen["num_comparisons"] == published["comparison"] - 1
        for name, value in published["hyperparameters"].items():
            assert seen[f"hyperparameters/{name}"] == value, (name, value)
    if events[-1]["copied"] and values["learner/frames"] == events[-1]["frames"]:
        source = snapshot(directory(logdir, events[-1]["partner"]), events[-1]["source_frames"])
        if source is not None:
            same = {name for name in values if name.startswith("learner/")} - set(_OWN)
            assert len(same) > 20
            assert all(values[name].tobytes() == source[name].tobytes() for name in same)
            found.append("copy")
    return found


def snapshot(member: Path, frames: int) -> dict[str, Any] | None:
    """What a member published at these frames, if it is still there."""
    import tensorflow as tf  # noqa: PLC0415 - not before the members are started.

    for index in (member / "snapshots").glob("*.index"):
        try:
            values = read(str(index.with_suffix("")))
        except (tf.errors.OpError, ValueError):  # Gone while it was read: that member is alive.
            continue
        if values["learner/frames"] == frames:
            return values
    return None


def newest_checkpoint(folder: Path) -> str | None:
    """Path of the newest checkpoint."""
    import tensorflow as tf  # noqa: PLC0415

    return tf.train.latest_checkpoint(str(folder))


def read(checkpoint: str) -> dict[str, Any]:
    """Every value in a checkpoint, by name; reading them finds out damage."""
    import tensorflow as tf  # noqa: PLC0415

    reader = tf.train.load_checkpoint(checkpoint)
    names = reader.get_variable_to_shape_map()
    return {name.partition("/.ATTR")[0]: reader.get_tensor(name) for name in names}


def examine_lineages(logdir: Path) -> dict[str, int]:
    """Fails unless every member's hyperparameters follow from its own or another's before.

    Returns:
      How many comparisons and copies there were.
    """
    events = {n: lineage(logdir, n) for n in range(FLAGS.population_size)}
    copies = 0
    for own in events.values():
        assert [event["comparison"] for event in own] == list(range(len(own)))
        for before, event in itertools.pairwise(own):
            assert before["frames"] < event["frames"]
            base = before["hyperparameters"]
            if event["copied"]:
                copies += 1
                assert event["fitness"] is not None, "training diverged"
                assert event["partner_fitness"] - event["fitness"] > 5
                source = events[event["partner"]]
                known = [e for e in source if e["frames"] < event["source_frames"]]
                base = known[-1]["hyperparameters"]
            for name, value in event["hyperparameters"].items():
                factor = value / base[name]
                assert min(abs(factor - f) for f in _FACTORS) < 1e-5, (name, factor)
    return {"comparisons": sum(map(len, events.values())) - len(events), "copies": copies}


def torment(members: Members, random_numbers: random.Random) -> tuple[list[int], Counter[str]]:
    """Kills members one after the other.

    Returns:
      How many frames each death lost, and where the members were, as `examine` says it.
    """
    reached = dict.fromkeys(range(FLAGS.population_size), 0)
    lost: list[int] = []
    found: Counter[str] = Counter()
    while len(lost) < FLAGS.kills:
        victim = random_numbers.choice(members.training())
        folder = directory(members.logdir, victim)
        # The log is cut back to the checkpoint when the member resumes, and grows again.
        wait_for(functools.partial(is_beyond, members, victim, reached[victim]))
        time.sleep(random_numbers.uniform(0, FLAGS.longest_wait_seconds))
        if len(lost) % 2:
            wait_for(functools.partial(publishes, members, victim, inode(folder / "fitness.json")))
            time.sleep(random_numbers.uniform(0, _MOMENT_SECONDS))
        if victim not in members.training():
            continue  # It came to its end.
        members.kill(victim)
        reached[victim] = frames(members.logdir, victim)
        found.update(examine(members.logdir, victim))
        newest = saved_frames(members.logdir, victim)
        lost.append(reached[victim] - newest)
        reached[victim] = newest
        members.start(victim)
    return lost, found


def is_beyond(members: Members, number: int, reached: int) -> bool:
    """Whether a member has come further than that, or to its end."""
    return frames(members.logdir, number) > reached or number not in members.training()


def publishes(members: Members, number: int, known: int | None) -> bool:
    """Whether a member's `fitness.json` is another one than was known, or none will come."""
    path = directory(members.logdir, number) / "fitness.json"
    return inode(path) != known or number not in members.training()


def inode(path: Path) -> int | None:
    """Another number once the file is replaced."""
    return path.stat().st_ino if path.exists() else None


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits for what members are to bring about."""
    end = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > end:
            sys.exit("error: a member does not come any further")
        time.sleep(0.005)


def saved_frames(logdir: Path, number: int) -> int:
    """Of the member's newest checkpoint."""
    newest = newest_checkpoint(directory(logdir, number) / "checkpoints")
    return int(read(newest)["learner/frames"]) if newest else 0


def main(argv: list[str]) -> None:
    logdir = Path(FLAGS.logdir)
    logdir.parent.mkdir(parents=True, exist_ok=True)
    settings = ["--mode=pbt", f"--population_size={FLAGS.population_size}", f"--logdir={logdir}"]
    settings += ["--level_name=catch5", "--use_popart", "--num_actors=10", "--log_seconds=0.5"]
    settings += [f"--total_environment_frames={FLAGS.total_environment_frames}"]
    settings += ["--checkpoint_seconds=5", "--pbt_burn_in_frames=5000", "--pbt_episodes=150"]
    settings += [f"--seed={FLAGS.seed}", *argv[1:]]
    begin = time.monotonic()
    members = Members(logdir, settings)
    try:
        lost, found = torment(members, random.Random(FLAGS.seed))
        codes = members.end()
    finally:
        members.close()
    numbers = range(FLAGS.population_size)
    for number in numbers:
        examine(logdir, number)
    reached = [frames(logdir, number) for number in numbers]
    result = {
        "kills": len(lost),
        "killed_in_a_comparison": found["comparison"],
        "copies_compared_with_their_source": found["copy"],
        "frames_lost": lost,
        "seconds": time.monotonic() - begin,
        "exit_codes": codes,
        "frames": reached,
        **examine_lineages(logdir),
    }
    print(json.dumps(result, indent=2))
    if any(codes) or min(reached) < FLAGS.total_environment_frames:
        sys.exit("error: a member did not end well")


if __name__ == "__main__":
    app.run(main)
