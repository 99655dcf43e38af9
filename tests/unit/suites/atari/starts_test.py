"""Human starts on the real emulator: the file, playing on from a state, recording."""

from pathlib import Path

import numpy as np
import pytest
import tree

from environments import StepOutput
from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites.atari import emulator as atari_emulator
from scalable_agent_popart.suites.atari.emulator import Emulator
from scalable_agent_popart.suites.atari.starts import AtariFromStarts, read_starts, write_starts
from tests.fakes.play import play

_FIRE = 1


def _options(
    repeats: int = 4, directory: Path | str = "", action_set: str = "full"
) -> suites.EnvironmentOptions:
    starts = {"training": False, "human_starts_dir": str(directory)}
    return suites.EnvironmentOptions(repeats, 84, 84, action_set, **starts)


def _random_actions(num_steps: int, seed: int = 0) -> list[int]:
    actions = np.random.default_rng(seed).integers(0, 18, num_steps)
    actions[::8] = _FIRE
    return actions.tolist()


@pytest.fixture(scope="module")
def breakout() -> list[bytes]:
    """The states of a game after 5, 20, 30, 40 and 50 steps."""
    emulator, states = Emulator("breakout", _options()), []
    for action in _random_actions(50):
        emulator.step(action)
        states.append(emulator.state)
    return [states[4], *states[19::10]]


def _make(
    directory: Path, states: list[bytes], num_copies: int = 1, action_set: str = "full"
) -> AtariFromStarts:
    write_starts(directory, "breakout", states)
    options = _options(directory=directory, action_set=action_set)
    return AtariFromStarts("breakout", np.zeros(num_copies, np.int32), options)


def _play(environment: AtariFromStarts, actions: list[int]) -> StepOutput:
    """Plays the same actions in all copies."""
    return play(environment, np.repeat(np.array(actions)[:, None], len(environment.task_ids), 1))


def test_start_goes_on_in_any_emulator_as_the_game_it_is_of(tmp_path: Path) -> None:
    game = "qbert"
    original, fresh, used = (Emulator(game, _options(repeats=1)) for _ in range(3))
    for action in np.repeat(_random_actions(100), 4).tolist():
        original.step(action)
        used.step(_FIRE)
    write_starts(tmp_path, game, [original.state])
    (state,) = read_starts(tmp_path, game)
    _, _, expected = original.step(0)  # What draws the screen of the others.
    np.testing.assert_array_equal(fresh.restore(state), expected)
    np.testing.assert_array_equal(used.restore(state), expected)
    total = 0.0
    for action in np.repeat(_random_actions(100, seed=1), 4).tolist():
        *expected, frame = original.step(action)
        for emulator in (fresh, used):
            *outcome, seen = emulator.step(action)
            assert outcome == expected
            np.testing.assert_array_equal(seen, frame)
        total += expected[0]
    assert total > 0


def test_minimal_actions_play_as_those_of_the_full_set(
    tmp_path: Path, breakout: list[bytes]
) -> None:
    full = _play(_make(tmp_path, breakout), [1, 3, 4, 3, 0] * 4)
    minimal = _play(_make(tmp_path, breakout, action_set="minimal"), [1, 2, 3, 2, 0] * 4)
    tree.map_structure(np.testing.assert_array_equal, minimal, full)


def test_copies_use_all_starts_equally_up_to_the_games_limit_of_frames(
    breakout: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    emulator = Emulator("breakout", _options())
    assert emulator._ale.getInt("max_num_frames_per_episode") == 108_000
    number = {emulator.restore(state).tobytes(): i for i, state in enumerate(breakout)}
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 241)
    outputs = _play(_make(tmp_path, breakout, num_copies=3), [0] * 200)
    # 20, 80, 120, 160 and 200 frames were played before and one draws the screen.
    lengths = [55, 40, 30, 20, 10]
    for copy in range(3):
        done = np.flatnonzero(outputs.done[:, copy])
        begun = [number[frame.tobytes()] for frame in outputs.observation[done, copy]]
        assert len(begun) > 5
        assert begun == [(copy + 3 * i) % 5 for i in range(len(begun))]
        steps = outputs.info.episode_step[done[1:], copy].tolist()
        assert steps == [lengths[i] for i in begun[:-1]]


def test_file_is_read_as_written_by_the_same_minor_version_only(
    breakout: list[bytes], tmp_path: Path
) -> None:
    path = write_starts(tmp_path / "made" / "for it", "breakout", breakout)
    assert list(path.parent.iterdir()) == [path]
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    np.testing.assert_array_equal(arrays["frames"], [20, 80, 120, 160, 200])
    minor = str(arrays["emulator"]).rpartition(".")[0]
    np.savez(path, **{**arrays, "emulator": f"{minor}.99"})
    assert read_starts(path.parent, "breakout") == breakout
    check, options = suites.resolve("breakout").check, _options(directory=path.parent)
    check(options)
    np.savez(path, **{**arrays, "emulator": "ale-py 0.1.2"})
    with pytest.raises(UserError, match=r"with ale-py 0\.1\.2, and"):
        check(options)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UserError, match=f"{path} cannot be read"):
        check(options)
    # Root cannot look into a directory of so long a name either.
    with pytest.raises(UserError, match=r"x+ holds no starts for 1 of 1 games \(breakout\)"):
        check(_options(directory="x" * 300))
