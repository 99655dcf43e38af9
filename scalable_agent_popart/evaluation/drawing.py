"""Draws what people see of a step: the picture under its scores, and panels right of it.

The panels are maps of pixel control, and the policy with the agent's value. In a map black is 0 and
below; the brightest is the largest value so far, which stands in the map's caption.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageOps

_MIN_SIZE = 320  # The picture's larger side and the caption's width have at least so many pixels.
_MARGIN = 8
# Pixels between panels. All widths are even, because the encoder halves the colours'.
_GAP = 8
_CAPTION_HEIGHT = 48  # Encoders have blocks of 16, and none holds both caption and picture.
_FONT_SIZE = 17
_BACKGROUND = (48, 48, 48)  # Black is the background of many games.
_BRIGHT, _DIM, _DARK = (255, 255, 255), (184, 184, 184), (80, 80, 80)
_COLOURS = matplotlib.colormaps["inferno"]  # The eye sees even steps.
_POLICY_WIDTH, _NAMES_WIDTH = 256, 136


class Play(NamedTuple):
    """The policy and the value of an agent at one step, before it acts."""

    probabilities: np.ndarray  # float32 `[num_actions]`
    value: float  # The observation's; NaN if it is not known.


class Screen:
    """Draws the steps of one environment."""

    def __init__(self, task: str, action_names: Sequence[str] = ()):
        """Takes the names of all actions; without any, they have numbers."""
        self._task, self._action_names = task, tuple(action_names)
        self._last = ""  # The last episode's score, for the caption.
        self._max_values: dict[str, float] = {}  # By map.

    def draw(
        self,
        image: np.ndarray,
        episode_return: float,
        ends: bool,
        maps: Mapping[str, np.ndarray] = {},
        play: Play | None = None,
    ) -> Image.Image:
        """Draws a step: an image uint8 `[height, width, channels]`, maps `[rows, columns]`.

        If an episode `ends`, the return is its own, and the image the first of the next one.
        """
        if ends:
            self._last, episode_return = f"last {_brief(episode_return)}", 0.0
        factor = max(1, -(-_MIN_SIZE // max(image.shape[:2])))
        picture = Image.fromarray(in_colour(image))
        picture = ImageOps.scale(picture, factor, Image.Resampling.NEAREST)
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
        if play is not None:
            value = "" if np.isnan(play.value) else f"value {_brief(play.value)}"
            bars = _bars(play.probabilities, self._action_names, height)
            panels.append((bars, _caption("policy", value, "", bars.width)))
        total_width = sum(caption.width + _GAP for _, caption in panels) - _GAP
        frame = Image.new("RGB", (total_width, _CAPTION_HEIGHT + height), _BACKGROUND)
        left = 0
        for shown, caption in panels:
            frame.paste(caption, (left, 0))
            x, y = (caption.width - shown.width) // 4 * 2, (height - shown.height) // 4 * 2
            frame.paste(shown, (left + x, _CAPTION_HEIGHT + y))
            left += caption.width + _GAP
        return frame


def in_colour(image: np.ndarray) -> np.ndarray:
    """Returns what people see of an image `[height, width, channels]`, `[height, width, 3]`."""
    shown = image if image.shape[-1] == 3 else image[..., -1:]  # The newest of stacked grey ones.
    return np.broadcast_to(shown, (*image.shape[:2], 3)).copy()


def _bars(probabilities: np.ndarray, names: tuple[str, ...], height: int) -> Image.Image:
    """Draws a row for each action: its name, and a bar which is bright up to its probability."""
    names = names or tuple(map(str, range(len(probabilities))))
    picture = _names(names, height).copy()
    canvas, row = ImageDraw.Draw(picture), height / len(names)
    for i, probability in enumerate(np.nan_to_num(probabilities)):
        top, bottom = row * i + row // 5, row * (i + 1) - row // 5
        for part, colour in ((1.0, _DARK), (probability, _BRIGHT)):
            right = _NAMES_WIDTH + part * (_POLICY_WIDTH - _MARGIN - _NAMES_WIDTH)
            canvas.rectangle((_NAMES_WIDTH, top, right, bottom), colour)
    return picture


@functools.lru_cache
def _names(names: tuple[str, ...], height: int) -> Image.Image:
    """Writes the names of actions one below the other, on what `_bars` are drawn on."""
    picture = Image.new("RGB", (_POLICY_WIDTH, height), _BACKGROUND)
    canvas, row = ImageDraw.Draw(picture), height / len(names)
    size = max(1, min(_FONT_SIZE - 3, int(row)))
    for i, name in enumerate(names):
        at = (_NAMES_WIDTH - _MARGIN, row * (i + 0.5))
        canvas.text(at, name, _DIM, font_size=size, anchor="rm")
    return picture


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
