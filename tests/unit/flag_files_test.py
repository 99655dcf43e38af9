"""The flag files: every one can be run, and is the experiment that its name says."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.settings import SETTINGS
from tests.fakes.main_program import given_flags

_ROOT = Path(__file__).parents[2]
# Those of superseded experiments lie next to their results.
_FILES = {p.stem: p for name in ("configs", "results") for p in (_ROOT / name).rglob("*.flags")}
_AGENTS = ("impala", "multihead", "popart")
_TUNED = {"learning_rate", "entropy_cost", "epsilon", "max_grad_norm"}
_OF_SUITE: dict[str, dict[str, Any]] = {
    "atari57": {"unroll_length": 20, "height": 84, "width": 84, "use_lstm": False},
    "dmlab30": {"unroll_length": 100, "height": 72, "width": 96, "use_lstm": True},
}


def _given(name: str) -> dict[str, Any]:
    """The flags that a file sets, as `experiment.py` understands them."""
    return given_flags(f"--flagfile={_FILES[name]}")


def _config(name: str) -> Config:
    return Config.from_flags(_given(name))


def _parts(name: str) -> tuple[str, str]:
    """The experiment's and the agent's part of a file's name; a population's ends the first."""
    parts = re.fullmatch(r"(.+)-(impala|multihead|popart)((?:-large)?(?:-pbt)?)", name)
    assert parts, name
    return parts[1] + parts[3], parts[2]


@pytest.mark.parametrize("name", _FILES)
def test_a_flag_file_can_be_run_and_is_of_the_agent_in_its_name(name: str) -> None:
    config, agent = _config(name), _parts(name)[1]
    assert (config.multi_head, config.use_popart) == (agent == "multihead", agent == "popart")
    assert not set(config.tuned) & _given(name).keys(), "sampled by each member"


def test_agents_of_an_experiment_differ_in_nothing_else() -> None:
    """No hyperparameter is tuned for one agent only, but where all had the same search."""
    experiments: dict[str, list[Config]] = {}
    of_popart = [name for name, each in SETTINGS.items() if each.part.needs == "use_popart"]
    alike = {name: getattr(Config, name) for name in of_popart}
    alike |= {"multi_head": False, "use_popart": False}
    for name in _FILES:
        experiment = _parts(name)[0]
        searched = dict.fromkeys(_TUNED, 0.5) if experiment == "atari57-raw" else {}
        config = dataclasses.replace(_config(name), **alike, **searched)
        experiments.setdefault(experiment, []).append(config)
    for name, configs in experiments.items():
        assert all(config == configs[0] for config in configs), name
    for name in ("catch5-raw", "catch5-clipped", "atari4", "atari57-unclipped", "dmlab30-pbt"):
        assert len(experiments[name]) == len(_AGENTS)


@pytest.mark.parametrize(
    ("name", "agents", "clipping", "frames"),
    [
        ("atari57-clipped", _AGENTS, "abs_one", 57 * 200_000_000),
        ("atari57-unclipped", _AGENTS, "none", 57 * 200_000_000),
        ("dmlab30", _AGENTS, "oar", 10**10),
        ("dmlab30-pixel", ("impala", "popart"), "oar", 2 * 10**9),
        ("dmlab30-original", ("impala",), "oar", 10**10),
    ],
)
@pytest.mark.parametrize("population", ["", "-pbt"])
def test_the_papers_experiments_have_its_hyperparameters(
    name: str, agents: tuple[str, ...], clipping: str, frames: int, population: str
) -> None:
    suite = name.partition("-")[0]
    size = {"atari57": 24, "dmlab30": 8}[suite]
    expected = _OF_SUITE[suite] | {
        # The paper's tables of fixed hyperparameters, and what the text says beside them.
        **{"discounting": 0.99, "baseline_cost": 0.5, "batch_size": 32, "momentum": 0.0},
        **{"num_action_repeats": 4, "network": "deep", "popart_step_size": 3e-4},
        **{"popart_scale_lower_bound": 1e-4, "popart_scale_upper_bound": 1e6},
        **{"initial_mean_square": 1.0, "image_scale": 1.0, "zero_mean_filters": False},
        **{"level_name": suite, "reward_clipping": clipping, "total_environment_frames": frames},
        **{"mode": "pbt" if population else "train", "population_size": size * bool(population)},
        "pixel_control": name == "dmlab30-pixel",
    }
    if suite == "dmlab30":
        expected["action_set"] = "impala" if name == "dmlab30-original" else "popart"
    for agent in agents:
        file = f"{name}-{agent}{population}"
        assert _config(file).flags.items() >= expected.items()
        assert not _TUNED & _given(file).keys(), "the suite's, or sampled"


def test_experiments_differ_in_what_they_compare_alone() -> None:
    clipped: dict[str, Any] = {"reward_clipping": "abs_one"}
    pairs = [("catch5-clipped-popart", "catch5-raw-popart", clipped)]
    for game in ("demon_attack", "krull"):
        earlier = {"init_from": "agents/atari4"}
        pairs.append((f"{game}-from-atari4-popart", f"{game}-new-popart", earlier))
    for agent in ("impala", "popart", "original-impala"):
        name = f"dmlab30-{agent}"
        pairs.append((f"{name}-large-pbt", f"{name}-pbt", {"population_size": 24}))
    for name, other, changed in pairs:
        assert _config(name) == dataclasses.replace(_config(other), **changed), name
    for name in ("catch5-raw-popart", "atari4-popart", "dmlab4-popart", "search-popart"):
        assert _config(name).reward_clipping == "none"
