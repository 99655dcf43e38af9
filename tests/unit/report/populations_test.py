"""Populations in a report: what is read along an ancestry, tables, figures and whole reports."""

import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from scalable_agent_popart import report, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report import population_figures, population_tables
from scalable_agent_popart.report.comparison import compare
from scalable_agent_popart.report.populations import Population
from scalable_agent_popart.report.runs import Run, read_run
from tests.fakes.synthetic_runs import (
    HYPERPARAMETERS,
    LINEAGES,
    make_event,
    make_population,
    make_population_of_lineages,
    make_run,
    write_lineage,
    write_test,
)

_TASKS = ("catch_0.01", "catch_0.1", "catch_1", "catch_10", "catch_100")


# Reading.


def _population(run: Run) -> Population:
    assert run.population is not None
    return run.population


def _learned(member: int, first: int, last: int, offset: int) -> list[tuple[int, int]]:
    return [(frames + offset, member) for frames in range(first, last + 1, 10)]


def test_a_population_is_the_ancestry_of_its_best_member(tmp_path: Path) -> None:
    make_population_of_lineages(tmp_path / "pbt")
    run = read_run(str(tmp_path / "pbt"))
    assert run.problems == []
    assert (run.path, run.seed, run.config.pbt_member) == (tmp_path / "pbt", 7, 3)
    population = _population(run)
    assert (population.best.name, population.shown.number) == ("member-03", 3)
    assert (population.whole, population.size, population.seed) == (True, 5, 7)
    assert list(population.members) == [0, 1, 2, 3]
    expected = [
        *_learned(0, 10, 200, 0),
        *_learned(1, 310, 650, -100),
        *_learned(2, 410, 700, 150),
        *_learned(3, 910, 1200, -50),
    ]
    assert run.episodes["frames"].tolist() == [frames for frames, _ in expected]
    assert np.diff(run.episodes["frames"]).tolist() == [10] * (len(expected) - 1)
    assert run.frames == 1150
    one = run.metrics.statistics[run.metrics.statistics["task"] == "catch_1"]
    assert list(zip(one["frames"], one["shift"].astype(int), strict=True)) == expected
    assert run.episodes["task"].cat.categories.tolist() == list(_TASKS)


def test_a_member_is_its_own_ancestry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_population_of_lineages(tmp_path / "pbt")
    member = tmp_path / "pbt" / "member-01"
    run = read_run(str(member))
    population = _population(run)
    assert (population.shown.number, population.best.number, population.whole) == (1, 3, False)
    assert (run.path, run.seed) == (member, 7)
    # Its last event was a copy of 2 at 390, before that had copied anything.
    assert run.episodes["frames"].tolist()[:39] == list(range(10, 400, 10))
    assert run.frames == 390 + 1200 - 650
    (tmp_path / "link").symlink_to(member)
    assert _population(read_run(str(tmp_path / "link"))).shown.number == 1
    monkeypatch.chdir(member)
    assert read_run(".").frames == run.frames


def test_of_tests_those_of_the_ancestry_count_where_it_had_learned_so_much(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    for number, frames in (
        (1, 120),  # Before it copied.
        (1, 310),
        (1, 640),
        (1, 660),  # Of weights that went on from elsewhere.
        (2, 540),
        (2, 550),  # At a comparison without a copy: one checkpoint as the other.
        (2, 700),  # At a copy: of the weights before it or after.
        (3, 500),
        (3, 1000),
    ):
        directory = population.member(number)
        config = directory.read_config()
        assert config is not None
        write_test(directory, config.for_test({"mode": "test"}), frames, 50.0, 2)
        directory.evaluation.unlink()  # Of the newest there is a second copy.
    run = read_run(str(population.path))
    assert [test.frames for test in run.evaluations] == [210, 540, 690, 700, 950]
    (problem,) = run.problems
    assert "tests at 700 frames skipped" in problem
    assert str(population.member(2).path) in problem


def test_the_best_has_the_highest_capped_score_of_all_tasks(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt", best=1)
    assert _population(read_run(str(population.path))).best.number == 1
    # One that excels at one task is capped; one that has not played all of them comes last.
    record = {"task": "catch_1", "frames": 1210, "episode_return": 1e6}
    with open(population.member(2).episodes, "a") as file:
        file.write((json.dumps(record) + "\n") * 100)
    lines = population.member(0).episodes.read_text().splitlines()
    perfect = [{**json.loads(line), "episode_return": 100.0} for line in lines]
    some = [line for line in perfect if line["task"] != "catch_1"]
    population.member(0).episodes.write_text("".join(json.dumps(line) + "\n" for line in some))
    found = _population(read_run(str(population.path)))
    assert found.best.number == 1
    assert not found.members[0].complete
    assert found.members[0].standing < min(found.members[n].standing for n in (1, 2, 3))
    score = found.members[2].score
    assert score is not None
    assert score == pytest.approx(50, abs=0.2)  # 100% once, and 37.5%.


def test_members_without_an_episode_of_each_task_are_ranked_by_how_many_they_have(
    tmp_path: Path,
) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    for number in range(4):
        directory = population.member(number)
        lines = directory.episodes.read_text().splitlines(keepends=True)[: (0, 2, 3, 1)[number]]
        directory.episodes.write_text("".join(lines))
    run = read_run(str(population.path))
    found = _population(run)
    assert found.best.number == 2
    assert [member.num_tasks for member in found.members.values()] == [0, 2, 3, 1]
    assert found.members[0].score is None
    population_figures.training(found).canvas.draw()


def test_recent_episodes_are_found_behind_many_of_other_tasks(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    record = {"task": "catch_1", "frames": 1210, "episode_return": 0.0, "of": "x" * 100}
    with open(population.member(3).episodes, "a") as file:
        file.write((json.dumps(record) + "\n") * 10_000)
    members = _population(read_run(str(population.path))).members
    assert (members[3].complete, members[3].frames) == (True, 1210)


# Damage.


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "{}",
        '{"comparison": 9}',
        json.dumps({**make_event(9, 1100)._asdict(), "copied": "no"}),
        json.dumps({**make_event(9, 1100)._asdict(), "frames": -1}),
        json.dumps({**make_event(9, 1100)._asdict(), "hyperparameters": {"epsilon": "big"}}),
        "[" * 100_000,
    ],
)
def test_lines_of_no_lineage_are_passed_over_and_named(tmp_path: Path, line: str) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    whole = read_run(str(population.path))
    with open(population.member(3).lineage, "a") as file:
        file.write(line + "\n")
    run = read_run(str(population.path))
    (problem,) = run.problems
    assert problem.startswith(str(population.member(3).lineage))
    assert "1 of 5" in problem
    pd.testing.assert_frame_equal(run.episodes, whole.episodes)


def test_an_ancestry_that_breaks_off_is_shown_from_there_on(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    lines = population.member(2).lineage.read_text().splitlines(keepends=True)
    population.member(2).lineage.write_text("".join([lines[0], "damaged\n", *lines[2:]]))
    run = read_run(str(population.path))
    assert run.episodes["frames"].iloc[0] == 560
    assert run.frames == 700 + 1200 - 900
    damaged, unknown = run.problems
    assert "1 of 4" in damaged
    assert "from frame 550 of member 2 on" in unknown


@pytest.mark.parametrize("what", ["lineage.jsonl", "config.json", ""])
def test_a_lost_member_is_named_and_the_rest_is_shown(tmp_path: Path, what: str) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    lost = population.member(2).path
    lost.rename(tmp_path / "lost") if not what else (lost / what).unlink()
    run = read_run(str(population.path))
    assert any("from frame 900 of member 3 on" in problem for problem in run.problems)
    assert run.episodes["frames"].tolist() == list(range(910, 1210, 10))


def test_a_member_with_nothing_but_its_log_is_shown_as_it_is(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    for number in range(4):
        population.member(number).lineage.unlink()
    run = read_run(str(population.path))
    assert len(run.episodes) == 120
    assert any("nothing can be read of its lineage" in problem for problem in run.problems)
    assert report.write_report([str(population.path)], str(tmp_path / "out")) == run.problems


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"flags": {"level_name": "catch5"}}'])
def test_a_population_of_unknown_origin_is_refused_and_its_members_are_not(
    tmp_path: Path, content: str
) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    (population.path / "population.json").write_text(content)
    with pytest.raises(UserError, match=r"population\.json"):
        read_run(str(population.path))
    assert read_run(str(population.member(3).path)).frames == 1150


def test_damaged_configurations_and_strange_neighbours_are_passed_over(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    (population.member(0).path / "config.json").write_text("{")
    for name in ("member-", "member-99999999999", "member-77", "member-x"):
        (population.path / name).mkdir()
    make_run(population.path / "member-04", level_name="catch5", episodes=2)
    run = read_run(str(population.path))
    assert list(_population(run).members) == [1, 2, 3]
    for number, line in zip((0, 4), run.problems[:2], strict=True):
        assert str(population.member(number).path) in line
    assert read_run(str(population.path / "member-04")).population is None


def test_a_population_that_has_done_nothing_is_refused(tmp_path: Path) -> None:
    population = make_population(tmp_path / "pbt", rounds=0)
    with pytest.raises(UserError, match="nothing to report yet"):
        read_run(str(population.path))
    for member in population.path.glob("member-*"):
        member.rename(tmp_path / member.name)
    for path in (population.path, population.path / "member-00"):
        with pytest.raises(UserError):
            read_run(str(path))


# Beside other runs.


def _labels(*paths: Path) -> dict[str, list[str]]:
    (comparison,), left_out = compare([read_run(str(path)) for path in paths], None)
    assert left_out == []
    return {agent.label: [run.path.name for run in agent.runs] for agent in comparison.agents}


def test_populations_that_differ_in_their_seeds_are_one_agent(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_population(tmp_path / f"pbt-{seed}", seed=seed)
    make_population(tmp_path / "larger", size=5)
    make_population(tmp_path / "often", pbt_episodes=9)
    for i, flags in enumerate(({}, {"use_popart": True}, {"learning_rate": 0.5})):
        make_run(tmp_path / str(i), level_name="catch5", episodes=2, **flags)
    configs = [read_run(str(tmp_path / f"pbt-{seed}")).config for seed in (1, 2)]
    assert configs[0].learning_rate != configs[1].learning_rate
    assert list(_labels(*(tmp_path / name for name in ("pbt-1", "0", "pbt-2", "1"))).items()) == [
        ("IMPALA", ["0"]),
        ("IMPALA (population of 4)", ["pbt-1", "pbt-2"]),
        ("PopArt-IMPALA", ["1"]),
    ]
    assert set(_labels(*sorted(tmp_path.iterdir()))) == {
        "IMPALA (learning_rate=0.005)",
        "IMPALA (learning_rate=0.5)",
        "IMPALA (population of 4, pbt_episodes=1000)",
        "IMPALA (population of 4, pbt_episodes=9)",
        "IMPALA (population of 5)",
        "PopArt-IMPALA",
    }


def test_members_of_one_population_are_not_runs_of_one_agent(tmp_path: Path) -> None:
    path = make_population(tmp_path / "pbt").path
    (tmp_path / "alone").mkdir()
    (path / "member-03").rename(tmp_path / "alone" / "member-03")
    paths = path, path / "member-00", path / "member-01", tmp_path / "alone" / "member-03"
    assert set(_labels(*paths)) == {
        "IMPALA (population of 4)",
        "IMPALA (member 0 of a population of 4)",
        "IMPALA (member 1 of a population of 4)",
        "IMPALA (member 3 of a population of 4)",
    }


# Tables and figures.


def _panels(population: Population) -> dict[str, Axes]:
    return {axes.get_title(): axes for axes in population_figures.training(population).axes}


def test_comparisons_are_tabulated_as_the_lineages_have_them(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    (comparison,), _ = compare([read_run(str(population.path))], None)
    table = population_tables.events(comparison)
    assert list(table.columns[4:]) == [
        *("member", "comparison", "frames", "fitness", "partner", "partner_fitness", "copied"),
        *("source_frames", "entropy_cost", "learning_rate", "epsilon", "started_over"),
    ]
    assert len(table) == sum(map(len, LINEAGES.values()))
    (row,) = table[(table["member"] == 2) & (table["comparison"] == 1)].to_dict("records")
    assert (row["frames"], row["partner"], row["source_frames"]) == (400, 1, 650)
    assert (row["copied"], row["learning_rate"], row["seed"]) == (True, 1e-3, 7)
    ancestry = population_tables.ancestries(comparison)
    assert ancestry["learned_first"].tolist() == [0, 200, 550, 850]
    assert ancestry["learned_last"].tolist() == [200, 550, 850, 1150]


def test_figure_shows_the_lineages_and_the_way_through_them(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    changed = make_event(2, 550, hyperparameters={**HYPERPARAMETERS, "epsilon": 0.2})
    events = [*LINEAGES[2][:2], changed, LINEAGES[2][3]]
    write_lineage(population.member(2), events)
    panels = _panels(_population(read_run(str(population.path))))
    fitness, epsilon = panels["fitness at comparisons (%)"], panels["epsilon"]
    assert {"entropy_cost", "learning_rate"} < set(panels)
    assert epsilon.get_yscale() == "log"
    black = [line for line in epsilon.lines if line.get_color() == "black"]
    solid = [line for line in black if line.get_linestyle() == "-"]
    assert [line.get_xdata().tolist() for line in solid] == [
        [0, 0.2],
        [0.3, 0.5, 0.65],
        [0.4, 0.55, 0.7],
        [0.9, 1, 1.2],
    ]
    assert solid[2].get_ydata().tolist() == [0.1, 0.2, 0.2]
    dotted = [line for line in black if line.get_linestyle() == ":"]
    assert [line.get_xdata().tolist() for line in dotted] == [[0.2, 0.3], [0.65, 0.4], [0.7, 0.9]]
    way = [line for line in fitness.lines if line.get_color() == "black"]
    solid = [line for line in way if line.get_linestyle() == "-"]
    assert solid[1].get_xdata().tolist() == [0.3, 0.5, 0.65]
    assert solid[1].get_ydata().tolist() == [20, 10, 10]  # From the copied one's fitness on.
    assert [len(line.get_xdata()) for line in solid] == [1, 3, 3, 2]


def test_values_that_have_no_logarithm_are_drawn_too(tmp_path: Path) -> None:
    population = make_population_of_lineages(tmp_path / "pbt")
    values = {**HYPERPARAMETERS, "entropy_cost": 0.0}
    write_lineage(population.member(0), [make_event(0, 0, hyperparameters=values)])
    panels = _panels(_population(read_run(str(population.path))))
    assert panels["entropy_cost"].get_yscale() == "linear"
    assert panels["epsilon"].get_yscale() == "log"


def test_populations_of_24_are_reported_in_seconds(tmp_path: Path) -> None:
    level_name = "pong,boxing,crazy_climber"
    for seed in (1, 2):
        make_population(tmp_path / f"pbt-{seed}", 24, 20, seed, level_name, use_popart=True)
    make_run(tmp_path / "run", level_name=level_name, use_popart=True)
    start = time.process_time()
    paths = [str(tmp_path / name) for name in ("pbt-1", "pbt-2", "run")]
    assert report.write_report([*paths, f"{paths[0]}/member-05"], str(tmp_path / "out")) == []
    assert time.process_time() - start < 60
    text = (tmp_path / "out" / "report.md").read_text()
    best = _population(read_run(paths[0])).best.name
    assert f"`{paths[0]}`, population of 24, best: {best}" in text
    assert f"`{paths[0]}/member-05`, of a population of 24" in text
    assert "| PopArt-IMPALA (population of 24) |" in text
    assert text.count("### Population-based training") == 2
    assert "a population is one run" in text.lower()
    files = {path.name for path in (tmp_path / "out").glob("*/*")}
    for name in ("population-1.png", "population-2.png", "populations.csv", "ancestries.csv"):
        assert f"atari57-3-tasks-{name}" in files
        assert f"atari57-3-tasks-{name}" in text
    assert "population-1" not in (tmp_path / "out" / "report.html").read_text().split("src=")[0]
    table = pd.read_csv(tmp_path / "out" / "tables" / "atari57-3-tasks-populations.csv")
    assert len(table) == 2 * 24 * 20
    assert set(suites.resolve(level_name).search_space) < set(table.columns)
    curves = pd.read_csv(tmp_path / "out" / "tables" / "atari57-3-tasks-learning-curves.csv")
    assert set(curves["seed"]) == {1, 2}
