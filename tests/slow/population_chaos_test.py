"""Members of a population are killed at random, leave whole files, and all reach the end."""

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from scalable_agent_popart.population.directory import Event, MemberDirectory, PopulationDirectory
from scalable_agent_popart.runs.checkpoints import saved_frames
from tests.fakes.programs import DEADLINE_SECONDS, Programs, logged_frames, wait_until
from tests.runs.population_runs_test import read_checkpoint

_MEMBERS, _KILLS, _FRAMES = 4, 14, 200_000
_MAX_WAIT_SECONDS = 4.0  # A member dies so soon after its first progress.
_COMPARISON_SECONDS = 0.3


def test_members_that_are_killed_leave_nothing_half_made(
    programs: Programs, tmp_path: Path
) -> None:
    settings = {"mode": "pbt", "population_size": _MEMBERS, "logdir": tmp_path}
    settings |= {"level_name": "catch5", "use_popart": True, "num_actors": 10, "log_seconds": 0.5}
    settings |= {"total_environment_frames": _FRAMES, "checkpoint_seconds": 5}
    settings |= {"pbt_burn_in_frames": 5000, "pbt_episodes": 150}
    folders = [PopulationDirectory(str(tmp_path)).member(number) for number in range(_MEMBERS)]
    reached = [0] * _MEMBERS
    generator, in_comparison = random.Random(1), []
    members = [programs.run(**settings, pbt_member=n) for n in range(_MEMBERS)]
    for kill in range(_KILLS):
        alive = [number for number, process in enumerate(members) if process.poll() is None]
        victim = generator.choice(alive)
        folder, process = folders[victim], members[victim]
        # The log is cut back to the checkpoint when the member resumes, and grows again.
        _wait(process, lambda at=folder, past=reached[victim]: logged_frames(at.path) > past)
        time.sleep(generator.uniform(0, _MAX_WAIT_SECONDS))
        if kill % 2:  # Many are in a comparison soon after the fitness is published.
            published = _inode(folder)
            _wait(process, lambda at=folder, known=published: _inode(at) != known)
            time.sleep(generator.uniform(0, _COMPARISON_SECONDS))
        process.kill()
        process.wait()
        in_comparison.append(_examine(folder))
        reached[victim] = saved_frames(folder.checkpoints) or 0
        members[victim] = programs.run(**settings, pbt_member=victim)
    for folder, process in zip(folders, members, strict=True):
        assert process.wait(DEADLINE_SECONDS) == 0
        assert logged_frames(folder.path) >= _FRAMES
        _examine(folder)
    assert any(in_comparison), "no kill fell into a comparison"


def _wait(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    wait_until(lambda: condition() or process.poll() is not None)


def _inode(member: MemberDirectory) -> int | None:
    path = member.path / "fitness.json"
    return path.stat().st_ino if path.exists() else None


def _examine(member: MemberDirectory) -> bool:
    """Checks that a dead member's checkpoint, lineage and publication agree.

    Returns whether it had published and died before its comparison was saved.
    """
    if saved_frames(member.checkpoints) is None:
        return False  # It died before its first checkpoint.
    values = read_checkpoint(member.checkpoints)
    lines = member.lineage.read_bytes()[: int(values["lineage_length"])].splitlines()
    events = [Event(**json.loads(line)) for line in lines]
    assert [event.comparison for event in events] == list(range(len(events)))
    assert values["num_comparisons"] == len(events) - 1
    for name, value in events[-1].hyperparameters.items():
        assert values[f"hyperparameters/{name}"] == value, (name, value)
    published = member.published()
    if published is None:
        return False
    seen = read_checkpoint(published.checkpoint)
    assert seen["learner/frames"] == published.frames <= values["learner/frames"]
    assert seen["num_comparisons"] == published.comparison - 1
    unfinished = values["learner/frames"] < _FRAMES
    return bool(seen["num_comparisons"] == values["num_comparisons"] and unfinished)
