"""A job as Kubernetes objects.

Every role is a Job, which ends when its processes have (a StatefulSet or a Deployment would start
a learner that is through with its frames again, and for ever). Its containers are started again
where they fail, its pods where their node is lost, and there is no number of failures after which
this stops. The actors' Job is indexed: the index is `--task`, and `kubectl patch` may change
`completions` and `parallelism` together while the run goes on.

The learner is reached by the name of a headless Service, which stays when the pod is another one,
and by which actors find the pod itself: no proxy comes between that would hide from the
NetworkPolicy who is calling.

Two NetworkPolicies, which add up: nobody may connect to any pod of the run, but its actors to the
learner's port. They bind only where the cluster's network plugin enforces NetworkPolicies, they
leave out the nodes themselves and pods on their network, and whoever may create pods in the
namespace may label one as an actor.

A population's members are as many runs, each with all of these objects. What they know of each
other goes through the volume, so that none of them lets another's actors in.
"""

from typing import Any

import yaml
from job_description import Job, Resources

_LARGEST = 2**31 - 1  # int32
_RUNS = "/runs"
_USER = 1000
_GPU = "nvidia.com/gpu"

# Time to write a checkpoint to a slow volume; actors have nothing to save.
_LEARNER_GRACE_SECONDS = 180
_OTHERS_GRACE_SECONDS = 10

_HEADER = """\
# Runs {name}: {processes}. Generated; change the declaration.
#
# The learner's port runs whatever it is sent. The NetworkPolicies below close it to all but this
# run's actors, if the cluster's network plugin enforces them: try it from another pod.
#
#   kubectl apply -f {name}.kubernetes.yaml
#   kubectl delete -f {name}.kubernetes.yaml   # to end it, or to apply it with other flags
#
# Checkpoints and logs stay on the claim {volume_claim}, in {name}/, and the next apply resumes.
# The claim must exist{many}.
"""

_POPULATION_HEADER = """\
#
# Each member is such a run, closed to the other members' actors as well. To end one of them, while
# the others go on without it, and until the next apply:
#
#   kubectl delete jobs -l app.kubernetes.io/instance={last}
"""

_Object = dict[str, Any]


def manifest(job: Job) -> str:
    """The job's objects as a stream of YAML documents."""
    header = _HEADER.format(
        name=job.name,
        processes=job.processes,
        volume_claim=job.volume_claim,
        many=_sharing(job),
    )
    if job.population_size:
        header += _POPULATION_HEADER.format(last=job.members[-1].run_name)
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
    return {"name": f"{job.run_name}-{suffix}", "labels": _labels(job, role)}


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
    container = _container(job, "learner", ["--job_name=learner", _address(job), _logdir(job)])
    container["ports"] = [{"name": "learner", "protocol": "TCP", "containerPort": job.port}]
    # A zip's own launcher waits as process 1 for the program it holds, and passes no signal on to
    # it: this tells all processes but that one to save and end. Without a launcher the program is
    # process 1, and hears it from Kubernetes, after this.
    container["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", "kill -TERM -1"]}}}
    pod = _pod(job, container, _LEARNER_GRACE_SECONDS)
    if job.gpus:
        container["resources"]["limits"][_GPU] = job.gpus
        # Nodes with GPUs commonly turn away pods that do not say they need one.
        pod["tolerations"] = [{"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}]
    _mount_runs(job, pod)
    return _job(job, "learner", pod)


def _actors(job: Job) -> _Object:
    container = _container(job, "actor", ["--job_name=actor", _address(job)])
    container["args"].append("--task=$(ACTOR_TASK)")
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    container["env"].append({"name": "ACTOR_TASK", "valueFrom": {"fieldRef": {"fieldPath": index}}})
    actors = _job(job, "actor", _pod(job, container, _OTHERS_GRACE_SECONDS))
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
    pod = _pod(job, container, _OTHERS_GRACE_SECONDS)
    _mount_runs(job, pod)
    return _job(job, "evaluator", pod)


def _job(job: Job, role: str, pod: _Object) -> _Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, role, role),
        "spec": {
            "backoffLimit": _LARGEST,
            # The next pod starts when the last is gone: two would write to one run directory.
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": _labels(job, role)}, "spec": pod},
        },
    }


def _pod(job: Job, container: _Object, grace_seconds: int) -> _Object:
    """A pod that has no rights in the cluster, on its node or in its own root directory.

    There are no probes: an open port would not show that a learner learns, and what is checked of
    a run is the age of its last checkpoint, from outside.
    """
    return {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": grace_seconds,
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
        # Where a zip unpacks itself, and environments keep their files.
        "volumes": [{"name": "temporary", "emptyDir": {}}],
    }


def _container(job: Job, role: str, arguments: list[str]) -> _Object:
    resources: Resources = getattr(job, f"{role}_resources")
    memory = f"{resources.memory_gib}Gi"
    # GPUs that an image shows to everybody on a node are still the learner's.
    hidden = [{"name": "CUDA_VISIBLE_DEVICES", "value": "-1"}]
    return {
        "name": role,
        "image": job.image,
        "command": ["python3", job.executable],
        # Kubernetes reads $(NAME) as a variable, and $$ as a dollar sign.
        "args": [argument.replace("$", "$$") for argument in (*job.run_flags, *arguments)],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            *(hidden if role != "learner" else []),
        ],
        "resources": {
            "requests": {"cpu": str(resources.cpus), "memory": memory},
            "limits": {"memory": memory},
        },
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


def _address(job: Job) -> str:
    return f"--learner_address={job.run_name}-learner:{job.port}"


def _logdir(job: Job) -> str:
    return f"--logdir={_RUNS}/{job.name}"  # A population's members find their own place in it.
