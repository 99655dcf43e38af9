"""The paper's experiments as cluster jobs: a target for each flag file under `configs/`.

  bazel build //configs:dmlab30-popart //configs:dmlab30-popart.manifests
  bazel run //configs:atari57-clipped-popart.local -- --logdir=/tmp/run --actor_jobs=1
  bazel build //configs:dmlab30-popart-pbt.manifests

Set what your clusters know by other names here.
"""

load("//bazel:cluster_job.bzl", "cluster_job")

# Options of //bazel/cluster:manifests; the commented ones are examples.
_OPTIONS = [
    # As built from the Dockerfile and pushed: with its registry, as the cluster's nodes reach it.
    # Jobs ask for a GPU, for which it is built with CUDA=1, and DmLab's with
    # `--build-context lab=FOLDER`.
    "--image=registry.example.org/lab/popart-impala:1",
    # Exists already, and is ReadWriteMany.
    "--volume_claim=runs",
    "--image_pull_policy=IfNotPresent",
    # "--image_pull_secret=registry",
    # "--namespace=lab",
    # "--learner_node_label=nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",
    # "--actor_node_label=node.example.org/kind=cpu",
    # "--slurm_option=--account=lab",
    # "--slurm_learner_option=--partition=gpu",
]

# Folder of the pictures that two of DmLab's levels show, as image and nodes have it, such as
# "/data/brady_konkle_oliva2008". Without it these levels show squares: another experiment, as runs,
# tests and reports then say.
_DMLAB_DATASET = ""

def jobs(flag_files, num_actor_jobs, num_actors):
    """Declares a job for each flag file, named after it.

    Each actor job plays every task once: whichever jobs are alive, tasks are played equally often.
    The number of jobs brings the environments to IMPALA's order of magnitude, 150. A member of a
    population has as many as a run has, and no evaluator: members compare the games that they
    train on, and `--mode=test --pbt_member=7` tests one.

    Args:
      flag_files: paths below the folder of the BUILD file.
      num_actor_jobs: of each run.
      num_actors: environments of each actor job.
    """
    for path in flag_files:
        name = path.split("/")[-1][:-len(".flags")]
        population = name.endswith("-pbt")
        cluster_job(
            name = name,
            evaluator = not population,
            flag_file = path,
            flags = ["--dataset_path=" + _DMLAB_DATASET] if _DMLAB_DATASET and "dmlab30" in name else [],
            num_actor_jobs = num_actor_jobs,
            num_actors = num_actors,
            options = _OPTIONS,
            population = population,
        )
