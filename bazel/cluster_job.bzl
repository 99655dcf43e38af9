"""Cluster jobs: one declaration, and what runs it on Kubernetes, on Slurm and on one machine."""

load("//bazel:defs.bzl", "experiment")

def cluster_job(
        name,
        num_actor_jobs,
        flag_file = None,
        flags = [],
        num_actors = None,
        evaluator = True,
        population = False,
        executable = "//:experiment",
        options = [],
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
      num_actor_jobs: processes that play, which are pods and Slurm tasks.
      flag_file: of the experiment, a file or label.
      flags: of the experiment, as `--name=value`; they win over the file's.
      num_actors: environments that each actor job plays, as the experiment's `--num_actors`. By
        default its own default: at least one environment of each task.
      evaluator: whether a process follows the run's checkpoints and logs their scores.
      population: whether the flags are a population's, with `--mode=pbt` and `--population_size`.
      executable: of Slurm jobs, a `py_binary`.
      options: further options of `//bazel/cluster:manifests`, among them `--image`.
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
        "--executable={}.zip".format(executable.split(":")[-1].split("/")[-1]),
    ] + options
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
