"""Videos of fake environments, read back from their files."""

import errno
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from environments import Observation, StepOutput, StepOutputInfo
from scalable_agent_popart.evaluation import videos
from scalable_agent_popart.evaluation.videos import VideoRecorder

_CAPTION = 48
_MARGIN = 8
_GAP = 8
_BACKGROUND = 48

_SIZES = [(84, 84, 1), (72, 96, 3), (10, 5, 3)]  # Atari's, DmLab's, Catch's.
_SIZES += [(33, 101, 3), (400, 641, 1)]  # Nothing divides them; larger than a video need be.


def images(num_steps: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random observations `[num_steps, *shape]`, of which any two differ by 43 in the mean."""
    values = np.random.default_rng(seed).integers(64, 192, (num_steps, *shape))
    return values.astype(np.uint8)


def step(seen: Any, returns: list[float], ends: list[bool] | None = None) -> StepOutput:
    """What environments return of a step, as far as it is filmed; all `[M]`."""
    end = np.zeros(len(returns), bool) if ends is None else np.array(ends)
    info = StepOutputInfo(np.array(returns, np.float32), np.zeros(len(returns), np.int32), end)
    return StepOutput(np.zeros(len(returns), np.float32), info, end, seen)


def film(path: Path, returns: list[float], ends: list[bool] | None = None) -> list[np.ndarray]:
    """Frames of a video of one environment, which sees nothing but black."""
    black = np.zeros((1, 84, 84, 1), np.uint8)
    with VideoRecorder(path, {0: "pong"}) as recorder:
        for episode_return, end in zip(returns, ends or [False] * len(returns), strict=True):
            recorder.watch(np.array([0]), step(black, [episode_return], [end]))
    return read(path / "pong.mp4")[0]


def read(path: Path) -> tuple[list[np.ndarray], Fraction | None]:
    """Frames, each uint8 `[height, width, 3]`, and how many are shown a second."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return frames, stream.average_rate


def shows(frame: np.ndarray, image: np.ndarray) -> bool:
    """Whether a frame's enlarged picture is this observation, but for compression."""
    height, width = image.shape[:2]
    factor = (frame.shape[0] - _CAPTION) // height
    left = (frame.shape[1] - width * factor) // 4 * 2
    picture = frame[_CAPTION : _CAPTION + height * factor, left : left + width * factor]
    means = picture.reshape(height, factor, width, factor, 3).mean(axis=(1, 3))
    return bool(np.abs(means - image).mean() < 12)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """All frames as they are handed to the encoder."""
    frames: list[np.ndarray] = []

    class Noting:
        @staticmethod
        def from_ndarray(pixels: np.ndarray, format: str) -> av.VideoFrame:
            frames.append(pixels)
            return original.from_ndarray(pixels, format=format)

    original = av.VideoFrame
    monkeypatch.setattr(av, "VideoFrame", Noting)
    return frames


def film_maps(path: Path, image: np.ndarray, *steps: dict[str, np.ndarray]) -> None:
    """Films one environment, the second of two, beside these maps `[rows, columns]`."""
    both = np.stack([image * 0, image])
    with VideoRecorder(path, {1: "pong"}) as recorder:
        for maps in steps:
            rows = {label: np.stack([values * 0 - 1, values]) for label, values in maps.items()}
            recorder.watch(np.array([0, 1]), step(both, [0.0, 0.0]), rows)


def picture_size(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """How often an image is enlarged, and the picture's height and width."""
    factor = max(1, -(-320 // max(shape)))
    return factor, shape[0] * factor, shape[1] * factor


def split(frame: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The panel of the picture, and those of the maps, without the gaps before them."""
    width = picture_size(shape)[2]
    width += width % 2
    first = max(320, width)
    starts = range(first, frame.shape[1], _GAP + width)
    assert all((frame[:, start : start + _GAP] == _BACKGROUND).all() for start in starts)
    return frame[:, :first], [frame[:, s + _GAP : s + _GAP + width] for s in starts]


def cells(panel: np.ndarray, shape: tuple[int, ...], rows: int, columns: int) -> np.ndarray:
    """The colours of a map's cells, float `[rows, columns, 3]`; there is nothing beside them."""
    _, height, width = picture_size(shape)
    size = (height // rows, width // columns)
    above = _CAPTION + (height - rows * size[0]) // 2
    left = (width - columns * size[1]) // 2
    area = (slice(above, above + rows * size[0]), slice(left, left + columns * size[1]))
    blocks = panel[area].reshape(rows, size[0], columns, size[1], 3).astype(float)
    assert (blocks == blocks[:, :1, :, :1]).all()
    beside = panel.copy()
    beside[area] = _BACKGROUND
    assert (beside[_CAPTION:] == _BACKGROUND).all()
    return blocks[:, 0, :, 0]


def luminance(colours: np.ndarray) -> np.ndarray:
    """Of colours `[..., 3]`, from 0 to 255."""
    return colours @ [0.2126, 0.7152, 0.0722]


def sides(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower line of the caption: left the return so far, right the last one."""
    line = frame[_CAPTION // 2 : _CAPTION].astype(float)
    middle = line.shape[1] // 2
    return line[:, :middle], line[:, middle:]


def differ(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether pixels differ by more than compression makes them."""
    return bool(np.abs(a.astype(float) - b).max() > 80)


def empty(part: np.ndarray) -> bool:
    return not differ(part, np.full_like(part, part[0, 0, 0]))


@pytest.mark.parametrize("shape", _SIZES)
def test_observation_is_shown_enlarged_under_a_caption(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    seen = images(6, shape)
    with VideoRecorder(tmp_path, {0: "pong"}) as recorder:
        for image in seen:
            recorder.watch(np.array([0]), step(image[None], [0.0]))
    frames, rate = read(tmp_path / "pong.mp4")
    assert len(frames) == 6
    assert rate == 15
    height, width = frames[0].shape[:2]
    assert height % 2 == width % 2 == 0
    assert width >= 320
    assert max(height - _CAPTION, width) < 2 * max(320, *shape)
    for frame, image in zip(frames, seen, strict=True):
        assert not empty(frame[: _CAPTION // 2])
        assert not empty(sides(frame)[0])
        assert shows(frame, image)


def test_an_observation_with_instructions_is_shown_by_its_image(tmp_path: Path) -> None:
    seen = images(3, (72, 96, 3))
    with VideoRecorder(tmp_path, {1: "lt_chasm"}) as recorder:
        for image in seen:
            both = Observation(np.stack([image * 0, image]), np.zeros((2, 64), np.int32))
            recorder.watch(np.array([0, 1]), step(both, [0.0, 0.0]))
    frames, _ = read(tmp_path / "lt_chasm.mp4")
    assert shows(frames[-1], seen[-1])


def test_caption_shows_the_return_so_far(tmp_path: Path) -> None:
    frames = film(tmp_path, [0.0, 0.0, 1000.0, -0.5])
    returns = [sides(frame)[0] for frame in frames]
    assert not differ(returns[0], returns[1])
    assert differ(returns[1], returns[2])
    assert differ(returns[2], returns[3])
    assert all(empty(sides(frame)[1]) for frame in frames)  # No episode has ended.


def test_a_finished_episodes_score_is_shown_as_the_last_while_the_next_begins(
    tmp_path: Path,
) -> None:
    frames = film(
        tmp_path / "a", [0.0, 7.0, 9.0, 3.0, 9.0, 5.0], [False, False, True, False, True, True]
    )
    current, last = zip(*map(sides, frames), strict=True)
    for place in (2, 4, 5):  # Where an episode ended, the next one's return is shown, which is 0.
        assert not differ(current[place], current[0])
    assert empty(last[0])
    assert empty(last[1])
    assert not empty(last[2])
    assert not differ(last[2], last[3])
    assert not differ(last[2], last[4])
    assert differ(last[4], last[5])
    other = film(tmp_path / "b", [5.0], [True])
    assert not differ(sides(other[0])[1], last[5])


def test_returns_are_written_briefly() -> None:
    values = [0.0, -0.0, -0.001, 21.0, -0.25, 0.1, 1234567.0, float(np.float32(0.3)), 1e8]
    written = ["0", "0", "0", "21", "-0.25", "0.1", "1,234,567", "0.3", "100,000,000"]
    assert [videos._brief(value) for value in values] == written


def test_long_names_and_high_scores_fit(tmp_path: Path) -> None:
    task = "language_answer_quantitative_question_" * 2
    black = np.zeros((1, 10, 5, 3), np.uint8)
    with VideoRecorder(tmp_path, {0: task}) as recorder:
        recorder.watch(np.array([0]), step(black, [-123456789.25], [True]))
        recorder.watch(np.array([0]), step(black, [-123456789.25]))
    for frame in read(tmp_path / f"{task}.mp4")[0]:
        assert not empty(frame[: _CAPTION // 2])
        assert empty(frame[:_CAPTION, : _MARGIN - 1])
        assert empty(frame[:_CAPTION, 1 - _MARGIN :])


def test_each_environment_has_its_own_file_however_batches_interleave(tmp_path: Path) -> None:
    shape = (84, 84, 1)
    seen = {3: images(5, shape, seed=3), 7: images(3, shape, seed=7)}
    places = {3: 0, 7: 0}
    nothing = np.zeros(shape, np.uint8)
    with VideoRecorder(tmp_path, {3: "pong", 7: "breakout"}) as recorder:
        for ids in ([0, 3], [3, 5, 7], [1], [], [3], [2, 7, 8], [3, 7], [3]):
            rows = []
            for i in ids:
                rows.append(seen[i][places[i]] if i in seen else nothing)
                places[i] = places.get(i, 0) + 1
            batch = np.array(rows, np.uint8).reshape(-1, *shape)
            recorder.watch(np.array(ids, np.int64), step(batch, [0.0] * len(ids)))
    assert {path.name for path in tmp_path.iterdir()} == {"pong.mp4", "breakout.mp4"}
    for i, task in ((3, "pong"), (7, "breakout")):
        frames, _ = read(tmp_path / f"{task}.mp4")
        assert len(frames) == len(seen[i])
        for frame, image in zip(frames, seen[i], strict=True):
            assert shows(frame, image)


def test_file_is_complete_after_a_minute_and_the_rest_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert videos._MAX_FRAMES == 900
    monkeypatch.setattr(videos, "_MAX_FRAMES", 4)
    final = tmp_path / "pong.mp4"
    black = np.zeros((1, 84, 84, 1), np.uint8)
    with VideoRecorder(tmp_path, {0: "pong"}) as recorder:
        for place in range(10):
            # Episodes that end do not end the video.
            recorder.watch(np.array([0]), step(black, [0.0], [place == 1]))
            assert final.exists() == (place >= 3)
            if place >= 3:
                assert len(read(final)[0]) == 4
    assert len(read(final)[0]) == 4


def test_a_slash_in_a_name_makes_no_folder(tmp_path: Path) -> None:
    with VideoRecorder(tmp_path, {0: "contributed/lt.chasm"}) as recorder:
        recorder.watch(np.array([0]), step(images(1, (84, 84, 1)), [0.0]))
    assert [path.name for path in tmp_path.iterdir()] == ["contributed_lt.chasm.mp4"]


def test_a_colon_in_a_relative_path_is_no_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with VideoRecorder(Path("http:run"), {0: "pong"}) as recorder:
        recorder.watch(np.array([0]), step(images(1, (84, 84, 1)), [0.0]))
    assert (tmp_path / "http:run" / "pong.mp4").exists()


def test_an_older_video_is_replaced(tmp_path: Path) -> None:
    assert len(film(tmp_path, [0.0] * 5)) == 5
    assert len(film(tmp_path, [0.0] * 2)) == 2


def test_nothing_is_written_where_nothing_was_watched(tmp_path: Path) -> None:
    directory = tmp_path / "logs" / "videos"
    black = np.zeros((1, 84, 84, 1), np.uint8)
    with VideoRecorder(directory, {0: "pong", 1: "breakout"}) as recorder:
        recorder.watch(np.array([5]), step(black, [0.0]))
        assert not directory.parent.exists()
        recorder.watch(np.array([1]), step(black, [0.0]))
        assert directory.exists()
    assert [path.name for path in directory.iterdir()] == ["breakout.mp4"]


def film_two(directory: Path, error: BaseException | None = None) -> None:
    """Films pong for a step and breakout for two, then raises the error, if any."""
    seen = images(2, (84, 84, 1))
    with VideoRecorder(directory, {0: "pong", 1: "breakout"}) as recorder:
        recorder.watch(np.array([0, 1]), step(seen, [0.0, 0.0]))
        recorder.watch(np.array([1]), step(seen[1:], [0.0]))
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [RuntimeError("lost"), KeyboardInterrupt("lost")])
def test_an_exception_leaves_only_what_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with pytest.raises(type(error), match="lost"):
        film_two(tmp_path / "a", error)
    assert not list((tmp_path / "a").iterdir())
    monkeypatch.setattr(videos, "_MAX_FRAMES", 2)
    with pytest.raises(type(error), match="lost"):
        film_two(tmp_path / "b", error)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["breakout.mp4"]
    assert len(read(tmp_path / "b" / "breakout.mp4")[0]) == 2


def test_a_full_disk_is_told_by_its_errno(tmp_path: Path) -> None:
    (tmp_path / "breakout.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space") as caught:
        film_two(tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_completed_is_removed(tmp_path: Path) -> None:
    (tmp_path / "breakout.mp4").mkdir()  # So that nothing can be renamed to it.
    with pytest.raises(IsADirectoryError):
        film_two(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"pong.mp4", "breakout.mp4"}
    assert len(read(tmp_path / "pong.mp4")[0]) == 1


@pytest.mark.parametrize("shape", _SIZES)
def test_without_maps_a_frame_is_the_picture_under_its_caption_and_nothing_else(
    tmp_path: Path, drawn: list[np.ndarray], shape: tuple[int, ...]
) -> None:
    image = images(1, shape)[0]
    film_maps(tmp_path, image, {})
    with VideoRecorder(tmp_path / "plain", {0: "pong"}) as recorder:
        recorder.watch(np.array([0]), step(image[None], [0.0]))
    frame, plain = drawn
    np.testing.assert_array_equal(frame, plain)
    factor, height, width = picture_size(shape)
    assert frame.shape == (_CAPTION + height + height % 2, max(320, width + width % 2), 3)
    expected = np.full_like(frame[_CAPTION:], _BACKGROUND)
    left = (frame.shape[1] - width) // 4 * 2
    expected[:height, left : left + width] = image.repeat(factor, axis=0).repeat(factor, axis=1)
    np.testing.assert_array_equal(frame[_CAPTION:], expected)


@pytest.mark.parametrize("shape", [*_SIZES, (40, 40, 3)])
def test_maps_are_shown_right_of_the_picture_and_brighter_where_larger(
    tmp_path: Path, drawn: list[np.ndarray], shape: tuple[int, ...]
) -> None:
    rows, columns = shape[0] // 4, shape[1] // 4
    values = np.random.default_rng(0).permutation(rows * columns).reshape(rows, columns) - 1.0
    film_maps(tmp_path, images(1, shape)[0], {}, {"change": values / 7, "max Q": -values})
    plain, frame = drawn
    assert frame.shape[0] % 2 == frame.shape[1] % 2 == 0
    picture, panels = split(frame, shape)
    np.testing.assert_array_equal(picture, plain)
    for panel, shown in zip(panels, (values, -values), strict=True):
        for line in (panel[: _CAPTION // 2], panel[_CAPTION // 2 : _CAPTION]):
            assert not empty(line)
            assert (line[:, : _MARGIN - 1] == _BACKGROUND).all()
            assert (line[:, 1 - _MARGIN :] == _BACKGROUND).all()
        bright = luminance(cells(panel, shape, rows, columns)).ravel()
        assert (np.diff(bright[np.argsort(shown, axis=None)]) > -1.5).all()  # But for rounding.
        assert (bright[shown.ravel() <= 0] < 1).all()
        assert shown.max() <= 0 or bright[shown.argmax()] > 230


def test_a_maps_scale_is_the_largest_value_that_it_has_had(
    tmp_path: Path, drawn: list[np.ndarray]
) -> None:
    shape, values = (84, 84, 1), np.linspace(0.0, 1.0, 400).reshape(20, 20)
    factors = ((0, 1), (1, 3), (4, 3), (1, 3), (2, 3))
    steps = [{"a": a * values, "b": b * values} for a, b in factors]
    film_maps(tmp_path, images(1, shape)[0], *steps)
    panels = [split(frame, shape)[1] for frame in drawn]
    first, second = ([cells(pair[k], shape, 20, 20) for pair in panels] for k in range(2))
    # At its largest so far a map is as bright as can be, and so is another map.
    for full in (first[2], second[1], second[4]):
        np.testing.assert_array_equal(full, first[1])
    peaks = [luminance(colours).max() for colours in first]
    assert peaks[0] < 1 < peaks[3] + 20 < peaks[4] < peaks[2] - 20
    pairs = list(itertools.pairwise([panel[:_CAPTION] for panel in pair] for pair in panels))
    assert [differ(a[0], b[0]) for a, b in pairs] == [True, True, False, False]
    assert [differ(a[1], b[1]) for a, b in pairs] == [True, False, False, False]
    # Another film begins its own.
    film_maps(tmp_path / "other", images(1, shape)[0], {"a": values})
    np.testing.assert_array_equal(cells(split(drawn[-1], shape)[1][0], shape, 20, 20), first[2])


def test_it_is_known_which_environments_are_filmed_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(videos, "_MAX_FRAMES", 2)
    ids = np.array([7, 0, 5])
    with VideoRecorder(tmp_path, {0: "pong", 5: "breakout"}) as recorder:
        for i, left in ((0, [0, 1, 1]), (0, [0, 1, 1]), (5, [0, 0, 1]), (5, [0, 0, 1])):
            assert recorder.is_filming(ids).tolist() == left
            recorder.watch(np.array([i]), step(images(1, (84, 84, 1)), [0.0]))
        assert not recorder.is_filming(ids).any()
