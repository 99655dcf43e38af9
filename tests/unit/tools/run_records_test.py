"""What is kept of runs next to a report, with real records."""

import dataclasses
import json
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from scalable_agent_popart.report import read
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.settings import SETTINGS
from tests.fakes.synthetic_runs import make_run
from tools import run_records


def _unpacked(paths: list[Path], folder: Path) -> Path:
    """Packs logs, and returns where they were unpacked."""
    run_records.pack_logs(paths, folder / "logs.tar.xz")
    with tarfile.open(folder / "logs.tar.xz") as archive:
        archive.extractall(folder / "other", filter="data")
    return folder / "other"


@pytest.mark.parametrize(
    ("level_name", "places"),
    [
        ("dmlab30", {"dataset_path": "/machine/images", "level_cache_dir": "/machine/cache"}),
        ("atari57", {"human_starts_dir": "/machine/starts", "starts": "human"}),
    ],
)
def test_packed_logs_name_no_place_of_the_machine_and_are_read_as_before(
    tmp_path: Path, level_name: str, places: dict[str, str]
) -> None:
    path = tmp_path / "machine" / level_name
    path.mkdir(parents=True)
    given = {"learner_address": "machine:7", "num_actors": 3, "keys_dir": "/machine/keys", **places}
    config = Config.from_flags({"level_name": level_name, "logdir": str(path), **given})
    RunDirectory(config.logdir).record(config.with_flags({"init_from": "machine"}))
    RunDirectory(config.logdir).record(config, frames=10)
    unpacked = _unpacked([path], tmp_path) / level_name
    assert "machine" not in (unpacked / "config.json").read_text()
    record = RunDirectory(unpacked).read_record()
    assert record.config.experiment == config.experiment
    assert record.config.remarks() == config.remarks()
    stand_in = run_records.portable({"init_from": "machine"})["init_from"]
    assert [change.changed for change in record.history] == [{"init_from": [stand_in, ""]}]


def test_packed_logs_have_the_metrics_that_a_report_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (run_records, read):
        monkeypatch.setattr(module, "MAX_METRICS", 7)
    make_run(tmp_path / "run", level_name="catch5", use_popart=True)
    before = read.read_run(str(tmp_path / "run"))
    unpacked = _unpacked([tmp_path / "run"], tmp_path) / "run"
    assert len((unpacked / "metrics.jsonl").read_text().splitlines()) == 7
    after = read.read_run(str(unpacked))
    assert after.problems == []
    for name, table in before.logs.items():
        pd.testing.assert_frame_equal(after.logs[name], table)


def test_a_run_has_all_revisions_and_machines_that_trained_it(tmp_path: Path) -> None:
    config = Config.from_flags({"level_name": "catch_1", "logdir": str(tmp_path)})
    RunDirectory(str(tmp_path)).record(config)
    older = json.dumps({"seconds": 2.0, "memory_kib": 1024})
    # A full disk has cut off the second line.
    (tmp_path / "processes.jsonl").write_text(f"{older}\n{older[:9]}")
    for _ in range(2):
        run_records.record_process(tmp_path, 3.0, 2048)
    made = run_records.describe(tmp_path)
    assert (made["seconds"], made["largest_memory_mib"]) == (8, 2)
    revision = json.loads((tmp_path / "config.json").read_text())["git_revision"]
    # Outside of a checkout no revision is known.
    assert made["git_revisions"] == list(dict.fromkeys([None, revision]))
    assert made["machines"] == [None, run_records.machine()]


def test_settings_of_free_text_are_replaced_but_for_what_the_program_names() -> None:
    text = {field.name for field in dataclasses.fields(Config) if field.type is str}
    kept = run_records.portable(dict.fromkeys(text, "given"))
    chosen = {name for name in text if SETTINGS[name].choices}
    chosen |= {"level_name", "action_set", "network"}
    assert {name for name in kept if kept[name] == "given"} == chosen
    runs = [run_records.portable({"init_from": f"given/{i}"}) for i in (1, 2, 1)]
    assert runs[0] == runs[2] != runs[1], "agents from other runs stay other agents"
    # An agent of the repository is no place, and neither is what stands for no images.
    flags = {"init_from": "agents/atari4", "dataset_path": "dummy"}
    assert run_records.portable(flags) == flags
