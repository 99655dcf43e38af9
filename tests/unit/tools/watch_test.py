"""A trained agent is watched on a page of this machine."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.fakes.programs import DEADLINE_SECONDS, ROOT, free_port, run_python, wait_until

_AGENT = str(ROOT / "agents/catch5")


# The tool's flags would meet those of the main program in this process.
_PROGRAM = """
import sys
from dataclasses import replace
from unittest import mock

import numpy as np

import scalable_agent_popart
from scalable_agent_popart import suites
from tools import watch

watch.FLAGS(["watch.py", f"--logdir={sys.argv[1]}", "--steps=40"])
agent = scalable_agent_popart.load(sys.argv[1])
environment = agent.make_environment("catch_100", render_mode="rgb_array")
names = ("left", "stay", "right")
suite = replace(suites.resolve("catch_100"), action_names=lambda: names)
Screen = watch.Screen
with mock.patch.object(Screen, "draw", autospec=True, side_effect=Screen.draw) as draw:
    shown = list(watch.play(agent, environment, suite))
assert [frame.size for frame in shown] == [(320 + 8 + 256, 48 + 320)] * 40
for call in draw.call_args_list:
    screen, picture, episode_return, ended = call.args
    assert screen._action_names == names
    assert picture.shape == (10, 5, 3)
    assert np.isclose(call.kwargs["play"].probabilities.sum(), 1.0)
    assert abs(call.kwargs["play"].value) < 200
    assert abs(episode_return) == 100 * ended
assert sum(call.args[3] for call in draw.call_args_list) == 4
"""


def test_steps_are_drawn_with_the_policy_and_the_score() -> None:
    ended = run_python("-c", _PROGRAM, _AGENT)
    assert ended.returncode == 0, ended.stderr


def test_without_a_display_it_is_a_page_until_ctrl_c(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    environment = {name: value for name, value in os.environ.items() if name not in displays}
    command = [sys.executable, "-u", "tools/watch.py", f"--logdir={_AGENT}", f"--port={port}"]
    with open(log, "w") as file:
        program = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        wait_until(lambda: f"127.0.0.1:{port}" in log.read_text(), program)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
            assert b"canvas" in page.read()
        program.send_signal(signal.SIGINT)
        assert program.wait(DEADLINE_SECONDS) == 0, log.read_text()
    finally:
        program.kill()


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    ended = run_python("tools/watch.py", f"--logdir={_AGENT}", "--level_name=pong")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("tool", ["watch", "export_agent", "record_starts"])
def test_a_terminal_acts_upon_nothing_in_a_record(tmp_path: Path, tool: str) -> None:
    record = {"flags": {"level_name": "pong", "\x1b[2J\n": 1}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    more = {"watch": [], "export_agent": ["--output=none"]}
    given = more.get(tool, ["--level_name=pong", "--human_starts_dir=none"])
    ended = run_python(f"tools/{tool}.py", f"--logdir={tmp_path}", *given)
    assert "does not know:  [2J" in ended.stderr
    assert ended.stderr.removesuffix("\n").isprintable()
