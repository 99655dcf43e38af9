"""A new run starts with what its agent and another run's have in common."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import scalable_agent_popart
from scalable_agent_popart import factory
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.training.initial_weights import take_over
from tests.fakes.main_program import run

_AGENT = {"num_actors": 10, "batch_size": 2, "unroll_length": 10, "network": "shallow"}
_AGENT |= {"use_popart": True, "use_lstm": True}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> str:
    logdir = str(tmp_path_factory.mktemp("earlier") / "run")
    given = {**_AGENT, "level_name": "catch5", "learning_rate": 0.01}
    run(**given, logdir=logdir, total_environment_frames=400)
    return logdir


def fresh(earlier: str, level_name: str = "catch_100,catch_1", **flags: Any) -> tuple[Config, Any]:
    """Returns the configuration of a new run, and its learner."""
    given = {**_AGENT, "level_name": level_name, "init_from": earlier, **flags}
    config = Config.from_flags(given)
    return config, factory.make_learner(config, factory.make_rollout_spec(config))


def test_policy_values_and_statistics_of_known_tasks_are_taken_by_name(earlier: str) -> None:
    config, learner = fresh(earlier)
    weights = learner.agent.trainable_variables
    before = weights[0].numpy()
    values = "the values of catch_100, catch_1"
    assert take_over(config, learner).endswith(f"at 400 frames: network and policy, and {values}")
    other = scalable_agent_popart.load(earlier)
    assert (weights[0] != before).numpy().any()
    for variable, source in zip(weights, other._agent.trainable_variables, strict=True):
        np.testing.assert_array_equal(variable, source)
    ids = [other.tasks.index(task) for task in config.suite.tasks]
    for name in ("weights", "bias", "shift", "second_moment", "count"):
        rows = tf.gather(getattr(other._head, name), ids)
        np.testing.assert_array_equal(getattr(learner.head, name), rows, err_msg=name)
    assert (learner.head.count > 0).numpy().all(), "the earlier run had no statistics"
    assert int(learner.frames) == int(learner.num_updates) == 0


def test_new_tasks_have_new_values(earlier: str) -> None:
    config, learner = fresh(earlier)
    elsewhere = dataclasses.replace(config.suite, tasks=("unknown", "catch_1"))
    config = dataclasses.replace(config, suite=elsewhere)
    weights = learner.head.weights.numpy()
    assert take_over(config, learner).endswith("and the values of catch_1")
    np.testing.assert_array_equal(learner.head.weights[0], weights[0])
    assert (learner.head.weights[1] != weights[1]).numpy().any()
    assert learner.head.count[0] == 0 < learner.head.count[1]


def test_a_start_of_statistics_means_nothing_without_them(earlier: str, tmp_path: Path) -> None:
    """Older records have none, which stands for another start than today's."""
    shutil.copytree(earlier, tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    record = json.loads(file.read_text())
    record["flags"] |= {"use_popart": False, "multi_head": True}
    del record["flags"]["popart_start"]
    file.write_text(json.dumps(record))
    config, learner = fresh(str(tmp_path / "run"), "catch_1", use_popart=False, multi_head=True)
    assert take_over(config, learner).endswith("and the values of catch_1")


def test_of_other_actions_only_the_convolutions_are_taken(earlier: str) -> None:
    config, learner = fresh(earlier)
    config = dataclasses.replace(config, suite=dataclasses.replace(config.suite, name="elsewhere"))
    expected = {variable.ref(): variable.numpy() for variable in learner.variables}
    assert "torso; the rest is new" in take_over(config, learner)
    torso = learner.agent.torso_variables
    assert torso
    other = scalable_agent_popart.load(earlier)._agent.torso_variables
    expected |= {v.ref(): source.numpy() for v, source in zip(torso, other, strict=True)}
    for variable in learner.variables:
        np.testing.assert_array_equal(variable, expected[variable.ref()])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"use_popart": False}, "--use_popart"),
        ({"use_popart": False, "multi_head": True}, "--multi_head, --use_popart"),
        ({"reward_clipping": "abs_one"}, "--reward_clipping"),
        ({"popart_start": "fixed"}, "--popart_start"),
    ],
)
def test_values_of_another_agent_are_not_taken(
    earlier: str, flags: dict[str, Any], named: str
) -> None:
    config, learner = fresh(earlier, **flags)
    weights = learner.head.weights.numpy()
    assert take_over(config, learner).endswith(f"its values are new (other {named})")
    np.testing.assert_array_equal(learner.head.weights, weights)


def test_a_population_begins_with_it(
    earlier: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {**_AGENT, "level_name": "catch_1", "logdir": str(tmp_path / "pbt")}
    given |= {"mode": "pbt", "population_size": 2, "total_environment_frames": 40}
    run(**given, init_from=earlier)
    assert scalable_agent_popart.load(tmp_path / "pbt/member-01").config.init_from == earlier
    assert f"starts with {earlier}" not in capfd.readouterr().err, "in the population's bar"


def test_a_run_begins_with_it_once_and_records_it(
    earlier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = shutil.copytree(earlier, str(tmp_path / "earlier"))
    given = {**_AGENT, "level_name": "catch_1", "logdir": str(tmp_path / "run")}
    given["init_from"] = earlier
    run(**given, learning_rate=1e-30, total_environment_frames=40)
    assert f"starts with {earlier}" in capsys.readouterr().err
    agents = [scalable_agent_popart.load(logdir) for logdir in (earlier, given["logdir"])]
    observation, _ = agents[0].make_environment("catch_1").reset()
    np.testing.assert_array_equal(*(agent.policy(observation) for agent in agents))
    assert agents[1].config.init_from == earlier
    shutil.rmtree(earlier)  # What resumes needs it no more.
    rest = {"allow_changes": True, "total_environment_frames": 80}
    run(**given, **rest, learning_rate=0.1)
    learned = scalable_agent_popart.load(given["logdir"]).policy(observation)
    assert (learned != agents[0].policy(observation)).any()
    run(**given, **rest | {"total_environment_frames": 120}, learning_rate=1e-30)
    resumed = scalable_agent_popart.load(given["logdir"]).policy(observation)
    np.testing.assert_array_equal(resumed, learned)
    given["init_from"] = ""
    with pytest.raises(SystemExit, match="--init_from"):
        run(**given, total_environment_frames=80)
