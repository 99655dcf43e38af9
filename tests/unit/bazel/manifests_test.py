"""The manifests that are written for Kubernetes, and descriptions of jobs that are refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from absl import flags as absl_flags

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from tests.fakes.main_program import given_flags
from tests.fakes.programs import ROOT

_NAME, _PORT = "pong-popart", 8470
_ROLES = ("learner", "actor", "evaluator")
_FLAGS = ["--level_name=pong", "--use_popart", "--num_actors=8"]
_POPULATION = ["--level_name=pong", "--mode=pbt", "--population_size=2"]

_Objects = dict[tuple[str, str], dict[str, Any]]
_Make = Callable[..., _Objects]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Make:
    """Writes manifests and returns their objects by kind and by name without the job's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT / "bazel" / "cluster"))
    import manifests  # noqa: PLC0415

    def run(*experiment_flags: str, **options: str) -> _Objects:
        given = {"name": _NAME, "actor_jobs": "3", "image": "popart-impala:latest"} | options
        arguments = [f"--{name}={value}" for name, value in given.items()]
        manifests.main(["manifests.py", *arguments, "--output_dir=~/out", "--", *experiment_flags])
        text = (tmp_path / "out" / f"{given['name']}.kubernetes.yaml").read_text("utf-8")
        objects = list(yaml.safe_load_all(text))
        prefix = f"{given['name']}-"
        return {(o["kind"], o["metadata"]["name"].removeprefix(prefix)): o for o in objects}

    return run


def _pod(objects: _Objects, name: str) -> dict[str, Any]:
    return objects["Job", name]["spec"]["template"]["spec"]


def _container(objects: _Objects, name: str) -> dict[str, Any]:
    (container,) = _pod(objects, name)["containers"]
    return container


def _labels(objects: _Objects, name: str) -> dict[str, str]:
    return objects["Job", name]["spec"]["template"]["metadata"]["labels"]


def _connects(objects: _Objects, sender: dict[str, str], receiver: dict[str, str]) -> bool:
    """Returns whether policies let a pod connect; one that any selects is otherwise closed."""
    policies = [each["spec"] for (kind, _), each in objects.items() if kind == "NetworkPolicy"]
    over = [p for p in policies if p["podSelector"]["matchLabels"].items() <= receiver.items()]
    assert over, "a pod that no policy selects is open to all"
    for rule in (rule for policy in over for rule in policy["ingress"]):
        assert [entry["port"] for entry in rule["ports"]] == [_PORT]
        assert all(set(peer) == {"podSelector"} for peer in rule["from"])
        if any(p["podSelector"]["matchLabels"].items() <= sender.items() for p in rule["from"]):
            return True
    return False


def test_the_files_that_bazel_lists_are_written_and_named(
    make: _Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(*_FLAGS)
    _, _, rest = (ROOT / "bazel/jobs/jobs.bzl").read_text().partition("outs = [")
    endings = re.findall(r'name \+ "\.([\w.]+)"', rest.partition("]")[0])
    files = [tmp_path / "out" / f"{_NAME}.{ending}" for ending in endings]
    assert capsys.readouterr().out == "".join(f"written: {file}\n" for file in files)
    assert set((tmp_path / "out").iterdir()) == set(files)


def test_processes_know_who_they_are_and_start_again(make: _Make) -> None:
    objects = make(*_FLAGS)
    assert {name for kind, name in objects if kind == "Job"} == set(_ROLES)
    address, logdir = f"--learner_address={_NAME}-learner:{_PORT}", f"--logdir=/runs/{_NAME}"
    flags = {"learner": [address, logdir, "--gpus=1", "--keys_dir=/keys"], "evaluator": [logdir]}
    flags["actor"] = [address, "--task=$(ACTOR_TASK)", "--keys_dir=/keys"]
    for role in _ROLES:
        pod, container = _pod(objects, role), _container(objects, role)
        assert "command" not in container, "the image's own is the experiment"
        assert container["args"] == [*_FLAGS, f"--job_name={role}", *flags[role]]
        another = {"name": "ANOTHER_LOGDIR", "value": "another --name to the manifests"}
        assert another in container["env"]
        spec = objects["Job", role]["spec"]
        assert ("podFailurePolicy" in spec) == (role != "actor")
        # Kubernetes refuses other combinations of these.
        never = pod["restartPolicy"] == "Never"
        assert never == (spec["podReplacementPolicy"] == "Failed") == ("podFailurePolicy" in spec)
        limit = "backoffLimitPerIndex" if role == "actor" else "backoffLimit"
        assert spec[limit] == 2**31 - 1
        assert spec.get("completions") == (3 if role == "actor" else None)
        assert ("successPolicy" in spec) == (spec.get("completionMode") == "Indexed")
        tolerated = [each for each in pod.get("tolerations", ()) if each["effect"] == "NoExecute"]
        # Actors alone leave a lost node soon.
        assert [each["tolerationSeconds"] for each in tolerated] == [30, 30] * (role == "actor")
    assert _pod(objects, "learner")["terminationGracePeriodSeconds"] >= 120


@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
def test_every_field_is_one_of_kubernetes(make: _Make, version: str) -> None:
    given = {"namespace": "lab", "image_pull_secret": "registry", "image_pull_policy": "Always"}
    given |= {f"{role}_node_label": "gpu=h100" for role in _ROLES}
    for each in (make(*_FLAGS, gpus="0"), make(*_FLAGS, **given), make(*_POPULATION)):
        assert {kind for kind, _ in each} == {"Job", "NetworkPolicy", "Service"}
        for manifest in each.values():
            kubernetes_validate.validate(manifest, version, strict=True)


def test_values_stay_what_they_are_in_yaml(make: _Make) -> None:
    path = '--dataset_path=it\'s a $(HOME), "ü": {{ x }} # \\'
    objects = make("--level_name=dmlab30", path, name="yes", volume_claim="1", namespace="0")
    assert _container(objects, "learner")["args"][1] == path.replace("$", "$$")
    assert _labels(objects, "learner")["app.kubernetes.io/instance"] == "yes"
    assert objects["Job", "learner"]["metadata"]["namespace"] == "0"
    claims = [v.get("persistentVolumeClaim") for v in _pod(objects, "learner")["volumes"]]
    assert {"claimName": "1"} in claims


def test_clusters_know_where_pods_and_images_are(make: _Make) -> None:
    options = {"namespace": "lab", "image_pull_secret": "registry", "image_pull_policy": "Never"}
    nodes = {"learner_node_label": "gpu=h100", "actor_node_label": "example.org/kind=cpu"}
    objects = make(*_FLAGS, **options, **nodes)
    assert {each["metadata"]["namespace"] for each in objects.values()} == {"lab"}
    for role in _ROLES:
        pod = _pod(objects, role)
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert _container(objects, role)["imagePullPolicy"] == "Never"
    assert _pod(objects, "learner")["nodeSelector"] == {"gpu": "h100"}
    assert _pod(objects, "actor")["nodeSelector"] == {"example.org/kind": "cpu"}
    assert "nodeSelector" not in _pod(objects, "evaluator")


def test_pods_have_no_rights_and_no_more_than_they_need(make: _Make) -> None:
    objects = make(*_POPULATION)
    for role in _ROLES:
        pod, container = _pod(objects, f"m01-{role}"), _container(objects, f"m01-{role}")
        limits = dict(container["resources"]["limits"])
        assert limits.pop("nvidia.com/gpu", None) == (1 if role == "learner" else None)
        assert limits == container["resources"]["requests"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert ("runs" in volumes) == (role != "actor")
        assert ("keys" in volumes) == (role != "evaluator")
        if role != "evaluator":
            secret = volumes["keys"]["secret"]
            assert secret["secretName"] == f"{_NAME}-keys", "one for the population"
            assert secret["defaultMode"] == 0o440
            names = [item["key"] for item in secret["items"]]
            assert names == ["authority.crt", f"{role}.crt", f"{role}.key"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_members_share_a_directory_and_only_their_own_actors_reach_a_learner(make: _Make) -> None:
    objects = make(*_POPULATION)
    pods = {(m, role): _labels(objects, f"{m}-{role}") for m in ("m00", "m01") for role in _ROLES}
    for (member, role), receiver in pods.items():
        senders = {sender for sender in pods if _connects(objects, pods[sender], receiver)}
        assert senders == ({(member, "actor")} if role == "learner" else set())
        address = f"--learner_address={_NAME}-{member}-learner:{_PORT}"
        flags = {address, f"--logdir=/runs/{_NAME}", f"--pbt_member={int(member[1:])}"}
        assert {*_POPULATION, *flags} <= set(_container(objects, f"{member}-learner")["args"])
        service = objects["Service", f"{member}-learner"]["spec"]
        assert service["clusterIP"] == "None"
        named = {pod for pod in pods if service["selector"].items() <= pods[pod].items()}
        assert named == {(member, "learner")}


@pytest.mark.parametrize("name", ["atari57-unclipped-popart", "dmlab30-popart-large-pbt"])
def test_jobs_are_the_experiments_of_their_flag_files(make: _Make, name: str) -> None:
    path = ROOT / "configs" / name.partition("-")[0] / f"{name}.flags"
    flags = ["--num_actors=30"] if "dmlab30" in name else []
    objects = make(*flags, name=name, flag_file=str(path))
    learner = "m00-learner" if name.endswith("-pbt") else "learner"
    both = (_container(objects, learner)["args"], [f"--flagfile={path}", *flags])
    one, other = (Config.from_flags(given_flags(*each)).experiment for each in both)
    assert one == other


@pytest.mark.parametrize(
    ("flags", "options", "message"),
    [
        ("--pbt_member=0", {}, "--pbt_member"),
        ("--use_popat", {}, "use_popat"),
        ("--level_name=atari57", {}, "--num_actors=8 in each of --actor_jobs=3 cannot play"),
        ("--mode=pbt", {}, "--population_size"),
        ("--mode=pbt --population_size=101", {}, "--population_size=101"),
        ("--population_size=2", {}, "--population_size"),
        ("boxing", {}, "is not a flag"),
        ("--seed=1", {"name": "Pong"}, "--name"),
        ("--seed=1", {"actor_node_label": "h100"}, "--actor_node_label"),
    ],
)
def test_an_impossible_job_is_refused_before_anything_is_written(
    make: _Make, tmp_path: Path, flags: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises((UserError, absl_flags.Error), match=message) as refused:
        make("--level_name=pong", "--num_actors=8", *flags.split(), **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()
