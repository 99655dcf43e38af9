"""Short videos of a policy at play, one per task, with its scores in a caption.

Maps of pixel control may stand right of the picture. Black is 0 and below; the brightest is the
largest value so far in the video, which stands in the map's caption.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path

import av
import matplotlib
import numpy as np
import tree
from PIL import Image, ImageDraw, ImageOps

from environments import BatchedEnvironment, Ready, image_of
from scalable_agent_popart.evaluation.pixel_control_view import PixelControlView

_RATE = 15  # Agent steps of four frames at 60 Hz.
_MAX_FRAMES = 60 * _RATE
_MIN_SIZE = 320  # The picture's larger side and the caption's width have at least so many pixels.
_MARGIN = 8
_GAP = 8  # Between panels. All widths are even, because the encoder halves the colours'.
_CAPTION_HEIGHT = 48  # Encoders have blocks of 16, and none holds both caption and picture.
_FONT_SIZE = 17
_BACKGROUND = (48, 48, 48)  # Black is the background of many games.
_BRIGHT, _DIM = (255, 255, 255), (184, 184, 184)
_COLOURS = matplotlib.colormaps["inferno"]  # It looks evenly brighter.
# Up to 57 encoders take half the memory without latency, because no frames wait.
_OPTIONS = {"preset": "superfast", "crf": "20", "tune": "zerolatency"}


class VideoRecorder(contextlib.AbstractContextManager["VideoRecorder"]):
    """Films one environment per task, each in a file of its own, for its first minute.

    Files get their names when they are complete. Leaving the context completes those that are
    still short, or drops them after an exception. It raises OSError if one could not be written.
    """

    def __init__(
        self,
        directory: Path,
        tasks: Mapping[int, str],
        view: PixelControlView | None = None,
        films: Mapping[int, BatchedEnvironment] | None = None,
    ):
        """Takes the tasks by environment, and their `films` that people see in other images.

        Each of the films plays as its environment does, once it `follow`s the same actions.
        """
        self._films = dict(films or {})
        self._playing: set[int] = set()  # Films that have begun.
        self._tasks = dict(tasks)  # By environment, as long as it is filmed.
        self._files = _name_files(directory, tasks.values())
        self._view = view
        self._videos: dict[int, _Video] = {}  # They are begun and not complete.
        self._failure: OSError | None = None  # The first one.

    def follow(self, ids: np.ndarray, actions: np.ndarray) -> None:
        """Plays the actions int32 `[M]` of environments `ids` `[M]` in their films."""
        for i, action in zip(ids.tolist(), actions, strict=True):
            if i in self._films:
                self._films[i].send(np.array([action], np.int32))

    def _image(self, i: int, image: np.ndarray) -> np.ndarray:
        """Returns what people see of an environment's step."""
        if i not in self._films:
            return image
        film = self._films[i]
        output = film.receive() if i in self._playing else film.reset()
        self._playing.add(i)
        return np.asarray(image_of(output.observation)[0])

    def _end(self, i: int) -> None:
        del self._tasks[i]
        if i in self._films:
            self._films.pop(i).close()

    def watch(self, ready: Ready) -> None:
        """Adds a frame to the videos of the environments that have stepped."""
        filmed = np.isin(ready.ids, list(self._tasks))
        if not filmed.any():
            return
        ready = tree.map_structure(itemgetter(filmed), ready)
        maps = self._view.maps(ready) if self._view else {}
        info, images = ready.output.info, image_of(ready.output.observation)
        for row, i in enumerate(ready.ids.tolist()):
            own = {label: values[row] for label, values in maps.items()}
            try:
                if i not in self._videos:
                    self._videos[i] = _Video(self._files[self._tasks[i]], self._tasks[i])
                video = self._videos[i]
                image = self._image(i, images[row])
                video.add(image, float(info.episode_return[row]), info.episode_end[row], own)
                if video.num_frames == _MAX_FRAMES:
                    video.finish()
                    del self._videos[i]
                    self._end(i)
            except OSError as error:  # The scores are worth more, so that the test continues.
                self._failure = self._failure or error
                self._end(i)
                if i in self._videos:
                    self._videos.pop(i).drop()

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        """Completes the files, or removes the incomplete ones at the first exception."""
        with contextlib.ExitStack() as stack:
            for film in self._films.values():
                stack.callback(film.close)
            for video in self._videos.values():
                stack.callback(video.drop)
            if exception_type is None:
                for video in self._videos.values():
                    video.finish()
                if self._failure is not None:
                    raise self._failure


def _name_files(directory: Path, tasks: Iterable[str]) -> dict[str, Path]:
    """Names each task's file, with a number at its end if `a/b` would share that of `a_b`."""
    files: dict[str, Path] = {}
    for task in sorted(tasks, key=lambda task: "/" in task):  # The rest keep their names.
        name = task.replace("/", "_")
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        paths = (directory / f"{name}.mp4" for name in names)
        files[task] = next(path for path in paths if path not in files.values())
    return files


class _Video:
    """The file of one environment, and how many frames are in it."""

    def __init__(self, path: Path, task: str):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.num_frames = 0
        self._task = task
        self._last = ""  # The last episode's score, for the caption.
        self._max_values: dict[str, float] = {}  # By map.
        self._path = path
        # Each of several tests has its own file. FFmpeg would take what precedes a colon in a
        # relative path for a protocol.
        self._temporary = self._path.with_suffix(f".{os.getpid()}.tmp").absolute()
        self._container = av.open(str(self._temporary), "w", format="mp4")
        self._stream = self._container.add_stream("libx264", _RATE, _OPTIONS)
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.thread_count = 1  # Other encoders and actors need processors.

    def add(
        self, image: np.ndarray, episode_return: float, ends: bool, maps: Mapping[str, np.ndarray]
    ) -> None:
        """Films a step: an image uint8 `[height, width, channels]`, maps `[rows, columns]`."""
        if ends:  # The image already belongs to the next episode.
            self._last, episode_return = f"last {_brief(episode_return)}", 0.0
        if image.shape[-1] != 3:
            image = image[..., -1:]  # It is the newest of a stack of grey images.
        colours = np.broadcast_to(image, (*image.shape[:2], 3))
        factor = max(1, -(-_MIN_SIZE // max(image.shape[:2])))
        picture = ImageOps.scale(Image.fromarray(colours), factor, Image.Resampling.NEAREST)
        width, height = (side + side % 2 for side in picture.size)
        returns = f"return {_brief(episode_return)}"
        panels = [(picture, _caption(self._task, returns, self._last, max(_MIN_SIZE, width)))]
        for label, values in maps.items():
            top = self._max_values[label] = max(self._max_values.get(label, 0), values.max())
            heat = Image.fromarray(_COLOURS(values / (top or 1), bytes=True)[..., :3])
            # A block is as large as a cell in the picture, or larger if that has margins.
            size = [side // n * n for side, n in zip(picture.size, heat.size, strict=True)]
            shown = heat.resize(size, Image.Resampling.NEAREST)
            panels.append((shown, _caption(label, f"0 to {top:.2g}", "", width)))
        total_width = sum(caption.width + _GAP for _, caption in panels) - _GAP
        frame = Image.new("RGB", (total_width, _CAPTION_HEIGHT + height), _BACKGROUND)
        left = 0
        for shown, caption in panels:
            frame.paste(caption, (left, 0))
            x, y = (caption.width - shown.width) // 4 * 2, (height - shown.height) // 4 * 2
            frame.paste(shown, (left + x, _CAPTION_HEIGHT + y))
            left += caption.width + _GAP
        if not self.num_frames:
            self._stream.width, self._stream.height = frame.size
        encoded = av.VideoFrame.from_image(frame)
        encoded.pts = self.num_frames
        self._container.mux(self._stream.encode(encoded))
        self.num_frames += 1

    def finish(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        self._temporary.replace(self._path)

    def drop(self) -> None:
        # Closing writes the end of the file, for which there may be no space.
        with contextlib.suppress(av.FFmpegError):
            self._container.close()
        self._temporary.unlink(missing_ok=True)


@functools.lru_cache(maxsize=256)  # Returns change rarely, and tasks are filmed side by side.
def _caption(title: str, current: str, last: str, width: int) -> Image.Image:
    """Writes the title, and both values below it, on a bar `_CAPTION_HEIGHT` high."""
    bar = Image.new("RGB", (width, _CAPTION_HEIGHT), _BACKGROUND)
    canvas = ImageDraw.Draw(bar)

    def font_size(text: str) -> int:
        length = canvas.textlength(text, font_size=_FONT_SIZE)
        return int(_FONT_SIZE * min(1.0, (width - 2 * _MARGIN) / max(1.0, length)))

    above, below = font_size(title), font_size(f"{current}  {last}")
    canvas.text((_MARGIN, 20), title, _BRIGHT, font_size=above, anchor="ls")
    canvas.text((_MARGIN, 41), current, _BRIGHT, font_size=below, anchor="ls")
    canvas.text((width - _MARGIN, 41), last, _DIM, font_size=below, anchor="rs")
    return bar


def _brief(value: float) -> str:
    """Writes a number like 1,234,567 or -0.25, without exponent, trailing zeros or minus zero."""
    return f"{round(value, 2) + 0.0:,.12g}"
