"""Short videos of a policy at play, one per task."""

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import av
import numpy as np
import tree

from environments import BatchedEnvironment, Ready, image_of
from scalable_agent_popart.evaluation.agent_view import AgentView
from scalable_agent_popart.evaluation.drawing import Screen
from scalable_agent_popart.runs.directory import film_path

_RATE = 15  # Agent steps of four frames at 60 Hz.
_MAX_FRAMES = 60 * _RATE
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
        view: AgentView | None = None,
        films: Mapping[int, BatchedEnvironment] | None = None,
        action_names: Sequence[str] = (),
    ):
        """Takes the tasks by environment, and the `films` of those that people see otherwise.

        A film plays as its environment does, once it `follow`s the same actions.
        """
        self._view, self._films = view, films or {}
        # By environment, as long as it is filmed.
        self._videos = {
            i: _Video(task, film_path(directory, task), self._films.get(i), action_names)
            for i, task in tasks.items()
        }
        self._failure: OSError | None = None  # The first one.

    def follow(self, ids: np.ndarray, actions: np.ndarray) -> None:
        """Plays the actions int32 `[M]` of environments `ids` `[M]` in their films."""
        for i, action in zip(ids.tolist(), actions, strict=True):
            if i in self._videos and i in self._films:
                self._films[i].send(np.array([action], np.int32))

    def watch(self, ready: Ready) -> None:
        """Adds a frame to the videos of the environments that have stepped."""
        filmed = np.isin(ready.ids, list(self._videos))
        if not filmed.any():
            return
        ready = tree.map_structure(itemgetter(filmed), ready)
        ids, info = ready.ids.tolist(), ready.output.info
        images, no_plays = image_of(ready.output.observation), [None] * len(ids)
        levels = [self._videos[i].task for i in ids]
        maps, plays = self._view.look(ready, levels) if self._view else ({}, no_plays)
        for row, i in enumerate(ids):
            video = self._videos[i]
            state = float(info.episode_return[row]), bool(info.episode_end[row])
            panels = {label: values[row] for label, values in maps.items()}, plays[row]
            try:
                video.add(images[row], *state, *panels)
                if video.num_frames == _MAX_FRAMES:
                    video.finish()
                    del self._videos[i]
            except OSError as error:  # The scores are worth more, so that the test continues.
                self._failure = self._failure or error
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


class _Video:
    """The video of one environment, whose file begins with the first frame."""

    def __init__(
        self, task: str, path: Path, film: BatchedEnvironment | None, action_names: Sequence[str]
    ):
        self.task, self.num_frames = task, 0
        self._path, self._film, self._screen = path, film, Screen(task, action_names)
        # Each of several tests has its own file, though processes of two containers may share a
        # number. FFmpeg would take what precedes a colon in a relative path for a protocol.
        self._temporary = path.with_suffix(f".{uuid.uuid4().hex}.tmp").absolute()
        self._container: av.container.OutputContainer | None = None

    def add(self, image: np.ndarray, *shown: Any) -> None:
        """Adds a frame with what is `shown` next to the image, or to the film's if there is one."""
        if self._film is not None:
            output = self._film.receive() if self.num_frames else self._film.reset()
            image = np.asarray(image_of(output.observation)[0])
        frame = self._screen.draw(image, *shown)
        if self._container is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._temporary), "w", format="mp4")
            self._stream = self._container.add_stream("libx264", _RATE, _OPTIONS)
            self._stream.pix_fmt = "yuv420p"
            self._stream.width, self._stream.height = frame.size
            self._stream.codec_context.thread_count = 1  # Other encoders and actors need cores.
        encoded = av.VideoFrame.from_image(frame)
        encoded.pts = self.num_frames
        self._container.mux(self._stream.encode(encoded))
        self.num_frames += 1

    def finish(self) -> None:
        """Completes the file, if there is any frame."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._temporary.replace(self._path)

    def drop(self) -> None:
        """Removes the file if it is not complete."""
        if self._container is not None:
            # Closing writes the end of the file, for which there may be no space.
            with contextlib.suppress(av.FFmpegError):
                self._container.close()
            self._temporary.unlink(missing_ok=True)
