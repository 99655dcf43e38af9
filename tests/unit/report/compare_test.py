"""Runs grouped into agents, and agents into comparisons."""

from pathlib import Path
from typing import Any

import pytest

from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report.compare import compare
from scalable_agent_popart.report.read import Run, read_run
from scalable_agent_popart.runs.directory import RunDirectory
from tests.fakes.synthetic_runs import START, make_population, make_run

_POPART, _LAB = {"use_popart": True}, {"level_name": "rooms_watermaze"}


def _runs(folder: Path, *flags: dict[str, Any]) -> list[Run]:
    for i, given in enumerate(flags):
        make_run(folder / str(i), episodes=2, **{"level_name": "pong,boxing", **given})
    return [read_run(str(folder / str(i))) for i in range(len(flags))]


def _labels(runs: list[Run], *ignored: str) -> dict[str, list[str]]:
    (comparison,), left_out = compare(runs, None, ignored)
    assert left_out == []
    return {agent.label: [run.path.name for run in agent.runs] for agent in comparison.agents}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (  # Seeds, and what changes nothing that is learned, make no agent; the paper's order.
            ({**_POPART, "seed": 1}, {**_POPART, "seed": 2}, {}, {"multi_head": True},
             {"num_actors": 4}),
            {"IMPALA": ["2", "4"], "MultiHead-IMPALA": ["3"], "PopArt-IMPALA": ["0", "1"]},
        ),
        (
            (_POPART, {**_POPART, "reward_clipping": "none"}, {"reward_clipping": "oar"},
             {**_POPART, "reward_clipping": "none", "popart_step_size": 0.01}),
            {
                "IMPALA (reward_clipping=oar)": ["2"],
                "PopArt-IMPALA": ["0"],
                "PopArt-IMPALA (unclipped, popart_step_size=0.0003)": ["1"],
                "PopArt-IMPALA (unclipped, popart_step_size=0.01)": ["3"],
            },
        ),
        (
            ({**_LAB, "action_set": "impala"}, {**_LAB, "action_set": "popart"}),
            {"IMPALA": ["1"], "IMPALA (original action set)": ["0"]},
        ),
        # Of images, only whether there are any.
        (
            ({**_LAB, "dataset_path": "dummy"}, *({**_LAB, "dataset_path": p} for p in "ab")),
            {"IMPALA (dataset_path=False)": ["1", "2"], "IMPALA (dataset_path=True)": ["0"]},
        ),
    ],
)  # fmt: skip
def test_runs_of_the_same_flags_are_one_agent_and_labels_name_the_others(
    tmp_path: Path, flags: tuple[dict[str, Any], ...], expected: dict[str, list[str]]
) -> None:
    assert list(_labels(_runs(tmp_path, *flags)).items()) == list(expected.items())


def test_flags_are_ignored_if_agents_are_told_apart_by_them_beside_their_names(
    tmp_path: Path,
) -> None:
    runs = _runs(tmp_path, *({"precision": p} for p in ("float32", "bfloat16", "bfloat16")))
    assert _labels(runs) == {
        "IMPALA (precision=bfloat16)": ["1", "2"],
        "IMPALA (precision=float32)": ["0"],
    }
    assert _labels(runs, "precision") == {"IMPALA": ["0", "1", "2"]}
    for name in ("presicion", "logdir", "seed", "use_popart", "reward_clipping"):
        with pytest.raises(UserError, match=f"--ignore_flags={name} is no flag"):
            compare(runs, None, [name])


def test_a_run_resumed_with_other_flags_is_an_agent_of_its_own_and_says_so(tmp_path: Path) -> None:
    constant, longer = {"learning_rate_schedule": "constant"}, {"total_environment_frames": 10**9}
    _runs(tmp_path, {}, {}, {"discounting": 0.5}, constant, {**constant, **longer}, {})
    for i, flags in ((1, {"discounting": 0.5, "seed": 4}), (3, longer), (5, longer)):
        directory = RunDirectory(str(tmp_path / str(i)))
        config = directory.read_config()
        assert config is not None
        directory.record(config.with_flags(flags), 30_000)
    runs = [read_run(str(tmp_path / str(i))) for i in range(6)]
    changes = "seed 1 to 4 at 30,000 frames; discounting 0.99 to 0.5 at 30,000 frames"
    labels = _labels(runs)
    assert labels[f"IMPALA (mixed: {changes})"] == ["1"]
    # One made longer is as one that was as long from the start, unless its rate was annealed.
    assert ["3", "4"] in labels.values()
    assert [own for label, own in labels.items() if "mixed" in label] == [["1"], ["5"]]


def test_runs_are_compared_on_the_same_tasks_or_on_a_subset_asked_for(tmp_path: Path) -> None:
    levels = ("pong,boxing", "boxing,pong", "pong", "catch5")
    runs = _runs(tmp_path, *({"level_name": names} for names in levels))
    comparisons, _ = compare(runs, None)
    found = {c.title: [run.path.name for _, run in c.runs] for c in comparisons}
    assert found == {
        "Atari-57, a subset of 2 of 57 tasks: boxing, pong": ["0", "1"],
        "Atari-57, a subset of 1 of 57 tasks: pong": ["2"],
        "Catch-5": ["3"],
    }
    (comparison,), left_out = compare(runs, suites.resolve("pong"))
    assert [agent.label for agent in comparison.agents] == [
        "IMPALA (trained on boxing,pong, total_environment_frames=400000000)",
        "IMPALA (trained on pong, total_environment_frames=200000000)",
    ]
    assert comparison.suite.tasks == ("pong",)
    assert [line.split(" skipped: ")[0] for line in left_out] == [str(runs[3].path)]


def test_populations_of_other_seeds_are_one_agent_and_their_members_are_not(tmp_path: Path) -> None:
    for name, flags in {
        "a": {"seed": 5},
        "b": {"seed": 10},
        "larger": {"population_size": 6},
        "often": {"pbt_episodes": 9},
    }.items():
        make_population(tmp_path / name, {i: [START] for i in range(4)}, **flags)
    # Given alone, a directory of a member is known by its configuration.
    (tmp_path / "alone").mkdir()
    (tmp_path / "larger" / "member-03").rename(tmp_path / "alone" / "member-03")
    names = ("a", "b", "larger", "often", "a/member-00", "a/member-01", "alone/member-03")
    assert _labels([read_run(str(tmp_path / name)) for name in names]) == {
        "PopArt-IMPALA (member 0 of a population of 5)": ["member-00"],
        "PopArt-IMPALA (member 1 of a population of 5)": ["member-01"],
        "PopArt-IMPALA (member 3 of a population of 6)": ["member-03"],
        "PopArt-IMPALA (population of 5, pbt_episodes=1000)": ["a", "b"],
        "PopArt-IMPALA (population of 5, pbt_episodes=9)": ["often"],
        "PopArt-IMPALA (population of 6)": ["larger"],
    }
