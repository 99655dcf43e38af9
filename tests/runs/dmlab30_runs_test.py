"""Whole runs on DeepMind Lab's levels, each a process."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import pandas as pd
import pytest

import scalable_agent_popart
from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import process_pool
from tests.fakes.main_program import run
from tests.fakes.programs import left_in, metrics, read_log
from tests.fakes.report_text import read_report

SMALL = {"height": 12, "width": 16, "network": "shallow", "unroll_length": 5, "batch_size": 6}
_SHOWS_IMAGES = "psychlab_continuous_recognition"

StandIn = Callable[..., None]


@pytest.fixture(autouse=True)
def _quick_restarts(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process_pool, "_FIRST_PAUSE_SECONDS", 1e-3)
    yield
    assert not left_in(temporary), "processes and engines leave nothing behind"


def test_levels_are_trained_tested_and_filmed(room_frames: int, tmp_path: Path) -> None:
    suite, other = suites.resolve("dmlab30"), "seekavoid_arena_01"
    levels = [*suite.test_versions, other]
    logdir = tmp_path / "run"
    settings = {**SMALL, "level_name": ",".join(levels), "logdir": str(logdir)}
    settings |= {"num_actors": 4, "use_popart": True}
    run(**settings, total_environment_frames=10 * room_frames)
    last = metrics(logdir)[-1]
    assert last["frames"] >= 10 * room_frames
    assert list(last["shift"]) == list(last["scale"]) == levels
    assert (last["environment_restarts"], last["tasks_scored"]) == (0, 2)
    episodes = [line for line in read_log(logdir / "episodes.jsonl") if line["task"] != other]
    assert max(line["episode_frames"] for line in episodes) == room_frames

    run(mode="test", logdir=str(logdir), test_num_episodes=2, record_video=True)
    result = json.loads((logdir / "evaluation.json").read_text())
    assert list(result["tasks"]) == [*suite.test_versions.values(), other]
    assert list(result["train"]["tasks"]) == list(suite.test_versions)
    assert result["tasks"][other]["normalised"] is None
    for column, tested in ((result, suite.test_version), (result["train"], str)):
        for task in suite.test_versions:
            played = column["tasks"][tested(task)]
            assert played["episodes"] == len(played["returns"]) == 2
    agent = scalable_agent_popart.load(logdir)
    for level in levels:  # Two of them have a version that is held out.
        with contextlib.closing(agent.make_environment(level)) as environment:
            environment.reset()
            assert environment.step(0)[3] is False
    films = sorted((logdir / "videos").iterdir())
    assert [film.stem for film in films] == sorted([*levels, *suite.test_versions.values()])
    lengths = []
    for film in films:
        with av.open(str(film)) as container:
            lengths.append(sum(1 for _ in container.decode(video=0)))
    assert min(lengths) > 1
    # A film lasts a minute, or has the first step and both episodes, with four frames per step.
    assert max(lengths) == min(60 * 15, 1 + 2 * room_frames // 4)


def test_squares_in_place_of_images_are_named(
    stand_in: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    level, logdir = _SHOWS_IMAGES, tmp_path / "run"
    squares = "coloured squares in place of images"
    settings = {**SMALL, "logdir": str(logdir), "level_name": level, "num_actors": 2}
    run(**settings, total_environment_frames=120)
    assert f"{level} has {squares}" in caplog.text
    assert json.loads((logdir / "config.json").read_text())["flags"]["dataset_path"] == "dummy"
    run(mode="test", logdir=str(logdir), test_num_episodes=1)
    tested = json.loads((logdir / "evaluation.json").read_text())["tasks"][level]
    assert tested["remark"] == squares
    run(mode="report", runs=[str(logdir)], report_dir=str(tmp_path / "report"))
    assert f"{level} ({squares})" in read_report(tmp_path / "report")
    summary = pd.read_csv(tmp_path / "report/summary.csv").query(
        "measure == 'return' and kind == 'agent'"
    )
    assert set(summary["remark"]) == {squares}


def test_an_agent_is_played_where_folders_are_others(stand_in: StandIn, tmp_path: Path) -> None:
    level, cache = _SHOWS_IMAGES, tmp_path / "cache"
    (images := tmp_path / "images").mkdir()
    for name in ("0001.png", "2400.png"):
        (images / name).touch()
    settings = {**SMALL, "logdir": str(tmp_path / "run"), "level_name": level, "num_actors": 2}
    settings |= {"dataset_path": str(images), "level_cache_dir": str(cache)}
    run(**settings, total_environment_frames=120)
    images.rename(moved := tmp_path / "moved")
    cache.touch()
    with pytest.raises(UserError, match=f"--dataset_path={images} "):
        scalable_agent_popart.load(tmp_path / "run").make_environment(level)
    agent = scalable_agent_popart.load(tmp_path / "run", dataset_path=moved, level_cache_dir="")
    with contextlib.closing(agent.make_environment(level)) as environment:
        observation, _ = environment.reset()
        environment.step(agent.act(observation))
    with pytest.raises(UserError, match=f"--level_cache_dir={cache} "):
        scalable_agent_popart.load(tmp_path / "run", dataset_path=moved).make_environment(level)
