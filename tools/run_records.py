"""Records what made a run, and how far it is, for the files next to a report."""

import contextlib
import io
import json
import lzma
import os
import platform
import statistics
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from scalable_agent_popart.report.read import MAX_METRICS
from scalable_agent_popart.runs.directory import POPULATION_FILE, is_population
from scalable_agent_popart.runs.json_lines import DAMAGE, open_to_append, read_lines, spread
from scalable_agent_popart.system.cores import num_cores, processor

# These flags name places of the machine: folders and addresses.
_PLACES = {"logdir", "keys_dir", "level_cache_dir", "dataset_path", "human_starts_dir"}
_PLACES |= {"learner_address", "init_from"}
# Without these flags others would be refused or mean something else, so they have stand-ins.
_STAND_INS = {"dataset_path": "images", "human_starts_dir": "starts", "learner_address": "host:1"}
_STAND_INS |= {"init_from": "run"}
_NO_PLACE, _AGENTS = ("", "dummy"), "agents/"
# Reports and records are made of these; the rest are checkpoints, films and TensorBoard's events.
_LOGS = ["config.json", "metrics.jsonl", "episodes.jsonl", "processes.jsonl", "evaluation.json"]
_LOGS += ["evaluations", "lineage.jsonl"]
_TAIL = 2**20  # So many bytes at the end of a log are sure to have a whole line.


def directories(path: Path) -> list[Path]:
    """Lists the run directories of a population's members, or a run's own."""
    return sorted(path.glob("member-*")) if is_population(path) else [path]


def has_begun(path: Path) -> bool:
    """Returns whether there is a run, or a member of a population, to report on."""
    return any((own / "config.json").is_file() for own in directories(path))


def record_process(path: Path, seconds: float, memory: int) -> None:
    """Records a process that trained a run, with its largest memory in KiB.

    A run may be resumed by another revision and on another machine.
    """
    process = {
        "seconds": round(seconds, 1),
        "memory_kib": memory,
        "git_revision": _config(path)["git_revision"],
        "machine": machine(),
    }
    with open_to_append(path / "processes.jsonl") as file:
        file.write(json.dumps(process) + "\n")


def is_tested(path: Path, num_episodes: int | None) -> bool:
    """Returns whether a run was tested at the end of its log; populations need not be.

    The test must be from random starts, on all its tasks, with so many episodes of each or more.
    By default these are as many as its suite has.
    """
    if is_population(path):
        return True
    config, end = _config(path), frames(path)
    tasks, least = config["tasks"], num_episodes or config["flags"]["test_num_episodes"]
    for file in [path / "evaluation.json", *(path / "evaluations").glob("*.json")]:
        with contextlib.suppress(OSError, *DAMAGE):  # Empty while it is written.
            test = json.loads(file.read_text())
            played = {**test["tasks"], **test.get("train", {"tasks": {}})["tasks"]}
            enough = all(played[task]["episodes"] >= least for task in tasks)
            if enough and (test["frames"], test["starts"]) == (end, "noop"):
                return True
    return False


def frames(path: Path) -> int:
    """Returns the frames that a run, or all members, have reached by the log; 0 if none began."""
    ends = (_read(own / "metrics.jsonl", _TAIL) for own in directories(path))
    return sum(end[-1]["frames"] for end in ends if end)


def describe(path: Path) -> dict[str, Any]:
    """Describes a run, with the flags of its training and the packages that trained it last.

    A population has the frames and seconds of all members, the flags that they share, and the
    packages of the first. Its rate is the median over its members' logs.
    """
    config = _config(path)
    lines = (line for own in directories(path) for line in _read(own / "metrics.jsonl"))
    speeds = [line["frames_per_second"] for line in lines]
    processes = _read(path / "processes.jsonl")
    return {
        "run": str(path),
        "agent": config["agent"],
        "seed": config["flags"]["seed"],
        "frames": frames(path),
        "median_frames_per_second": round(statistics.median(speeds) if speeds else 0.0),
        "seconds": round(sum(p["seconds"] for p in processes)) if processes else None,
        "largest_memory_mib": max((p["memory_kib"] // 1024 for p in processes), default=None),
        "test": _test(path),
        "git_revisions": _distinct(processes, "git_revision") or [config["git_revision"]],
        "machines": _distinct(processes, "machine"),
        "versions": config["versions"],
        "flags": _without_places(config["flags"]),
    }


def pack_logs(paths: Sequence[Path], file: Path) -> None:
    """Writes an archive of runs' logs, each in a folder of the run's name.

    Unpacked, they make the same report as the runs, but cannot be trained, without checkpoints.
    They have only the lines of metrics that a report reads, from which `describe` takes its rate.
    """
    partial = file.with_name(f"{file.name}.partial")
    # A population has some logs of its own next to its members'.
    folders = {own: path.parent for path in paths for own in [path, *directories(path)]}
    preset: Any = 9 | lzma.PRESET_EXTREME
    # A log may be a link to a larger disk.
    with tarfile.open(partial, "w:xz", dereference=True, preset=preset) as archive:
        for name in (POPULATION_FILE, *_LOGS):  # Logs of a kind compress better in a row.
            for own, root in folders.items():
                if (log := own / name).exists():
                    _add(archive, log, str(log.relative_to(root)))
    partial.replace(file)


def _add(archive: tarfile.TarFile, log: Path, name: str) -> None:
    """Adds a file or folder, without the machine's places, and metrics as reports read them."""
    if log.name in ("config.json", POPULATION_FILE):
        content = _record_without_places(log)
    elif log.name == "metrics.jsonl":
        with open(log, "rb") as file:
            chosen = spread(file, MAX_METRICS)
            file.seek(0)
            content = b"".join(line for i, line in enumerate(file) if i in chosen)
    else:
        archive.add(log, name, filter=_content)
        return
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _record_without_places(path: Path) -> bytes:
    """Returns a record of flags without those that name places of the machine."""
    record = json.loads(path.read_text())
    record["flags"] = _without_places(record["flags"])
    for change in record.get("history", ()):
        pairs = change["changed"].items()
        before, after = (_without_places({n: pair[i] for n, pair in pairs}) for i in (0, 1))
        # A place that was empty, or is from then on, has no stand-in there.
        names = {**before, **after}
        change["changed"] = {name: (before.get(name, ""), after.get(name, "")) for name in names}
    return (json.dumps(record, indent=2) + "\n").encode()


def _content(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Takes a file's owner and time away, so that the same logs make the same archive."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def machine() -> dict[str, Any]:
    """Describes this machine: its processor, cores that may be used, memory and system."""
    return {
        "processor": processor(),
        "cores": num_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _test(path: Path) -> dict[str, Any] | None:
    """Returns the starts, frames and episodes of each task of the newest test, if it is whole."""
    with contextlib.suppress(OSError, *DAMAGE):
        found = json.loads((path / "evaluation.json").read_text())
        episodes = {name: task["episodes"] for name, task in found["tasks"].items()}
        return {"starts": found["starts"], "frames": found["frames"], "episodes": episodes}
    return None


def _without_places(flags: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the flags that name places of the machine, or replaces their values.

    Agents of the repository are the same on every machine.
    """
    kept = {n: own for n, own in flags.items() if n not in _PLACES or f"{own}".startswith(_AGENTS)}
    given = (n for n in _STAND_INS if n not in kept and flags.get(n, "") not in _NO_PLACE)
    stand_ins = {name: _STAND_INS[name] for name in given}
    if "init_from" in stand_ins:  # Runs from different ones are not of one agent.
        stand_ins["init_from"] += f"-{zlib.crc32(os.fsencode(flags['init_from'])):08x}"
    return {**kept, **stand_ins}


def _distinct(processes: list[dict[str, Any]], name: str) -> list[Any]:
    """Lists each value that processes have once; those without one have None."""
    found = [process.get(name) for process in processes]
    return [value for i, value in enumerate(found) if value not in found[:i]]


def _config(path: Path) -> dict[str, Any]:
    """Reads what the run was last started with; a population has a member's, and common flags."""
    files = (own / "config.json" for own in directories(path))
    # Each must be whole, since each is packed.
    config, *_ = [json.loads(file.read_text()) for file in files if file.is_file()]
    if is_population(path):
        shared = json.loads((path / POPULATION_FILE).read_text())["flags"]
        # The member's number is that of the process which wrote the file.
        config["flags"] = {name: v for name, v in shared.items() if name != "pbt_member"}
    return config


def _read(path: Path, tail: int | None = None) -> list[Any]:
    """Reads a log as `read_lines`; no lines if there is none."""
    return list(read_lines(path, tail)) if path.is_file() else []
