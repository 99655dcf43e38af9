"""Videos of made-up environments: the frames as they are encoded, and as the files hold them."""

import errno
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
from scalable_agent_popart.evaluation.videos import VideoRecorder

_CAPTION, _MARGIN, _GAP, _BACKGROUND = 48, 8, 8, 48
# Atari's, DmLab's and Catch's images, one that nothing divides, and one that is not enlarged.
_SHAPES = [(84, 84, 1), (72, 96, 3), (10, 5, 3), (33, 101, 3), (160, 321, 1)]


def _images(num: int, shape: tuple[int, ...] = (84, 84, 1), seed: int = 0) -> np.ndarray:
    """Samples images `[num, *shape]`, of which any two differ by 43 in the mean."""
    values = np.random.default_rng(seed).integers(64, 192, (num, *shape))
    return values.astype(np.uint8)


def _step(ids: Sequence[int], observation: Any, returns: Any = 0.0, ends: Any = False) -> Ready:
    """Makes a step of environments, as far as it is filmed."""
    num = len(ids)
    end = np.full(num, ends)
    info = StepOutputInfo(np.full(num, returns, np.float32), np.zeros(num, np.int32), end)
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


class _FakeView:
    """Shows prepared maps, by label float `[rows, columns]`, one mapping a step."""

    def __init__(self, *steps: dict[str, np.ndarray]):
        self._steps = iter(steps)

    def maps(self, ready: Ready) -> dict[str, np.ndarray]:
        assert (ready.ids.tolist(), len(ready.output.reward), len(ready.fresh)) == ([1], 1, 1)
        return {label: values[np.newaxis] for label, values in next(self._steps).items()}


def _film_maps(path: Path, image: np.ndarray, *steps: dict[str, np.ndarray]) -> None:
    """Films the second of two environments beside these maps."""
    with VideoRecorder(path, {1: "pong"}, _FakeView(*steps)) as recorder:
        for _ in steps:
            recorder.watch(_step([0, 1], np.stack([image * 0, image])))


def _brightness(panel: np.ndarray, top: int, left: int, block: int, cells: int) -> np.ndarray:
    """Returns the luminance of a map's square cells; there is nothing beside them."""
    area = (slice(top, panel.shape[0] - top), slice(left, panel.shape[1] - left))
    blocks = panel[area].reshape(-1, block, cells, block, 3).astype(float)
    assert (blocks == blocks[:, :1, :, :1]).all()
    beside = panel.copy()
    beside[area] = _BACKGROUND
    assert (beside == _BACKGROUND).all()
    return blocks[:, 0, :, 0] @ [0.2126, 0.7152, 0.0722]


def _caption_parts(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the title's line, and the lower line's halves: the return so far and the last one."""
    above, below = frame[: _CAPTION // 2], frame[_CAPTION // 2 : _CAPTION]
    return above, below[:, : below.shape[1] // 2], below[:, below.shape[1] // 2 :]


def _empty(part: np.ndarray) -> bool:
    return bool((part == _BACKGROUND).all())


def _check_margins(frame: np.ndarray) -> None:
    assert _empty(frame[:_CAPTION, : _MARGIN - 1])
    assert _empty(frame[:_CAPTION, 1 - _MARGIN :])


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
        enlarged = image.repeat(factor, axis=0).repeat(factor, axis=1)
        expected[:height, left : left + width] = enlarged
        np.testing.assert_array_equal(frame[_CAPTION:], expected)
        # Compressed, and with half the resolution of colours.
        blurred = 1 if factor > 1 or shape[-1] == 1 else 2
        assert np.abs(kept.astype(float) - frame).mean() < 12 * blurred


def test_the_caption_shows_the_return_so_far_and_the_last_episodes(
    tmp_path: Path, encoded: list[np.ndarray]
) -> None:
    returns = [0.0, 7.0, 9.0, 3.0, 9.0, 5.0]
    ends = [False, False, True, False, True, True]
    with VideoRecorder(tmp_path, {0: "boxing", 1: "pong"}) as recorder:
        for episode_return, end in zip(returns, ends, strict=True):
            recorder.watch(_step([0, 1], _images(2), [1.0, episode_return], [False, end]))
    # Where an episode has ended, the next one's return is shown, which is 0.
    shown = [(0, None), (7, None), (0, 9), (3, 9), (0, 9), (0, 5)]
    captions = [_caption_parts(frame)[1:] for frame in encoded[1::2]]  # Pong's.
    for (first, parts), (second, others) in itertools.product(
        zip(shown, captions, strict=True), repeat=2
    ):
        for side in range(2):
            same = first[side] == second[side]
            assert np.array_equal(parts[side], others[side]) == same
    assert _empty(captions[0][1])


def test_returns_are_written_briefly() -> None:
    values = [0.0, -0.0, -0.001, 21.0, -0.25, 0.1, 1234567.0, float(np.float32(0.3)), 1e8]
    written = ["0", "0", "0", "21", "-0.25", "0.1", "1,234,567", "0.3", "100,000,000"]
    assert [videos._brief(value) for value in values] == written


def test_long_names_and_high_scores_fit(tmp_path: Path, encoded: list[np.ndarray]) -> None:
    with VideoRecorder(tmp_path, {0: "language_answer_quantitative_question_" * 2}) as recorder:
        for end in (True, False):
            recorder.watch(_step([0], _images(1, (10, 5, 3)), -123456789.25, end))
    for frame in encoded:
        assert not any(map(_empty, _caption_parts(frame)))
        _check_margins(frame)


def test_each_environment_has_its_own_file_however_batches_interleave(tmp_path: Path) -> None:
    seen = {3: _images(5, seed=3), 7: _images(3, seed=7)}
    shown = {3: iter(seen[3]), 7: iter(seen[7])}
    nothing = np.zeros((84, 84, 1), np.uint8)
    with VideoRecorder(tmp_path, {3: "pong", 7: "contributed/lt.chasm"}) as recorder:
        for ids in ([0, 3], [3, 5, 7], [1], [], [3], [2, 7, 8], [3, 7], [3]):
            rows = [next(shown[i]) if i in shown else nothing for i in ids]
            images = np.array(rows, np.uint8).reshape(-1, 84, 84, 1)
            recorder.watch(_step(ids, Observation(images, np.zeros((len(ids), 64), np.int32))))
    assert len(list(tmp_path.iterdir())) == 2
    for i, name in ((3, "pong"), (7, "contributed_lt.chasm")):
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
    for length in (7, 2):  # A newer file replaces the older one.
        with VideoRecorder(folder, {0: "pong", 1: "breakout"}) as recorder:
            recorder.watch(_step([5], _images(1)))
            assert folder.exists() == (length == 2)
            for number in range(1, length + 1):
                recorder.watch(_step([1], _images(1), ends=number == 2))  # The video goes on.
                assert length == 2 or (folder / "breakout.mp4").exists() == (number >= 4)
        assert [path.name for path in folder.iterdir()] == ["breakout.mp4"]
        assert len(_read(folder.absolute() / "breakout.mp4")) == min(length, 4)


def _film_two(directory: Path, error: BaseException | None = None) -> None:
    """Films pong for a step and breakout for two, then raises the error, if any."""
    with VideoRecorder(directory, {0: "pong", 1: "breakout"}) as recorder:
        recorder.watch(_step([0, 1], _images(2)))
        recorder.watch(_step([1], _images(1)))
        if error is not None:
            raise error


def test_only_what_is_complete_is_left_if_anything_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, taken = tmp_path / "full", tmp_path / "taken"
    full.mkdir()
    (full / "breakout.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space") as caught:
        _film_two(full)
    assert caught.value.errno == errno.ENOSPC
    assert not list(full.iterdir())
    (taken / "breakout.mp4").mkdir(parents=True)  # So that nothing can be renamed to it.
    with pytest.raises(IsADirectoryError):
        _film_two(taken)
    assert {path.name for path in taken.iterdir()} == {"pong.mp4", "breakout.mp4"}
    assert len(_read(taken / "pong.mp4")) == 1
    for max_frames, complete in ((900, []), (2, ["breakout.mp4"])):
        monkeypatch.setattr(videos, "_MAX_FRAMES", max_frames)
        folder = tmp_path / f"{max_frames}"
        with pytest.raises(KeyboardInterrupt, match="lost"):
            _film_two(folder, KeyboardInterrupt("lost"))
        assert [path.name for path in folder.iterdir()] == complete
        assert all(len(_read(path)) == 2 for path in folder.iterdir())


# Shapes of images, the space above and beside a map, the size of its blocks, and its columns.
@pytest.mark.parametrize(
    ("shape", "top", "left", "block", "columns"),
    [((84, 84, 1), 0, 0, 16, 21), ((40, 40, 3), 0, 0, 32, 10), ((33, 101, 3), 2, 2, 16, 25)],
)
def test_maps_are_shown_right_of_the_picture_and_brighter_where_larger(
    tmp_path: Path,
    encoded: list[np.ndarray],
    shape: tuple[int, ...],
    top: int,
    left: int,
    block: int,
    columns: int,
) -> None:
    rows = shape[0] // 4
    values = np.random.default_rng(0).permutation(rows * columns).reshape(rows, columns) - 1.0
    image = _images(1, shape)[0]
    _film_maps(tmp_path / "plain", image, {})
    _film_maps(tmp_path, image, {"change": values / 7, "max Q": -values})
    plain, frame = encoded
    width = plain.shape[1]
    np.testing.assert_array_equal(frame[:, :width], plain)
    for k, shown in enumerate((values, -values)):
        gap, panel = np.split(frame[:, (width + _GAP) * k + width :][:, : _GAP + width], [_GAP], 1)
        assert _empty(gap)
        assert not any(map(_empty, _caption_parts(panel)[:2]))
        _check_margins(panel)
        bright = _brightness(panel[_CAPTION:], top, left, block, columns).ravel()
        assert (np.diff(bright[np.argsort(shown, axis=None)]) > -1.5).all()  # But for rounding.
        assert (bright[shown.ravel() <= 0] < 1).all()
        assert shown.max() <= 0 or bright[shown.argmax()] > 230


def test_a_maps_scale_is_the_largest_value_that_it_has_had(
    tmp_path: Path, encoded: list[np.ndarray]
) -> None:
    values = np.linspace(0.0, 1.0, 441).reshape(21, 21)
    factors = [0, 1, 4, 1, 2]
    _film_maps(tmp_path, _images(1)[0], *({"a": factor * values} for factor in factors))
    panels = [frame[:, -336:] for frame in encoded]
    peaks = [_brightness(panel[_CAPTION:], 0, 0, 16, 21).max() for panel in panels]
    relative = [0, 1, 1, 0.25, 0.5]
    assert np.array_equal(np.argsort(peaks, kind="stable"), np.argsort(relative, kind="stable"))
    assert [peak > 230 for peak in peaks] == [share == 1 for share in relative]
    for (scale, one), (next_scale, other) in itertools.pairwise(
        zip(np.maximum.accumulate(factors), panels, strict=True)
    ):
        assert np.array_equal(one[:_CAPTION], other[:_CAPTION]) == (scale == next_scale)
