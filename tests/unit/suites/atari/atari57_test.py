"""Atari-57 on the real emulator: games and lives, rewards, observations, actions, seeds."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ale_py
import numpy as np
import pytest
import tensorflow as tf
from ale_py import roms

from environments import BatchedEnvironment, Lockstep, StepOutput
from scalable_agent_popart import suites
from scalable_agent_popart.agent import frame_stack
from scalable_agent_popart.suites.atari import emulator as atari_emulator

_ROOT = Path(__file__).resolve().parents[4]
_NOOP, _FIRE, _RIGHT, _LEFT = 0, 1, 3, 4
_BRICKS = slice(22, 37)  # Breakout's, among the rows of an 84x84 observation.
_SEEDS = (1, 2)


def _options(training: bool = True, **changes: int) -> suites.EnvironmentOptions:
    settings = {"num_action_repeats": 4, "height": 84, "width": 84, **changes}
    return suites.EnvironmentOptions(**settings, action_set="full", training=training)


def _make(
    games: str, task_ids: Sequence[int], seeds: Sequence[int], **options: Any
) -> BatchedEnvironment:
    (environment,) = _make_pool(games, task_ids, seeds, **options).members
    return environment


def _make_pool(
    games: str, task_ids: Sequence[int], seeds: Sequence[int], **options: Any
) -> Lockstep:
    return suites.resolve(games).make_environments(task_ids, seeds, _options(**options))


class Play(NamedTuple):
    """Outputs of a reset and of the steps after it, with copies made on receipt."""

    outputs: list[StepOutput]
    observations: list[np.ndarray]  # copies, [N, 84, 84, 1] each

    def stacked(self, name: str) -> np.ndarray:
        """Returns one array of the steps after the reset, `[steps, N]`."""
        steps = self.outputs[1:]
        if name in steps[0].info._fields:
            return np.stack([getattr(output.info, name) for output in steps])
        return np.stack([getattr(output, name) for output in steps])

    def stacks(self) -> np.ndarray:
        """Returns the last four frames at each step, as the agent stacks them."""
        frames = np.stack([output.observation for output in self.outputs])
        starts = np.stack([output.info.episode_end for output in self.outputs])
        state = frame_stack.initial_state(*frames.shape[1:4])
        stacks, _ = frame_stack.unroll(tf.constant(frames), tf.constant(starts), state)
        return stacks.numpy()  # [1 + steps, N, 84, 84, 4]


def _play(environment: BatchedEnvironment, actions: np.ndarray) -> Play:
    """Resets, then plays actions `[steps, N]`."""
    outputs = [environment.reset()]
    observations = [outputs[0].observation.copy()]
    for row in actions:
        environment.send(row)
        outputs.append(environment.receive())
        observations.append(outputs[-1].observation.copy())
    environment.close()
    return Play(outputs, observations)


def _emulators_own_stacks(game: str, actions: np.ndarray, max_frames: int) -> np.ndarray:
    """What the emulator itself stacks in training, `[1 + steps, N, 84, 84, 4]`."""
    emulators = ale_py.AtariVectorEnv(
        game,
        num_envs=actions.shape[1],
        num_threads=1,
        max_num_frames_per_episode=max_frames,
        full_action_space=True,
        autoreset_mode="SameStep",
        stack_num=4,
        noop_max=31,  # Exclusive.
        life_loss_info=True,
        use_fire_reset=False,
        reward_clipping=False,
    )
    stacks = [emulators.reset(seed=np.array(_SEEDS[: actions.shape[1]]))[0]]
    stacks += [emulators.step(row)[0] for row in actions]
    return np.moveaxis(np.stack(stacks), 2, -1)


def _random_actions(num_steps: int, num_environments: int) -> np.ndarray:
    """Random actions; every eighth step fires, so that no ball waits to be served."""
    actions = np.random.default_rng(0).integers(0, 18, (num_steps, num_environments))
    actions[::8] = _FIRE
    return actions.astype(np.int32)


@pytest.fixture(scope="module")
def breakout() -> Play:
    """400 training steps of two copies of Breakout: whole games, several lives each."""
    play = _play(_make("breakout", [0, 0], _SEEDS), _random_actions(400, 2))
    assert (play.stacked("episode_end").sum(axis=0) >= 1).all(), "every copy must end a game"
    return play


def test_there_are_57_games_and_the_emulator_has_them_all() -> None:
    tasks = suites.resolve("atari57").tasks
    assert len(set(tasks)) == len(tasks) == 57
    assert [task for task in tasks if not Path(roms.get_rom_path(task) or "").is_file()] == []


def test_reference_scores_are_the_published_ones() -> None:
    references = suites.resolve("atari57").reference_scores
    # DQN Zoo, dqn_zoo/atari_data.py.
    assert references["alien"] == (227.8, 7127.7)
    assert references["montezuma_revenge"] == (0.0, 4753.3)
    assert references["skiing"] == (-17098.1, -4336.9)
    assert references["zaxxon"] == (32.5, 9173.3)
    assert all(reference.human > reference.random for reference in references.values())


def test_reset_is_done_without_reward_and_shows_one_grey_frame(breakout: Play) -> None:
    spec = suites.resolve("breakout").observation_spec(_options())
    first = breakout.outputs[0]
    assert first.observation.shape == (2, *spec.shape) == (2, 84, 84, 1)
    assert first.observation.dtype == spec.dtype == np.uint8
    np.testing.assert_array_equal(first.reward, np.zeros(2, np.float32))
    np.testing.assert_array_equal(first.done, [True, True])
    np.testing.assert_array_equal(first.info.episode_end, [False, False])
    np.testing.assert_array_equal(first.info.episode_step, [0, 0])


def test_lost_life_is_done_while_the_game_goes_on(breakout: Play) -> None:
    done, game_over = breakout.stacked("done"), breakout.stacked("episode_end")
    steps = breakout.stacked("episode_step")
    assert not (game_over & ~done).any()
    for i in range(2):
        first_game = int(np.argmax(game_over[:, i]))
        assert done[: first_game + 1, i].sum() == 5, "Breakout gives five lives"
        np.testing.assert_array_equal(steps[: first_game + 1, i], np.arange(first_game + 1) + 1)


def test_stacks_are_bit_for_bit_those_of_the_emulator(breakout: Play) -> None:
    lost = breakout.stacked("done") & ~breakout.stacked("episode_end")
    assert (lost.sum(axis=0) >= 5).all(), "lives are lost, which must leave the stack running"
    own = _emulators_own_stacks("breakout", _random_actions(400, 2), max_frames=108_000)
    assert own.shape == (401, 2, 84, 84, 4)
    np.testing.assert_array_equal(breakout.stacks(), own)
    for output, copy in zip(breakout.outputs, breakout.observations, strict=True):
        np.testing.assert_array_equal(output.observation, copy)  # Not overwritten since.


def test_stacks_are_those_of_the_emulator_where_games_are_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 40)
    actions = _random_actions(32, 2)
    play = _play(_make("space_invaders", [0, 0], _SEEDS), actions)
    assert (play.stacked("episode_end").sum(axis=0) == 3).all()
    own = _emulators_own_stacks("space_invaders", actions, max_frames=40)
    np.testing.assert_array_equal(play.stacks(), own)


def test_end_of_a_game_reports_the_sum_of_all_its_raw_rewards(breakout: Play) -> None:
    rewards, game_over = breakout.stacked("reward"), breakout.stacked("episode_end")
    returns, lengths = breakout.stacked("episode_return"), breakout.stacked("episode_step")
    totals = []
    for i in range(2):
        start = 0
        for end in np.flatnonzero(game_over[:, i]).tolist():
            assert returns[end, i] == rewards[start : end + 1, i].sum()
            assert lengths[end, i] == end + 1 - start
            totals.append(returns[end, i])
            start = end + 1
        np.testing.assert_array_equal(returns[start:, i], np.cumsum(rewards[start:, i]))
    assert max(totals) > 0


def test_end_of_a_game_shows_the_first_frame_of_the_next(breakout: Play) -> None:
    frames = np.stack(breakout.observations)[..., 0]
    new_game = frames[0, 0, _BRICKS]
    bricks_were_missing = False
    for step, i in np.argwhere(breakout.stacked("episode_end")[:-1]):
        np.testing.assert_array_equal(frames[step + 1, i, _BRICKS], new_game)
        bricks_were_missing |= bool((frames[step, i, _BRICKS] != new_game).any())
        # The action that follows is played.
        assert breakout.stacked("episode_step")[step + 1, i] == 1
    assert bricks_were_missing


def test_lost_life_is_not_done_outside_training_and_the_game_is_the_same(breakout: Play) -> None:
    tested = _play(_make("breakout", [0, 0], _SEEDS, training=False), _random_actions(400, 2))
    np.testing.assert_array_equal(tested.stacked("done"), breakout.stacked("episode_end"))
    for name in ("reward", "episode_end", "episode_return", "episode_step"):
        np.testing.assert_array_equal(tested.stacked(name), breakout.stacked(name))
    np.testing.assert_array_equal(tested.observations, breakout.observations)


def test_pool_plays_each_game_as_it_would_be_played_alone() -> None:
    games = "breakout,space_invaders"
    task_ids, seeds, actions = [0, 0, 1], [5, 6, 7], _random_actions(40, 3)
    pool = _make_pool(games, task_ids, seeds)
    np.testing.assert_array_equal(pool.task_ids, task_ids)
    assert pool.task_ids.dtype == np.int32
    pool.start()
    outputs = [pool.receive(0.0).output]
    for row in actions:
        pool.send(np.arange(3), row)
        outputs += [pool.receive(0.0).output]
    pool.close()
    both = Play(outputs, [])
    for part in (slice(0, 2), slice(2, 3)):
        alone = _make(games, task_ids[part], seeds[part])
        np.testing.assert_array_equal(alone.task_ids, task_ids[part])
        play = _play(alone, actions[:, part])
        for name in ("observation", "reward", "done", "episode_return", "episode_end"):
            np.testing.assert_array_equal(both.stacked(name)[:, part], play.stacked(name))
    assert both.stacked("reward")[:, 2].max() > 1, "Space Invaders pays 5 and more"


def test_same_seed_gives_the_same_game_and_another_seed_another() -> None:
    actions = np.repeat(_random_actions(40, 1), 3, axis=1)
    play = _play(_make("space_invaders", [0] * 3, [7, 7, 8]), actions)
    observations = np.stack(play.observations)
    np.testing.assert_array_equal(observations[:, 0], observations[:, 1])
    assert (observations[:, 0] != observations[:, 2]).any()


def test_right_and_left_move_the_paddle_that_way_and_a_game_waits_for_fire() -> None:
    actions = np.tile(np.array([[_NOOP, _RIGHT, _LEFT]], np.int32), (40, 1))
    play = _play(_make("breakout", [0] * 3, [1, 1, 1]), actions)
    # A ball that nobody served would be lost, and a life with it, within 30 steps.
    assert not play.stacked("done").any()
    paddle_row = play.observations[8][:, 75, 5:79, 0].astype(float)
    # Centre of what is bright in the paddle's row, between the walls.
    middle, right, left = (row @ np.arange(row.size) / row.sum() for row in paddle_row)
    assert left + 5 < middle < right - 5


# Played in a process of its own: the emulator never answers to an action that it doesn't know.
_PLAY = """
import sys
import numpy as np
from scalable_agent_popart import suites

game, actions, frames = sys.argv[1], np.load(sys.argv[2]), sys.argv[3]
num_environments = actions.shape[1]
(environment,) = suites.resolve(game).make_environments(
    [0] * num_environments,
    [7] * num_environments,
    suites.EnvironmentOptions(num_action_repeats=4, height=84, width=84, action_set="full"),
).members
environment.reset()
outputs = []
for row in actions:
    environment.send(row)
    outputs.append(environment.receive())
np.save(frames, [output.observation[..., 0] for output in outputs])
"""


def _play_apart(game: str, actions: np.ndarray, directory: Path) -> np.ndarray:
    """Frame `[steps, N, 84, 84]` after each of the actions `[steps, N]`."""
    given, frames = directory / "actions.npy", directory / "frames.npy"
    np.save(given, actions.astype(np.int32))
    subprocess.run(
        [sys.executable, "-c", _PLAY, game, str(given), str(frames)],
        cwd=_ROOT,
        timeout=60,
        check=True,
        capture_output=True,
    )
    return np.load(frames).astype(int)


def _emulate(action: ale_py.Action, num_frames: int) -> np.ndarray:
    """The screen after holding an action in Skiing, by the emulator's plain interface."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.0)
    rom = roms.get_rom_path("skiing")
    assert rom is not None
    emulator.loadROM(rom)
    emulator.reset_game()
    for _ in range(num_frames):
        emulator.act(action)
    screen = emulator.getScreenGrayscale().astype(int)
    rows, columns = (np.linspace(0, size - 1, 84).astype(int) for size in screen.shape)
    return screen[rows][:, columns]


def test_all_18_actions_are_played_in_skiing_which_knows_nine(tmp_path: Path) -> None:
    frames = _play_apart("skiing", np.tile(np.arange(18), (25, 1)), tmp_path)[-1]
    alike: dict[bytes, set[str]] = {}
    for name, frame in zip(ale_py.Action.__members__, frames, strict=False):
        alike.setdefault(frame.tobytes(), set()).add(name)
    steering = [{"RIGHT", "UPRIGHT", "DOWNRIGHT"}, {"LEFT", "UPLEFT", "DOWNLEFT"}]
    straight = set(list(ale_py.Action.__members__)[:18]) - steering[0] - steering[1]
    assert list(alike.values()) == [straight, *steering]
    for action, other in ((_RIGHT, _LEFT), (_LEFT, _RIGHT)):
        screen = _emulate(ale_py.Action(action), num_frames=112)
        assert np.abs(screen - frames[action]).sum() < np.abs(screen - frames[other]).sum()


def test_all_18_actions_are_played_in_a_game_that_knows_them_all(tmp_path: Path) -> None:
    frames = _play_apart("boxing", np.arange(18).repeat(2)[:, None], tmp_path)
    assert frames.shape == (36, 1, 84, 84)
    assert (frames[:-1] != frames[1:]).any(axis=(1, 2, 3)).sum() > 10, "the game goes on"


def test_games_begin_after_0_to_30_noops() -> None:
    # The emulator draws with the Mersenne Twister. Of all seeds below 3,000 the first two draw
    # the smallest numbers and the others the largest, from 0.9993 of the range on.
    environment = _make("pong", [0] * 4, [2927, 1146, 2193, 2748])
    environment.reset()
    frames = environment._game_frame.tolist()
    environment.close()
    assert frames == [0, 0, 30, 30]


def test_game_is_cut_off_after_its_frames_and_that_ends_the_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 200)
    for repeats, steps in ((4, 50), (8, 25)):
        environment = _make("space_invaders", [0, 0], [1, 2], num_action_repeats=repeats)
        play = _play(environment, np.zeros((55, 2), np.int32))
        expected = np.zeros((55, 2), bool)
        expected[steps - 1 :: steps] = True
        np.testing.assert_array_equal(play.stacked("done"), expected)
        np.testing.assert_array_equal(play.stacked("episode_end"), expected)
        np.testing.assert_array_equal(play.stacked("episode_step")[steps - 1], [steps, steps])


def test_emulator_is_asked_for_the_papers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    real = ale_py.AtariVectorEnv

    def record(game: str, **settings: Any) -> ale_py.AtariVectorEnv:
        asked.update(settings, game=game)
        return real(game, **settings)

    monkeypatch.setattr(ale_py, "AtariVectorEnv", record)
    environment = _make("pong", [0], [1], num_action_repeats=3, height=40, width=50)
    assert environment.reset().observation.shape == (1, 40, 50, 1)
    environment.close()
    assert asked["game"] == "pong"
    assert asked["max_num_frames_per_episode"] == 108_000
    assert asked["noop_max"] == 31  # Exclusive.
    assert asked["frameskip"] == 3
    assert asked["stack_num"] == 1
    assert asked["reward_clipping"] is False
    # What the emulator's own defaults decide.
    assert asked.get("repeat_action_probability", 0.0) == 0.0
    assert asked.get("grayscale", True) is True
    assert asked.get("maxpool", True) is True
