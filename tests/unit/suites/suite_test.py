"""What `--level_name` may say, and the suite it stands for."""

import importlib.util
import re

import pytest

from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError


def _message(level_name: str) -> str:
    with pytest.raises(UserError) as error:
        suites.resolve(level_name)
    message = str(error.value)
    assert message.startswith("--level_name")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("name", "num_tasks"), [("atari57", 57), ("catch5", 5), ("dmlab30", 30)])
def test_name_of_a_suite_stands_for_all_its_tasks(name: str, num_tasks: int) -> None:
    suite = suites.resolve(name)
    assert suite.name == name
    assert len(suite.tasks) == num_tasks
    assert suite in suites.ALL


@pytest.mark.parametrize(("name", "suite_name"), [("pong", "atari57"), ("catch_0.1", "catch5")])
def test_name_of_a_task_stands_for_it_alone(name: str, suite_name: str) -> None:
    suite = suites.resolve(name)
    assert suite.name == suite_name
    assert suite.tasks == (name,)


def test_list_keeps_its_order_and_may_hold_spaces() -> None:
    suite = suites.resolve(" pong , boxing,crazy_climber ")
    assert suite.name == "atari57"
    assert suite.tasks == ("pong", "boxing", "crazy_climber")


def test_some_tasks_share_all_else_with_their_suite() -> None:
    whole, some = suites.resolve("atari57"), suites.resolve("pong,boxing")
    for name in ("action_sets", "num_channels", "scalable", "total_frames", "defaults"):
        assert getattr(some, name) == getattr(whole, name)
    assert some.reference_scores == whole.reference_scores
    assert len(whole.tasks) == 57, "selecting must not change the suite itself"


def test_every_task_has_a_reference_score() -> None:
    for suite in suites.ALL:
        assert set(suite.reference_scores) == set(suite.tasks)


def _options(level_name: str) -> suites.EnvironmentOptions:
    defaults = suites.resolve(level_name).defaults
    names = ("num_action_repeats", "height", "width", "action_set")
    return suites.EnvironmentOptions(**{name: defaults[name] for name in names})


@pytest.mark.parametrize(
    ("level_name", "message"),
    [
        ("pong", "atari57 needs the module ale_py: pip install ale-py"),
        ("rooms_watermaze", "dmlab30 needs the module deepmind_lab: .* build and install it as"),
    ],
)
def test_missing_emulator_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, level_name: str, message: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        suites.resolve(level_name).check(_options(level_name))


def test_suites_that_need_nothing_more_pass_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    for level_name in ("pong", "catch5"):
        suites.resolve(level_name).check(_options(level_name))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    suites.resolve("catch5").check(_options("catch5"))


def test_no_name_stands_for_two_things() -> None:
    # A suite of a single task is that task.
    several = [suite.name for suite in suites.ALL if len(suite.tasks) > 1]
    names = [*several, *(task for suite in suites.ALL for task in suite.tasks)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("pongg", "pong"), ("atari75", "atari57"), ("crazyclimber", "crazy_climber")],
)
def test_unknown_level_is_answered_with_near_matches(written: str, meant: str) -> None:
    message = _message(written)
    assert repr(written) in message
    assert re.search(rf"did you mean .*\b{meant}\b.*\?", message)


def test_level_like_no_other_is_answered_with_the_suites() -> None:
    message = _message("zzzzzz")
    assert "'zzzzzz'" in message
    assert "atari57, catch5, cluttered_catch, dmlab30" in message


def test_suite_of_one_task_has_its_name_and_the_one_that_old_runs_recorded() -> None:
    for level_name in ("cluttered_catch", "clutter"):
        suite = suites.resolve(level_name)
        assert (suite.name, suite.level_name) == ("cluttered_catch", "cluttered_catch")
        assert suite.tasks == ("cluttered_catch",)
    assert "did you mean cluttered_catch?" in _message("cluttered_catc")


def test_unknown_level_in_a_list_is_named() -> None:
    message = _message("pong,boxxing")
    assert "'boxxing'" in message
    assert "boxing" in message.split(";")[1]


@pytest.mark.parametrize("level_name", ["pong,", ",pong", "pong,,boxing", "pong, ,boxing", ","])
def test_empty_part_of_a_list_is_refused(level_name: str) -> None:
    assert "there is no level ''" in _message(level_name)


@pytest.mark.parametrize("level_name", ["pong,boxing,pong", "pong, pong"])
def test_task_named_twice_is_refused_by_name(level_name: str) -> None:
    message = _message(level_name)
    assert "pong more than once" in message
    assert "boxing" not in message


def test_tasks_of_different_suites_are_refused_with_their_suites() -> None:
    message = _message("pong,catch_1")
    assert "pong (atari57)" in message
    assert "catch_1 (catch5)" in message


@pytest.mark.parametrize("level_name", ["atari57,pong", "catch5,catch_1"])
def test_whole_suite_in_a_list_is_named_as_such(level_name: str) -> None:
    assert "whole suite" in _message(level_name)
