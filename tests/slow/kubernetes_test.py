"""The manifests keep their promises on the Kubernetes that KUBECONFIG names.

All is done in a namespace of its own, which is deleted at the end. KUBERNETES_IMAGE is the image of
the experiment, and KUBERNETES_STORAGE_CLASS the class of a ReadWriteMany volume, by default the
cluster's own. Four cores and eight GiB of memory must be free.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.programs import ROOT

_IMAGE = os.environ.get("KUBERNETES_IMAGE")
_MISSING = [name for name in ("KUBECONFIG", "KUBERNETES_IMAGE") if not os.environ.get(name)]
_MISSING += [] if shutil.which("kubectl") else ["kubectl"]
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"without {' and '.join(_MISSING)}")

_DEADLINE_SECONDS = 600  # Each node may have to fetch the image.
_NAMESPACE = f"popart-impala-{secrets.token_hex(4)}"
_FLAGS = ["--level_name=catch5", "--use_popart", "--num_actors=5", "--precision=float32"]
_FLAGS += ["--test_num_episodes=5", "--log_seconds=0.5"]
_FRAMES = 100_000
_SHORT, _ENDLESS = (f"--total_environment_frames={count}" for count in (_FRAMES, 10**9))
_SIZES = [f"--{role}_cpus=1" for role in ("learner", "actor", "evaluator")]
_SIZES += [f"--{role}_memory_gib=2" for role in ("learner", "actor", "evaluator")]

_CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
if storage_class := os.environ.get("KUBERNETES_STORAGE_CLASS"):
    _CLAIM["storageClassName"] = storage_class
_USER = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
_RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_MOUNTS = [{"name": "runs", "mountPath": "/runs"}]
_SLEEP = {"name": "reader", "image": _IMAGE, "command": ["sleep", "infinity"]}
_READER = {
    "securityContext": _USER | {"seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [_SLEEP | {"volumeMounts": _MOUNTS, "securityContext": _RIGHTS}],
    "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
    "automountServiceAccountToken": False,
    "terminationGracePeriodSeconds": 0,
}

_Metrics = list[dict[str, Any]]


def _kubectl(*arguments: str, given: str | None = None) -> str:
    """Returns what kubectl prints; neither it nor the cluster may complain."""
    command = ["kubectl", f"--namespace={_NAMESPACE}", *arguments]
    result = subprocess.run(command, input=given, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr
    return result.stdout


def _wait(condition: str, *objects: str) -> None:
    _kubectl("wait", f"--for={condition}", f"--timeout={_DEADLINE_SECONDS}s", *objects)


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition did not come about"
        time.sleep(1)


def _create(kind: str, name: str, spec: dict[str, Any]) -> None:
    described = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    _kubectl("create", "--filename=-", given=json.dumps(described))


def _kill(pod: str) -> None:
    """Kills what runs in a pod's container."""
    _kubectl("exec", pod, "--", "sh", "-c", "kill -9 -1")


@pytest.fixture(scope="module")
def namespace() -> Iterator[None]:
    """Makes a namespace in which pods have no rights, with a volume and a pod that shows it."""
    _kubectl("create", "namespace", _NAMESPACE)
    try:
        levels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
        _kubectl("label", "namespace", _NAMESPACE, *levels)
        _create("PersistentVolumeClaim", "runs", _CLAIM)
        _create("Pod", "reader", _READER)
        _wait("condition=Ready", "pod/reader")
        yield
    finally:
        _kubectl("delete", "namespace", _NAMESPACE, "--namespace=")


class Run:
    """A run with two actor jobs."""

    def __init__(self, directory: Path):
        self.name = f"run-{secrets.token_hex(2)}"
        self._directory = directory
        self._file = f"--filename={directory / self.name}.kubernetes.yaml"
        keys = directory / "keys"
        subprocess.run([sys.executable, ROOT / "tools" / "make_keys.py", keys], check=True)
        _kubectl("create", "secret", "generic", f"{self.name}-keys", f"--from-file={keys}")

    def apply(self, *flags: str, evaluator: str = "no-evaluator", labels: str = "") -> None:
        program = [sys.executable, ROOT / "bazel" / "cluster" / "manifests.py", *_SIZES]
        program += [f"--name={self.name}", f"--image={_IMAGE}", "--actor_jobs=2", "--gpus=0"]
        program += [f"--{evaluator}", f"--output_dir={self._directory}"]
        subprocess.run([*program, "--", *_FLAGS, *flags], check=True)
        _kubectl("apply", self._file, f"--selector={labels}")

    def delete(self) -> None:
        _kubectl("delete", "--ignore-not-found", self._file)
        _kubectl("delete", "resourcequota", "--all")
        _wait_until(lambda: not self.pods())

    def scale(self, actor_jobs: int) -> None:
        size = {"spec": {"completions": actor_jobs, "parallelism": actor_jobs}}
        _kubectl("patch", f"job/{self.name}-actor", f"--patch={json.dumps(size)}")

    def pods(self, role: str = "") -> list[str]:
        labels = f"app.kubernetes.io/name=popart-impala,app.kubernetes.io/component={role}"
        selector = labels if role else labels.partition(",")[0]
        return _kubectl("get", "pods", f"--selector={selector}", "--output=name").split()

    def read(self, path: str) -> _Metrics:
        """Returns the complete lines of a file in the run directory."""
        command = ("sh", "-c", f"cat /runs/{self.name}/{path} || true")
        lines = _kubectl("exec", "reader", "--", *command).splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def trains(self, after: _Metrics | None = None) -> _Metrics:
        """Returns the learner's log once it has a later line than this one."""
        begin = after[-1]["time"] if after else 0
        _wait_until(lambda: any(line["time"] > begin for line in self.read("metrics.jsonl")))
        return self.read("metrics.jsonl")


@pytest.fixture
def run(namespace: None, tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.delete()


def test_a_run_and_its_late_actors_complete(run: Run) -> None:
    run.apply(_SHORT, evaluator="evaluator")
    run.trains()
    # A third actor job has no room before the learner has ended.
    _create("ResourceQuota", "full", {"hard": {"pods": "1"}})
    run.scale(3)
    _wait("condition=Complete", f"job/{run.name}-learner")
    _kubectl("delete", "resourcequota/full")
    _wait("condition=Complete", "job", "--all")
    frames = run.read("metrics.jsonl")[-1]["frames"]
    assert frames >= _FRAMES
    assert run.read("evaluations.jsonl")[-1]["frames"] == frames
    _kubectl("delete", f"job/{run.name}-actor")
    late = {"evaluator": "evaluator", "labels": "app.kubernetes.io/component=actor"}
    run.apply(_SHORT, "--learner_timeout_hours=0.01", **late)
    _wait("condition=Complete", "job", "--all")


def test_killed_processes_start_again(run: Run) -> None:
    run.apply(_ENDLESS)
    run.trains()
    (learner,), (actor, _) = run.pods("learner"), run.pods("actor")
    _kill(actor)
    _wait("jsonpath={.status.containerStatuses[0].restartCount}=1", actor)
    _kill(learner)
    _wait("jsonpath={.status.phase}=Failed", learner)
    run.trains(run.read("metrics.jsonl"))
    assert len(run.pods("learner")) == 2, "the failed pod stays with its log"


def test_a_deleted_learner_saves(run: Run) -> None:
    run.apply(_ENDLESS, "--checkpoint_seconds=1e6")
    before = run.trains(run.trains())  # The first update has a checkpoint of its own.
    _kubectl("delete", *run.pods("learner"))
    assert run.trains(run.read("metrics.jsonl"))[: len(before)] == before


def test_actor_jobs_are_added_and_removed(run: Run) -> None:
    run.apply(_ENDLESS)
    for count in (3, 1):
        run.scale(count)
        _wait_until(lambda count=count: len(run.pods("actor")) == count)  # type: ignore[misc]
        _wait("condition=Ready", *run.pods("actor"))
        run.trains(run.read("metrics.jsonl"))


def test_a_wrong_flag_fails_the_job_and_the_right_one_resumes(run: Run) -> None:
    run.apply(_ENDLESS)
    run.trains()
    run.delete()
    before = run.read("metrics.jsonl")
    run.apply(_ENDLESS, "--nouse_popart")
    _wait("condition=Failed", f"job/{run.name}-learner")
    *_, line = _kubectl("logs", f"job/{run.name}-learner").splitlines()
    assert "use_popart" in line
    assert len(run.pods("learner")) == 1
    run.delete()
    run.apply(_ENDLESS)
    assert run.trains(before)[: len(before)] == before


def test_a_population_completes(run: Run) -> None:
    run.apply(_SHORT, "--mode=pbt", "--population_size=2")
    _wait("condition=Complete", "job", "--all")
    for member in ("member-00", "member-01"):
        assert run.read(f"{member}/metrics.jsonl")[-1]["frames"] >= _FRAMES
