"""Reading runs for a report: whole, unfinished and damaged ones; and who stands beside whom."""

import json
import os
from pathlib import Path

import pytest

from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report.comparison import compare
from scalable_agent_popart.report.runs import Run, read_run
from scalable_agent_popart.runs.directory import RunDirectory
from tests.fakes.synthetic_runs import FRAMES_PER_EPISODE, make_run, write_test

_TASKS = ("catch_0.01", "catch_0.1", "catch_1", "catch_10", "catch_100")


def _read(path: Path) -> Run:
    return read_run(str(path))


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5", use_popart=True)
    run = _read(tmp_path / "run")
    assert run.problems == []
    written = [json.loads(line) for line in directory.episodes.read_text().splitlines()]
    for column in ("task", "frames", "episode_return"):
        assert list(run.episodes[column]) == [line[column] for line in written]
    assert run.frames == 40 * 5 * FRAMES_PER_EPISODE
    metrics = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    assert len(run.metrics.statistics) == len(metrics) * len(_TASKS)
    for line, rows in zip(metrics, run.metrics.statistics.groupby("frames"), strict=True):
        for name in ("shift", "scale"):
            assert dict(zip(rows[1]["task"], rows[1][name], strict=True)) == line[name]
    (of_evaluations, newest) = run.evaluations
    assert (newest.starts, newest.frames) == ("noop", run.frames)
    assert {level: len(returns) for level, returns in newest.returns.items()} == dict.fromkeys(
        _TASKS, 5
    )
    assert of_evaluations.frames == newest.frames


def test_held_out_levels_are_read_beside_those_to_train_on(tmp_path: Path) -> None:
    level = "rooms_collect_good_objects_train"
    make_run(tmp_path / "run", level_name=f"{level},rooms_watermaze")
    (newest, *_) = _read(tmp_path / "run").evaluations
    assert set(newest.returns) == {level, "rooms_collect_good_objects_test", "rooms_watermaze"}


def test_a_run_that_still_trains_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="catch5", use_popart=True)
    for log in (directory.episodes, directory.metrics):
        with open(log, "a") as file:
            file.write('{"frames": 2010')
    run = _read(tmp_path / "run")
    assert len(run.episodes) == 200
    assert [
        str(path) in problem
        for path, problem in zip((directory.episodes, directory.metrics), run.problems, strict=True)
    ] == [True, True]
    assert all("last line" in problem for problem in run.problems)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1, 2]",
        "3",
        '{"task": "pong", "frames": 5, "episode_return": 1.0}',
        '{"task": "catch_1", "episode_return": 1.0}',
        '{"task": "catch_1", "frames": "many", "episode_return": 1.0}',
        '{"task": "catch_1", "frames": 5, "episode_return": NaN}',
        '{"task": "catch_1", "frames": 5, "episode_return": 1e999}',
        '{"task": "catch_1", "frames": 5, "episode_return": 1' + 400 * "0" + "}",
        '{"task": "catch_1", "frames": 1e30, "episode_return": 1.0}',
        '{"task": "catch_1", "frames": -1, "episode_return": 1.0}',
        "[" * 100_000,
        '{"task": "catch_1", "frames": 5, "episode_return": null}',
        '{"task": ["catch_1"], "frames": 5, "episode_return": 1.0}',
        "",
    ],
)
def test_lines_of_no_episode_are_counted_and_the_others_kept(tmp_path: Path, line: str) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5")
    lines = directory.episodes.read_text().splitlines()
    lines[100:100] = [line, line]
    directory.episodes.write_text("\n".join(lines) + "\n")
    run = _read(tmp_path / "run")
    assert len(run.episodes) == 200
    (problem,) = run.problems
    assert problem.startswith(str(directory.episodes))
    assert "2 of 202" in problem


def test_two_broken_lines_do_not_make_a_whole_one(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5")
    lines = directory.episodes.read_text().splitlines()
    lines[10:10] = ['{"task": "catch_1", "frames": 5', '"episode_return": 1e9}']
    directory.episodes.write_text("\n".join(lines) + "\n")
    run = _read(tmp_path / "run")
    assert len(run.episodes) == 200
    assert run.episodes["episode_return"].max() < 1e9


def test_missing_logs_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5", use_popart=True)
    directory.episodes.unlink()
    directory.metrics.unlink()
    directory.metrics.mkdir()
    run = _read(tmp_path / "run")
    assert len(run.evaluations) == 2
    assert [
        str(directory.episodes) in run.problems[0],
        str(directory.metrics) in run.problems[1],
    ] == [True, True]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"frames": 1, "starts": "noop", "tasks": {}}',
        '{"frames": 1, "starts": "noop", "tasks": {"catch_1": {"returns": []}}}',
        '{"frames": 1, "starts": "noop", "tasks": {"catch_1": {"returns": [1e400]}}}',
        '{"frames": Infinity, "starts": "noop", "tasks": {"catch_1": {"returns": [1]}}}',
        '{"frames": 1e30, "starts": "noop", "tasks": {"catch_1": {"returns": [1]}}}',
        "[" * 100_000,
    ],
)
def test_evaluations_that_are_none_are_named(tmp_path: Path, content: str) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="catch5")
    directory.evaluation.write_text(content)
    run = _read(tmp_path / "run")
    assert run.evaluations == ()
    assert str(directory.evaluation) in run.problems[0]


@pytest.mark.parametrize(
    "content", [None, "{", '{"flags": {"level_name": "no such game"}}', "[" * 100_000]
)
def test_directory_of_unknown_origin_is_refused(tmp_path: Path, content: str | None) -> None:
    make_run(tmp_path / "run", level_name="catch5")
    (tmp_path / "run" / "config.json").unlink()
    if content is not None:
        (tmp_path / "run" / "config.json").write_text(content)
    with pytest.raises(UserError):
        _read(tmp_path / "run")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5")
    directory.evaluation.unlink()
    os.mkfifo(directory.evaluation)
    run = _read(tmp_path / "run")
    assert str(directory.evaluation) in run.problems[0]
    assert len(run.evaluations) == 1


def test_a_run_that_has_done_nothing_is_refused(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="catch5")
    for log in (directory.episodes, directory.metrics):
        log.write_text("")
    with pytest.raises(UserError, match="nothing to report yet"):
        _read(tmp_path / "run")


# Who stands beside whom.


def _runs(tmp_path: Path, *flags: dict) -> list[Run]:
    for i, given in enumerate(flags):
        make_run(tmp_path / str(i), episodes=2, **{"level_name": "pong,boxing", **given})
    return [_read(tmp_path / str(i)) for i in range(len(flags))]


def _labels(runs: list[Run]) -> dict[str, list[str]]:
    (comparison,), left_out = compare(runs, None)
    assert left_out == []
    return {agent.label: [run.path.name for run in agent.runs] for agent in comparison.agents}


def test_runs_that_differ_in_their_seeds_are_one_agent_in_the_papers_order(tmp_path: Path) -> None:
    popart = {"use_popart": True}
    runs = _runs(
        tmp_path,
        {**popart, "seed": 1},
        {**popart, "seed": 2},
        {},
        {"multi_head": True},
        {"num_actors": 4},
    )
    labels = _labels(runs)
    assert list(labels.items()) == [
        ("IMPALA", ["2", "4"]),
        ("MultiHead-IMPALA", ["3"]),
        ("PopArt-IMPALA", ["0", "1"]),
    ]


def test_variants_have_the_papers_words_and_others_their_flags(tmp_path: Path) -> None:
    popart = {"use_popart": True}
    runs = _runs(
        tmp_path,
        popart,
        {**popart, "reward_clipping": "none"},
        {**popart, "popart_step_size": 0.01, "reward_clipping": "none"},
        {"reward_clipping": "oar"},
    )
    assert set(_labels(runs)) == {
        "IMPALA (reward_clipping=oar)",
        "PopArt-IMPALA",
        "PopArt-IMPALA (unclipped, popart_step_size=0.0003)",
        "PopArt-IMPALA (unclipped, popart_step_size=0.01)",
    }
    runs = _runs(
        tmp_path / "lab",
        *({"level_name": "rooms_watermaze", "action_set": a} for a in ("impala", "popart")),
    )
    assert set(_labels(runs)) == {"IMPALA", "IMPALA (original action set)"}


def test_runs_of_different_arithmetic_are_one_agent_only_if_asked_for(tmp_path: Path) -> None:
    types = ({"precision": p} for p in ("float32", "bfloat16", "bfloat16", "auto"))
    runs = _runs(tmp_path, *types)
    assert _labels(runs) == {
        "IMPALA (precision=auto)": ["3"],
        "IMPALA (precision=bfloat16)": ["1", "2"],
        "IMPALA (precision=float32)": ["0"],
    }
    (comparison,), _ = compare(runs, None, ["precision"])
    assert [(agent.label, len(agent.runs)) for agent in comparison.agents] == [("IMPALA", 4)]


@pytest.mark.parametrize("name", ["presicion", "logdir", "seed", "use_popart", "reward_clipping"])
def test_flags_that_tell_no_agents_apart_cannot_be_ignored(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"--ignore_flags={name} is no flag"):
        compare(_runs(tmp_path, {}), None, [name])


def test_a_run_resumed_with_other_flags_is_an_agent_of_its_own_and_says_so(
    tmp_path: Path,
) -> None:
    _runs(tmp_path, {}, {"discounting": 0.5}, {}, {})
    for number, frames in ((2, 30_000), (3, 40_000)):
        directory = RunDirectory(str(tmp_path / str(number)))
        config = directory.read_config()
        assert config is not None
        directory.record(config.with_flags({"discounting": 0.5, "seed": 4}), frames)
    mixed = [
        f"mixed: seed 1 to 4 at {n},000 frames; discounting 0.99 to 0.5 at {n},000 frames"
        for n in (30, 40)
    ]
    assert _labels([_read(tmp_path / str(i)) for i in range(4)]) == {
        "IMPALA (discounting=0.5)": ["1"],
        "IMPALA (discounting=0.99)": ["0"],
        f"IMPALA ({mixed[0]})": ["2"],
        f"IMPALA ({mixed[1]})": ["3"],
    }


@pytest.mark.parametrize(("schedule", "is_mixed"), [("linear", True), ("constant", False)])
def test_a_run_made_longer_is_mixed_if_its_learning_rate_was_annealed_to_the_end_before(
    tmp_path: Path, schedule: str, is_mixed: bool
) -> None:
    flags = {"learning_rate_schedule": schedule}
    _runs(tmp_path, flags, {**flags, "total_environment_frames": 10**9})
    directory = RunDirectory(str(tmp_path / "0"))
    config = directory.read_config()
    assert config is not None
    directory.record(config.with_flags({"total_environment_frames": 10**9}), 20_000)
    runs = [_read(tmp_path / name) for name in "01"]
    assert bool(runs[0].mixed) == is_mixed
    assert len(_labels(runs)) == 1 + is_mixed


def test_runs_of_other_tasks_are_compared_apart(tmp_path: Path) -> None:
    runs = _runs(
        tmp_path,
        {},
        {"level_name": "boxing,pong"},
        {"level_name": "pong"},
        {"level_name": "catch5"},
    )
    comparisons, _ = compare(runs, None)
    assert [[run.path.name for a in c.agents for run in a.runs] for c in comparisons] == [
        ["0", "1"],
        ["2"],
        ["3"],
    ]
    assert [c.title for c in comparisons] == [
        "Atari-57, a subset of 2 of 57 tasks: boxing, pong",
        "Atari-57, a subset of 1 of 57 tasks: pong",
        "Catch-5",
    ]


def test_images_that_are_none_make_another_experiment(tmp_path: Path) -> None:
    paths = ("dummy", "a", "b")
    levels = ({"level_name": "rooms_watermaze", "dataset_path": path} for path in paths)
    assert [len(runs) for runs in _labels(_runs(tmp_path, *levels)).values()] == [2, 1]


def test_a_subset_asked_for_puts_runs_of_more_tasks_beside_each_other(tmp_path: Path) -> None:
    runs = _runs(
        tmp_path, {}, {"level_name": "pong"}, {"level_name": "qbert"}, {"level_name": "catch5"}
    )
    (comparison,), left_out = compare(runs, suites.resolve("pong"))
    labels = [agent.label for agent in comparison.agents]
    assert len(labels) == 2
    assert {label.split("trained on ")[1].split(",")[0] for label in labels} == {"pong", "boxing"}
    assert comparison.suite.tasks == ("pong",)
    assert [str(runs[i].path) in line for i, line in zip((2, 3), left_out, strict=True)] == [
        True,
        True,
    ]


def test_of_several_tests_all_are_kept(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5")
    config = _read(tmp_path / "run").config
    write_test(directory, config.for_test({"mode": "test", "level_name": "catch_1"}), 99, 10.0, 3)
    frames = sorted(evaluation.frames for evaluation in _read(tmp_path / "run").evaluations)
    assert frames == [99, 99, 200 * FRAMES_PER_EPISODE]
