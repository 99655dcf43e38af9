"""A job as Kubernetes objects.

Every role is a Job, which ends when its processes have (a StatefulSet or a Deployment would start
a learner that is through with its frames again, and for ever). What fails is started again, and
there is no number of failures after which this stops. But a user's error (exit code 2) would
come again: it fails the Job of the learner or of the evaluator. The price is that these two are
started again as another pod, perhaps on another node, and that failed pods stay, with their logs,
until the Job is deleted. An actor is started again in its pod, after any exit code: Jobs that tell
exit codes apart do not replace a pod before it has ended, which on a lost node it may never do.
That is right for a learner, of which there must not be two, and costs the run its actors there.

The actors' Job is indexed: the index is `--task`, and `kubectl patch` may change `completions` and
`parallelism` together while the run goes on.

The learner is reached by the name of a headless Service, which stays when the pod is another one,
and by which actors find the pod itself: no proxy comes between that would hide from the
NetworkPolicy who is calling.

The run's keys, without which nobody is answered at the learner's port, are a Secret that the user
makes; each role is given its own. A second lock are two NetworkPolicies, which add up: nobody may
connect to any pod of the run, but its actors to the learner's port. They bind only where the
cluster's network plugin enforces NetworkPolicies, they leave out the nodes themselves and pods on
their network, and whoever may create pods in the namespace may label one as an actor, or mount the
Secret.

A population's members are as many runs, each with all of these objects, and with the same keys.
What they know of each other goes through the volume, so that no policy lets another's actors in.
"""

from typing import Any

import yaml
from job_description import Job, Resources

_LARGEST = 2**31 - 1  # int32
_RUNS, _KEYS = "/runs", "/keys"
_USER = 1000
_GPU = "nvidia.com/gpu"
_USER_ERROR = 2  # The experiment's exit code.

# Time to write a checkpoint to a slow volume; actors have nothing to save.
_LEARNER_GRACE_SECONDS = 180
_OTHERS_GRACE_SECONDS = 10

_HEADER = """\
# Runs {name}: {processes}. Generated; change the declaration.
#
# Keys close the learner's port to all but the run's own processes. They are made once{once}:
#
#   python tools/make_keys.py keys/{name}
#   {kubectl} create secret generic {name}-keys --from-file=keys/{name}
#
#   kubectl apply -f {name}.kubernetes.yaml
#   kubectl delete -f {name}.kubernetes.yaml   # to end it, or to apply it with other flags
#
# Checkpoints and logs stay on the claim {volume_claim}, in {name}/, and the next apply resumes.
# The claim must exist{many}.
#
# A learner or an evaluator that ends with exit code 2 says what is to be mended, and is not started
# again: its Job is shown as failed. The others wait on until they are deleted.
"""

_POPULATION_HEADER = """\
#
# Each member is such a run, closed to the other members' actors as well. To end one of them, while
# the others go on without it, and until the next apply:
#
#   {kubectl} delete jobs -l app.kubernetes.io/instance={last}
"""

_Object = dict[str, Any]


def manifest(job: Job) -> str:
    """The job's objects as a stream of YAML documents."""
    kubectl = f"kubectl --namespace={job.namespace}" if job.namespace else "kubectl"
    header = _HEADER.format(
        name=job.name,
        kubectl=kubectl,
        once=", for all members" if job.population_size else "",
        processes=job.processes,
        volume_claim=job.volume_claim,
        many=_sharing(job),
    )
    if job.population_size:
        header += _POPULATION_HEADER.format(kubectl=kubectl, last=job.members[-1].run_name)
    return header + yaml.safe_dump_all(objects(job), sort_keys=False, explicit_start=True)


def objects(job: Job) -> list[_Object]:
    """The objects of all of the job's runs."""
    return [each for member in job.members for each in _objects(member)]


def _sharing(job: Job) -> str:
    """Says what the claim must be, beside existing."""
    if job.population_size:
        return ", and be ReadWriteMany, since all members share it"
    return ", and be ReadWriteMany, since learner and evaluator share it" * job.evaluator


def _objects(job: Job) -> list[_Object]:
    """A run's objects; policies come first, so that the port is never open."""
    return [
        _network_policy(job, "closed", {"matchLabels": _labels(job)}, []),
        _network_policy(job, "learner", {"matchLabels": _labels(job, "learner")}, [_hole(job)]),
        _service(job),
        _learner(job),
        _actors(job),
        *([_evaluator(job)] if job.evaluator else []),
    ]


def _labels(job: Job, role: str | None = None) -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "popart-impala", "app.kubernetes.io/instance": job.run_name}
    if job.member is not None:
        labels["app.kubernetes.io/part-of"] = job.name
    return labels | ({"app.kubernetes.io/component": role} if role else {})


def _metadata(job: Job, suffix: str, role: str | None = None) -> _Object:
    namespace = {"namespace": job.namespace} if job.namespace else {}
    return {"name": f"{job.run_name}-{suffix}", **namespace, "labels": _labels(job, role)}


def _network_policy(job: Job, suffix: str, pods: _Object, ingress: list[_Object]) -> _Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(job, suffix),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _hole(job: Job) -> _Object:
    """Lets the actors through to the learner. Without a namespace selector: of this namespace."""
    return {
        "from": [{"podSelector": {"matchLabels": _labels(job, "actor")}}],
        "ports": [{"protocol": "TCP", "port": job.port}],
    }


def _service(job: Job) -> _Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, "learner", "learner"),
        "spec": {
            "clusterIP": "None",
            "selector": _labels(job, "learner"),
            "ports": [{"name": "learner", "protocol": "TCP", "port": job.port}],
        },
    }


def _learner(job: Job) -> _Object:
    told = ["--job_name=learner", _address(job), _logdir(job), f"--gpus={job.gpus}"]
    container = _container(job, "learner", told)
    container["ports"] = [{"name": "learner", "protocol": "TCP", "containerPort": job.port}]
    pod = _pod(job, "learner", container, _LEARNER_GRACE_SECONDS)
    if job.gpus:
        container["resources"]["limits"][_GPU] = job.gpus
        # Nodes with GPUs commonly turn away pods that do not say they need one.
        pod["tolerations"] = [{"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}]
    _mount_runs(job, pod)
    _mount_keys(job, pod, "learner")
    return _job(job, "learner", pod)


def _actors(job: Job) -> _Object:
    container = _container(job, "actor", ["--job_name=actor", _address(job)])
    container["args"].append("--task=$(ACTOR_TASK)")
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    container["env"].append({"name": "ACTOR_TASK", "valueFrom": {"fieldRef": {"fieldPath": index}}})
    pod = _pod(job, "actor", container, _OTHERS_GRACE_SECONDS)
    _mount_keys(job, pod, "actor")
    actors = _job(job, "actor", pod)
    pod["restartPolicy"] = "OnFailure"
    del actors["spec"]["podFailurePolicy"]
    actors["spec"] |= {
        "completionMode": "Indexed",
        "completions": job.num_actor_jobs,
        "parallelism": job.num_actor_jobs,
        # An actor on a lost node is replaced at once; that both may play does no harm.
        "podReplacementPolicy": "TerminatingOrFailed",
    }
    return actors


def _evaluator(job: Job) -> _Object:
    container = _container(job, "evaluator", ["--job_name=evaluator", _logdir(job)])
    pod = _pod(job, "evaluator", container, _OTHERS_GRACE_SECONDS)
    _mount_runs(job, pod)
    return _job(job, "evaluator", pod)


def _job(job: Job, role: str, pod: _Object) -> _Object:
    is_user_error = {"containerName": role, "operator": "In", "values": [_USER_ERROR]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, role, role),
        "spec": {
            "backoffLimit": _LARGEST,
            "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": is_user_error}]},
            # The next pod starts when the last is gone: two would write to one run directory.
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": _labels(job, role)}, "spec": pod},
        },
    }


def _pod(job: Job, role: str, container: _Object, grace_seconds: int) -> _Object:
    """A pod that has no rights in the cluster, on its node or in its own root directory.

    There are no probes: an open port would not show that a learner learns, and what is checked of
    a run is the age of its last checkpoint, from outside.
    """
    resources: Resources = getattr(job, f"{role}_resources")
    secrets = [{"name": name} for name in job.image_pull_secrets]
    labels = dict(label.split("=", maxsplit=1) for label in resources.node_labels)
    return {
        **({"imagePullSecrets": secrets} if secrets else {}),
        **({"nodeSelector": labels} if labels else {}),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds,
        # As the first process the program would not get SIGTERM before it is ready to save.
        "shareProcessNamespace": True,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        # Where environments and libraries keep their files.
        "volumes": [{"name": "temporary", "emptyDir": {}}],
    }


def _container(job: Job, role: str, arguments: list[str]) -> _Object:
    resources: Resources = getattr(job, f"{role}_resources")
    promised = {"cpu": str(resources.cpus), "memory": f"{resources.memory_gib}Gi"}
    # GPUs that an image shows to everybody on a node are still the learner's.
    hidden = [{"name": "CUDA_VISIBLE_DEVICES", "value": "-1"}]
    return {
        "name": role,
        "image": job.image,
        **({"imagePullPolicy": job.image_pull_policy} if job.image_pull_policy else {}),
        # Kubernetes reads $(NAME) as a variable, and $$ as a dollar sign.
        "args": [argument.replace("$", "$$") for argument in (*job.run_flags, *arguments)],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            *(hidden if role != "learner" else []),
        ],
        "resources": {"requests": dict(promised), "limits": dict(promised)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "temporary", "mountPath": "/tmp"}],
    }


def _mount_runs(job: Job, pod: _Object) -> None:
    claim = {"claimName": job.volume_claim}
    pod["volumes"].append({"name": "runs", "persistentVolumeClaim": claim})
    pod["containers"][0]["volumeMounts"].append({"name": "runs", "mountPath": _RUNS})


def _mount_keys(job: Job, pod: _Object, role: str) -> None:
    """Gives a pod the run's keys for its role, and those alone; its group may read them."""
    files = ("authority.crt", f"{role}.crt", f"{role}.key")
    secret = {
        "secretName": f"{job.name}-keys",
        "defaultMode": 0o440,
        "items": [{"key": file, "path": file} for file in files],
    }
    (container,) = pod["containers"]
    pod["volumes"].append({"name": "keys", "secret": secret})
    container["volumeMounts"].append({"name": "keys", "mountPath": _KEYS, "readOnly": True})
    container["args"].append(f"--keys_dir={_KEYS}")


def _address(job: Job) -> str:
    return f"--learner_address={job.run_name}-learner:{job.port}"


def _logdir(job: Job) -> str:
    return f"--logdir={_RUNS}/{job.name}"  # A population's members find their own place in it.
