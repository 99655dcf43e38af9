"""The flag files: every one can be run, and is the experiment that its name says."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from absl import flags
from absl.testing import flagsaver

import experiment
from scalable_agent_popart.config import Config

_CONFIGS = Path(__file__).resolve().parents[2] / "configs"
_FILES = sorted(_CONFIGS.rglob("*.flags"))
_PATHS = {path.stem: path for path in _FILES}
_AGENTS: dict[str, dict[str, Any]] = {
    "impala": {},
    "multihead": {"multi_head": True},
    "popart": {"use_popart": True},
}
_PAPER = ("atari57-clipped", "atari57-unclipped", "dmlab30", "dmlab30-pixel", "dmlab30-original")
# The tables of fixed hyperparameters, and what the text says beside them.
_FIXED = {
    "discounting": 0.99,
    "baseline_cost": 0.5,
    "batch_size": 32,
    "momentum": 0.0,
    "num_action_repeats": 4,
    "network": "deep",
    "popart_step_size": 3e-4,
    "popart_scale_lower_bound": 1e-4,
    "popart_scale_upper_bound": 1e6,
}
_TUNED = {"learning_rate", "entropy_cost", "epsilon", "max_grad_norm"}
_OF_SUITE = {
    "atari57": {
        "unroll_length": 20,
        "height": 84,
        "width": 84,
        "use_lstm": False,
        "total_environment_frames": 57 * 200_000_000,
    },
    "dmlab30": {"unroll_length": 100, "height": 72, "width": 96, "use_lstm": True},
}


def _given(path: Path) -> dict[str, Any]:
    """The flags that a file sets, as `experiment.py` understands them."""
    with flagsaver.flagsaver():
        assert flags.FLAGS(["experiment.py", f"--flagfile={path}"]) == ["experiment.py"]
        given = experiment.given_flags()
    # What everyone has elsewhere.
    return given | ({"dataset_path": "dummy"} if given["level_name"] == "dmlab30" else {})


def _config(path: Path) -> Config:
    return Config.from_flags(_given(path))


def _parts(path: Path) -> tuple[str, str]:
    """The experiment's and the agent's part of a file's name; a population's ends the first."""
    found = re.fullmatch(r"(.+)-(impala|multihead|popart)((?:-large)?(?:-pbt)?)\.flags", path.name)
    assert found, path.name
    return found[1] + found[3], found[2]


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_flag_file_can_be_run_and_says_what_it_is(path: Path) -> None:
    config = _config(path)
    _, agent = _parts(path)
    for name in ("multi_head", "use_popart"):
        assert getattr(config, name) == (name in _AGENTS[agent])
    first, *lines = path.read_text().splitlines()
    assert first.startswith("# ")
    assert re.search(rf"(?<![\w-]){config.agent_name} (on|with) ", first)
    assert all(re.fullmatch(r"# .+|--\w+(=[\w.,+-]+)?", line) for line in lines)
    given = _given(path)
    assert not {"logdir", "seed"} & given.keys(), "a run's own, not the experiment's"
    assert not set(config.tuned) & given.keys(), "drawn by each member"
    assert not any(line.startswith("--dataset_path") for line in lines)


def test_agents_of_an_experiment_differ_in_nothing_else() -> None:
    """No hyperparameter is tuned for one agent only."""
    experiments: dict[str, list[dict[str, Any]]] = {}
    for path in _FILES:
        own = {**dataclasses.asdict(_config(path)), "multi_head": None, "use_popart": None}
        experiments.setdefault(_parts(path)[0], []).append(own)
    for name, configs in experiments.items():
        assert all(config == configs[0] for config in configs), name
    for name in ("catch5-raw", "catch5-clipped", "atari4", "atari57-unclipped", "dmlab30-pbt"):
        assert len(experiments[name]) == 3


@pytest.mark.parametrize("name", _PAPER)
@pytest.mark.parametrize("population", ["", "-pbt"])
def test_the_papers_experiments_have_its_hyperparameters(name: str, population: str) -> None:
    agents = {"dmlab30-pixel": ["impala", "popart"], "dmlab30-original": ["impala"]}
    suite = name.partition("-")[0]
    for agent in agents.get(name, _AGENTS):
        path = _PATHS[f"{name}-{agent}{population}"]
        config = _config(path)
        assert not _TUNED & _given(path).keys(), "the suite's, or drawn"
        assert config.level_name == suite
        for flag, value in {**_FIXED, **_OF_SUITE[suite]}.items():
            assert getattr(config, flag) == value, flag
        clippings = {"atari57-clipped": "abs_one", "atari57-unclipped": "none"}
        assert config.reward_clipping == clippings.get(name, "oar")
        assert config.pixel_control == (name == "dmlab30-pixel")
        if suite == "dmlab30":
            assert config.action_set == ("impala" if name == "dmlab30-original" else "popart")
            billions = 2 if config.pixel_control else 10
            assert config.total_environment_frames == billions * 10**9
        size = {"atari57": 24, "dmlab30": 8}[suite]
        assert (config.mode, config.population_size) == (
            ("pbt", size) if population else ("train", 0)
        )


def test_own_experiments_clip_rewards_as_they_say() -> None:
    clippings = {"catch5-raw": "none", "catch5-clipped": "abs_one", "atari4": "none"}
    for name, clipping in clippings.items():
        for agent in _AGENTS:
            assert _config(_PATHS[f"{name}-{agent}"]).reward_clipping == clipping


@pytest.mark.parametrize("agent", _AGENTS)
def test_epsilon_and_the_actors_are_all_that_was_changed_on_four_games(agent: str) -> None:
    ours = _config(_PATHS[f"atari4-{agent}"])
    suites = _config(_PATHS[f"suite-epsilon-atari4-{agent}"])
    assert suites.epsilon == _config(_PATHS[f"atari57-unclipped-{agent}"]).epsilon
    changed = {"epsilon": 1e-5, "num_actors": 32, "actor_threads": 1}
    assert ours == dataclasses.replace(suites, **changed)


def test_the_papers_step_size_differs_in_nothing_else() -> None:
    usual = _config(_PATHS["catch5-raw-popart"])
    papers = _config(_PATHS["catch5-raw-paper-step-size-popart"])
    assert papers == dataclasses.replace(usual, popart_step_size=_FIXED["popart_step_size"])


@pytest.mark.parametrize("agent", ["impala", "popart", "original-impala"])
def test_larger_populations_differ_from_the_others_in_their_size_alone(agent: str) -> None:
    large = _config(_PATHS[f"dmlab30-{agent}-large-pbt"])
    usual = _config(_PATHS[f"dmlab30-{agent}-pbt"])
    assert large == dataclasses.replace(usual, population_size=24)
