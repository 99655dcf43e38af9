"""Atari-57 on the real emulator: games and lives, rewards, observations, actions, seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ale_py
import numpy as np
import pytest
import tensorflow as tf
import tree
from ale_py import roms

from environments import BatchedEnvironment, StepOutput
from scalable_agent_popart import suites
from scalable_agent_popart.agent import frame_stack
from scalable_agent_popart.suites.atari import emulator as atari_emulator

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


class Play(NamedTuple):
    """A reset and the steps after it."""

    first: StepOutput
    steps: StepOutput  # [steps, N, ...]
    frames: np.ndarray  # [1 + steps, N, 84, 84, 1], copied on receipt


def _play(environment: BatchedEnvironment, actions: np.ndarray) -> Play:
    """Resets, then plays actions `[steps, N]`."""
    outputs = [environment.reset()]
    frames = [outputs[0].observation.copy()]
    for row in actions:
        environment.send(row)
        outputs.append(environment.receive())
        frames.append(outputs[-1].observation.copy())
    environment.close()
    steps = tree.map_structure(lambda *arrays: np.stack(arrays), *outputs[1:])
    return Play(outputs[0], steps, np.stack(frames))


def _random_actions(num_steps: int, num_environments: int = 2) -> np.ndarray:
    """Random actions; every eighth step fires, so that no ball waits to be served."""
    actions = np.random.default_rng(0).integers(0, 18, (num_steps, num_environments))
    actions[::8] = _FIRE
    return actions.astype(np.int32)


@pytest.fixture(scope="module")
def breakout() -> Play:
    """400 training steps of two copies of Breakout: whole games, several lives each."""
    play = _play(_make("breakout", _SEEDS), _random_actions(400))
    assert play.steps.info.episode_end.any(axis=0).all(), "every copy must end a game"
    return play


def test_the_57_games_are_the_emulators_and_have_the_published_scores() -> None:
    suite = suites.resolve("atari57")
    assert len(set(suite.tasks)) == len(suite.tasks) == 57
    assert all(Path(roms.get_rom_path(task) or "").is_file() for task in suite.tasks)
    # DQN Zoo, dqn_zoo/atari_data.py.
    assert suite.reference_scores["alien"] == (227.8, 7127.7)
    assert suite.reference_scores["skiing"] == (-17098.1, -4336.9)
    assert suite.reference_scores["zaxxon"] == (32.5, 9173.3)
    assert all(score.human > score.random for score in suite.reference_scores.values())


def test_reset_is_done_without_reward_and_shows_one_grey_frame(breakout: Play) -> None:
    spec = suites.resolve("breakout").observation_spec(_options())
    first = breakout.first
    assert first.observation.shape == (2, *spec.shape) == (2, 84, 84, 1)
    assert first.observation.dtype == spec.dtype == np.uint8
    assert (first.reward.tolist(), first.done.tolist()) == ([0, 0], [True, True])
    assert not first.info.episode_end.any()


def test_lost_life_is_done_while_the_game_goes_on(breakout: Play) -> None:
    done, game_over = breakout.steps.done, breakout.steps.info.episode_end
    assert not (game_over & ~done).any()
    for i in range(2):
        length = int(np.argmax(game_over[:, i])) + 1
        assert done[:length, i].sum() == 5, "Breakout gives five lives"
        steps = breakout.steps.info.episode_step[:length, i]
        np.testing.assert_array_equal(steps, np.arange(length) + 1)


def test_stacks_are_bit_for_bit_those_of_the_emulator(breakout: Play) -> None:
    """Lives are lost, which must leave the stack running, and games end, which must empty it."""
    emulators = ale_py.AtariVectorEnv(
        "breakout",
        num_envs=2,
        num_threads=1,
        full_action_space=True,
        autoreset_mode="SameStep",
        stack_num=4,
        noop_max=31,  # Exclusive.
        life_loss_info=True,
        use_fire_reset=False,
        reward_clipping=False,
    )
    own = [emulators.reset(seed=np.array(_SEEDS))[0]]
    own += [emulators.step(row)[0] for row in _random_actions(400)]
    ends = np.stack([breakout.first.info.episode_end, *breakout.steps.info.episode_end])
    state = frame_stack.initial_state(*breakout.frames.shape[1:4])
    stacks, _ = frame_stack.unroll(tf.constant(breakout.frames), tf.constant(ends), state)
    np.testing.assert_array_equal(stacks, np.moveaxis(own, 2, -1))
    np.testing.assert_array_equal(breakout.steps.observation, breakout.frames[1:])


def test_end_of_a_game_reports_its_raw_rewards_and_shows_the_next_game(breakout: Play) -> None:
    rewards, info = breakout.steps.reward, breakout.steps.info
    new_game = breakout.frames[0, 0, _BRICKS]
    totals = []
    for i in range(2):
        start = 0
        for end in np.flatnonzero(info.episode_end[:, i]).tolist():
            assert info.episode_return[end, i] == rewards[start : end + 1, i].sum()
            assert info.episode_step[end, i] == end + 1 - start
            np.testing.assert_array_equal(breakout.frames[end + 1, i, _BRICKS], new_game)
            bricks_are_missing = (breakout.frames[end, i, _BRICKS] != new_game).any()
            assert bricks_are_missing == (info.episode_return[end, i] > 0)
            totals.append(info.episode_return[end, i])
            start = end + 1
    assert max(totals) > 0


def test_lost_life_is_not_done_outside_training_and_the_game_is_the_same(breakout: Play) -> None:
    tested = _play(_make("breakout", _SEEDS, training=False), _random_actions(400))
    np.testing.assert_array_equal(tested.steps.done, breakout.steps.info.episode_end)
    same = tested.steps._replace(done=breakout.steps.done)
    tree.map_structure(np.testing.assert_array_equal, same, breakout.steps)


def test_pool_plays_each_game_as_it_would_be_played_alone() -> None:
    actions = _random_actions(40, 1).repeat(4, axis=1)
    suite = suites.resolve("breakout,space_invaders")
    pool = suite.make_environments([0, 1, 1, 1], [5, 7, 7, 8], _options())
    assert (pool.task_ids.tolist(), pool.task_ids.dtype) == ([0, 1, 1, 1], np.int32)
    pool.start()
    pool.receive(0.0)
    outputs = []
    for row in actions:
        pool.send(np.arange(4), row)
        outputs.append(pool.receive(0.0).output)
    pool.close()
    found = tree.map_structure(lambda *arrays: np.stack(arrays), *outputs)
    for game, seed, i in (("breakout", 5, 0), ("space_invaders", 7, 1), ("space_invaders", 7, 2)):
        alone = _play(_make(game, [seed]), actions[:, :1]).steps
        own = tree.map_structure(lambda array, i=i: array[:, i : i + 1], found)
        tree.map_structure(np.testing.assert_array_equal, own, alone)
    assert (found.observation[:, 2] != found.observation[:, 3]).any(), "another seed"
    assert found.reward[:, 2].max() > 1, "Space Invaders pays 5 and more"


@pytest.mark.parametrize(("game", "repeats"), [("seaquest", 4), ("skiing", 4), ("air_raid", 3)])
def test_games_and_their_18_actions_are_those_of_the_plain_emulator(
    game: str, repeats: int
) -> None:
    """Of which Skiing knows only nine; the others must do what they do in the emulator: nothing."""
    size = {"height": 84, "width": 84} if repeats == 4 else {"height": 40, "width": 50}
    options = _options(num_action_repeats=repeats, **size)
    actions = np.concatenate([np.arange(18), _random_actions(150, 1)[:, 0]])
    make = suites.resolve("pong").environment_factory  # Air Raid is none of the 57.
    (environment,) = make([game], np.zeros(1, np.int32), [2927], options).members
    emulator = atari_emulator.Emulator(game, options, seed=2927)
    begun = emulator.begin(num_noops=0)  # As with this seed.
    np.testing.assert_array_equal(environment.reset().observation[0], begun)
    rewards = set()
    for action in actions.tolist():
        environment.send(np.array([action]))
        output = environment.receive()
        reward, over, observation = emulator.step(action)
        assert (reward, over) == (output.reward[0], output.info.episode_end[0])
        rewards.add(reward)
        if over:
            break
        np.testing.assert_array_equal(output.observation[0], observation)
    assert len(rewards) > 1


def test_games_begin_after_0_to_30_noops() -> None:
    # The emulator samples with the Mersenne Twister. Of all seeds below 3,000 the first two give
    # the smallest numbers and the others the largest, from 0.9993 of the range on.
    environment = _make("pong", [2927, 1146, 2193, 2748])
    environment.reset()
    assert environment._game_frame.tolist() == [0, 0, 30, 30]
    environment.close()


def test_game_is_cut_off_after_its_frames_and_that_ends_the_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 40)
    for repeats, length in ((4, 10), (8, 5)):
        ends = (np.arange(1, 26) % length == 0).tolist()
        environment = _make("space_invaders", [1, 2], num_action_repeats=repeats)
        info = _play(environment, np.zeros((25, 2), np.int32)).steps.info
        assert info.episode_end[:, 0].tolist() == ends
        np.testing.assert_array_equal(info.episode_step[length - 1], [length, length])


def test_emulator_is_asked_for_the_papers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    real = ale_py.AtariVectorEnv

    def record(game: str, **settings: Any) -> ale_py.AtariVectorEnv:
        # The emulator's own defaults.
        asked.update(repeat_action_probability=0.0, grayscale=True, maxpool=True)
        asked.update(settings, game=game)
        return real(game, **settings)

    monkeypatch.setattr(ale_py, "AtariVectorEnv", record)
    environment = _make("pong", [1], num_action_repeats=3, height=40, width=50)
    assert environment.reset().observation.shape == (1, 40, 50, 1)
    environment.close()
    expected = {"game": "pong", "frameskip": 3, "stack_num": 1, "reward_clipping": False}
    expected |= {"max_num_frames_per_episode": 108_000, "noop_max": 31}  # Exclusive.
    expected |= {"repeat_action_probability": 0.0, "grayscale": True, "maxpool": True}
    assert asked.items() >= expected.items()
