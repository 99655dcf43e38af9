"""Runs grouped into agents, and agents into comparisons."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from scalable_agent_popart import suites
from scalable_agent_popart.report.compare import compare
from scalable_agent_popart.report.read import Run, read_run
from scalable_agent_popart.runs.directory import Record, RunDirectory
from scalable_agent_popart.scores import ReferenceScore
from tests.fakes.synthetic_runs import HYPERPARAMETERS, make_event, make_population, make_run


def _runs(folder: Path, *flags: dict[str, Any]) -> list[Run]:
    for i, given in enumerate(flags):
        make_run(folder / str(i), episodes=2, **{"level_name": "pong,boxing", **given})
    return [read_run(str(folder / str(i))) for i in range(len(flags))]


def _labels(runs: list[Run]) -> dict[str, list[str]]:
    (comparison,), left_out = compare(runs, None)
    assert left_out == []
    return {agent.label: [run.path.name for run in agent.runs] for agent in comparison.agents}


def test_runs_of_the_same_flags_are_one_agent_and_labels_name_the_others(tmp_path: Path) -> None:
    popart = [{"use_popart": True, "seed": seed} for seed in (1, 2)]
    unclipped = {"use_popart": True, "reward_clipping": "none"}
    flags = (*popart, {}, {"multi_head": True}, {"num_actors": 4}, unclipped)
    flags += ({**unclipped, "popart_step_size": 0.01},)
    assert list(_labels(_runs(tmp_path, *flags)).items()) == [
        ("IMPALA, clipped", ["2", "4"]),
        ("MultiHead-IMPALA, clipped", ["3"]),
        ("PopArt-IMPALA, clipped", ["0", "1"]),
        ("PopArt-IMPALA, raw rewards, PopArt step size 0.0003", ["5"]),
        ("PopArt-IMPALA, raw rewards, PopArt step size 0.01", ["6"]),
    ]


def test_action_sets_and_settings_that_are_switched_on_have_words(tmp_path: Path) -> None:
    level = {"level_name": "rooms_watermaze", "reward_clipping": "oar"}
    sets = ({"action_set": "impala"}, {"action_set": "popart", "multi_head": True})
    assert list(_labels(_runs(tmp_path / "sets", *({**level, **flags} for flags in sets)))) == [
        "IMPALA, optimistic asymmetric rewards, original action set",
        "MultiHead-IMPALA, optimistic asymmetric rewards, larger action set",
    ]
    lstms = ({"use_lstm": use} for use in (True, False))
    labels = list(_labels(_runs(tmp_path / "lstms", *lstms)))
    assert labels == ["IMPALA, clipped, with LSTM", "IMPALA, clipped, without LSTM"]


def test_a_run_resumed_with_other_flags_is_an_agent_of_its_own_and_says_so(tmp_path: Path) -> None:
    runs = _runs(tmp_path, {}, {"discounting": 0.5})
    directory = RunDirectory(str(tmp_path / "1"))
    directory.record(runs[1].config.with_flags({"discounting": 0.5, "seed": 4}), 30_000)
    labels = _labels([runs[0], read_run(str(tmp_path / "1"))])
    assert "IMPALA, clipped, mixed: seed 1 to 4 at 30,000 frames" in labels


def test_runs_are_compared_on_the_same_tasks_or_on_a_subset_asked_for(tmp_path: Path) -> None:
    levels = ("pong,boxing", "boxing,pong", "pong", "catch5")
    runs = _runs(tmp_path, *({"level_name": names} for names in levels))
    comparisons, _ = compare(runs, None)
    names = {c.title: [run.path.name for _, run in c.runs] for c in comparisons}
    assert names == {
        "Atari-57, a subset of 2 of 57 tasks: boxing, pong": ["0", "1"],
        "Atari-57, a subset of 1 of 57 tasks: pong": ["2"],
        "Catch-5": ["3"],
    }
    (comparison,), left_out = compare(runs, suites.resolve("pong"))
    assert [len(agent.runs) for agent in comparison.agents] == [2, 1]
    assert comparison.suite.tasks == ("pong",)
    assert [line.split(" skipped: ")[0] for line in left_out] == [str(runs[3].path)]


def test_runs_of_suites_with_other_scores_are_not_compared(tmp_path: Path) -> None:
    runs = _runs(tmp_path, *[{"level_name": "catch_1"}] * 2)
    suite = runs[1].config.suite
    scores = {**suite.reference_scores, "catch_1": ReferenceScore(0.0, 10.0)}
    other = dataclasses.replace(suite, reference_scores=scores)
    record = Record(dataclasses.replace(runs[1].config, suite=other))
    comparisons, _ = compare([runs[0], dataclasses.replace(runs[1], record=record)], None)
    assert [len(comparison.runs) for comparison in comparisons] == [1, 1]


def test_agents_of_as_many_tasks_are_told_apart_by_their_names(tmp_path: Path) -> None:
    both = "pong,boxing"
    runs = _runs(
        tmp_path, *({"level_name": f"{both},{more}"} for more in ("alien,qbert", "hero,zaxxon"))
    )
    (comparison,), _ = compare(runs, suites.resolve(both))
    assert {agent.label for agent in comparison.agents} == {
        "IMPALA, clipped, trained on alien,boxing,pong,qbert",
        "IMPALA, clipped, trained on boxing,hero,pong,zaxxon",
    }


def test_populations_of_other_seeds_are_one_agent_and_their_members_are_not(tmp_path: Path) -> None:
    starts = [
        make_event(0, 0, hyperparameters={**HYPERPARAMETERS, "epsilon": float(np.float32(epsilon))})
        for epsilon in (0.1, 0.2)
    ]
    for name, flags in {"a": {"seed": 5}, "b": {"seed": 10}, "often": {"pbt_episodes": 9}}.items():
        make_population(tmp_path / name, dict.fromkeys(range(4), starts[:1]), **flags)
    make_population(tmp_path / "sampled", {i: [event] for i, event in enumerate(starts)})
    population = "PopArt-IMPALA, raw rewards, population of 5"
    names = ("a", "b", "often", "sampled", "a/member-00", "a/member-01")
    assert _labels([read_run(str(tmp_path / name)) for name in names]) == {
        "PopArt-IMPALA, raw rewards, member 0 of a population of 5": ["member-00"],
        "PopArt-IMPALA, raw rewards, member 1 of a population of 5": ["member-01"],
        f"{population}, PBT episodes 1,000, epsilon 0.1": ["a", "b"],
        f"{population}, PBT episodes 1,000, epsilon sampled": ["sampled"],
        f"{population}, PBT episodes 9, epsilon 0.1": ["often"],
    }
