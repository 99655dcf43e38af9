"""The jobs that are declared: their flags are possible, and so is what the macro makes of them.

Starlark is close enough to Python for the files to be run as such.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml
from absl import flags
from absl.testing import flagsaver

import experiment
from scalable_agent_popart import suites
from scalable_agent_popart.config import Config

_BAZEL = Path(__file__).resolve().parents[3] / "bazel"
_SUITES: dict[str, dict[str, Any]] = {
    "atari57-clipped": {"level_name": "atari57", "reward_clipping": "abs_one"},
    "atari57-unclipped": {"level_name": "atari57", "reward_clipping": "none"},
    "dmlab30": {"level_name": "dmlab30", "reward_clipping": "oar", "action_set": "popart"},
}
_SUITES["dmlab30-pixel"] = {**_SUITES["dmlab30"], "total_environment_frames": 2_000_000_000}
_USUAL = {"impala": "IMPALA", "multihead": "MultiHead-IMPALA", "popart": "PopArt-IMPALA"}
_AGENTS = {
    "atari57-clipped": _USUAL,
    "atari57-unclipped": _USUAL,
    "dmlab30": _USUAL,
    "dmlab30-pixel": {"impala": "Pixel-IMPALA", "popart": "Pixel-PopArt-IMPALA"},
}
_JOBS = [f"{suite}-{agent}" for suite, agents in _AGENTS.items() for agent in agents]
# Each is there as a population as well, of so many members.
_POPULATIONS = {f"{job}-pbt": 24 if job.startswith("atari57") else 8 for job in _JOBS}

_Rules = dict[str, dict[str, Any]]


def _run(path: Path, loaded: dict[str, Any]) -> dict[str, Any]:
    """Names that a file of Starlark defines, given those that it loads."""
    unused = dict.fromkeys(("load", "package", "exports_files"), lambda *_, **__: None)
    names = {**unused, **loaded}
    exec(compile(path.read_text(), path.name, "exec"), names)
    return names


@pytest.fixture(scope="module")
def rules() -> _Rules:
    """Targets by name."""
    declared: _Rules = {}

    def rule(name: str, **attributes: Any) -> None:
        assert name not in declared
        declared[name] = attributes

    native = SimpleNamespace(filegroup=rule, genrule=rule)
    macro = _run(_BAZEL / "cluster_job.bzl", {"native": native, "py_binary": rule})["cluster_job"]
    _run(_BAZEL / "jobs" / "BUILD", {"cluster_job": macro})
    return declared


def _words(text: str) -> list[str]:
    """Words as a shell reads them, after Bazel has put in its variables."""
    return [word.replace("$$", "$") for word in shlex.split(text)]


def _flags(rules: _Rules, job: str) -> list[str]:
    """What is declared."""
    words = _words(rules[f"{job}.manifests"]["cmd"])
    return words[words.index("--") + 1 :]


def _run_flags(rules: _Rules, job: str) -> list[str]:
    """What all processes of a run are told, in a population those of its first member."""
    words = _words(rules[f"{job}.manifests"]["cmd"])
    sizes = [word for word in words if word.startswith("--population_size=")]
    return _flags(rules, job) + (["--mode=pbt", *sizes, "--pbt_member=0"] if sizes else [])


def _config(arguments: list[str]) -> Config:
    """As `experiment.py` understands them."""
    with flagsaver.flagsaver():
        assert len(flags.FLAGS(["experiment.py", *arguments])) == 1
        return Config.from_flags(experiment.given_flags())


def test_all_experiments_of_the_paper_are_declared(rules: _Rules) -> None:
    targets = {f"{job}{suffix}" for job in _JOBS for suffix in ("", ".manifests", ".local")}
    targets |= {f"{job}{suffix}" for job in _POPULATIONS for suffix in ("", ".manifests")}
    assert rules.keys() == targets


@pytest.mark.parametrize("job", [*_JOBS, *_POPULATIONS])
def test_a_job_is_the_experiment_of_the_flag_file_of_its_name(rules: _Rules, job: str) -> None:
    declared = _config(_run_flags(rules, job))
    arguments = [f"--flagfile={_BAZEL.parent / 'configs' / job}.flags"]
    if declared.dataset_path:
        arguments.append(f"--dataset_path={declared.dataset_path}")
    assert _config(arguments).experiment == declared.experiment


@pytest.mark.parametrize("job", [*_JOBS, *_POPULATIONS])
def test_flags_make_the_experiment_that_the_name_says(rules: _Rules, job: str) -> None:
    config = _config(_run_flags(rules, job))
    suite, _, agent = job.removesuffix("-pbt").rpartition("-")
    for name, value in _SUITES[suite].items():
        assert getattr(config, name) == value
    assert config.agent_name == _AGENTS[suite][agent]
    # One actor job is enough for every task to be played.
    assert config.num_actors % len(suites.resolve(config.level_name).tasks) == 0
    assert config.pixel_control == suite.endswith("-pixel")
    assert config.total_environment_frames >= (2 if config.pixel_control else 10) * 10**9
    assert config.mode == ("pbt" if job in _POPULATIONS else "train")
    assert config.population_size == _POPULATIONS.get(job, 0)


@pytest.mark.parametrize("job", _POPULATIONS)
def test_population_tunes_all_that_it_can_and_is_else_the_same_run(rules: _Rules, job: str) -> None:
    given = _flags(rules, job)
    assert given == _flags(rules, job.removesuffix("-pbt"))
    config = _config(_run_flags(rules, job))
    assert {"learning_rate", "entropy_cost", "epsilon"} <= set(config.tuned)
    names = {flag.removeprefix("--").partition("=")[0] for flag in given}
    assert not names & {*config.tuned, "learning_rate_schedule"}
    assert config.learning_rate_schedule == "constant"


@pytest.mark.parametrize("suffix", ["", "-pbt"])
def test_agents_differ_in_nothing_else(rules: _Rules, suffix: str) -> None:
    for suite, agents in _AGENTS.items():
        jobs = [f"{suite}-{agent}{suffix}" for agent in agents]
        experiments = [_config(_run_flags(rules, job)).experiment for job in jobs]
        for each in experiments:
            del each["use_popart"], each["multi_head"]
        assert all(each == experiments[0] for each in experiments)


@pytest.mark.parametrize("job", [*_JOBS, *_POPULATIONS])
def test_manifests_are_made(rules: _Rules, job: str, tmp_path: Path) -> None:
    rule = rules[f"{job}.manifests"]
    (tool,) = rule["tools"]
    program = shlex.join([sys.executable, str(_BAZEL / "cluster" / "manifests.py")])
    command = rule["cmd"].replace(f"$(location {tool})", program)
    command = command.replace("$(RULEDIR)", shlex.quote(str(tmp_path))).replace("$$", "$")
    subprocess.run(["bash", "-c", command], check=True)
    assert {path.name for path in tmp_path.iterdir()} == set(rule["outs"])
    _, *texts = (tmp_path / f"{job}.kubernetes.yaml").read_text().split("---\n")
    objects = [yaml.safe_load(text) for text in _first_member(job, texts)]
    for each in objects:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    containers = [
        each["spec"]["template"]["spec"]["containers"][0]
        for each in objects
        if each["kind"] == "Job"
    ]
    own = _run_flags(rules, job)
    num_roles = 2 if job in _POPULATIONS else 3
    assert [container["args"][: len(own)] for container in containers] == [own] * num_roles
    for container in containers:
        _config([argument.replace("$(ACTOR_TASK)", "0") for argument in container["args"]])


def _first_member(job: str, texts: list[str]) -> list[str]:
    """The first member's objects, once it is known that the others' differ in number only."""
    size = _POPULATIONS.get(job, 1)
    each = len(texts) // size
    for member in range(1, size):
        own = "---\n".join(texts[member * each : (member + 1) * each])
        assert f"--pbt_member={member}\n" in own
        own = own.replace(f"{job}-m{member:02d}-", f"{job}-m00-")
        own = own.replace(f" {job}-m{member:02d}\n", f" {job}-m00\n")
        own = own.replace(f"--pbt_member={member}\n", "--pbt_member=0\n")
        assert own == "---\n".join(texts[:each])
    return texts[:each]


@pytest.mark.parametrize("job", _JOBS)
def test_local_run_has_the_same_flags(rules: _Rules, job: str) -> None:
    executable, *others = rules[f"{job}.local"]["args"]
    assert executable == "--executable=$(rootpath //:experiment)"
    logdir, actor_jobs, evaluator, *own = _words(" ".join(others))
    assert logdir == f"--logdir=runs/{job}"
    assert actor_jobs in _words(rules[f"{job}.manifests"]["cmd"])
    assert evaluator == "--evaluator"
    assert own == _flags(rules, job)


def test_any_flag_passes_the_shell_unchanged() -> None:
    macro = _run(_BAZEL / "cluster_job.bzl", {})
    argument = '--dataset_path=it\'s $HOME `x` "y" \\z'
    quoted = macro["_quoted"](argument)
    result = subprocess.run(
        ["bash", "-c", f"printf %s {quoted.replace('$$', '$')}"], capture_output=True, text=True
    )
    assert result.stdout == argument
