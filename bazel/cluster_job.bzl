"""Cluster jobs: one declaration, and what runs it on Kubernetes, on Slurm and on one machine."""

load("//bazel:defs.bzl", "experiment")

def cluster_job(
        name,
        image,
        num_actor_jobs,
        flag_file = None,
        flags = [],
        num_actors = None,
        gpus = 1,
        evaluator = True,
        population = False,
        volume_claim = "runs",
        executable = "//:experiment",
        manifest_options = [],
        **kwargs):
    """Declares a training job: one learner, actor jobs, maybe an evaluator; or a population of these.

    `bazel build NAME` makes a Slurm job's executable, a Python zip; its name is the binary's, with
    `.zip`. `bazel build NAME.manifests` writes `NAME.kubernetes.yaml` and `NAME.slurm.sh`.
    `bazel run NAME.local -- --logdir=DIR` trains the same on this machine, with actor jobs beside
    the learner; further flags after `--` win over the job's, and `--actor_jobs=1` starts fewer
    actors than it has.

    A population has no `NAME.local`: one machine trains its members in turn, with
    `bazel run //:experiment -- --flagfile=FILE --logdir=DIR`.

    Args:
      name: of the job, its runs and the objects on the cluster; a DNS label of at most 40
        characters, or 36 for a population.
      image: container image whose program is the experiment, as the cluster's nodes know it.
      num_actor_jobs: processes that play, which are pods and Slurm tasks.
      flag_file: of the experiment, a file or label.
      flags: of the experiment, as `--name=value`; they win over the file's.
      num_actors: environments that each actor job plays, as the experiment's `--num_actors`. By
        default its own default: at least one environment of each task.
      gpus: of the learner, 0 or 1.
      evaluator: whether a process follows the run's checkpoints and logs their scores.
      population: whether the flags are a population's, with `--mode=pbt` and `--population_size`.
      volume_claim: claim that the run directory is kept on.
      executable: of Slurm jobs, a `py_binary`.
      manifest_options: further options of `//bazel/cluster:manifests`, such as
        `--actor_cpus=8` or `--slurm_option=--account=lab`.
      **kwargs: common attributes, such as `visibility`.
    """
    if num_actors != None:
        flags = flags + ["--num_actors={}".format(num_actors)]
    files = [flag_file] if flag_file else []
    actor_jobs = "--actor_jobs={}".format(num_actor_jobs)
    native.filegroup(
        name = name,
        srcs = [executable],
        # What `--build_python_zip` would put in place of the binary; needs no flag this way.
        output_group = "python_zip_file",
        **kwargs
    )
    options = [
        actor_jobs,
        "--evaluator" if evaluator else "--no-evaluator",
        "--name=" + name,
        "--image=" + image,
        "--gpus={}".format(gpus),
        "--volume_claim=" + volume_claim,
        "--executable={}.zip".format(executable.split(":")[-1].split("/")[-1]),
    ] + manifest_options
    manifests = "//bazel/cluster:manifests"
    native.genrule(
        name = name + ".manifests",
        srcs = files,
        outs = [name + ".kubernetes.yaml", name + ".slurm.sh"],
        cmd = " ".join(
            ["$(location {})".format(manifests), "--output_dir=$(RULEDIR)"] +
            ["--flag_file=$(location {})".format(file) for file in files] +
            [_quoted(argument) for argument in options + ["--"] + flags] +
            ["> /dev/null"],  # Bazel would show where its outputs are.
        ),
        tools = [manifests],
        **kwargs
    )
    if population:
        return
    experiment(
        name = name + ".local",
        args = ["--flagfile=%files%/$(rootpath {})".format(file) for file in files] +
               [_quoted(flag) for flag in ["--logdir=runs/" + name, actor_jobs] + flags],
        data = files,
        **kwargs
    )

def _quoted(argument):
    """An argument as Bazel hands it on unchanged, through its own variables and a shell."""
    return "'" + argument.replace("$", "$$").replace("'", "'\\''") + "'"
