"""The table and the figure of how fast runs learn, next to other systems' curves."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scalable_agent_popart.errors import UserError
from tests.fakes.synthetic_runs import make_run
from tools import compare_learning

_COLUMNS = "run,game,agent,seed,agent_steps_millions,games,mean_return,minutes\n"
_CURVES = "game,agent,agent_steps_millions,lowest_return,median_return,highest_return\n"


def test_returns_are_means_of_the_games_that_ended_since_the_last_mark(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "first", episodes=1200, level_name="pong", seed=7)
    make_run(tmp_path / "second", episodes=600, level_name="boxing", use_popart=True)
    curves, peer = tmp_path / "curves.csv", tmp_path / "peer.csv"
    curves.write_text(f"{_CURVES}pong,A,0.25,-20,-19,-18\n")
    peer.write_text(f"{_COLUMNS}p,pong,P,1,1,2,3,4\n")
    files = [str(peer)], str(curves), "agent_steps_millions", tmp_path / "output"
    compare_learning.compare([str(tmp_path)], *files)
    table = pd.read_csv(tmp_path / "output" / "returns.csv")
    assert (tmp_path / "output" / "returns.png").stat().st_size > 0
    assert table["agent"].tolist() == ["IMPALA", "IMPALA", "PopArt-IMPALA", "P"]
    assert table.iloc[-1][["agent_steps_millions", "mean_return", "minutes"]].tolist() == [1, 3, 4]
    first = table[table["run"] == "first"]
    assert first[["agent_steps_millions", "games", "seed"]].to_numpy().tolist() == [
        [0.125, 500, 7],  # A game takes 250 agent steps of four frames each.
        [0.25, 500, 7],
    ]
    ended = pd.read_json(directory.episodes, lines=True)["episode_return"]
    means = [ended[:500].mean(), ended[500:1000].mean()]
    np.testing.assert_allclose(first["mean_return"], means, rtol=1e-5)
    np.testing.assert_allclose(first["minutes"], [500 / 60, 1000 / 60], rtol=1e-5)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "run", level_name="pong,boxing")
    begun = make_run(tmp_path / "begun", tests={}, level_name="pong")
    for log in (begun.episodes, begun.metrics):
        log.write_text("")
    for path, message in (
        (tmp_path / "run", "is no run of a single game"),
        (begun.path, f"{begun.path} skipped: it has nothing to report yet"),
    ):
        with pytest.raises(UserError, match=message):
            compare_learning.compare([str(path)], [], "", "minutes", tmp_path / "output")
    assert not (tmp_path / "output").exists()
