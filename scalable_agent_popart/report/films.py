"""Shows short films of agents at play, made of those that tests have left in run directories."""

import base64
import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import av
from markupsafe import Markup

from scalable_agent_popart.report.chapter import render
from scalable_agent_popart.report.compare import Comparison
from scalable_agent_popart.runs.directory import film_path
from scalable_agent_popart.runs.json_lines import DAMAGE

_MAX_FRAMES = 1200  # All films of a page have so many, in some megabytes.
_STEPS, _EVERY = 8 * 15, 3  # The first eight seconds of a film, five frames of each.
_MILLISECONDS = 200
_MAX_WIDTH, _MAX_HEIGHT = 480, 240  # Most films become half as wide and as high.
_QUALITY = 50
_WORDS = """
{% if films %}
<h2>Films</h2>
<p>The beginning of each film that <code>--record_video</code> has left.</p>
{% for agent, films_of_agent in films.items() %}
<h3>{{ agent }}</h3>
<p>
{% for level, film in films_of_agent.items() %}
<img alt="{{ level }}" loading="lazy" src="data:image/webp;base64,{{ film }}">
{% endfor %}
</p>
{% endfor %}
{% endif %}
"""


def write(comparisons: Sequence[Comparison], directory: Path, problems: list[str]) -> Markup:
    """Writes a film of each level that any run of an agent was filmed in, and their section.

    Each has the same part of the page's frames. The problems get a line for each film left out.
    """
    files: dict[tuple[str, str], list[Path]] = {}
    for comparison in comparisons:
        suite, where = comparison.suite, f", {comparison.title}" * (len(comparisons) > 1)
        levels = dict.fromkeys([*map(suite.test_version, suite.tasks), *suite.tasks])
        for agent, run in comparison.runs:
            if run.videos is None:
                continue
            for level in levels:
                path = film_path(run.videos, level)
                if os.path.isfile(path):  # `Path.is_file` may raise.
                    files.setdefault((agent.label + where, level), []).append(path)
    films: dict[str, dict[str, str]] = {}
    for number, ((played_by, level), paths) in enumerate(files.items(), start=1):
        for path in paths:
            try:
                film = _shorten(path, _MAX_FRAMES // len(files))
            except (OSError, av.FFmpegError, LookupError, *DAMAGE) as error:
                message = f"no film of a test ({type(error).__name__}: {error})"
                problems.append(f"{path} skipped: {message}")
                continue
            (directory / f"figures/film-{number}.webp").write_bytes(film)
            films.setdefault(played_by, {})[level] = base64.b64encode(film).decode()
            break  # One run's film is enough.
    return render(_WORDS, films=films)


def _shorten(path: Path, max_frames: int) -> bytes:
    """Returns the beginning of a film, of so many frames at most, as an animated WebP.

    The file may be anybody's, and no more of it than its pixels gets into the page.
    """
    # FFmpeg would guess another format, and some name files and addresses to read.
    with av.open(str(path.absolute()), format="mp4") as film:
        stream = film.streams.video[0]
        scale = min(1.0, _MAX_WIDTH / stream.width, _MAX_HEIGHT / stream.height)
        size = {name: max(1, int(scale * getattr(stream, name))) for name in ("width", "height")}
        end = min(_STEPS, _EVERY * max(1, max_frames))
        chosen = itertools.islice(film.decode(stream), 0, end, _EVERY)
        first, *rest = [frame.to_image(**size, interpolation="AREA") for frame in chosen]
    first.save(
        file := io.BytesIO(), "WEBP", save_all=True, append_images=rest,
        duration=_MILLISECONDS, loop=0, quality=_QUALITY,
    )  # fmt: skip
    return file.getvalue()
