"""Levels in their processes play bit for bit what the module `deepmind_lab` itself plays."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from environments import StepOutput
from scalable_agent_popart.suites import EnvironmentOptions
from scalable_agent_popart.suites.dmlab import dmlab30
from tests.fakes import raw_levels
from tests.fakes.play import play_pool

_RAW = {"height": "72", "width": "96", "logLevel": "warn", "datasetPath": "dummy"}
_TRAINING = (  # None of laser tag, whose bots do not play alike each time.
    *("rooms_collect_good_objects_train", "language_select_described_object"),
    *("explore_object_locations_small", "natlab_fixed_large_map"),
    *("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition"),
)
_TESTS = ("rooms_collect_good_objects_test", "rooms_exploit_deferred_effects_test")
_PUBLISHED = {"allowHoldOutLevels": "true", "mixerSeed": str(0x600D5EED)}
_MAX_STEPS = 20_000
_LEFT, _FIRE = 4, 14  # Numbers of actions.


def _play(
    levels: Sequence[str], actions: np.ndarray, lengths: Sequence[int], options: EnvironmentOptions
) -> list[StepOutput]:
    numbers = range(len(levels))
    pool = dmlab30.SUITE.select(levels).make_environments(numbers, numbers, options)
    return play_pool(pool, actions, lengths)


@pytest.mark.parametrize(
    ("levels", "config"), [(_TRAINING, {}), (_TESTS, _PUBLISHED)], ids=["training", "tests"]
)
def test_levels_are_the_modules_own_over_the_end_of_an_episode(
    room_frames: int, tmp_path: Path, levels: Sequence[str], config: dict[str, str]
) -> None:
    """Also where maps are compiled, and where they come from the cache."""
    # Left is the cross that begins psychlab's trials, in which images are shown.
    actions = np.random.default_rng(0).integers(15, size=_MAX_STEPS)
    actions[:20] = [_LEFT] + 19 * [_FIRE]
    names = [f"contributed/dmlab30/{level}" for level in levels]
    raw = raw_levels.play(names, _RAW | config, dmlab30.ACTION_SETS["popart"][actions])
    cache = str(tmp_path / "cache")
    options = EnvironmentOptions(4, 72, 96, "popart", not config, "dummy", level_cache_dir=cache)
    played = _play(levels, actions, [len(each["end"]) for each in raw], options)
    for expected, (reward, info, done, observation) in zip(raw, played, strict=True):
        np.testing.assert_array_equal(reward, expected["reward"])
        np.testing.assert_array_equal(done, expected["end"])
        assert info.episode_end.sum() == done[1:].sum() > 0
        np.testing.assert_array_equal(observation.image, expected["image"])
        words = [dmlab30.word_buckets(words) for words in expected["words"].tolist()]
        np.testing.assert_array_equal(observation.instruction, words)
    assert any(np.any(each["reward"]) for each in raw)
    assert any(map(any, (each["words"] for each in raw))) == (not config)

    assert (tmp_path / "cache").exists() == (not config)
    kept = {path: path.stat().st_ino for path in (tmp_path / "cache").glob("*")}
    for path in kept:
        os.utime(path, (0, 0))
    again = _play(levels, actions, [6] * len(levels), options)
    for expected, (_, _, _, observation) in zip(raw, again, strict=True):
        np.testing.assert_array_equal(observation.image, expected["image"][:6])
    # Two of the levels compile maps. A map that was compiled again would be another file.
    assert {path: path.stat().st_ino for path in (tmp_path / "cache").glob("*")} == kept
    assert sum(path.stat().st_mtime > 0 for path in kept) == (0 if config else 2)


def test_levels_that_cannot_be_loaded_say_why(room_frames: int) -> None:
    assert "Level not found" in str(dmlab30.complaint("nowhere"))
    assert dmlab30.complaint("contributed/dmlab30/rooms_collect_good_objects_test")
