"""Runs on DeepMind Lab's levels, whose processes are killed one by one and all at once."""

import os
import random
import signal
from pathlib import Path

from tests.fakes.programs import (
    DEADLINE_SECONDS,
    Programs,
    children,
    is_alive,
    left_in,
    metrics,
    read_log,
    wait_until,
)
from tests.slow.failure_test import saved

_LEVELS = ("rooms_collect_good_objects_train", "rooms_exploit_deferred_effects_train")
_SETTINGS = {"level_name": ",".join(_LEVELS), "use_popart": True, "num_actors": 4}
_SETTINGS |= {"network": "shallow", "unroll_length": 20, "batch_size": 4}
_SETTINGS |= {"checkpoint_seconds": 0.5, "log_seconds": 0.1}
_KILLS = 5


def test_killed_levels_come_back_and_a_killed_run_resumes(
    room_frames: int, temporary: Path, programs: Programs, tmp_path: Path
) -> None:
    logdir, chance = tmp_path / "run", random.Random(0)
    flags = {**_SETTINGS, "logdir": logdir, "level_cache_dir": tmp_path / "cache"}
    program = programs.run(**flags)
    wait_until(lambda: bool(metrics(logdir)), program)
    for kills in range(1, _KILLS + 1):
        os.kill(chance.choice(children(program.pid)), signal.SIGKILL)
        wait_until(lambda n=kills: metrics(logdir)[-1]["environment_restarts"] == n, program)
    wait_until(lambda: len(children(program.pid)) == 4, program)
    frames = metrics(logdir)[-1]["frames"]
    wait_until(lambda: saved(logdir) > frames + 5 * room_frames, program)
    levels = children(program.pid)
    program.kill()
    wait_until(lambda: not any(map(is_alive, levels)))
    assert not left_in(temporary)
    frames = saved(logdir)
    program = programs.run(**flags, total_environment_frames=frames + 5 * room_frames)
    assert program.wait(DEADLINE_SECONDS) == 0, program.communicate()[1]
    assert not left_in(temporary)
    assert saved(logdir) >= frames + 5 * room_frames
    logged = [line["frames"] for line in metrics(logdir)]
    assert logged == sorted(set(logged))
    episodes = read_log(logdir / "episodes.jsonl")
    assert {episode["task"] for episode in episodes} == set(_LEVELS)
    assert max(episode["episode_frames"] for episode in episodes) <= room_frames
