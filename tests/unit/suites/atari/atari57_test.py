"""Atari-57 on the real emulator: games and lives, rewards, observations, actions, seeds."""

import dataclasses
import itertools
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tree
from ale_py import roms

from environments import BatchedEnvironment, StepOutput
from scalable_agent_popart import suites
from scalable_agent_popart.suites.atari import emulator as atari_emulator
from tests.fakes.play import play, play_pool

_FIRE = 1
_BRICKS = slice(22, 37)  # Breakout's, among the rows of an 84x84 observation.
_SEEDS = (1, 2)


def _options(**changes: Any) -> suites.EnvironmentOptions:
    settings = {"num_action_repeats": 4, "height": 84, "width": 84, "action_set": "full"}
    return suites.EnvironmentOptions(**{**settings, **changes})


def _make(game: str, seeds: Sequence[int], **options: Any) -> BatchedEnvironment:
    ids = [0] * len(seeds)
    (environment,) = suites.resolve(game).make_environments(ids, seeds, _options(**options)).members
    return environment


def _random_actions(num_steps: int, num_environments: int = 2) -> np.ndarray:
    actions = np.random.default_rng(0).integers(0, 18, (num_steps, num_environments))
    actions[::8] = _FIRE
    return actions.astype(np.int32)


@pytest.fixture(scope="module")
def breakout() -> StepOutput:
    """A reset and 400 training steps of two copies of Breakout: whole games of several lives."""
    outputs = play(_make("breakout", _SEEDS), _random_actions(400))
    assert outputs.info.episode_end.any(axis=0).all(), "every copy must end a game"
    return outputs


def test_the_57_games_are_the_emulators_and_have_the_published_scores() -> None:
    suite = suites.resolve("atari57")
    assert len(set(suite.tasks)) == len(suite.tasks) == 57
    assert all(Path(roms.get_rom_path(task) or "").is_file() for task in suite.tasks)
    # DQN Zoo, dqn_zoo/atari_data.py, and the papers' for human starts.
    assert suite.reference_scores["alien"] == (227.8, 7127.7)
    assert suite.references("human")["alien"] == (128.3, 6371.3)


def test_lost_life_is_done_while_the_game_goes_on(breakout: StepOutput) -> None:
    """Both games give five lives; the last has the number 0 in Bank Heist."""
    bank_heist = play(_make("bank_heist", [3]), _random_actions(400, 1))
    for outputs, i in ((breakout, 0), (breakout, 1), (bank_heist, 0)):
        assert not (outputs.info.episode_end & ~outputs.done).any()
        end = int(np.argmax(outputs.info.episode_end[:, i]))
        assert outputs.done[1 : end + 1, i].sum() == 5


def test_end_of_a_game_reports_its_raw_rewards_and_shows_the_next_game(
    breakout: StepOutput,
) -> None:
    info, bricks = breakout.info, breakout.observation[:, :, _BRICKS]
    totals = []
    for i in range(2):
        ends = np.flatnonzero(info.episode_end[:, i])
        for start, end in itertools.pairwise([0, *ends]):
            totals.append(info.episode_return[end, i])
            assert totals[-1] == breakout.reward[start + 1 : end + 1, i].sum()
            assert info.episode_step[end, i] == end - start
            np.testing.assert_array_equal(bricks[end, i], bricks[0, 0])
            assert (bricks[end - 1, i] != bricks[0, 0]).any() == (totals[-1] > 0)
    assert max(totals) > 0


def test_the_same_game_is_played_outside_training_and_in_colour(breakout: StepOutput) -> None:
    """Only then is a lost life not `done`."""
    tested = play(_make("breakout", _SEEDS, training=False), _random_actions(400))
    np.testing.assert_array_equal(tested.done[1:], breakout.info.episode_end[1:])
    same = tested._replace(done=breakout.done)
    tree.map_structure(np.testing.assert_array_equal, same, breakout)
    options, actions = _options(training=False), _random_actions(400)[:, :1]
    film = play(suites.resolve("breakout").film_factory("breakout", _SEEDS[0], options), actions)
    assert film.observation.shape == (401, 1, 210, 160, 3)
    assert (film.observation[..., 0] != film.observation[..., 2]).any()
    seen = tree.map_structure(lambda array: array[:, :1], tested)
    colourless = {"observation": None}
    tree.map_structure(
        np.testing.assert_array_equal, film._replace(**colourless), seen._replace(**colourless)
    )


def test_pool_plays_each_game_as_it_would_be_played_alone() -> None:
    actions = _random_actions(40, 1)
    suite = suites.resolve("breakout,space_invaders")
    pool = suite.make_environments([0, 1, 1, 1], [5, 7, 7, 8], _options())
    breakout, _, first, second = play_pool(pool, actions[:, 0], lengths=[41] * 4)
    for game, seed, played in (("breakout", 5, breakout), ("space_invaders", 7, first)):
        alone = tree.map_structure(itemgetter((slice(None), 0)), play(_make(game, [seed]), actions))
        tree.map_structure(np.testing.assert_array_equal, played, alone)
    assert (first.observation != second.observation).any(), "another seed"
    assert first.reward.max() > 1, "Space Invaders pays 5 and more"


@pytest.mark.parametrize(("game", "repeats", "num_noops"), [("skiing", 4, 5), ("air_raid", 3, 5)])
def test_games_and_their_18_actions_are_those_of_the_plain_emulator(
    game: str, repeats: int, num_noops: int
) -> None:
    """Skiing knows only nine of them, and the others do nothing."""
    size = {"height": 84, "width": 84} if repeats == 4 else {"height": 40, "width": 50}
    options = _options(num_action_repeats=repeats, **size)
    actions = np.concatenate([np.arange(18), _random_actions(150, 1)[:, 0]])
    make = suites.resolve("pong").environment_factory  # Air Raid is none of the 57.
    (environment,) = make([game], np.zeros(1, np.int32), [2927], options).members
    emulator = atari_emulator.Emulator(game, options, seed=2927)
    output = play(environment, actions[:, np.newaxis])
    frame = emulator.begin(num_noops)  # This seed has so many.
    first_frame = atari_emulator.Emulator(game, _options()).frame
    assert emulator.frame - num_noops == first_frame
    np.testing.assert_array_equal(output.observation[0, 0], frame)
    for step, action in enumerate(actions.tolist(), start=1):
        reward, over, frame = emulator.step(action)
        assert (reward, over) == (output.reward[step, 0], output.info.episode_end[step, 0])
        if over:
            break
        np.testing.assert_array_equal(output.observation[step, 0], frame)
    assert len(set(output.reward[:step, 0].tolist())) > 1


def test_minimal_actions_are_the_emulators_and_play_the_same_game() -> None:
    for game in ("breakout", "kung_fu_master", "skiing"):
        ale = atari_emulator.Emulator(game, _options())._ale
        names = [action.name for action in ale.getMinimalActionSet()]
        suite = suites.resolve(game)
        assert suite.names_of_actions("minimal") == tuple(names)
        assert suite.action_sets == {"full": 18, "minimal": len(names)}
    actions = np.random.default_rng(1).integers(4, size=(200, 2)).astype(np.int32)
    in_full = np.array([0, 1, 3, 4], np.int32)[actions]  # Its actions are none, fire, right, left.
    minimal = play(_make("breakout", _SEEDS, action_set="minimal"), actions)
    full = play(_make("breakout", _SEEDS), in_full)
    tree.map_structure(np.testing.assert_array_equal, minimal, full)
    assert minimal.reward.any()


def test_games_share_a_minimal_set_only_if_its_actions_are_the_same() -> None:
    assert suites.resolve("pong,space_invaders").action_sets == {"full": 18, "minimal": 6}
    assert suites.resolve("pong,qbert").action_sets == {"full": 18}  # Six other ones.
    suite = dataclasses.replace(suites.resolve("catch5"), action_sets={"minimal": 3})
    assert suite.action_sets == {"minimal": 3}, "a set of that name without names of actions"
    assert not suite.names_of_actions("minimal")


def test_games_begin_after_1_to_30_noops_by_their_seeds_or_otherwise_each_time() -> None:
    # The first four of all seeds below 3,000 have the smallest numbers and the largest.
    seeds, frames = [2927, 1146, 2193, 2748, *[2927] * 6], []
    for reproducible in (True, False):
        environment = _make("pong", seeds, reproducible=reproducible)
        assert environment.reset().observation.any(axis=(1, 2, 3)).all()
        frames.append(environment._game_frame.tolist())
        assert set(frames[-1]) <= set(range(1, 31))
    assert frames[0][2:] == [30, 30, *[5] * 6]
    assert len(set(frames[1][4:])) > 1  # All are equal once in 24 million.


@pytest.mark.slow
def test_all_other_games_begin_at_frame_0() -> None:
    games = (*suites.resolve("atari57").tasks, "air_raid")
    later = {game for game in games if atari_emulator.Emulator(game, _options()).frame > 0}
    assert later == atari_emulator.BEGUN_BY_BUTTONS


def test_games_that_begin_within_a_step_have_noops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 8)
    monkeypatch.setattr(atari_emulator, "MAX_NOOPS", 1)
    environment = _make("pong", [1, 2, 3])
    environment.reset()
    ends = []
    for _ in range(40):
        environment.send(np.zeros(3, np.int32))
        output = environment.receive()
        ends.append(output.info.episode_end)
        assert (environment._game_frame[output.info.episode_end] == 1).all()
    assert np.sum(ends, axis=0).tolist() == [20, 20, 20]


def test_game_is_cut_off_after_its_frames_and_that_ends_the_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert atari_emulator.MAX_FRAMES_PER_GAME == 108_000
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 40)
    info = play(_make("space_invaders", [1, 2], num_action_repeats=8), np.zeros((25, 2))).info
    assert info.episode_end[1:, 0].tolist() == (np.arange(1, 26) % 5 == 0).tolist()
    np.testing.assert_array_equal(info.episode_step[5], [5, 5])
