"""Short videos of a policy at play, one a task, with its scores in a caption.

Beside the picture there may be maps, say of what the agent makes of each part of it. Each is a
heat map in a panel of its own, from black at 0 and below to bright at the largest value that it
has had in this film so far; the panel's caption says how large that is.
"""

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import av
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from environments import StepOutput, image_of

_RATE = 15  # Agent steps of four frames at 60 Hz.
_MAX_FRAMES = 60 * _RATE
_SIZE = 320  # What the larger side of an observation, and the frame's width, are at least.
_MARGIN = 8
_GAP = 8  # Between panels; even, as all widths are.
# A multiple of the encoder's block size, so that no block holds both caption and picture.
_CAPTION_HEIGHT = 48
_FONT_SIZE = 17
_BACKGROUND = 48  # Not black, as many games are.
_BRIGHT = (255, 255, 255)
_DIM = (184, 184, 184)
# uint8 [256, 3], evenly brighter to the eye.
_COLOURS = matplotlib.colormaps["inferno"](np.arange(256), bytes=True)[:, :3]
# Without latency the encoder keeps no frames waiting: half the memory, of up to 57 encoders.
_OPTIONS = {"preset": "superfast", "crf": "20", "tune": "zerolatency"}


class VideoRecorder(contextlib.AbstractContextManager["VideoRecorder"]):
    """Films one environment a task, each in a file of its own, for its first minute.

    Files get their names when they are complete. Leaving the context completes those that are
    still short; leaving it with an exception drops them.
    """

    def __init__(self, directory: Path, tasks: Mapping[int, str]):
        """Writes nothing yet.

        Args:
          directory: where `<task>.mp4` go, with "_" for "/"; made on the first frame.
          tasks: the environments to film, and the name of the task each plays.
        """
        self._videos = {
            i: _Video(directory / f"{task.replace('/', '_')}.mp4", task)
            for i, task in tasks.items()
        }

    def is_filming(self, ids: np.ndarray) -> np.ndarray:
        """Which of the environments `ids` `[M]` are being filmed still: bool `[M]`."""
        return np.isin(ids, list(self._videos))

    def watch(
        self,
        ids: np.ndarray,
        output: StepOutput,
        maps: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Adds a frame to the videos of the environments `ids` `[M]` that are being filmed.

        Args:
          ids: `[M]`, which environments have stepped.
          output: `[M, ...]`; what they see is an image uint8 `[M, height, width, 1 or 3]` or an
            `Observation` with such an image.
          maps: shown right of the picture, in this order, by their labels: float
            `[M, rows, columns]`, no more of either than the image has pixels. An environment's
            labels and maps' shapes are the same at every step.

        Raises:
          OSError: if a file cannot be written; `errno` says why.
        """
        images = image_of(output.observation)
        for row, i in enumerate(ids.tolist()):
            video = self._videos.get(i)
            if video is None:
                continue
            info = output.info
            video.add(
                images[row],
                float(info.episode_return[row]),
                bool(info.episode_end[row]),
                {label: values[row] for label, values in (maps or {}).items()},
            )
            if video.num_frames == _MAX_FRAMES:
                video.finish()
                del self._videos[i]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Completes the open files, or drops them if there was an exception.

        Raises:
          OSError: if one cannot be completed, which drops it and those after it.
        """
        with contextlib.ExitStack() as stack:
            for video in self._videos.values():
                stack.callback(video.drop)
            if kind is None:
                for video in self._videos.values():
                    video.finish()


class _Video:
    """One environment's file, opened on its first frame.

    Attributes:
      num_frames: filmed so far.
    """

    def __init__(self, path: Path, task: str):
        self.num_frames = 0
        self._path = path
        # Absolute, as FFmpeg takes what precedes a colon in a relative path for a protocol.
        self._temporary = path.with_suffix(".tmp").absolute()
        self._task = task
        self._last: float | None = None
        self._tops: dict[str, float] = {}  # The largest value of each map.
        self._container: av.container.OutputContainer | None = None
        self._stream: av.VideoStream

    def add(
        self,
        image: np.ndarray,
        episode_return: float,
        episode_end: bool,
        maps: Mapping[str, np.ndarray],
    ) -> None:
        """Films one step: an image uint8 `[height, width, 1 or 3]`, and what goes with it."""
        if episode_end:  # The image is of the next episode already.
            self._last, episode_return = episode_return, 0.0
        picture = _enlarge(image)
        panels = [_picture_panel(picture, self._task, episode_return, self._last)]
        for label, values in maps.items():
            top = self._tops[label] = max(self._tops.get(label, 0.0), float(values.max()))
            panels.append(_map_panel(values, label, top, *picture.shape[:2]))
        pixels = np.concatenate(panels, axis=1)
        if self._container is None:
            self._container = self._open(*pixels.shape[:2])
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts = self.num_frames
        self._container.mux(self._stream.encode(frame))
        self.num_frames += 1

    def finish(self) -> None:
        """Completes the file, if anything was filmed, and gives it its name."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._temporary.replace(self._path)

    def drop(self) -> None:
        """Removes the file unless it is complete."""
        if self._container is not None:
            # Closing writes the end of the file, for which there may be no space.
            with contextlib.suppress(av.FFmpegError):
                self._container.close()
            self._temporary.unlink(missing_ok=True)

    def _open(self, height: int, width: int) -> av.container.OutputContainer:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        container = av.open(str(self._temporary), "w", format="mp4")
        self._stream = container.add_stream("libx264", _RATE, _OPTIONS)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"
        # There are as many encoders as tasks, and actors to leave processors to.
        self._stream.codec_context.thread_count = 1
        return container


def _enlarge(image: np.ndarray) -> np.ndarray:
    """The picture, uint8 `[height, width, 3]`, of an image `[height, width, 1 or 3]`."""
    factor = max(1, -(-_SIZE // max(image.shape[:2])))
    colours = np.broadcast_to(image, (*image.shape[:2], 3))
    return colours.repeat(factor, axis=1).repeat(factor, axis=0)


def _picture_panel(
    picture: np.ndarray, task: str, episode_return: float, last: float | None
) -> np.ndarray:
    """The picture under its caption, uint8 `[height, width, 3]`, both even."""
    width = max(_SIZE, _even(picture.shape[1]))
    score = "" if last is None else f"last {_brief(last)}"
    return _panel(picture, width, _caption(task, f"return {_brief(episode_return)}", score, width))


def _map_panel(values: np.ndarray, label: str, top: float, height: int, width: int) -> np.ndarray:
    """A map beside a picture of so many pixels, after a gap: uint8 `[height, width, 3]`, even.

    Its values `[rows, columns]` become blocks, as large as the picture has room for: those of cells
    of 4x4 pixels as large as these, unless the image's margins make room for more.
    """
    shades = np.clip(values / (top or 1.0), 0.0, 1.0) * (len(_COLOURS) - 1)
    colours = _COLOURS[shades.round().astype(np.uint8)]
    rows, columns = values.shape
    blocks = colours.repeat(height // rows, axis=0).repeat(width // columns, axis=1)
    # Centred, as cells that leave a margin are in the picture.
    canvas = np.full((height, width, 3), _BACKGROUND, np.uint8)
    above, left = (height - blocks.shape[0]) // 2, (width - blocks.shape[1]) // 2
    canvas[above : above + blocks.shape[0], left : left + blocks.shape[1]] = blocks
    panel = _panel(canvas, _even(width), _caption(label, f"0 to {top:.2g}", "", _even(width)))
    return np.pad(panel, ((0, 0), (_GAP, 0), (0, 0)), constant_values=_BACKGROUND)


def _panel(picture: np.ndarray, panel_width: int, caption: np.ndarray) -> np.ndarray:
    """The picture in the middle under its caption, uint8 `[height, panel_width, 3]`."""
    height, width = picture.shape[:2]
    panel = np.full((_CAPTION_HEIGHT + _even(height), panel_width, 3), _BACKGROUND, np.uint8)
    panel[:_CAPTION_HEIGHT] = caption
    # Even, as the encoder halves the resolution of colours.
    left = (panel_width - width) // 4 * 2
    panel[_CAPTION_HEIGHT : _CAPTION_HEIGHT + height, left : left + width] = picture
    return panel


def _even(size: int) -> int:
    return size + size % 2


@functools.lru_cache(maxsize=256)  # Returns change rarely, and tasks are filmed side by side.
def _caption(title: str, current: str, last: str, width: int) -> np.ndarray:
    """Uint8 `[_CAPTION_HEIGHT, width, 3]`: the title above, and both values below."""
    bar = Image.new("RGB", (width, _CAPTION_HEIGHT), (_BACKGROUND,) * 3)
    draw = ImageDraw.Draw(bar)
    room = width - 2 * _MARGIN
    draw.text((_MARGIN, 20), title, _BRIGHT, _font(title, room), anchor="ls")
    below = _font(f"{current}  {last}", room)
    draw.text((_MARGIN, 41), current, _BRIGHT, below, anchor="ls")
    draw.text((width - _MARGIN, 41), last, _DIM, below, anchor="rs")
    return np.asarray(bar)


def _font(text: str, width: int) -> ImageFont.FreeTypeFont:
    """The usual font, or a smaller one if the text would be wider than so many pixels."""
    size = _FONT_SIZE * min(1.0, width / max(1.0, _sized_font(_FONT_SIZE).getlength(text)))
    return _sized_font(int(size))


@functools.cache
def _sized_font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # As it is wherever a size is given.
    return font


def _brief(value: float) -> str:
    """As 1,234,567 or -0.25: no exponent, no trailing zeros, no minus zero."""
    return f"{round(value, 2) + 0.0:,.12g}"
