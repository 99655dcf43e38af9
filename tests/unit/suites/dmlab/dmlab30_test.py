"""DmLab-30: what the papers fix, and levels played through the stand-in for `deepmind_lab`."""

import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import environments
from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.suites.dmlab import dmlab30
from tests.fakes import fake_deepmind_lab

StandIn = Callable[..., None]
# Hessel et al. (2019), appendix "DeepMind Lab action discretisation", in the appendix's order: look
# right, look down, strafe right, move forward, fire, jump, crouch.
_POPART_TABLE = """
0 0 0 1 0 0 0, 0 0 0 -1 0 0 0, 0 0 -1 0 0 0 0, 0 0 1 0 0 0 0,
-10 0 0 0 0 0 0, 10 0 0 0 0 0 0, -60 0 0 0 0 0 0, 60 0 0 0 0 0 0, 0 10 0 0 0 0 0, 0 -10 0 0 0 0 0,
-10 0 0 1 0 0 0, 10 0 0 1 0 0 0, -60 0 0 1 0 0 0, 60 0 0 1 0 0 0, 0 0 0 0 1 0 0
"""
_IMPALA_TABLE = """
0 0 0 1 0 0 0, 0 0 0 -1 0 0 0, 0 0 -1 0 0 0 0, 0 0 1 0 0 0 0, -20 0 0 0 0 0 0, 20 0 0 0 0 0 0,
-20 0 0 1 0 0 0, 20 0 0 1 0 0 0, 0 0 0 0 1 0 0
"""


def _options(**changes: object) -> suites.EnvironmentOptions:
    settings = {"num_action_repeats": 4, "height": 72, "width": 96, "action_set": "popart"}
    return suites.EnvironmentOptions(**{**settings, **changes})


def _level(directory: Path, level: str = "lt_chasm", **options: object):
    return dmlab30.DmLabLevel(level, 1, _options(**options), 0, directory)


def _config(level_name: str = "dmlab30", **given: object) -> Config:
    return Config.from_flags({"level_name": level_name, **given})


@pytest.mark.parametrize(("name", "table"), [("popart", _POPART_TABLE), ("impala", _IMPALA_TABLE)])
def test_actions_are_the_tables_of_the_appendix_and_are_repeated(
    stand_in: StandIn, tmp_path: Path, name: str, table: str
) -> None:
    """The stand-in's reward tells every element of an action apart."""
    actions = np.array([list(map(int, row.split())) for row in table.split(",")])
    level = _level(tmp_path, action_set=name)
    level.reset()
    rewards = [level.step(action)[0] for action in range(len(actions))]
    np.testing.assert_array_equal(rewards, 4 * actions @ fake_deepmind_lab.ACTION_WORTH)


def test_images_are_replaced_or_must_be_there(stand_in: StandIn, tmp_path: Path) -> None:
    squares = dict.fromkeys(dmlab30._NEED_DATASET, "coloured squares in place of images")
    assert _config().dataset_path == "dummy"
    assert _config().remarks() == _config(dataset_path="").remarks() == squares
    assert _config("lt_chasm").remarks() == {}
    images = _config(dataset_path=str(tmp_path))
    with pytest.raises(UserError, match=r"has no 0001\.png and no 2400\.png: psych"):
        images.check_playable()
    for name in ("0001.png", "2400.png"):
        (tmp_path / name).touch()
    images.check_playable()
    assert images.remarks() == {}


def test_levels_scores_and_defaults_are_the_papers() -> None:
    config = _config()
    assert (len(config.suite.tasks), len(config.suite.test_versions)) == (30, 2)
    assert config.suite.reference_scores["rooms_watermaze"] == (4.065, 54)
    assert (config.learning_rate, config.entropy_cost, config.epsilon) == (4.8e-4, 2.5e-4, 0.1)
    assert config.action_set == "popart"
    assert (config.num_actions, _config(action_set="impala").num_actions) == (15, 9)


def test_levels_are_found_by_their_names() -> None:
    config = _config("contributed/dmlab30/rooms_watermaze, lt_chasm")
    assert (config.suite.name, config.level_name) == ("dmlab30", "rooms_watermaze,lt_chasm")
    with pytest.raises(UserError, match="give rooms_collect_good_objects_train"):
        _config("rooms_collect_good_objects_test")


def test_a_seed_gives_the_same_episodes_but_not_in_another_attempt(
    stand_in: StandIn, tmp_path: Path
) -> None:
    stand_in(10)  # Ends within the third step's repeats.
    level, again = _level(tmp_path), _level(tmp_path)
    first = level.reset().image
    np.testing.assert_array_equal(again.reset().image, first)
    for expected in [(1.0, False), (1.0, False), (0.5, True)] * 2:
        *outcome, observation = level.step(0)
        assert tuple(outcome) == expected
        np.testing.assert_array_equal(again.step(0)[2].image, observation.image)
    assert not np.array_equal(observation.image, first), "another episode, another seed"
    attempt = dmlab30.DmLabLevel("lt_chasm", 1, _options(), 1, tmp_path)
    assert not np.array_equal(attempt.reset().image, first), "what ended it is not repeated"


def test_words_have_stable_buckets_that_tell_them_apart() -> None:
    some = dmlab30.word_buckets("pick the red  hat")
    assert np.count_nonzero(some) == len(set(some[:4].tolist())) == 4
    assert dmlab30.word_buckets("red")[0] == some[2]
    assert some[0] == 924, "the same in every process and version, or checkpoints lose their words"
    buckets = [dmlab30.word_buckets(f"{a}{b}")[0] for a in string.printable for b in "xyz"]
    assert 1 <= min(buckets) <= max(buckets) <= environments.NUM_WORD_BUCKETS
