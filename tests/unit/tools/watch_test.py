"""A trained agent is watched on a page of this machine."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

import scalable_agent_popart
from scalable_agent_popart import suites
from tests.fakes.programs import DEADLINE_SECONDS, ROOT, free_port, run_python, wait_until
from tools import watch

_AGENT = str(ROOT / "agents/catch5")


def test_steps_are_drawn_with_the_policy_and_the_score() -> None:
    agent = scalable_agent_popart.load(_AGENT)
    names = ("left", "stay", "right")
    suite = replace(suites.resolve("catch_100"), action_names=lambda: names)
    draw = mock.patch.object(watch.Screen, "draw", autospec=True, side_effect=watch.Screen.draw)
    made = agent.make_environment("catch_100", render_mode="rgb_array")
    with draw as drawn, contextlib.closing(made) as environment:
        frames = list(itertools.islice(watch.play(agent, environment, suite), 40))
    assert [frame.size for frame in frames] == [(320 + 8 + 256, 48 + 320)] * 40
    for call in drawn.call_args_list:
        screen, picture, episode_return, ended = call.args
        assert screen._action_names == names
        assert picture.shape == (10, 5, 3)
        assert np.isclose(call.kwargs["play"].probabilities.sum(), 1.0)
        assert abs(call.kwargs["play"].value) < 200
        assert abs(episode_return) == 100 * ended
    assert sum(call.args[3] for call in drawn.call_args_list) == 4


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


def test_a_terminal_acts_upon_nothing_in_a_record(tmp_path: Path) -> None:
    record = {"flags": {"level_name": "pong", "\x1b[2J\n": 1}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    ended = run_python("tools/export_agent.py", f"--logdir={tmp_path}", "--output=none")
    assert "does not know:  [2J" in ended.stderr
    assert ended.stderr.removesuffix("\n").isprintable()
