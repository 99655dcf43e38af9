"""Short films of made-up ones: what they show, how large they are, and what is left out."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from scalable_agent_popart.report import films
from tests.fakes.synthetic_runs import compare_runs, make_film, make_run


def _grey(num: int, size: tuple[int, int] = (64, 48)) -> list[np.ndarray]:
    return [np.full((*size, 3), 37 * step % 200, np.uint8) for step in range(num)]


def test_films_show_the_first_seconds_of_each_level_and_agent(tmp_path: Path) -> None:
    popart = [make_run(tmp_path / f"popart-{i}", level_name="pong", seed=i) for i in (1, 2)]
    pixel = make_run(tmp_path / "pixel", level_name="pong", pixel_control=True)
    make_film(popart[1].videos / "pong.mp4", _grey(130))
    popart[0].videos.mkdir()
    (popart[0].videos / "pong.mp4").write_bytes(b"rubbish")
    make_film(pixel.videos / "pong.mp4", _grey(20, (480, 640)))
    (tmp_path / "figures").mkdir()
    comparison = compare_runs(*(run.path for run in (*popart, pixel)))
    problems: list[str] = []
    page = films.write([comparison], tmp_path, problems)
    assert len(problems) == 1
    assert re.findall("<h3>(.+)</h3>", page) == [agent.label for agent in comparison.agents]
    assert re.findall('alt="(.+?)"', page) == ["pong", "pong"]
    for number, size, num in ((1, (48, 64), 40), (2, (320, 240), 7)):
        with Image.open(tmp_path / f"figures/film-{number}.webp") as film:
            assert (film.format, film.size) == ("WEBP", size)
            means = [np.mean(frame.convert("RGB")) for frame in ImageSequence.Iterator(film)]
            assert film.info["duration"] == 200
        np.testing.assert_allclose(means, [111 * i % 200 for i in range(num)], atol=4)


def test_films_end_early_if_they_would_be_too_many_frames_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", level_name="pong,boxing")
    (tmp_path / "figures").mkdir()
    for level in ("pong", "boxing"):
        make_film(run.videos / f"{level}.mp4", _grey(60))
    monkeypatch.setattr(films, "_MAX_FRAMES", 10)
    films.write([compare_runs(run.path)], tmp_path, [])
    for path in (tmp_path / "figures").iterdir():
        with Image.open(path) as film:
            assert len(list(ImageSequence.Iterator(film))) == 5


def test_what_is_no_film_of_a_test_is_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", level_name="pong,boxing")
    make_film(run.videos / "whole.mp4", _grey(20))
    whole = (run.videos / "whole.mp4").read_bytes()
    (run.videos / "boxing.mp4").write_bytes(whole[: len(whole) // 2])
    playlist = f"#EXTM3U\n#EXTINF:1,\nfile://{run.videos}/whole.mp4\n#EXT-X-ENDLIST\n"
    (run.videos / "pong.mp4").write_text(playlist)
    problems: list[str] = []
    assert films.write([compare_runs(run.path)], tmp_path, problems).strip() == ""
    for line, level in zip(problems, ("boxing", "pong"), strict=True):
        assert line.startswith(f"{run.videos / level}.mp4 skipped: no film of a test")
