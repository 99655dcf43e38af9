"""Stands in for `experiment.py` in tests of the order in which runs are trained and tested.

It learns from a hundred frames every hundredth of a second, in which it finishes a game, and saves
at SIGTERM. A game's return is the learning rate, if there is one. A run with `--fake=fail` fails in
the middle. A test that finds a file `terminate` next to the run directory removes it and is
terminated. A population has three members: the first never begins, the second has learned before,
and the third learns.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> None:
    flags = dict(argument.lstrip("-").partition("=")[::2] for argument in arguments)
    if "flagfile" in flags:
        lines = Path(flags["flagfile"]).read_text().split()
        flags = {**dict(line.lstrip("-").partition("=")[::2] for line in lines), **flags}
    if flags.get("mode") == "report":
        Path(flags["report_dir"]).mkdir(parents=True, exist_ok=True)
        (Path(flags["report_dir"]) / "runs").write_text(flags["runs"])
        return
    run = Path(flags["logdir"])
    if flags.get("mode") == "pbt":
        run.mkdir(exist_ok=True)
        (run / "population.json").write_text(json.dumps({"flags": flags}))
        for number in range(3):
            (run / f"member-0{number}").mkdir(exist_ok=True)
        flags, run = {**flags, "seed": "70"}, run / "member-02"
        before = json.dumps({"frames": 50, "frames_per_second": 30}) + "\n"
        (run.parent / "member-01" / "metrics.jsonl").write_text(before)
        (run / "lineage.jsonl").touch()
    metrics = run / "metrics.jsonl"
    run.mkdir(exist_ok=True)
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    frames = json.loads(lines[-1])["frames"] if lines else 0
    if flags.get("mode") == "test":
        if (terminate := run.parent / "terminate").exists():
            terminate.unlink()
            os.kill(os.getpid(), signal.SIGTERM)
        episodes = int(flags.get("test_num_episodes", 200))
        tested = {"frames": frames, "starts": "noop", "tasks": {"pong": {"episodes": episodes}}}
        (run / "evaluations").mkdir(exist_ok=True)
        for path in (run / "evaluation.json", run / "evaluations" / f"noop-{frames}-1.json"):
            path.write_text(json.dumps(tested))
        (run / "tests").open("a").write(f"tested {flags.get('level_name', 'the run')}\n")
        return
    made = {"test_num_episodes": 200, **flags}
    config = {"agent": "IMPALA", "git_revision": "abc", "versions": {}, "flags": made}
    config["tasks"] = ["pong"]
    (run / "config.json").write_text(json.dumps(config))

    def save(number: int, frame: object) -> None:
        (run / "saved").touch()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, save)
    total = int(flags["total_environment_frames"])
    while frames < total:
        time.sleep(0.01)
        if flags.get("fake") == "fail" and frames >= total // 2:
            sys.exit("diverged")
        frames += 100
        line = json.dumps({"frames": frames, "frames_per_second": 10})
        if "learning_rate" in flags:
            value = 1e4 * float(flags["learning_rate"])
            episode = {"task": "pong", "episode_return": value, "frames": frames}
            with (run / "episodes.jsonl").open("a") as file:
                file.write(json.dumps(episode) + "\n")
        with metrics.open("a") as file:  # Closing it later would lose what `save` raises.
            file.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
