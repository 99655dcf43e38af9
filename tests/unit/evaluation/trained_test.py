"""A loaded agent against `--mode=test` of the same run, and one observation against a batch."""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import scalable_agent_popart
from scalable_agent_popart import factory, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.evaluation.trained import TrainedAgent
from scalable_agent_popart.suites.atari import emulator
from tests.fakes.main_program import run
from tests.fakes.programs import ROOT, run_python

_NUM_EPISODES = 3
_SMALL = {"num_actors": 10, "batch_size": 2, "unroll_length": 10}


def train(logdir: Path, level_name: str, **flags: Any) -> str:
    """Trains for as short as can be; returns the run's directory."""
    given = {"level_name": level_name, "logdir": str(logdir), "use_popart": True, **_SMALL, **flags}
    run(**{"network": "shallow", "total_environment_frames": 200, **given})
    return str(logdir)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run on five tasks with an LSTM, which keeps checkpoints at 180 and 200 frames."""
    logdir = tmp_path_factory.mktemp("trained") / "run"
    often = {"log_seconds": 1e-9, "checkpoint_seconds": 1e-9}
    return train(logdir, "catch5", use_lstm=True, **often)


@pytest.mark.parametrize(
    ("level_name", "flags"),
    [
        ("catch_1", {"use_lstm": True}),
        ("cluttered_catch", {"pixel_control": True}),
        ("boxing", {"reward_clipping": "none", "num_actors": 2}),
        ("tests.fakes.rare_rewards:small", {}),
    ],
)
def test_a_loaded_agent_scores_what_the_test_of_its_run_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level_name: str, flags: dict[str, Any]
) -> None:
    monkeypatch.setattr(emulator, "MAX_FRAMES_PER_GAME", 400)
    logdir = train(tmp_path / "run", level_name, **flags)
    sizes = {"test_num_episodes": _NUM_EPISODES, "num_actors": _NUM_EPISODES}
    run(mode="test", logdir=logdir, level_name=level_name, **sizes)
    tested = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    agent = scalable_agent_popart.load(logdir)
    assert agent.frames == tested["frames"]
    seed = np.random.SeedSequence([agent.config.seed, 1])
    ids, suite = [0] * _NUM_EPISODES, suites.resolve(level_name)
    options = agent.config.environment_options(training=False)
    pool = factory.make_environments(options, suite, ids, seed)
    state, first = agent.begin(_NUM_EPISODES), np.full(_NUM_EPISODES, np.nan)
    pool.start()
    while np.isnan(first).any():
        numbers, output, _ = pool.receive(1.0)
        ended = output.info.episode_end & np.isnan(first)
        first[ended] = output.info.episode_return[ended]
        pool.send(numbers, agent.act(output.observation, output.reward, output.done, state))
    pool.close()
    assert first.tolist() == next(iter(tested["tasks"].values()))["returns"]


def test_one_observation_and_a_batch_of_it_are_the_same(trained: str) -> None:
    agent = scalable_agent_popart.load(trained)
    observation, _ = agent.make_environment("catch_1", seed=3).reset()
    batch, state = np.stack(2 * [observation]), agent.begin(2)
    for step in range(3):  # The LSTM's state differs between steps.
        rest = (float(step), step == 2)
        values = agent.value(batch, "catch_10", *rest, state=state)
        assert values.shape == (2,)
        np.testing.assert_allclose(agent.value(observation, "catch_10", *rest), values, rtol=1e-5)
        assert agent.value(observation, "catch_10") != agent.value(observation, "catch_100")
        probabilities = agent.policy(batch, *rest, state=state)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
        np.testing.assert_allclose(agent.policy(observation, *rest), probabilities[0], rtol=1e-4)
        actions = agent.act(batch, *rest, state=state, greedy=True)
        np.testing.assert_array_equal(actions, probabilities.argmax(axis=1))
        assert agent.act(observation, *rest, greedy=True) == actions[0]
    agent.value(np.stack(3 * [observation]), "catch_1")  # A value replaces no memory.
    np.testing.assert_allclose(
        agent.policy(observation), agent.policy(batch, state=state)[0], rtol=1e-4
    )
    agent.reset()
    begun = agent.policy(batch, state=agent.begin(2))
    np.testing.assert_allclose(agent.policy(observation), begun[0], rtol=1e-4)


def test_sampled_actions_follow_the_policy_and_repeat_with_their_seed(trained: str) -> None:
    agent, size = scalable_agent_popart.load(trained), 4000
    observation, _ = agent.make_environment("catch_1").reset()
    batch = np.repeat(observation[np.newaxis], size, axis=0)
    actions = agent.act(batch, state=agent.begin(size, seed=7))
    np.testing.assert_array_equal(actions, agent.act(batch, state=agent.begin(size, seed=7)))
    assert (actions != agent.act(batch, state=agent.begin(size, seed=8))).any()
    shares = np.bincount(actions, minlength=agent.num_actions) / size
    np.testing.assert_allclose(shares, agent.policy(observation), atol=0.04)  # Five sigma.


def test_an_environment_plays_episodes_and_begins_again_with_its_seed(trained: str) -> None:
    agent = scalable_agent_popart.load(trained)
    environment = agent.make_environment("catch_10")

    def play() -> list[tuple[float, bool]]:
        observation, _ = environment.reset(seed=5)
        steps = []
        for _ in range(40):
            assert environment.observation_space.contains(observation)
            observation, reward, terminated, _, info = environment.step(0)
            steps.append((reward, terminated))
            if terminated:
                assert info["episode_return"] == reward in (-10.0, 10.0)
                np.testing.assert_array_equal(environment.reset()[0], observation)
        return steps

    first = play()
    assert sum(ended for _, ended in first) > 1
    assert play() == first
    environment.step(0)
    environment.reset()  # A reset may also leave an episode.
    environment.close()
    with pytest.raises(RuntimeError, match="reset the environment"):
        environment.step(0)


_ALONE = """
import sys

sys.modules.update(dict.fromkeys(["scalable_agent_popart", "popart", "vtrace", "environments"]))
import tensorflow as tf

for folder in sys.argv[1:]:
    model = tf.saved_model.load(folder)
    for function in model.signatures.values():
        specs = function.structured_input_signature[1]
        zeros = {name: tf.zeros([n or 1 for n in s.shape], s.dtype) for name, s in specs.items()}
        function(**zeros)
"""


def test_exported_agents_act_alike_where_only_tensorflow_is(trained: str, tmp_path: Path) -> None:
    logdirs = {"catch_10": trained, "up_n_down": ROOT / "agents/atari4"}
    for task, logdir in logdirs.items():
        agent, folder = scalable_agent_popart.load(logdir), str(tmp_path / task)
        agent.export(folder)
        model = tf.saved_model.load(folder)
        begin, act, value = (model.signatures[name] for name in ("initial_state", "act", "values"))
        states = begin(batch_size=tf.constant(1))
        states.pop("batch_size")
        environment, state, values = agent.make_environment(task), agent.begin(), []
        observation, _ = environment.reset(seed=1)
        action, reward, done = np.zeros(1, np.int32), 0.0, False
        for step in range(12):
            batch = observation[np.newaxis]
            seen = {"observation": batch, "reward": np.float32([reward]), "done": np.array([done])}
            inputs = {name: tf.constant(array) for name, array in seen.items()}
            inputs |= {**states, "last_action": tf.constant(action)}
            expected = [agent.value(**seen, task=each, state=state)[0] for each in agent.tasks]
            values.append((value(**inputs)["values"].numpy()[0], expected))
            policy, action = agent.policy(**seen, state=state), agent.act(**seen, state=state)
            states = act(**inputs, seed=tf.constant([state.seed[0], step + 1]))
            np.testing.assert_allclose(states.pop("probabilities"), policy, rtol=1e-5)
            np.testing.assert_array_equal(states.pop("action"), action)
            observation, reward, *_ = environment.step(action[0])
            done = step == 7  # The state is reset wherever an episode ends.
        exported, expected = np.swapaxes(values, 0, 1)
        error = np.abs(exported - expected) / np.abs(expected).max(axis=0)
        assert error.max() < 1e-3  # Adding a task's shift may cancel most of its value.
        facts = json.loads(Path(folder, "agent.json").read_text())
        assert facts["tasks"] == [*agent.tasks]
        assert facts["actions"] == [*agent.config.suite.action_names()]
        with pytest.raises(UserError, match="exists: give another"):
            agent.export(folder)
    ended = run_python("-c", _ALONE, *logdirs, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_an_environment_shows_what_people_see(trained: str) -> None:
    agent = scalable_agent_popart.load(trained)
    environment = agent.make_environment("catch_1", render_mode="rgb_array")
    observation, _ = environment.reset()
    np.testing.assert_array_equal(environment.render(), observation)
    boxing = scalable_agent_popart.load(ROOT / "agents/atari4")
    environment = boxing.make_environment("boxing", render_mode="rgb_array")
    environment.reset()
    rng = np.random.default_rng(0)
    for action in rng.integers(0, 18, 20):
        observation, *_ = environment.step(action)
    picture = environment.render()
    assert picture.shape == (210, 160, 3)
    assert (picture[..., 0] != picture[..., 2]).any()
    seen = Image.fromarray(picture).convert("L").resize((84, 84), Image.Resampling.BOX)
    assert abs(np.asarray(seen, int) - observation[..., 0]).mean() < 4
    with pytest.raises(ValueError, match="render mode"):
        boxing.make_environment("boxing", render_mode="human")
    environment.close()


def test_a_saved_agent_is_loaded_tested_and_not_resumed(
    trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(trained)
    agent, saved = scalable_agent_popart.load("."), str(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)  # What it was loaded from may be out of reach by now.
    agent.save("~/saved")
    for name, why in (("x" * 300, "cannot be written"), ("new[1]/agent", r"has the character \[")):
        with pytest.raises(UserError, match=why):
            agent.save(f"{tmp_path}/{name}")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    loaded = scalable_agent_popart.load("~/saved")
    observation, _ = loaded.make_environment("catch_1").reset()
    np.testing.assert_array_equal(loaded.policy(observation), agent.policy(observation))
    assert loaded.value(observation, "catch_100") == agent.value(observation, "catch_100")
    assert loaded.config.logdir == saved
    run(mode="test", logdir=saved, test_num_episodes=1)
    with pytest.raises(SystemExit, match="another program or version"):
        train(tmp_path / "saved", "catch5", use_lstm=True, total_environment_frames=600)


@pytest.mark.parametrize("path", sorted(ROOT.glob("agents/*/config.json")), ids=str)
def test_agents_of_the_repository_are_small_and_load(path: Path) -> None:
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 4 * 2**20
    agent = scalable_agent_popart.load(path.parent)
    assert agent.config.logdir == f"agents/{path.parent.name}"
    observation, _ = agent.make_environment(agent.tasks[0]).reset()
    assert agent.policy(observation).shape == (agent.num_actions,)


def test_the_agent_of_catch_plays_as_its_page_says(tmp_path: Path) -> None:
    logdir = tmp_path / "catch5"
    shutil.copytree(ROOT / "agents/catch5", logdir)
    run(mode="test", logdir=str(logdir), test_num_episodes=40)
    assert json.loads((logdir / "evaluation.json").read_text())["aggregate"]["mean"] > 95


def test_the_guide_runs_as_it_is_written(
    trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/popart").symlink_to(trained)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/trained_agents.md").read_text()
    exec("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})


def test_the_notebook_runs_in_its_folder_and_has_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "docs")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    display = SimpleNamespace(Image=bytes, get_ipython=lambda: None, version_info=(9, 0))
    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, display)
    cells = json.loads(Path("trained_agent.ipynb").read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
    names: dict[str, Any] = {}
    exec("\n".join("".join(cell["source"]) for cell in cells), names)
    assert len(names["returns"]) == 3
    assert len(names["curves"].index.unique("seed")) == 5


def test_a_checkpoint_is_loaded_by_its_frames(trained: str) -> None:
    early, late = TrainedAgent(trained, 180), TrainedAgent(trained)
    assert (early.frames, late.frames) == (180, 200)
    observation, _ = early.make_environment("catch_1").reset()
    assert (early.policy(observation) != late.policy(observation)).any()
    with pytest.raises(UserError, match=r"no checkpoint at 300 frames .* at 180, 200$"):
        TrainedAgent(trained, 300)


def test_a_save_that_fails_leaves_nothing(
    trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: tf.train.Checkpoint, path: str) -> None:
        Path(f"{path}.index").touch()
        raise OSError("no space left")

    agent = scalable_agent_popart.load(trained)
    monkeypatch.setattr(tf.train.Checkpoint, "write", fail)
    with pytest.raises(UserError, match=f"{tmp_path}/saved cannot be written"):
        agent.save(str(tmp_path / "saved"))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_loaded_is_said_in_one_line(trained: str, tmp_path: Path) -> None:
    unfinished = shutil.copytree(trained, tmp_path / "unfinished")
    shutil.rmtree(unfinished / "checkpoints")
    with pytest.raises(UserError, match=r"no checkpoint .* train first"):
        scalable_agent_popart.load(unfinished)
    with pytest.raises(UserError, match=r"has the character \["):
        scalable_agent_popart.load(trained + "[1]")


def test_a_module_is_imported_only_if_the_caller_names_it(tmp_path: Path) -> None:
    logdir = train(tmp_path / "run", level_name := "tests.fakes.rare_rewards:small,once")
    with pytest.raises(UserError, match="--level_name"):
        scalable_agent_popart.load(logdir).make_environment("small")
    environment = scalable_agent_popart.load(logdir, level_name=level_name).make_environment("once")
    environment.reset()
    assert environment.step(0)[1:4] == (1.0, True, False)


def test_inputs_that_do_not_fit_are_refused(trained: str) -> None:
    agent = scalable_agent_popart.load(trained)
    observation, _ = agent.make_environment("catch_1").reset()
    with pytest.raises(ValueError, match=r"declared as uint8 .*, and is float64"):
        agent.act(observation / 255)
    with pytest.raises(ValueError, match=r"state .*2 .*1"):
        agent.act(observation, state=agent.begin(2))
    with pytest.raises(ValueError, match=r"reward .*float32"):
        agent.act(observation, float("nan"))
    with pytest.raises(ValueError, match=r"pong.* catch_0\.01"):
        agent.value(observation, "pong")
