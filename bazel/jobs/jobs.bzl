"""The paper's experiments as cluster jobs: targets for each flag file under `configs/`.

Set what your clusters know by other names here.
"""

load("//bazel:defs.bzl", "program")

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
    """Declares a job for each flag file, named after it: a learner, actor jobs and an evaluator.

    `NAME` is what Slurm runs, `NAME.manifests` are the files for clusters, and `NAME.local` trains
    the same on this machine. A file `NAME-pbt.flags` makes a population of such runs. It has no
    evaluator and no `NAME.local`: its members compare the games that they train on, and one machine
    trains them in turn.

    Each actor job plays every task once, so that tasks are played equally often, whichever jobs are
    alive. All jobs together have about as many environments as IMPALA's 150.

    Args:
      flag_files: paths below the folder of the BUILD file.
      num_actor_jobs: processes of each run that play, which are pods and Slurm tasks.
      num_actors: environments that each of them plays, as the experiment's `--num_actors`.
    """
    manifests = "//bazel/cluster:manifests"
    for path in flag_files:
        name = path.split("/")[-1][:-len(".flags")]
        population = name.endswith("-pbt")
        flags = ["--dataset_path=" + _DMLAB_DATASET] if _DMLAB_DATASET and "dmlab30" in name else []
        flags = [_quoted(flag) for flag in flags + ["--num_actors={}".format(num_actors)]]
        actor_jobs = "--actor_jobs={}".format(num_actor_jobs)
        options = ["--name=" + name, actor_jobs] + (["--no-evaluator"] if population else [])
        native.filegroup(
            name = name,
            srcs = ["//:experiment"],
            # What `--build_python_zip` would put in place of the binary needs no flag this way.
            output_group = "python_zip_file",
        )
        native.genrule(
            name = name + ".manifests",
            srcs = [path],
            outs = [name + ".kubernetes.yaml", name + ".slurm.sh"],
            cmd = " ".join(
                ["$(location {}) --output_dir=$(RULEDIR)".format(manifests)] +
                ["--flag_file=$(location {})".format(path)] +
                [_quoted(option) for option in options + _OPTIONS] +
                ["--"] + flags + ["> /dev/null"],  # Bazel would show where its outputs are.
            ),
            tools = [manifests],
        )
        if not population:
            program(
                name = name + ".local",
                start = "//:experiment_start",
                library = "//:launch_script",
                args = ["--flagfile=%files%/$(rootpath {})".format(path)] +
                       ["--logdir=runs/" + name, actor_jobs] + flags,
                data = [path],
            )

def _quoted(argument):
    """Quotes an argument so that Bazel's variables and a shell leave it as it is."""
    return "'" + argument.replace("$", "$$").replace("'", "'\\''") + "'"
