"""Records what made a run, and how far it is, for the files next to a report."""

import io
import json
import platform
import statistics
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from scalable_agent_popart.report.read import MAX_METRICS
from scalable_agent_popart.runs.directory import POPULATION_FILE, is_population
from scalable_agent_popart.runs.json_lines import append, last_frames, read_lines
from scalable_agent_popart.system.cores import num_cores, processor

# These flags name folders and addresses of the machine, for which kept records have stand-ins.
_STAND_INS = {
    "keys_dir": "",
    "level_cache_dir": "",
    "dataset_path": "images",
    "human_starts_dir": "starts",
    "learner_address": "host:1",
    "init_from": "run",
}
# Reports and records are made of these; the rest are checkpoints, films and TensorBoard's events.
_LOGS = [POPULATION_FILE, "config.json", "metrics.jsonl", "episodes.jsonl", "processes.jsonl"]
_LOGS += ["evaluation.json", "evaluations/*", "lineage.jsonl"]


def directories(path: Path) -> list[Path]:
    """Lists the run directories of a population's members, or a run's own."""
    return sorted(path.glob("member-*")) if is_population(path) else [path]


def has_begun(path: Path) -> bool:
    """Returns whether there is a run, or a member of a population, to report on."""
    return any((directory / "config.json").is_file() for directory in directories(path))


def frames(path: Path) -> int:
    """Returns the frames that a run, or all members, have reached by the log; 0 if none began."""
    return sum(last_frames(directory / "metrics.jsonl") for directory in directories(path))


def read_log(path: Path, at_most: int | None = None) -> list[Any]:
    """Reads a log as `json_lines.read_lines`; no lines if there is none."""
    return list(read_lines(path, at_most)) if path.is_file() else []


def record_process(path: Path, seconds: float, memory: int) -> None:
    """Records a process that trained a run, with its largest memory in KiB.

    A run may be resumed by another revision and on another machine.
    """
    revision = _config(path)["git_revision"]
    process = {"seconds": round(seconds, 1), "memory_kib": memory, "git_revision": revision}
    append(path / "processes.jsonl", process | {"machine": machine()})


def is_tested(path: Path, num_episodes: int | None) -> bool:
    """Returns whether a run was tested at the end of its log; populations need not be.

    The test must be from random starts, on all its tasks, with so many episodes of each or more.
    By default these are as many as its suite has.
    """
    if is_population(path):
        return True
    config = _config(path)
    least = num_episodes or config["flags"]["test_num_episodes"]
    for file in path.glob(f"evaluations/noop-{frames(path)}-*.json"):
        test = json.loads(file.read_text())
        played = {**test["tasks"], **test.get("train", {"tasks": {}})["tasks"]}
        if all(task in played and played[task]["episodes"] >= least for task in config["tasks"]):
            return True
    return False


def describe(path: Path) -> dict[str, Any]:
    """Describes a run, with the flags of its training and the packages that trained it last.

    A population has the frames and seconds of all members, the flags that they share, and the
    packages of the first. Its rate is the median over its members' logs.
    """
    config, processes = _config(path), read_log(path / "processes.jsonl")
    lines = [line for each in directories(path) for line in read_log(each / "metrics.jsonl")]
    speeds = [line["frames_per_second"] for line in lines]
    test = None
    if (newest := path / "evaluation.json").is_file():
        made = json.loads(newest.read_text())
        episodes = {name: task["episodes"] for name, task in made["tasks"].items()}
        test = {"starts": made["starts"], "frames": made["frames"], "episodes": episodes}
    return {
        "run": str(path),
        "agent": config["agent"],
        "seed": config["flags"]["seed"],
        "frames": frames(path),
        "median_frames_per_second": round(statistics.median(speeds) if speeds else 0.0),
        "seconds": round(sum(p["seconds"] for p in processes)) if processes else None,
        "largest_memory_mib": max((p["memory_kib"] // 1024 for p in processes), default=None),
        "test": test,
        "git_revisions": _distinct(processes, "git_revision") or [config["git_revision"]],
        "machines": _distinct(processes, "machine"),
        "versions": config["versions"],
        "flags": portable(config["flags"]),
    }


def machine() -> dict[str, Any]:
    """Describes this machine: its processor, cores that may be used, memory and system."""
    return {
        "processor": processor(),
        "cores": num_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def pack_logs(paths: Sequence[Path], file: Path) -> None:
    """Writes an archive of runs' logs, each in a folder of the run's name.

    Unpacked, they make the same report as the runs, but cannot be trained, without checkpoints.
    They have only the lines of metrics that a report reads, from which `describe` takes its rate.
    """
    # A population has some logs of its own next to its members'.
    folders = {folder: path.parent for path in paths for folder in [path, *directories(path)]}
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for pattern in _LOGS:  # Logs of a kind compress better in a row.
            for folder, root in folders.items():
                for log in sorted(folder.glob(pattern)):
                    content = _content(log).encode()
                    # Without the file's owner and time, the same logs make the same archive.
                    member = tarfile.TarInfo(str(log.relative_to(root)))
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def _content(log: Path) -> str:
    """Reads a log, without the machine's places, and metrics as reports read them."""
    if log.name == "metrics.jsonl":
        return "".join(f"{json.dumps(line)}\n" for line in read_log(log, MAX_METRICS))
    if log.name not in ("config.json", POPULATION_FILE):
        return log.read_text()
    record = json.loads(log.read_text())
    record["flags"] = portable(record["flags"])
    for change in record.get("history", ()):
        for name, values in change["changed"].items():
            change["changed"][name] = [_stand_in(name, value) for value in values]
    return json.dumps(record, indent=2) + "\n"


def portable(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns flags without the run directory, and with stand-ins for the machine's places."""
    return {name: _stand_in(name, value) for name, value in flags.items() if name != "logdir"}


def _stand_in(name: str, value: Any) -> Any:
    """Replaces a flag's value that names a place of the machine.

    Agents of the repository are the same on every machine.
    """
    if name not in _STAND_INS or value in ("", "dummy") or value.startswith("agents/"):
        return value
    # Runs that begin from different runs are not of one agent.
    number = f"-{zlib.crc32(value.encode()):08x}" if name == "init_from" else ""
    return _STAND_INS[name] + number


def _distinct(processes: list[dict[str, Any]], name: str) -> list[Any]:
    """Lists each value that processes have once; those without one have None."""
    values = [process.get(name) for process in processes]
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _config(path: Path) -> dict[str, Any]:
    """Reads what the run was last started with; a population has a member's, and common flags."""
    files = [directory / "config.json" for directory in directories(path)]
    config = json.loads(next(filter(Path.is_file, files)).read_text())
    if is_population(path):
        shared = json.loads((path / POPULATION_FILE).read_text())["flags"]
        # The member's number is that of the process which wrote the file.
        config["flags"] = {name: v for name, v in shared.items() if name != "pbt_member"}
    return config
