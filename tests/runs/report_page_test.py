"""A report's page as a browser shows it."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scalable_agent_popart.report.page import write_report
from tests.fakes.synthetic_runs import make_population, make_run

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
_OPTIONS = ("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-sync", "dump-dom")
_OPTIONS += ("disable-background-networking", "disable-component-update")
# Opens every fold, and puts what is shown into the page's title.
_SCRIPT = """<script>onload = () => {
  const all = selector => [...document.querySelectorAll(selector)];
  all("details").forEach(fold => fold.open = true);
  document.title = JSON.stringify({
    widths: all("img").map(image => image.naturalWidth),
    tables: all("tbody").map(body => [...body.rows].map(row => row.innerText)),
    text: document.body.innerText,
  });
}</script>"""


@pytest.mark.skipif(_BROWSER is None, reason="Chromium is not installed")
def test_a_browser_shows_all_figures_and_tables_and_no_markup(tmp_path: Path) -> None:
    name = "<b> & 'c'"
    for seed in (1, 2):
        given = {"level_name": "pong,boxing", "log_task_gradients": True, "seed": seed}
        make_run(tmp_path / f"popart-{seed}", use_popart=True, **given)
        make_run(tmp_path / f"impala-{seed}", tests={"noop": 3, "human": 3}, **given)
    make_run(tmp_path / name, level_name="catch5")
    make_population(tmp_path / "population")
    paths = [str(path) for path in tmp_path.iterdir()]
    write_report(paths, str(tmp_path / "out"))
    page = tmp_path / "out" / "report.html"
    page.write_text(page.read_text() + _SCRIPT)
    assert _BROWSER is not None
    options = [f"--{option}" for option in (*_OPTIONS, f"user-data-dir={tmp_path / 'profile'}")]
    command = [_BROWSER, *options, page.as_uri()]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    title = re.search("<title>(.*?)</title>", made.stdout, re.DOTALL)
    assert title
    shown = json.loads(html.unescape(title[1]))
    figures = list((tmp_path / "out" / "figures").iterdir())
    assert len(shown["widths"]) == len(figures)
    assert min(shown["widths"]) > 300
    assert len(shown["tables"]) > 10
    for rows in shown["tables"]:
        assert rows
        assert all(row.split("\t")[0].strip() for row in rows)
    assert str(tmp_path / name) in shown["text"]
    assert re.findall(r"&\w+;|\{\{|\}\}|<(?!b> )", shown["text"]) == []
