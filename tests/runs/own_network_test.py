"""The network of docs/own_network.md is trained, resumed, tested and loaded."""

import re
import sys
from pathlib import Path

import pytest

import scalable_agent_popart
from scalable_agent_popart.errors import UserError
from tests.fakes.main_program import run
from tests.fakes.programs import metrics

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_network.md"
_CODE = r"```python\n(.*?)```.*`(scalable_agent_popart\.load\(.*?\))`"
_MODULE, _LOADS = re.findall(_CODE, _PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]


def test_the_pages_network_is_trained_resumed_tested_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_networks.py").write_text(_MODULE)
    named, logdir = {"network": "my_networks:Mlp"}, {"logdir": "runs/mlp"}
    training = {"level_name": "catch5", "use_popart": True, "use_lstm": True, **logdir}
    training |= {"num_actors": 5, "batch_size": 5, "unroll_length": 20}
    run(**training, **named, total_environment_frames=200)
    with pytest.raises(SystemExit, match=r"--network .*my_networks:Mlp .*shallow"):
        run(**training, total_environment_frames=400)
    run(**training, **named, total_environment_frames=400)
    assert metrics(tmp_path / "runs/mlp")[-1]["frames"] == 400
    del sys.modules["my_networks"]
    with pytest.raises(SystemExit, match="--network=my_networks:Mlp"):
        run(mode="test", **logdir)
    for network in (None, "shallow"):
        with pytest.raises(UserError, match=r"runs/mlp .*--network=my_networks:Mlp"):
            scalable_agent_popart.load("runs/mlp", network=network)
    assert "my_networks" not in sys.modules
    run(mode="test", test_num_episodes=1, **logdir, **named)
    agent = eval(_LOADS)
    observation, _ = agent.make_environment("catch_1").reset()
    assert agent.policy(observation).shape == (3,)
    agent.export("exported")
