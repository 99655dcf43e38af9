"""What the README and the pages under `results/` say is what the files beside them hold."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from absl import flags
from absl.testing import flagsaver

import experiment
from scalable_agent_popart import intervals
from scalable_agent_popart.config import Config

_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / "results"
_README = (_ROOT / "README.md").read_text()


_GAMES = ["boxing", "assault", "up_n_down", "crazy_climber"]
_TITLES = ["Boxing", "Assault", "Up'n Down", "Crazy Climber"]
_SEEDS = {"catch5": [1, 2, 3, 4, 5], "atari4": [1, 2], "atari57": [1], "precision": [1, 2]}


def _table(folder: str, name: str) -> pd.DataFrame:
    (path,) = (_RESULTS / folder / "tables").glob(f"*-{name}.csv")
    return pd.read_csv(path)


def _page(folder: str) -> str:
    return (_RESULTS / folder / "README.md").read_text()


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A whole table, with the empty lines about it."""
    lines = [_row(head), "|---" * len(head) + "|", *map(_row, rows)]
    return "\n\n" + "\n".join(lines) + "\n\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _short(agent: str) -> str:
    return agent.removesuffix(" (unclipped)")


def _scores(folder: str) -> list[dict[str, Any]]:
    """Our agents' scores over all tasks."""
    scores = _table(folder, "table-1-noop").dropna(subset="score").to_dict("records")
    assert len(scores) > 2
    return scores


@pytest.mark.parametrize("folder", ["catch5", "atari4"])
def test_readme_has_the_scores_of_the_report(folder: str) -> None:
    levels = _table(folder, "levels-noop")
    rows = []
    for entry in _scores(folder):
        own = levels[levels["agent"] == entry["agent"]]
        by_level = [f"{score:.0f}" for score in own["normalised"]]
        over_all = f"**{entry['score']:.1f}** [{entry['low']:.1f}, {entry['high']:.1f}]"
        rerun = f"{entry['rerun_low']:.1f} to {entry['rerun_high']:.1f}"
        rows.append([entry["agent"], *by_level, over_all, rerun])
    names = list(dict.fromkeys(levels["level"]))
    headline = {"catch5": "mean [95% interval]", "atari4": "median [95% interval]"}[folder]
    assert _markdown(["Agent", *names, headline, "rerun"], rows) in _README


def test_page_of_four_games_has_the_scores_of_the_report() -> None:
    levels = _table("atari4", "levels-noop").set_index(["agent", "level"])
    rows = []
    for entry in _scores("atari4"):
        games = [levels.loc[entry["agent"], game] for game in _GAMES]
        cells = [f"{own['normalised']:.0f} [{own['low']:.0f}, {own['high']:.0f}]" for own in games]
        median = f"{entry['median']:.1f} [{entry['low']:.1f}, {entry['high']:.1f}]"
        rerun = f"{entry['rerun_low']:.0f} to {entry['rerun_high']:.0f}"
        rows.append([_short(entry["agent"]), *cells, f"{entry['mean']:.1f}", median, rerun])
    assert _markdown(["Agent", *_TITLES, "mean", "median", "rerun"], rows) in _page("atari4")


def test_page_of_four_games_has_the_scores_of_both_runs() -> None:
    levels = _table("atari4", "levels-noop").set_index(["agent", "level"])
    rows = []
    for entry in _scores("atari4"):
        games = [levels.loc[entry["agent"], game] for game in _GAMES]
        cells = [f"{own['lowest']:.0f}, {own['highest']:.0f}" for own in games]
        rows.append(
            [_short(entry["agent"]), *cells, f"{entry['lowest']:.1f}, {entry['highest']:.1f}"]
        )
        assert entry["runs"] == 2
    assert _markdown(["Lower and higher run", *_TITLES, "median"], rows) in _page("atari4")


def _parts(loss: str, beyond: int = 0) -> dict[str, pd.Series]:
    """Each run's mean part of all sizes of gradients by game, after some frames."""
    table = _table("atari4", "gradients")
    own = table[(table["loss"] == loss) & (table["frames"] > beyond)]
    means = {
        f"{_short(agent)}, seed {seed}": run.groupby("task")["part"].mean()[_GAMES]
        for (agent, seed), run in own.groupby(["agent", "seed"])
    }
    assert len(means) == 6
    return means


@pytest.mark.parametrize("loss", ["policy", "total"])
def test_page_of_four_games_has_the_parts_of_gradients_that_were_measured(loss: str) -> None:
    later, whole = _parts(loss, beyond=5_000_000), _parts(loss)
    rows = [
        [run, *(f"{part:.0%} ({whole[run][game]:.0%})" for game, part in parts.items())]
        for run, parts in later.items()
    ]
    assert _markdown([f"Part of {loss} gradient", *_TITLES], rows) in _page("atari4")


def test_what_is_said_of_the_greatest_parts_is_what_was_measured() -> None:
    pages = [_README, _page("atari4"), (_RESULTS / "README.md").read_text()]
    for beyond in (0, 5_000_000):
        parts = _parts("policy", beyond)
        most = {popart: [] for popart in (False, True)}
        for run, own in parts.items():
            most[run.startswith("PopArt")].append(own.max())
        for page in pages:
            words = " ".join(page.split())
            assert f"{min(most[False]):.0%} to {max(most[False]):.0%}" in words
            assert f"more than {max(most[True]):.0%}" in words


def test_page_of_four_games_has_the_last_statistics() -> None:
    table = _table("atari4", "statistics")
    rows = []
    for (agent, seed), own in table.groupby(["agent", "seed"]):
        last = own.sort_values("frames").groupby("task").last().loc[_GAMES]
        cells = [f"{of.shift:.3g} ± {of.scale:.3g}" for of in last.itertuples()]
        rows.append([f"{_short(agent)}, seed {seed}", *cells])
    assert len(rows) == 2
    assert _markdown(["shift ± scale at the end", *_TITLES], rows) in _page("atari4")


def test_page_of_four_games_quotes_the_gradients_of_the_report() -> None:
    report = (_RESULTS / "atari4" / "report.md").read_text()
    sizes = [line for line in report.splitlines() if "loss: size (median)" in line]
    assert len(sizes) == 6
    assert "\n".join(sizes) in _page("atari4")


def test_page_of_catch5_has_its_scores_beside_those_of_the_earlier_sets() -> None:
    tables = sorted((_RESULTS / "catch5" / "earlier").glob("*/*-table-1-noop.csv"))
    earlier = [pd.read_csv(path).set_index("agent")["score"] for path in tables]
    assert [len(scores) for scores in earlier] == [7, 3]
    # The second set had no other step size that the agent would be named by.
    earlier[1] = earlier[1].rename({"PopArt-IMPALA": "PopArt-IMPALA (popart_step_size=0.01)"})
    rows = []
    for entry in _scores("catch5"):
        low, high = entry["rerun_low"], entry["rerun_high"]
        means = [scores[entry["agent"]] for scores in earlier if entry["agent"] in scores]
        cells = [f"{mean:.1f}{'' if low <= mean <= high else ' (outside)'}" for mean in means]
        score = f"{entry['score']:.1f} [{entry['low']:.1f}, {entry['high']:.1f}]"
        rows.append([entry["agent"], score, f"{low:.1f} to {high:.1f}", ", ".join(cells)])
    assert sum(", " in row[-1] for row in rows) == 3
    # As the page says.
    assert not any("outside" in row[-1] for row in rows)
    head = ["Agent", "mean [95% interval]", "rerun", "earlier sets"]
    assert _markdown(head, rows) in _page("catch5")


def test_the_later_set_of_catch5_lies_within_the_intervals_of_the_page() -> None:
    path = _RESULTS / "catch5" / "later" / "catch5-table-1-noop.csv"
    later = (
        pd.read_csv(path)
        .set_index("agent")
        .rename({"PopArt-IMPALA": "PopArt-IMPALA (popart_step_size=0.01)"})
    )
    intervals = {e["agent"]: (e["low"], e["high"]) for e in _scores("catch5")}
    for agent, row in later.iterrows():
        low, high = intervals[agent]
        assert low <= row["score"] <= high
        quoted = f"{row['score']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
        assert quoted in " ".join(_page("catch5").split())
    assert len(later) == 3


def test_page_of_catch5_has_the_parts_of_gradients_of_the_loudest_task() -> None:
    table = _table("catch5", "gradients")
    raw = table[(table["task"] == "catch_100") & (table["reward_clipping"] == "none")]
    place = raw.groupby(["loss", "run"])["frames"].rank()
    stages = [raw[place == 1], raw[place == 2], raw]
    rows = []
    for loss in ("policy", "total"):
        for agent in raw["agent"].unique():
            cells = []
            for stage in stages:
                own = stage[(stage["loss"] == loss) & (stage["agent"] == agent)]
                parts = own.groupby("run")["part"].mean()
                assert len(parts) == 5
                low, high = intervals.over_seeds(parts.tolist()) or (0, 0)
                cells.append(f"{parts.mean():.0%} [{low:.0%}, {high:.0%}]")
            rows.append([f"{agent}: {loss}", *cells])
    head = ["Part of ±100", "first record", "second record", "all of training"]
    assert _markdown(head, rows) in _page("catch5")


def test_answers_of_the_overview_are_the_scores_of_the_reports() -> None:
    overview = (_RESULTS / "README.md").read_text()
    for folder in ("catch5", "atari4"):
        for entry in _scores(folder):
            if "step_size=0.0003" not in entry["agent"]:
                score = f"{entry['score']:.1f}% [{entry['low']:.1f}, {entry['high']:.1f}]"
                assert score in overview


def test_page_of_an_hour_is_what_the_run_recorded() -> None:
    page = " ".join(_page("atari57").split())
    (run,) = json.loads((_RESULTS / "atari57" / "runs.json").read_text())["runs"]
    rates = _table("atari57", "course")["frames_per_second"]
    shares = _table("atari57", "batches")["share"]
    last = _table("atari57", "statistics").sort_values("frames").groupby("task").last()["scale"]
    days = 11.4e9 / rates.median() / 86_400
    for said in (
        f"{run['frames']:,} frames",
        f"{shares.min():.2%} to {shares.max():.2%} of the rollouts",
        f"{rates.median():.0f} frames/s in the median record",
        f"{rates.nsmallest(2).iloc[1]:.0f} to {rates.max():,.0f} in single ones",
        f"is from {last.min():.2f} (Montezuma Revenge) to {last.max():.0f} (Skiing)",
        f"a factor of {last.max() / last.min():.0f}",
        f"{(last > 10).sum()} games, above 100 in {(last > 100).sum()}",
        f"{days:.0f} days",
        f"{11.4e9 / (run['frames'] / run['seconds']) / 86_400:.0f} days",
    ):
        assert said in page, said
    assert len(last) == len(shares) == 57


def _records() -> list[Any]:
    return [
        pytest.param(record, id=f"{path.parent.name}-{record['run']}")
        for path in sorted(_RESULTS.glob("**/runs.json"))
        for record in json.loads(path.read_text())["runs"]
    ]


@pytest.mark.parametrize("folder", _SEEDS)
def test_reports_are_on_all_runs_of_their_experiments(folder: str) -> None:
    """The same seeds and as many frames for every agent, in the record and in the tables."""
    runs = json.loads((_RESULTS / folder / "runs.json").read_text())["runs"]
    seeds: dict[str, list[int]] = {}
    for run in runs:
        seeds.setdefault(run["flag_file"], []).append(run["seed"])
    assert all(own == _SEEDS[folder] for own in seeds.values())
    assert len(seeds) == {"catch5": 7, "atari4": 3, "atari57": 1, "precision": 2}[folder]
    assert len({run["frames"] for run in runs}) == 1
    assert set(_table(folder, "learning-curves")["run"]) == {run["run"] for run in runs}


@pytest.mark.parametrize("record", _records())
def test_runs_were_made_with_the_flags_of_their_files(record: dict[str, Any]) -> None:
    path = _ROOT / "configs" / record["flag_file"]
    with flagsaver.flagsaver():
        flags.FLAGS(["experiment.py", f"--flagfile={path}", f"--seed={record['seed']}"])
        config = dataclasses.asdict(Config.from_flags(experiment.given_flags()))
    made = record["flags"]
    # Flags may have been added since, but none is another now.
    assert {"level_name", "reward_clipping", "use_popart", "seed"} <= made.keys() <= config.keys()
    # How often records are made changes nothing else; threads, and the type of convolutions if
    # none is named, follow the machine.
    free = dict.fromkeys(("log_seconds", "actor_threads"))
    if config["precision"] == "auto":
        free["precision"] = None
    assert {**config, **made, **free} == {**config, **free}


def test_pages_are_whole() -> None:
    """No line is a mere name for what was to be put there."""
    for page in [_ROOT / "README.md", *_RESULTS.glob("**/*.md")]:
        assert not re.search(r"^[A-Z@_]{3,}$", page.read_text(), re.MULTILINE), page


def test_what_the_readme_and_the_results_refer_to_is_there() -> None:
    pages = [_ROOT / "README.md", *_RESULTS.glob("**/*.md"), *_ROOT.glob("configs/*.md")]
    for page in pages:
        for name in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in name or (page.parent / name).exists(), f"{page}: {name}"
    figures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", _README)
    assert all(name.startswith("results/") for name in figures)


def test_flag_files_of_the_commands_are_there() -> None:
    for page in [_ROOT / "README.md", *_RESULTS.glob("**/*.md")]:
        for word in re.findall(r"configs/[^\s`]+\.flags", page.read_text()):
            start, *middle = re.split(r"[{}]", word)
            names = [start + one + middle[1] for one in middle[0].split(",")] if middle else [word]
            for name in names:
                assert list(_ROOT.glob(name)), f"{page}: {name}"


def test_results_say_nothing_of_the_machine_they_were_made_on_but_what_it_is() -> None:
    for path in [_ROOT / "README.md", *_RESULTS.glob("**/*"), *_ROOT.glob("configs/*")]:
        if path.suffix in (".md", ".csv", ".json", ".jsonl", ".flags"):
            assert not re.search(r"/(tmp|root|home|work|workspace)/", path.read_text()), path
