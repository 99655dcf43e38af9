"""The command line: what it tells of itself, and what is refused, in one line, at once."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from absl import flags
from absl.testing import flagsaver

import experiment
import scalable_agent_popart
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.settings import FIELDS
from scalable_agent_popart.system import tensorflow_import
from tests.fakes.programs import DEADLINE_SECONDS, ROOT, Programs, run_python, wait_until

# One program of each kind: all tools begin and end alike.
_KINDS = ["experiment.py", "tools/watch.py", "benchmarks/throughput.py"]
_KINDS += ["bazel/cluster/manifests.py"]


def _refusal(*arguments: str) -> str:
    """The line that the program ends with, before it has imported TensorFlow."""
    too_late = mock.patch.object(tensorflow_import, "import_quietly", side_effect=AssertionError)
    with flagsaver.flagsaver(), too_late, pytest.raises(SystemExit) as end:
        experiment.main(flags.FLAGS(["experiment.py", *arguments]))
    line = str(end.value.code)
    assert line.startswith("error: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("word", ["-h", "-help", "--help", "--helpfull"])
def test_help_has_every_setting_in_its_group(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        experiment._parse_flags(["experiment.py", "--mode=test", word])
    assert not end.value.code
    listed = re.findall(r"^(\w+:)$|^  (--\w+)", capsys.readouterr().out, re.MULTILINE)
    expected: list[str] = []
    for name in (field.name for field in FIELDS):
        expected += [f"{experiment.GROUPS[name]}:"] if name in experiment.GROUPS else []
        expected += [f"--{name}"]
    assert [head or flag for head, flag in listed][: len(expected)] == expected


def test_levels_are_listed_also_of_a_users_suite(capsys: pytest.CaptureFixture[str]) -> None:
    for given, lines in (
        (["--level_name=tests.fakes.rare_rewards:small"], ["dense", "small", "rare", "constant"]),
        (["--level_name=catch_1"], ["catch_0.01", "catch_0.1"]),
        ([], ["atari57: 57 levels", "catch5: 5 levels", "cluttered_catch: 1 level"]),
    ):
        with flagsaver.flagsaver():
            experiment.main(flags.FLAGS(["experiment.py", "--list_levels", *given]))
        assert capsys.readouterr().out.splitlines()[: len(lines)] == lines


def test_a_module_of_the_user_that_hides_one_of_the_package_is_named(tmp_path: Path) -> None:
    (hides := tmp_path / "environments.py").touch()
    # Only a module of this name is legitimate: nothing of the package imports it.
    (tmp_path / "experiment.py").write_text("import scalable_agent_popart")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    where = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": path}}
    line = run_python("-c", "import experiment", **where).stderr.splitlines()[-1]
    assert line.startswith(f"ImportError: {hides} is found in place of {ROOT / hides.name}, ")
    hides.unlink()
    result = run_python("-m", "scalable_agent_popart", "--version", **where)
    version = scalable_agent_popart.__version__
    assert result.stdout.startswith(f"PopArt-IMPALA {version}"), result.stderr
    assert result.returncode == 0


def test_a_process_refuses_in_one_line_and_without_tensorflow(tmp_path: Path) -> None:
    given = ["--level_name=pongg", f"--logdir={tmp_path / 'run'}"]
    result = run_python("-X", "importtime", "experiment.py", *given)
    lines = result.stderr.splitlines()
    (error,) = (line for line in lines if not line.startswith("import time:"))
    imported = {line.rsplit("|", 1)[1].strip() for line in lines if "|" in line}
    assert re.match("error: --level_name: .*'pongg'.* pong", error)
    assert (result.returncode, result.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "absl.flags" in imported, "imports are to be seen at all"
    assert not {"tensorflow", "sonnet"} & imported


@pytest.mark.parametrize(
    ("program", "flag", "named"),
    [
        ("bazel/cluster/manifests.py", "--nope", "--image"),
        ("experiment.py", "--nope", "nope"),
        ("experiment.py", "--flagfile=nope", "flagfile.* 'nope'"),
    ],
)
def test_a_program_answers_a_wrong_flag_in_one_line_and_with_the_same_exit_code(
    program: str, flag: str, named: str
) -> None:
    result = run_python(program, flag)
    assert re.fullmatch(f"error: .*{named}.*\n", result.stderr)
    assert (result.returncode, result.stdout) == (2, "")


_IMPORTED = ("absl", "jinja2", "matplotlib", "numpy", "pandas")
_LOAD = ("--logdir=agents/catch5", "--output=none")


@pytest.mark.parametrize(
    ("command", "loaded"),
    [((program,), _IMPORTED) for program in _KINDS]
    + [(("tools/export_agent.py", *_LOAD), ("tensorflow",))]
    + [(("experiment.py", "--mode=test", "--logdir=agents/catch5"), ("tensorflow",))],
)
def test_ctrl_c_ends_a_program_that_loads_without_a_traceback(
    tmp_path: Path, command: tuple[str, ...], loaded: tuple[str, ...]
) -> None:
    for name in loaded:
        source = "import signal\nprint('loads', flush=True)\nsignal.pause()\n"
        (tmp_path / f"{name}.py").write_text(source)
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, **path}, **pipes
    )
    with process:
        assert process.stdout.readline() == b"loads\n"
        process.send_signal(signal.SIGINT)
        output, messages = process.communicate(timeout=DEADLINE_SECONDS)
        assert not output
        assert all(line.endswith(b": loading TensorFlow") for line in messages.splitlines())
    assert process.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("program", _KINDS)
def test_a_python_that_cannot_run_a_program_is_named_with_what_helps(program: str) -> None:
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    old = f"import runpy, sys; sys.version_info = (3, 8); sys.argv[:] = [{program!r}]; "
    old += f"sys.path[0] = {os.path.dirname(program)!r}; "
    old += f"runpy.run_path({program!r}, None, '__main__')"
    for arguments, problem in (
        (("-S", program), ".*'absl'"),
        (("-c", old), ".*Python 3.8.*Python 3.11, 3.12 or 3.13.*"),
    ):
        result = run_python(*arguments, env=environment)
        expected = rf"error: {sys.executable} {problem}: .*make install.*\n"
        assert re.fullmatch(expected, result.stderr)
        assert result.returncode == 2


def test_the_pythons_of_old_systems_can_read_the_launch_script() -> None:
    ast.parse((ROOT / "experiment.py").read_text(), feature_version=(3, 6))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_refuses_another_python_and_an_environment_of_another(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for version in ("3.11", "3.12"):
        (tmp_path / version).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / version).chmod(0o700)

    def refusal() -> str:
        command = ["make", "--silent", "install", f"PYTHON={tmp_path / '3.12'}"]
        alone = {"PATH": os.environ["PATH"]}  # The tests' own make gives its options to others.
        result = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
        assert result.returncode == 2
        return result.stderr.splitlines()[0]

    assert "3.12 is no Python" in refusal()  # Nothing is locked for it.
    assert not (tmp_path / ".venv").exists()
    for version in ("3.11", "3.12"):
        (tmp_path / "requirements" / f"python{version}.txt").touch()
    left = tmp_path / ".venv" / "bin" / "python"
    left.parent.mkdir(parents=True)
    for target in ("nowhere", "/bin/false", "../../3.11"):
        left.symlink_to(target)
        assert "rm -r .venv" in refusal()
        left.unlink()


def test_a_process_that_loads_ends_at_sigterm_though_what_started_it_ignores_that(
    programs: Programs, tmp_path: Path
) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # It waits some seconds for a run there.
    waits = {"logdir": tmp_path / "run", "learner_timeout_hours": 0.01}
    process = programs.run(job_name="evaluator", **waits)
    signal.signal(signal.SIGTERM, before)

    def ended() -> bool:
        process.terminate()
        return process.poll() is not None

    wait_until(ended)
    assert process.returncode == -signal.SIGTERM


def test_an_exit_that_somebody_elses_code_asks_for_is_an_error() -> None:
    code: int | None = None

    def leave(*_: object) -> None:
        sys.exit(code)

    with mock.patch.dict(experiment._JOBS, {("train", "learner"): leave}):
        for each in (None, 0, 3):
            code = each
            line = _refusal("--level_name=catch5")
            assert re.match(rf"error: {re.escape(__file__)}, line \d+, called sys.exit", line)
        code = 128 + signal.SIGTERM
        with flagsaver.flagsaver(), pytest.raises(SystemExit) as end:
            experiment.main(flags.FLAGS(["experiment.py", "--level_name=catch5"]))
    assert end.value.code == code


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["--level_name", "atari57, catch5"]),
        (["--level_name=catch5", "stray"], ["'stray'", "--name=value"]),
        (["--level_name=catch5", "--logdir="], ["--logdir"]),
        (["--job_name=evaluator", "--learner_timeout_hours=1e-12"], ["/run;"]),
        (["--mode=test", "--logdir=agents"], [" agents;", " agents/atari4 or agents/"]),
        (["--level_name=catch5", "--init_from=nope"], ["--init_from", "nope"]),
        (["--job_name=evaluator", "--mode=pbt"], ["--pbt_member"]),
    ],
)
def test_command_that_cannot_be_is_refused_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    line = _refusal(f"--logdir={tmp_path / 'run'}", *arguments)
    assert all(text in line for text in expected), line
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    report, readable = ["--mode=report", "--report_dir=~/report"], f"{ROOT}/agents/catch5"
    for arguments, path in (
        (["--mode=test", "--logdir=~/file"], f"{tmp_path}/file"),
        (["--level_name=catch5", "--logdir=~/file"], f"{tmp_path}/file"),
        ([*report, f"--runs={readable},~/fil?s"], f"{tmp_path}/fil?s"),
        ([*report, f"--runs={readable},a~b"], " a~b"),
    ):
        assert path in _refusal(*arguments)
    assert not (tmp_path / "report").exists()


def test_flags_of_a_run_are_kept_once_it_has_learned_something(tmp_path: Path) -> None:
    given = {"level_name": "catch5", "use_popart": True, "logdir": str(tmp_path)}
    directory = RunDirectory(tmp_path)
    directory.record(Config.from_flags({**given, "popart_step_size": 0.01}))
    assert experiment._config_to_train(given).popart_step_size == 3e-4
    actor = {**given, "job_name": "actor", "task": 0}
    assert experiment._config_to_train(actor).popart_step_size == 0.01
    directory.checkpoints.mkdir()
    (directory.checkpoints / "ckpt-1.index").touch()
    assert experiment._config_to_train(given).popart_step_size == 0.01


def test_an_evaluator_waits_for_its_learner_as_long_as_it_is_told_to(tmp_path: Path) -> None:
    RunDirectory(tmp_path).record(Config.from_flags({"level_name": "catch5"}))
    given = {"job_name": "evaluator", "logdir": str(tmp_path), "learner_timeout_hours": 9.0}
    _, config = experiment._config_to_test(given)
    assert config.learner_timeout_hours == 9.0


def test_what_does_not_play_needs_no_emulator_but_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)  # It may be installed here.
    level = ["--level_name=dmlab30", "--dataset_path=dummy", f"--logdir={tmp_path}"]
    assert "deepmind_lab" in _refusal(*level)
    (tmp_path / "population.json").touch()
    assert "member-00" in _refusal(*level, "--learner_address=host:1")
