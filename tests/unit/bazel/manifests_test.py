"""What the manifests say to Kubernetes, and descriptions of jobs that are refused."""

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

_PROGRAM = Path(__file__).resolve().parents[3] / "bazel" / "cluster" / "manifests.py"
_NAME = "pong-popart"
_REQUIRED = {"name": _NAME, "actor_jobs": "3", "image": "popart-impala:latest"}
# The oldest that knows all fields, and the newest that the library does.
_VERSIONS = ("1.29.0", kubernetes_validate.latest_version())

_Object = dict[str, Any]


def _run(output_dir: Path, *flags: str, **options: str) -> subprocess.CompletedProcess[str]:
    given = _REQUIRED | options | {"output_dir": str(output_dir)}
    arguments = [f"--{name}={value}" for name, value in given.items()]
    return subprocess.run(
        [sys.executable, str(_PROGRAM), *arguments, "--", *flags], capture_output=True, text=True
    )


def _objects(output_dir: Path, *flags: str, **options: str) -> dict[tuple[str, str], _Object]:
    """What is written, by kind and by name without the run's."""
    result = _run(output_dir, *flags, **options)
    assert result.returncode == 0, result.stderr
    text = (output_dir / f"{_NAME}.kubernetes.yaml").read_text()
    objects = list(yaml.safe_load_all(text))
    by_name = {(o["kind"], o["metadata"]["name"].removeprefix(f"{_NAME}-")): o for o in objects}
    assert len(by_name) == len(objects)
    return by_name


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], _Object]:
    flags = ("--level_name=pong", "--use_popart", "--num_actors=8")
    return _objects(tmp_path_factory.mktemp("manifests"), *flags)


_MEMBERS = ("m00", "m01", "m02")


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], _Object]:
    directory = tmp_path_factory.mktemp("population")
    return _objects(directory, "--level_name=pong", population_size="3")


def _pod(objects: dict[tuple[str, str], _Object], role: str) -> _Object:
    return objects["Job", role]["spec"]["template"]["spec"]


def _container(objects: dict[tuple[str, str], _Object], role: str) -> _Object:
    (container,) = _pod(objects, role)["containers"]
    return container


def _pod_labels(objects: dict[tuple[str, str], _Object], role: str) -> dict[str, str]:
    return objects["Job", role]["spec"]["template"]["metadata"]["labels"]


def _selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


@pytest.mark.parametrize("version", _VERSIONS)
def test_objects_fit_the_schemas_of_kubernetes(
    objects: dict[tuple[str, str], _Object], version: str
) -> None:
    for each in objects.values():
        kubernetes_validate.validate(each, version, strict=True)


def test_schemas_do_refuse(objects: dict[tuple[str, str], _Object]) -> None:
    job = yaml.safe_load(yaml.safe_dump(objects["Job", "actor"]))
    job["spec"]["completion"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, _VERSIONS[0], strict=True)


def test_one_learner_many_actors_and_an_evaluator(
    objects: dict[tuple[str, str], _Object],
) -> None:
    assert {kind: name for kind, name in objects if kind == "Service"} == {"Service": "learner"}
    assert {name for kind, name in objects if kind == "Job"} == {"learner", "actor", "evaluator"}
    actors = objects["Job", "actor"]["spec"]
    assert actors["completions"] == actors["parallelism"] == 3
    for role in ("learner", "evaluator"):
        assert "completions" not in objects["Job", role]["spec"]  # One.


def test_processes_are_started_again_without_end_and_ended_learners_stay_so(
    objects: dict[tuple[str, str], _Object],
) -> None:
    for role in ("learner", "actor", "evaluator"):
        assert _pod(objects, role)["restartPolicy"] == "OnFailure"
        assert objects["Job", role]["spec"]["backoffLimit"] == 2**31 - 1
    assert objects["Job", "learner"]["spec"]["podReplacementPolicy"] == "Failed"
    assert _pod(objects, "learner")["terminationGracePeriodSeconds"] >= 120


def test_each_process_is_told_who_it_is(objects: dict[tuple[str, str], _Object]) -> None:
    flags = ["--level_name=pong", "--use_popart", "--num_actors=8"]
    address = f"--learner_address={_NAME}-learner:8470"
    logdir = f"--logdir=/runs/{_NAME}"
    learner, actor, evaluator = (
        _container(objects, role) for role in ("learner", "actor", "evaluator")
    )
    assert learner["args"] == [*flags, "--job_name=learner", address, logdir]
    assert actor["args"] == [*flags, "--job_name=actor", address, "--task=$(ACTOR_TASK)"]
    assert evaluator["args"] == [*flags, "--job_name=evaluator", logdir]
    (task,) = (variable for variable in actor["env"] if variable["name"] == "ACTOR_TASK")
    assert "job-completion-index" in task["valueFrom"]["fieldRef"]["fieldPath"]
    for container in (learner, actor, evaluator):
        assert container["command"] == ["python3", "/app/experiment.zip"]


def test_selectors_find_the_pods_they_mean_and_no_others(
    objects: dict[tuple[str, str], _Object],
) -> None:
    service = objects["Service", "learner"]["spec"]
    assert service["clusterIP"] == "None"
    for role in ("learner", "actor", "evaluator"):
        labels = _pod_labels(objects, role)
        assert _selects(service["selector"], labels) == (role == "learner")
        other_run = labels | {"app.kubernetes.io/instance": "other"}
        assert not _selects(service["selector"], other_run)


def _connects(
    objects: dict[tuple[str, str], _Object],
    sender: dict[str, str],
    receiver: dict[str, str],
    port: int,
) -> bool:
    """Plays the cluster: a pod that any policy selects is open only where a policy says so."""
    policies = [each["spec"] for (kind, _), each in objects.items() if kind == "NetworkPolicy"]
    assert all(policy["policyTypes"] == ["Ingress"] for policy in policies)
    over = [p for p in policies if _selects(p["podSelector"]["matchLabels"], receiver)]
    assert over, "a pod that no policy selects is open to all"
    for rule in (rule for policy in over for rule in policy["ingress"]):
        assert all(set(peer) == {"podSelector"} for peer in rule["from"])
        from_it = any(_selects(p["podSelector"]["matchLabels"], sender) for p in rule["from"])
        if from_it and any(entry["port"] == port for entry in rule["ports"]):
            return True
    return False


def test_only_the_actors_of_the_run_reach_the_learner_and_nobody_the_others(
    objects: dict[tuple[str, str], _Object],
) -> None:
    labels = {role: _pod_labels(objects, role) for role in ("learner", "actor", "evaluator")}
    connects = functools.partial(_connects, objects)
    strangers: list[dict[str, str]] = [
        {},
        {"app.kubernetes.io/component": "actor"},
        labels["actor"] | {"app.kubernetes.io/instance": "other"},
    ]
    assert connects(labels["actor"], labels["learner"], 8470)
    assert not connects(labels["actor"], labels["learner"], 22)
    for stranger in (*strangers, labels["evaluator"]):
        assert not connects(stranger, labels["learner"], 8470)
    for receiver in (labels["actor"], labels["evaluator"]):
        for sender in (*strangers, *labels.values()):
            assert not connects(sender, receiver, 8470)


def test_only_the_learner_has_gpus(objects: dict[tuple[str, str], _Object], tmp_path: Path) -> None:
    for role in ("learner", "actor", "evaluator"):
        container = _container(objects, role)
        assert container["resources"]["limits"].get("nvidia.com/gpu") == (
            1 if role == "learner" else None
        )
        hidden = {"name": "CUDA_VISIBLE_DEVICES", "value": "-1"} in container["env"]
        assert hidden == (role != "learner")
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    without = _objects(tmp_path, gpus="0")
    assert "nvidia.com/gpu" not in yaml.safe_dump(without["Job", "learner"])


def test_only_learner_and_evaluator_see_the_runs(
    objects: dict[tuple[str, str], _Object],
) -> None:
    for role in ("learner", "actor", "evaluator"):
        claims = [v for v in _pod(objects, role)["volumes"] if "persistentVolumeClaim" in v]
        mounts = {m["name"]: m["mountPath"] for m in _container(objects, role)["volumeMounts"]}
        if role == "actor":
            assert not claims
        else:
            (claim,) = claims
            assert claim["persistentVolumeClaim"]["claimName"] == "runs"
            assert mounts[claim["name"]] == "/runs"


def test_pods_have_no_rights(objects: dict[tuple[str, str], _Object]) -> None:
    for role in ("learner", "actor", "evaluator"):
        pod, own = _pod(objects, role), _container(objects, role)["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        assert not pod["automountServiceAccountToken"]
        assert not own["allowPrivilegeEscalation"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["readOnlyRootFilesystem"]


def test_population_fits_the_schemas_too(population: dict[tuple[str, str], _Object]) -> None:
    for each in population.values():
        kubernetes_validate.validate(each, _VERSIONS[0], strict=True)


def test_each_member_is_a_run_of_its_own_in_one_directory(
    population: dict[tuple[str, str], _Object],
) -> None:
    roles = ("learner", "actor", "evaluator")
    assert len(population) == 3 * 6
    for number, member in enumerate(_MEMBERS):
        flags = ["--level_name=pong", "--mode=pbt", "--population_size=3", f"--pbt_member={number}"]
        address = f"--learner_address={_NAME}-{member}-learner:8470"
        logdir = f"--logdir=/runs/{_NAME}"
        learner, actor, evaluator = (
            _container(population, f"{member}-{role}")["args"] for role in roles
        )
        assert learner == [*flags, "--job_name=learner", address, logdir]
        assert actor == [*flags, "--job_name=actor", address, "--task=$(ACTOR_TASK)"]
        assert evaluator == [*flags, "--job_name=evaluator", logdir]
        for role in ("learner", "evaluator"):
            (claim,) = _pod(population, f"{member}-{role}")["volumes"][1:]
            assert claim["persistentVolumeClaim"] == {"claimName": "runs"}
    for each in population.values():
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == _NAME


def test_only_its_own_actors_reach_a_member_and_its_service_finds_no_other(
    population: dict[tuple[str, str], _Object],
) -> None:
    pods = {
        (member, role): _pod_labels(population, f"{member}-{role}")
        for member in _MEMBERS
        for role in ("learner", "actor", "evaluator")
    }
    for receiver, labels in pods.items():
        member, role = receiver
        may = {(member, "actor")} if role == "learner" else set()
        assert {s for s in pods if _connects(population, pods[s], labels, 8470)} == may
        for other in _MEMBERS:
            selector = population["Service", f"{other}-learner"]["spec"]["selector"]
            assert _selects(selector, labels) == (receiver == (other, "learner"))


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        (["--no-evaluator"], None),
        (["--evaluator"], "learner and evaluator share it"),
        (["--no-evaluator", "--population_size=2"], "all members share it"),
    ],
)
def test_claim_that_several_share_is_said_to_be(
    tmp_path: Path, options: list[str], shared: str | None
) -> None:
    given = [f"--{name}={value}" for name, value in _REQUIRED.items()]
    command = [sys.executable, str(_PROGRAM), *given, *options, f"--output_dir={tmp_path}"]
    subprocess.run(command, check=True)
    header = (tmp_path / f"{_NAME}.kubernetes.yaml").read_text().partition("---")[0]
    assert ("ReadWriteMany" in header) == (shared is not None)
    assert (shared or "The claim must exist.") in header


def test_dollar_signs_reach_the_experiment(tmp_path: Path) -> None:
    objects = _objects(tmp_path, "--level_name=$(HOME)$x")
    assert _container(objects, "actor")["args"][0] == "--level_name=$$(HOME)$$x"


@pytest.mark.parametrize(("length", "options"), [(40, {}), (36, {"population_size": "100"})])
def test_longest_name_leaves_room_for_what_the_cluster_appends(
    tmp_path: Path, length: int, options: dict[str, str]
) -> None:
    name = "n" * length
    assert _run(tmp_path, name=name, **options).returncode == 0
    text = (tmp_path / f"{name}.kubernetes.yaml").read_text()
    names = re.findall(r"^metadata:\n  name: (.*)", text, re.MULTILINE)
    assert len(set(names)) > 1
    # A suffix of its own after a pod's name, an actor's index before it.
    assert max(map(len, names)) + len("-99999-abcde") <= 63


@pytest.mark.parametrize(
    ("flags", "options", "expected"),
    [
        ([], {"name": "atari57_popart"}, ["--name=atari57_popart", "hyphens"]),
        ([], {"name": "n" * 41}, ["at most 40"]),
        ([], {"name": "n" * 37, "population_size": "2"}, ["at most 36"]),
        ([], {"population_size": "1"}, ["--population_size", "[2, 100]", "got 1"]),
        ([], {"population_size": "101"}, ["--population_size", "got 101"]),
        ([], {"name": "57-games"}, ["beginning with a letter"]),
        ([], {"image": ""}, ["--image", "empty"]),
        ([], {"actor_jobs": "0"}, ["--actor_jobs", "got 0"]),
        ([], {"actor_jobs": "many"}, ["--actor_jobs", "'many'"]),
        ([], {"port": "80"}, ["--port", "got 80"]),
        ([], {"gpus": "-1"}, ["--gpus", "got -1"]),
        ([], {"actor_cpus": "0"}, ["--actor_cpus"]),
        ([], {"volume_claim": "My Claim"}, ["--volume_claim=My Claim"]),
        ([], {"colour": "red"}, ["--colour=red"]),
        ([], {"slurm_option": "account=lab"}, ["'account=lab'", "sbatch"]),
        (["pong"], {}, ["'pong'", "--name=value"]),
        (["--seed=1\nrm"], {}, ["not a flag"]),
        (["--logdir=/tmp/run"], {}, ["--logdir", "leave it out"]),
        (["--job_name=learner"], {}, ["--job_name", "leave it out"]),
        (["--mode=pbt"], {}, ["--mode", "leave it out"]),
        (["--population_size=8"], {}, ["--population_size", "leave it out"]),
        (["--pbt_member=0"], {"population_size": "8"}, ["--pbt_member", "leave it out"]),
    ],
)
def test_impossible_job_is_answered_with_one_line_and_nothing_is_written(
    tmp_path: Path, flags: list[str], options: dict[str, str], expected: list[str]
) -> None:
    out = tmp_path / "out"
    result = _run(out, *flags, **options)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert all(text in result.stderr for text in expected), result.stderr
    assert not out.exists()


def test_missing_option_is_named() -> None:
    result = subprocess.run(
        [sys.executable, str(_PROGRAM), "--name=x"], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr == ("error: the following arguments are required: --actor_jobs, --image\n")
