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
import tree
from ale_py import roms

from environments import BatchedEnvironment, StepOutput
from scalable_agent_popart import suites
from scalable_agent_popart.agent import frame_stack
from scalable_agent_popart.suites.atari import emulator as atari_emulator

_ROOT = Path(__file__).resolve().parents[4]
_NOOP, _FIRE, _RIGHT, _LEFT = 0, 1, 3, 4
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

    def stacks(self) -> np.ndarray:
        """Returns the last four frames at each step as the agent stacks them, `[..., 4]`."""
        ends = np.concatenate(
            [self.first.info.episode_end[np.newaxis], self.steps.info.episode_end]
        )
        state = tf.zeros(self.frames.shape[1:4], tf.uint32)
        return frame_stack.unroll(tf.constant(self.frames), tf.constant(ends), state)[0].numpy()


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


def _emulators_own_stacks(game: str, actions: np.ndarray, max_frames: int) -> np.ndarray:
    """Returns what the emulator itself stacks in training, `[1 + steps, N, 84, 84, 4]`."""
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
    stacks = [emulators.reset(seed=np.array(_SEEDS))[0]]
    stacks += [emulators.step(row)[0] for row in actions]
    return np.moveaxis(np.stack(stacks), 2, -1)


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


def test_there_are_57_games_and_the_emulator_has_them_all() -> None:
    tasks = suites.resolve("atari57").tasks
    assert len(set(tasks)) == len(tasks) == 57
    assert [task for task in tasks if not Path(roms.get_rom_path(task) or "").is_file()] == []


def test_reference_scores_are_the_published_ones() -> None:
    references = suites.resolve("atari57").reference_scores
    # DQN Zoo, dqn_zoo/atari_data.py.
    assert references["alien"] == (227.8, 7127.7)
    assert references["skiing"] == (-17098.1, -4336.9)
    assert references["zaxxon"] == (32.5, 9173.3)
    assert all(reference.human > reference.random for reference in references.values())


def test_reset_is_done_without_reward_and_shows_one_grey_frame(breakout: Play) -> None:
    spec = suites.resolve("breakout").observation_spec(_options())
    first = breakout.first
    assert first.observation.shape == (2, *spec.shape) == (2, 84, 84, 1)
    assert first.observation.dtype == spec.dtype == np.uint8
    assert (first.reward.tolist(), first.done.tolist()) == ([0, 0], [True, True])
    assert not first.info.episode_end.any()
    assert not first.info.episode_step.any()


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
    own = _emulators_own_stacks("breakout", _random_actions(400), max_frames=108_000)
    assert own.shape == (401, 2, 84, 84, 4)
    np.testing.assert_array_equal(breakout.stacks(), own)
    np.testing.assert_array_equal(breakout.steps.observation, breakout.frames[1:])


def test_stacks_are_those_of_the_emulator_where_games_are_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 40)
    actions = _random_actions(32)
    play = _play(_make("space_invaders", _SEEDS), actions)
    assert (play.steps.info.episode_end.sum(axis=0) == 3).all()
    own = _emulators_own_stacks("space_invaders", actions, max_frames=40)
    np.testing.assert_array_equal(play.stacks(), own)


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
        own = rewards[start:, i]
        np.testing.assert_array_equal(info.episode_return[start:, i], np.cumsum(own))
    assert max(totals) > 0


def test_lost_life_is_not_done_outside_training_and_the_game_is_the_same(breakout: Play) -> None:
    tested = _play(_make("breakout", _SEEDS, training=False), _random_actions(400))
    np.testing.assert_array_equal(tested.steps.done, breakout.steps.info.episode_end)
    np.testing.assert_array_equal(tested.frames, breakout.frames)
    same = tested.steps._replace(done=breakout.steps.done)
    tree.map_structure(np.testing.assert_array_equal, same, breakout.steps)


def test_pool_plays_each_game_as_it_would_be_played_alone() -> None:
    seeds, actions = [5, 6, 7], _random_actions(40, 3)
    pool = suites.resolve("breakout,space_invaders").make_environments([0, 0, 1], seeds, _options())
    assert (pool.task_ids.tolist(), pool.task_ids.dtype) == ([0, 0, 1], np.int32)
    pool.start()
    pool.receive(0.0)
    outputs = []
    for row in actions:
        pool.send(np.arange(3), row)
        outputs.append(pool.receive(0.0).output)
    pool.close()
    both = tree.map_structure(lambda *arrays: np.stack(arrays), *outputs)
    for game, part in (("breakout", slice(0, 2)), ("space_invaders", slice(2, 3))):
        alone = _play(_make(game, seeds[part]), actions[:, part]).steps
        own = tree.map_structure(lambda array, part=part: array[:, part], both)
        tree.map_structure(np.testing.assert_array_equal, own, alone)
    assert both.reward[:, 2].max() > 1, "Space Invaders pays 5 and more"


def test_same_seed_gives_the_same_game_and_another_seed_another() -> None:
    actions = np.repeat(_random_actions(40, 1), 3, axis=1)
    frames = _play(_make("space_invaders", [7, 7, 8]), actions).frames
    np.testing.assert_array_equal(frames[:, 0], frames[:, 1])
    assert (frames[:, 0] != frames[:, 2]).any()


def test_right_and_left_move_the_paddle_that_way_and_a_game_waits_for_fire() -> None:
    actions = np.tile(np.array([[_NOOP, _RIGHT, _LEFT]], np.int32), (40, 1))
    play = _play(_make("breakout", [1, 1, 1]), actions)
    # A ball that nobody served would be lost, and a life with it, within 30 steps.
    assert not play.steps.done.any()
    paddle_row = play.frames[8, :, 75, 5:79, 0].astype(float)
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
    environment = _make("pong", [2927, 1146, 2193, 2748])
    environment.reset()
    assert environment._game_frame.tolist() == [0, 0, 30, 30]
    environment.close()


def test_game_is_cut_off_after_its_frames_and_that_ends_the_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 200)
    for repeats, steps in ((4, 50), (8, 25)):
        environment = _make("space_invaders", [1, 2], num_action_repeats=repeats)
        play = _play(environment, np.zeros((55, 2), np.int32))
        expected = np.zeros((55, 2), bool)
        expected[steps - 1 :: steps] = True
        np.testing.assert_array_equal(play.steps.done, expected)
        np.testing.assert_array_equal(play.steps.info.episode_end, expected)
        np.testing.assert_array_equal(play.steps.info.episode_step[steps - 1], [steps, steps])


def test_emulator_is_asked_for_the_papers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    real = ale_py.AtariVectorEnv

    def record(game: str, **settings: Any) -> ale_py.AtariVectorEnv:
        asked.update(settings, game=game)
        return real(game, **settings)

    monkeypatch.setattr(ale_py, "AtariVectorEnv", record)
    environment = _make("pong", [1], num_action_repeats=3, height=40, width=50)
    assert environment.reset().observation.shape == (1, 40, 50, 1)
    environment.close()
    expected = {
        "game": "pong",
        "max_num_frames_per_episode": 108_000,
        "noop_max": 31,  # Exclusive.
        "frameskip": 3,
        "stack_num": 1,
        "reward_clipping": False,
    }
    # The emulator's own defaults.
    defaults = {"repeat_action_probability": 0.0, "grayscale": True, "maxpool": True}
    assert {**defaults, **asked}.items() >= {**defaults, **expected}.items()
