"""The paper's experiments as cluster jobs: a target for each flag file under `configs/`.

  bazel build //configs:dmlab30-popart //configs:dmlab30-popart.manifests
  bazel run //configs:atari57-clipped-popart.local -- --logdir=/tmp/run --actor_jobs=1
  bazel build //configs:dmlab30-popart-pbt.manifests

Set what your clusters know by other names here.
"""

load("//bazel:cluster_job.bzl", "cluster_job")

# These are options of //bazel/cluster:manifests; the commented ones are examples.
_OPTIONS = [
    # The image as it was pushed, with its registry, as the cluster's nodes reach it. Jobs ask for a
    # GPU, for which it is built with CUDA=1, and DmLab's need a LAB_WHEEL in it.
    "--image=registry.example.org/lab/popart-impala:1",
    # The claim exists already, and is ReadWriteMany.
    "--volume_claim=runs",
    "--image_pull_policy=IfNotPresent",
    # "--image_pull_secret=registry",
    # "--namespace=lab",
    # "--learner_node_label=nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",
    # "--actor_node_label=node.example.org/kind=cpu",
    # "--slurm_option=--account=lab",
    # "--slurm_learner_option=--partition=gpu",
]

# Image and nodes have the pictures that two of DmLab's levels show in this folder, such as
# "/data/brady_konkle_oliva2008". Without it these levels show squares, which is another experiment.
_DMLAB_DATASET = ""

def jobs(flag_files, num_actor_jobs, num_actors):
    """Declares a job for each flag file, named after it.

    Each actor job plays every task once, so that tasks are played equally often, whichever jobs are
    alive. All jobs together have about as many environments as IMPALA's 150. A population's members
    compare the games that they train on; `--mode=test --pbt_member=7` tests one.

    Args:
      flag_files: paths below the folder of the BUILD file.
      num_actor_jobs: of each run.
      num_actors: environments of each actor job.
    """
    for path in flag_files:
        name = path.split("/")[-1][:-len(".flags")]
        cluster_job(
            name = name,
            flag_file = path,
            flags = ["--dataset_path=" + _DMLAB_DATASET] if _DMLAB_DATASET and "dmlab30" in name else [],
            num_actor_jobs = num_actor_jobs,
            num_actors = num_actors,
            options = _OPTIONS,
            population = name.endswith("-pbt"),
        )
