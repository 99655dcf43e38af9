"""Videos of made-up environments: the frames as they are encoded, and as the files hold them."""

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import av
import numpy as np
import pytest
from PIL import Image

from environments import Observation, Ready, StepOutput, StepOutputInfo
from scalable_agent_popart.evaluation import videos
from scalable_agent_popart.evaluation.drawing import Play
from scalable_agent_popart.evaluation.videos import VideoRecorder

_CAPTION, _GAP, _BACKGROUND = 48, 8, 48
# Atari's and DmLab's images, one that nothing divides, one that is not enlarged, and a stack.
_SHAPES = [(84, 84, 1), (72, 96, 3), (33, 101, 3), (160, 321, 1), (84, 84, 4)]


def _images(num: int, shape: tuple[int, ...] = (84, 84, 1), seed: int = 0) -> np.ndarray:
    """Samples images `[num, *shape]`, of which any two differ by 43 in the mean."""
    values = np.random.default_rng(seed).integers(64, 192, (num, *shape))
    return values.astype(np.uint8)


def _step(ids: Sequence[int], observation: Any, returns: Any = 0.0, ends: Any = False) -> Ready:
    """Makes a step of environments, as far as it is filmed."""
    num = len(ids)
    end = np.full(num, ends)
    info = StepOutputInfo(np.full(num, returns), np.zeros(num, np.int32), end)
    output = StepOutput(np.zeros(num, np.float32), info, end, observation)
    return Ready(np.array(ids, np.int64), output, np.zeros(num, bool))


def _read(path: Path) -> list[np.ndarray]:
    """Reads the frames of a file, each uint8 `[height, width, 3]`."""
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate == 15
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """All frames as they are handed to the encoder."""
    frames: list[np.ndarray] = []
    original = av.VideoFrame.from_image

    def record(image: Image.Image) -> av.VideoFrame:
        frames.append(np.asarray(image))
        return original(image)

    monkeypatch.setattr(av, "VideoFrame", mock.Mock(from_image=record))
    return frames


def _caption_parts(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the title's line, and the lower line's halves: the return so far and the last one."""
    above, below = frame[: _CAPTION // 2], frame[_CAPTION // 2 : _CAPTION]
    return above, below[:, : below.shape[1] // 2], below[:, below.shape[1] // 2 :]


def _empty(part: np.ndarray) -> bool:
    return bool((part == _BACKGROUND).all())


@pytest.mark.parametrize("shape", _SHAPES)
def test_a_frame_is_the_enlarged_picture_under_its_caption(
    tmp_path: Path, encoded: list[np.ndarray], shape: tuple[int, ...]
) -> None:
    seen = _images(6, shape)
    with VideoRecorder(tmp_path, {0: "pong"}) as recorder:
        for image in seen:
            recorder.watch(_step([0], image[np.newaxis]))
    factor = max(1, -(-320 // max(shape)))
    height, width = shape[0] * factor, shape[1] * factor
    for image, frame, kept in zip(seen, encoded, _read(tmp_path / "pong.mp4"), strict=True):
        assert frame.shape == (_CAPTION + height + height % 2, max(320, width + width % 2), 3)
        title, current, last = _caption_parts(frame)
        assert (_empty(title), _empty(current), _empty(last)) == (False, False, True)
        expected = np.full_like(frame[_CAPTION:], _BACKGROUND)
        left = (frame.shape[1] - width) // 4 * 2
        shown = image if shape[-1] == 3 else image[..., -1:]
        enlarged = shown.repeat(factor, axis=0).repeat(factor, axis=1)
        expected[:height, left : left + width] = enlarged
        np.testing.assert_array_equal(frame[_CAPTION:], expected)
        assert np.abs(kept.astype(float) - frame).mean() < 12  # Compressed.


def test_the_caption_shows_the_return_so_far_and_the_last_episodes(
    tmp_path: Path, encoded: list[np.ndarray]
) -> None:
    returns = [0.0, 7.0, 9.0, 3.0, 9.0, 5.0]
    ends = [False, False, True, False, True, True]
    with VideoRecorder(tmp_path, {0: "boxing", 1: "pong"}) as recorder:
        for episode_return, end in zip(returns, ends, strict=True):
            recorder.watch(_step([0, 1], _images(2), [1.0, episode_return], [False, end]))
    # After an episode's end the next one's return is shown, which is 0.
    shown = [(0, None), (7, None), (0, 9), (3, 9), (0, 9), (0, 5)]
    captions = [_caption_parts(frame)[1:] for frame in encoded[1::2]]  # Pong's.
    for one, other in itertools.product(range(len(shown)), repeat=2):
        for side in range(2):
            same = shown[one][side] == shown[other][side]
            assert np.array_equal(captions[one][side], captions[other][side]) == same
    assert _empty(captions[0][1])


def test_each_environment_has_its_own_file_however_batches_interleave(tmp_path: Path) -> None:
    tasks = {3: "contributed/lt.chasm", 7: "pong"}
    seen = {i: _images(num, seed=i) for i, num in ((3, 3), (7, 2))}
    shown = {i: iter(images) for i, images in seen.items()}
    with VideoRecorder(tmp_path, tasks) as recorder:
        for ids in ([3], [3, 5, 7], [1], [], [2, 7, 3]):
            rows = [next(shown[i]) if i in shown else seen[3][0] for i in ids]
            images = np.array(rows, np.uint8).reshape(-1, 84, 84, 1)
            recorder.watch(_step(ids, Observation(images, np.zeros((len(ids), 64), np.int32))))
    for i, name in ((3, "contributed_lt.chasm"), (7, "pong")):
        frames = _read(tmp_path / f"{name}.mp4")
        for frame, image in zip(frames, seen[i], strict=True):
            picture = frame[_CAPTION:].reshape(84, 4, 84, 4, 3).mean(axis=(1, 3))
            assert np.abs(picture - image).mean() < 12


def test_a_file_is_made_on_the_first_frame_and_complete_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert videos._MAX_FRAMES == 900
    monkeypatch.setattr(videos, "_MAX_FRAMES", 4)
    monkeypatch.chdir(tmp_path)
    folder = Path("http:run")  # No protocol, for all its colon.
    with VideoRecorder(folder, {0: "pong", 1: "breakout"}) as recorder:
        recorder.watch(_step([5], _images(1)))
        assert not folder.exists()
        for number in range(1, 8):
            recorder.watch(_step([1], _images(1), ends=number == 2))  # The video goes on.
            assert (folder / "breakout.mp4").exists() == (number >= 4)
    assert [path.name for path in folder.iterdir()] == ["breakout.mp4"]
    assert len(_read(folder.absolute() / "breakout.mp4")) == 4


def test_two_tests_may_film_the_same_task_at_once(tmp_path: Path) -> None:
    with VideoRecorder(tmp_path, {0: "pong"}) as longer:
        longer.watch(_step([0], _images(1)))
        with VideoRecorder(tmp_path, {0: "pong"}) as shorter:
            shorter.watch(_step([0], _images(1)))
        longer.watch(_step([0], _images(1)))
    assert [path.name for path in tmp_path.iterdir()] == ["pong.mp4"]
    assert len(_read(tmp_path / "pong.mp4")) == 2


def test_only_what_is_complete_is_left_if_anything_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for max_frames, complete in ((900, []), (2, ["breakout.mp4"])):
        monkeypatch.setattr(videos, "_MAX_FRAMES", max_frames)
        folder = tmp_path / f"{max_frames}"
        recorder = VideoRecorder(folder, {0: "pong", 1: "breakout"})
        with contextlib.suppress(KeyboardInterrupt), recorder:
            recorder.watch(_step([0, 1], _images(2)))
            recorder.watch(_step([1], _images(1)))
            raise KeyboardInterrupt
        assert [path.name for path in folder.iterdir()] == complete
        assert all(len(_read(path)) == 2 for path in folder.iterdir())


def test_maps_are_shown_right_of_the_picture_and_brighter_where_larger(
    tmp_path: Path, encoded: list[np.ndarray]
) -> None:
    values = np.random.default_rng(0).permutation(21 * 21).reshape(1, 21, 21) - 1.0
    image = _images(1)[0]
    for maps in ({}, {"change": values / 7, "max Q": -values}):  # The second of two is filmed.
        view = mock.Mock(**{"look.return_value": (maps, [None])})
        with VideoRecorder(tmp_path, {1: "pong"}, view) as recorder:
            recorder.watch(_step([0, 1], np.stack([image * 0, image])))
    plain, frame = encoded
    width = plain.shape[1]
    np.testing.assert_array_equal(frame[:, :width], plain)
    for k, shown in enumerate((values, -values)):
        gap, panel = np.split(frame[:, (width + _GAP) * k + width :][:, : _GAP + width], [_GAP], 1)
        assert _empty(gap)
        assert not any(map(_empty, _caption_parts(panel)[:2]))
        bright = (panel[_CAPTION::16, ::16] @ [0.2126, 0.7152, 0.0722]).ravel()
        assert (np.diff(bright[np.argsort(shown, axis=None)]) > -1.5).all()  # They are rounded.
        assert (bright[shown.ravel() <= 0] < 1).all()
        assert shown.max() <= 0 or bright[shown.argmax()] > 230


@pytest.mark.parametrize("names", [("stay", "UPRIGHT", "z"), ()])
def test_the_policy_is_shown_as_bars_as_long_as_its_probabilities(
    tmp_path: Path, encoded: list[np.ndarray], names: tuple[str, ...]
) -> None:
    plays = [Play(np.array(p), v) for p, v in (([0.0, 0.25, 0.75], 5.0), ([1.0, 0.0, 0.0], np.nan))]
    view = mock.Mock(**{"look.side_effect": [({}, [play]) for play in plays]})
    with VideoRecorder(tmp_path, {0: "pong"}, view, action_names=names) as recorder:
        for _ in plays:
            recorder.watch(_step([0], _images(1)))
    assert [call.args[1] for call in view.look.call_args_list] == [["pong"]] * 2
    for play, frame in zip(plays, encoded, strict=True):
        gap, panel = np.split(frame[:, -256 - _GAP :], [_GAP], axis=1)
        _, value, _ = _caption_parts(panel)
        assert _empty(gap)
        assert _empty(value) == np.isnan(play.value)
        rows = np.array_split(panel[_CAPTION:], 3)
        assert not any(_empty(row[:, :128]) for row in rows)  # The names.
        lengths = [(row[len(row) // 2, 136:] == 255).all(axis=-1).sum() for row in rows]
        np.testing.assert_allclose(lengths, 112 * play.probabilities, atol=1)


def test_a_film_follows_its_environment_and_is_shown_in_its_place(
    tmp_path: Path, encoded: list[np.ndarray]
) -> None:
    seen, shown = _images(4), _images(4, (210, 160, 3), seed=1)
    steps = [StepOutput(None, None, None, image[np.newaxis]) for image in shown]
    film = mock.Mock(**{"reset.return_value": steps[0], "receive.side_effect": steps[1:]})
    with VideoRecorder(tmp_path, {1: "pong"}, None, {1: film}) as recorder:
        for step, image in enumerate(seen):
            recorder.watch(_step([0, 1], np.stack([image, image])))
            recorder.follow(np.array([0, 1]), np.array([5, step], np.int32))
    for frame, image in zip(encoded, shown, strict=True):
        picture = frame[_CAPTION : _CAPTION + 420 : 2, : 2 * 160 : 2]
        np.testing.assert_array_equal(picture, image)
    sent = [call.args[0].tolist() for call in film.send.call_args_list]
    assert sent == [[0], [1], [2], [3]]
    film.close.assert_called_once()
