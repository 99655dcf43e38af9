"""Members of a population are killed at random: all they leave is whole, and all reach the end."""

import itertools
import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from scalable_agent_popart.population.directory import (
    Event,
    MemberDirectory,
    PopulationDirectory,
)
from tests.fakes.programs import DEADLINE_SECONDS, Programs, metrics, wait_until

_MEMBERS, _KILLS, _FRAMES = 4, 30, 400_000
_MAX_WAIT_SECONDS = 4.0  # From a member's first progress to its death.
_COMPARISON_SECONDS = 0.3
_FACTORS = (1.0, 1.2, 1 / 1.2)
# A run keeps these when it copies another one.
_OWN = {"learner/frames", "learner/num_updates"}


@pytest.fixture
def programs() -> Iterator[Programs]:
    programs = Programs()
    yield programs
    programs.close()


def test_members_that_are_killed_leave_nothing_half_made(
    programs: Programs, tmp_path: Path
) -> None:
    settings = ["--mode=pbt", f"--population_size={_MEMBERS}", f"--logdir={tmp_path}"]
    settings += ["--level_name=catch5", "--use_popart", "--num_actors=10", "--log_seconds=0.5"]
    settings += [f"--total_environment_frames={_FRAMES}", "--checkpoint_seconds=5"]
    settings += ["--pbt_burn_in_frames=5000", "--pbt_episodes=150"]

    def start(number: int) -> subprocess.Popen[str]:
        return programs.run(*settings, f"--pbt_member={number}")

    members = [start(number) for number in range(_MEMBERS)]
    generator = random.Random(1)
    reached = dict.fromkeys(range(_MEMBERS), 0)
    found: Counter[str] = Counter()
    for kill in range(_KILLS):
        alive = [number for number, process in enumerate(members) if process.poll() is None]
        assert alive, "the population came to its end before all kills"
        victim = generator.choice(alive)
        folder, process = _directory(tmp_path, victim), members[victim]
        # The log is cut back to the checkpoint when the member resumes, and grows again.
        wait_until(_until_end(process, lambda f=folder, r=reached[victim]: _frames(f) > r))
        time.sleep(generator.uniform(0, _MAX_WAIT_SECONDS))
        if kill % 2:  # Soon after the fitness is published, so that many fall into a comparison.
            known = _inode(folder)
            wait_until(_until_end(process, lambda f=folder, k=known: _inode(f) != k))
            time.sleep(generator.uniform(0, _COMPARISON_SECONDS))
        process.kill()
        process.wait()
        found.update(_examine(tmp_path, victim))
        newest = tf.train.latest_checkpoint(str(folder.checkpoints))
        reached[victim] = int(_read(newest)["learner/frames"]) if newest else 0
        members[victim] = start(victim)
    for number, process in enumerate(members):
        assert process.wait(DEADLINE_SECONDS) == 0
        assert _frames(_directory(tmp_path, number)) >= _FRAMES
        found.update(_examine(tmp_path, number))
    assert found["comparison"], "no kill fell into a comparison"
    assert _follow_lineages(tmp_path) > 0


def _until_end(process: subprocess.Popen[str], condition: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: condition() or process.poll() is not None


def _directory(population: Path, number: int) -> MemberDirectory:
    return PopulationDirectory(str(population)).member(number)


def _frames(member: MemberDirectory) -> int:
    lines = metrics(member.path)
    return lines[-1]["frames"] if lines else 0


def _inode(member: MemberDirectory) -> int | None:
    path = member.path / "fitness.json"
    return path.stat().st_ino if path.exists() else None


def _read(checkpoint: str) -> dict[str, Any]:
    """Reads every value in a checkpoint, which raises if it is damaged."""
    reader = tf.train.load_checkpoint(checkpoint)
    names = reader.get_variable_to_shape_map()
    return {name.partition("/.ATTR")[0]: reader.get_tensor(name) for name in names}


def _examine(population: Path, number: int) -> Iterator[str]:
    """Checks that a dead member's checkpoint, lineage and publication agree.

    Yields:
      `comparison` if the member had published and died before its comparison was saved; `copy` if
      its checkpoint is a copy, which is then compared with its source, value by value.
    """
    own = _directory(population, number)
    newest = tf.train.latest_checkpoint(str(own.checkpoints))
    if newest is None:
        return  # It died before the first.
    values = _read(newest)
    lines = own.lineage.read_bytes()[: int(values["lineage_length"])].splitlines()
    events = [Event(**json.loads(line)) for line in lines]
    assert [event.comparison for event in events] == list(range(len(events)))
    assert values["num_comparisons"] == len(events) - 1
    for name, value in events[-1].hyperparameters.items():
        assert values[f"hyperparameters/{name}"] == value, (name, value)
    if published := own.published():
        seen = _read(published.checkpoint)
        assert seen["learner/frames"] == published.frames <= values["learner/frames"]
        assert seen["num_comparisons"] == published.comparison - 1
        for name, value in published.hyperparameters.items():
            assert seen[f"hyperparameters/{name}"] == value, (name, value)
        unfinished = values["learner/frames"] < _FRAMES
        if seen["num_comparisons"] == values["num_comparisons"] and unfinished:
            yield "comparison"
    if events[-1].copied and values["learner/frames"] == events[-1].frames:
        source = _snapshot(_directory(population, events[-1].partner), events[-1].source_frames)
        if source is not None:
            same = {name for name in values if name.startswith("learner/")} - _OWN
            assert len(same) > 20
            assert all(values[name].tobytes() == source[name].tobytes() for name in same)
            yield "copy"


def _snapshot(member: MemberDirectory, frames: int) -> dict[str, Any] | None:
    """Reads the snapshot that a member published at these frames, if it is still there."""
    for index in (member.path / "snapshots").glob("*.index"):
        try:
            values = _read(str(index.with_suffix("")))
        except (tf.errors.OpError, ValueError):  # Gone while it was read: that member is alive.
            continue
        if values["learner/frames"] == frames:
            return values
    return None


def _follow_lineages(population: Path) -> int:
    """Checks that hyperparameters follow from those before; returns the number of comparisons."""
    lineages = [_directory(population, number).read_lineage() for number in range(_MEMBERS)]
    for before, event in itertools.chain(*map(itertools.pairwise, lineages)):
        assert before.frames < event.frames
        base = before.hyperparameters
        if event.copied:
            assert event.partner_fitness - event.fitness > 5
            known = [each for each in lineages[event.partner] if each.frames < event.source_frames]
            base = known[-1].hyperparameters
        for name, value in event.hyperparameters.items():
            factor = value / base[name]
            assert min(abs(factor - known) for known in _FACTORS) < 1e-5, (name, factor)
    return sum(map(len, lineages)) - _MEMBERS
