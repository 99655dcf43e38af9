"""Actor jobs and learners of one run are killed at random, and it still ends and loses little."""

import random
from pathlib import Path

from tests.fakes.programs import DEADLINE_SECONDS, Programs, logged_frames, metrics, wait_until

_ACTOR_JOBS = 4
_FRAMES, _FRAMES_BETWEEN_KILLS = 250_000, 4000
_KILLS = ["actor"] * 20 + ["learner"] * 5
_CHECKPOINT_SECONDS = 5.0
# A kill may cut off the saving of a checkpoint, and the update before it.
_SAVING_SECONDS = 1.0
_SETTINGS = {"level_name": "catch5", "use_popart": True, "num_actors": 10, "log_seconds": 0.5}
_SETTINGS |= {"total_environment_frames": _FRAMES, "checkpoint_seconds": _CHECKPOINT_SECONDS}


def test_killed_jobs_cost_no_more_than_is_trained_between_checkpoints(
    programs: Programs, tmp_path: Path
) -> None:
    settings = {**_SETTINGS, "logdir": tmp_path}
    learners = {**settings, "job_name": "learner", "learner_address": "localhost:0"}
    actors = [programs.run(job_name="actor", task=n, **settings) for n in range(_ACTOR_JOBS)]
    learner = programs.run(**learners)
    generator = random.Random(0)
    wait_until(lambda: logged_frames(tmp_path) > 0, learner)
    for victim in generator.sample(_KILLS, len(_KILLS)):
        goal = min(logged_frames(tmp_path) + _FRAMES_BETWEEN_KILLS, int(0.9 * _FRAMES))
        wait_until(lambda goal=goal: logged_frames(tmp_path) >= goal, learner)
        if victim == "actor":
            task = generator.randrange(_ACTOR_JOBS)
            actors[task].kill()
            actors[task].wait()
            actors[task] = programs.run(job_name="actor", task=task, **settings)
            continue
        learner.kill()
        learner.wait()
        before = metrics(tmp_path)
        learner = programs.run(**learners)
        # The new learner cuts the log back to its checkpoint.
        wait_until(lambda old=before: metrics(tmp_path) != old, learner)
        after = metrics(tmp_path)
        kept = sum(a == b for a, b in zip(after, before, strict=False))
        lost = before[-1]["time"] - before[max(kept - 1, 0)]["time"]
        assert lost <= _CHECKPOINT_SECONDS + _SAVING_SECONDS
    assert learner.wait(DEADLINE_SECONDS) == 0
    for actor in actors:
        assert actor.wait(DEADLINE_SECONDS) == 0
    assert logged_frames(tmp_path) >= _FRAMES
