"""The stand-in for `deepmind_lab` accepts and shows what is recorded of the real module."""

from pathlib import Path
from typing import Any

import fake_deepmind_lab
import labs
import numpy as np
import pytest
from fake_deepmind_lab import Lab


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module puts its temporary folders."""
    labs.isolate(monkeypatch, tmp_path)
    return tmp_path


def test_the_module_has_a_version_and_runfiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_deepmind_lab, "_runfiles", fake_deepmind_lab.runfiles_path())
    assert fake_deepmind_lab.version() == "1.0"
    assert Path(fake_deepmind_lab.runfiles_path()).is_dir()
    assert fake_deepmind_lab.set_runfiles_path("/elsewhere") is True
    assert fake_deepmind_lab.runfiles_path() == "/elsewhere"
    with pytest.raises(RuntimeError, match=r"Failed to open file '/elsewhere/baselab/game_scripts"):
        labs.make("nowhere")


def test_all_levels_of_the_suite_can_be_played() -> None:
    levels = fake_deepmind_lab.SUITE_LEVELS
    assert len(set(levels)) == 32
    assert set(levels) >= {*fake_deepmind_lab.HELD_OUT, *fake_deepmind_lab.NEED_DATA}
    config = {"allowHoldOutLevels": "true", "datasetPath": "dummy", "width": "8", "height": "8"}
    names = [labs.SUITE + level for level in levels]
    for level in (*names, *fake_deepmind_lab.OTHER_LEVELS):
        lab = labs.started(level, config=config)
        lab.step(labs.NOTHING)
        assert lab.is_running()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1, []), "must be str"),
        ((labs.PREBUILT, ("INSTR",)), "must be list, not tuple"),
        ((labs.PREBUILT, None), "must be list, not NoneType"),
        ((labs.PREBUILT, [1]), "must be str"),
        ((labs.PREBUILT, [], None), "must be dict, not NoneType"),
        ((labs.PREBUILT, [], {"width": 96}), "must be str, not int"),
        ((labs.PREBUILT, [], {1: "96"}), "must be str, not int"),
        ((labs.PREBUILT, [], {}, "software", None, Path("/tmp")), "must be str"),
    ],
)
def test_arguments_of_another_type_are_type_errors(arguments: tuple, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        Lab(*arguments)


@pytest.mark.parametrize("level", ["rooms_watermaze", labs.SUITE + "nope", labs.SUITE + "lt_chasm"])
def test_a_level_of_another_name_is_not_found(level: str) -> None:
    runfiles = fake_deepmind_lab.runfiles_path()
    message = (
        'Failed to init environment - "Level not found: Failed to open file '
        f"'{runfiles}/baselab/game_scripts/levels/{level}.lua'\""
    )
    with pytest.raises(RuntimeError) as error:
        labs.make(level)
    assert str(error.value) == message


def test_an_observation_of_another_name_is_a_value_error(temp: Path) -> None:
    with pytest.raises(ValueError, match=r"^Unknown observation 'NOPE'\.$"):
        Lab(labs.PREBUILT, ["NOPE"])
    assert not labs.folders(temp)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("width", value) for value in ("abc", "0", "-3", "96.0")),
        ("height", ""),
        *(("mixerSeed", value) for value in ("-1", "4294967296", "0x600D5EED", "")),
    ],
)
def test_a_bad_number_in_a_setting_is_refused(key: str, value: str) -> None:
    with pytest.raises(RuntimeError, match=f"^Failed to apply setting '{key} = {value}' - "):
        labs.make(config={key: value})


def test_unknown_settings_and_renderers_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Failed to init environment"):
        labs.make(config={"widht": "96"})
    with pytest.raises(RuntimeError, match="Failed to set renderer"):
        labs.make(renderer="fast")
    labs.make(config={"logLevel": "warn", "mixerSeed": "4294967295"}, renderer="hardware")


@pytest.mark.parametrize("level", fake_deepmind_lab.HELD_OUT)
def test_held_out_levels_ask_for_permission(level: str) -> None:
    for config in ({}, {"allowHoldOutLevels": "false"}):
        with pytest.raises(RuntimeError, match="Failed to init environment"):
            labs.make(labs.SUITE + level, config)
    assert labs.started(labs.SUITE + level, config={"allowHoldOutLevels": "true"}).is_running()


@pytest.mark.parametrize("level", fake_deepmind_lab.NEED_DATA)
def test_two_levels_need_their_data_sets_at_reset(level: str, tmp_path: Path) -> None:
    for config in ({}, {"datasetPath": str(tmp_path / "nowhere")}):
        lab = labs.make(labs.SUITE + level, config)
        with pytest.raises(RuntimeError, match=r"(?s)^Failed to start environ.*Follow instruct"):
            lab.reset()
        assert not lab.is_running()
    for path in ("dummy", str(tmp_path)):
        assert labs.started(labs.SUITE + level, config={"datasetPath": path}).is_running()


def test_specifications_are_as_recorded() -> None:
    lab = labs.make()
    assert lab.observation_spec() == [
        {"name": "RGB_INTERLEAVED", "shape": (72, 96, 3), "dtype": np.uint8},
        {"name": "INSTR", "shape": (), "dtype": str},
    ]
    assert Lab(labs.PREBUILT, []).observation_spec()[0]["shape"] == (240, 320, 3)
    spec = lab.action_spec()
    assert [(entry["min"], entry["max"]) for entry in spec] == (
        [(-512, 512)] * 2 + [(-1, 1)] * 2 + [(0, 1)] * 3
    )
    assert spec[3] == {"max": 1, "min": -1, "name": "MOVE_BACK_FORWARD"}
    assert [entry["name"] for entry in spec[4:]] == ["FIRE", "JUMP", "CROUCH"]
    assert not hasattr(lab, "fps")


def test_properties_are_none() -> None:
    lab = labs.make()
    assert lab.properties() == {}
    with pytest.raises(KeyError, match="'x' not found"):
        lab.read_property("x")
    with pytest.raises(KeyError, match="'x' not found"):
        lab.write_property("x", "1")


def test_observations_are_owned_and_only_those_asked_for() -> None:
    lab = labs.started()
    first, again = labs.frame(lab), labs.frame(lab)
    assert first.dtype == np.uint8
    assert first.shape == (72, 96, 3)
    assert first.flags.owndata
    np.testing.assert_array_equal(first, again)
    first += 1
    np.testing.assert_array_equal(labs.frame(lab), again)
    only = Lab(labs.PREBUILT, ["INSTR"])
    only.reset()
    assert only.observations() == {"INSTR": ""}


def test_only_language_levels_give_instructions_that_last_an_episode() -> None:
    lab = labs.make(labs.SUITE + "language_execute_random_task")
    instructions = []
    for seed in range(20):
        lab.reset(seed=seed)
        instructions.append(lab.observations()["INSTR"])
        lab.step(labs.FORWARD, 4)
        assert lab.observations()["INSTR"] == instructions[-1]
    assert all(type(instruction) is str for instruction in instructions)
    assert len({len(instruction.split()) for instruction in instructions}) > 2
    assert labs.started(labs.MAPS).observations()["INSTR"] == ""


def _play(
    level: str = labs.PREBUILT, seed: int = 1, mixer: str = "0", action: np.ndarray = labs.NOTHING
) -> bytes:
    lab = labs.started(level, seed, config={**labs.SMALL, "mixerSeed": mixer})
    frames = [labs.frame(lab)]
    for _ in range(3):
        lab.step(action, 4)
        frames.append(labs.frame(lab))
    assert len({frame.tobytes() for frame in frames}) == 4
    return b"".join(frame.tobytes() for frame in frames)


def test_frames_follow_from_level_seeds_and_actions_alone() -> None:
    assert _play() == _play()
    others = [_play(seed=2), _play("lt_chasm"), _play(mixer="1"), _play(action=labs.FORWARD)]
    assert len({_play(), *others}) == 5


def test_resets_without_a_seed_differ() -> None:
    lab = labs.make()
    frames = set()
    for _ in range(4):
        lab.reset()
        frames.add(labs.frame(lab).tobytes())
    assert len(frames) == 4


def test_rewards_are_the_sum_over_the_frames_and_favour_forward() -> None:
    lab, single, forward = labs.started(), labs.started(), labs.started()
    rewards = [lab.step(labs.NOTHING, 4) for _ in range(64)]
    assert rewards == [sum(single.step(labs.NOTHING) for _ in range(4)) for _ in range(64)]
    assert [forward.step(labs.FORWARD, 4) for _ in range(64)] == [reward + 1 for reward in rewards]
    assert all(type(reward) is float for reward in rewards)
    assert min(rewards) < 0
    assert max(rewards) > 1
    assert rewards.count(0.0) > 10


def test_every_element_of_an_action_counts() -> None:
    rewards = [labs.started().step(row) for row in np.eye(7, dtype=np.intc)]
    assert len({*rewards, labs.started().step(labs.NOTHING)}) == 8


def test_the_last_frame_of_an_episode_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    labs.behave(monkeypatch, episode_frames=10)
    lab = labs.make()
    assert not lab.is_running()
    for read in (lab.observations, lab.events):
        with pytest.raises(RuntimeError, match="Environment in wrong status"):
            read()
    for _ in range(2):
        lab.reset(seed=3)
        assert lab.num_steps() == 0
        for frames in (4, 8, 12):
            assert lab.is_running()
            reward = lab.step(labs.FORWARD, 4)
            assert lab.num_steps() == frames
        assert not lab.is_running()
        assert reward == sum(_rewards(10)[8:])  # two frames' worth
        assert lab.events() == []
        for read in (lab.observations, lambda: lab.step(labs.NOTHING)):
            with pytest.raises(RuntimeError, match="Environment in wrong status"):
                read()


def _rewards(frames: int) -> list[float]:
    lab = labs.started(seed=3)
    return [lab.step(labs.FORWARD) for _ in range(frames)]


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ([0] * 7, TypeError, "must be ndarray, not list"),
        (np.zeros(7, np.int64), ValueError, r"^action must have dtype np\.intc$"),
        (np.zeros(7, np.uint32), ValueError, r"^action must have dtype np\.intc$"),
        (np.zeros(6, np.intc), ValueError, r"^action must have shape \(7\)$"),
        (np.zeros((1, 7), np.intc), ValueError, r"^action must have shape \(7\)$"),
        (np.zeros((7, 2), np.intc)[:, 0], ValueError, "would read other numbers"),
    ],
)
def test_actions_are_checked(action: Any, error: type[Exception], message: str) -> None:
    lab = labs.started()
    with pytest.raises(error, match=message):
        lab.step(action)
    assert lab.num_steps() == 0


def test_values_out_of_range_raise_nothing() -> None:
    assert isinstance(labs.started().step(np.full(7, 9999, np.intc)), float)


@pytest.mark.parametrize("seed", [np.int64(1), np.int32(1), "1", 1.0])
def test_seeds_must_be_python_integers(seed: Any) -> None:
    with pytest.raises(ValueError, match="'seed' must be int or None, was '"):
        labs.make().reset(seed=seed)
