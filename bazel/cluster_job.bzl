"""Cluster jobs: one declaration, and what runs it on Kubernetes, on Slurm and on one machine."""

load("//bazel:defs.bzl", "experiment")

def cluster_job(name, flag_file, num_actor_jobs, num_actors, flags = [], options = [], population = False):
    """Declares a training job: a learner, actor jobs and an evaluator; or a population of such runs.

    `bazel build NAME` makes a Slurm job's executable, which is `experiment.zip`.
    `bazel build NAME.manifests` writes `NAME.kubernetes.yaml` and `NAME.slurm.sh`.
    `bazel run NAME.local -- --logdir=DIR` trains the same on this machine, with actor jobs next to
    the learner. Further flags after `--` win over the job's, and `--actor_jobs=1` starts fewer
    actors than it has.

    A population has no evaluator and no `NAME.local`. One machine trains its members in turn, with
    `bazel run //:experiment -- --flagfile=FILE --logdir=DIR`.

    Args:
      name: of the job, its runs and the objects on the cluster; a DNS label of at most 40
        characters, or 36 for a population.
      flag_file: of the experiment, a file or label.
      num_actor_jobs: processes that play, which are pods and Slurm tasks.
      num_actors: environments that each actor job plays, as the experiment's `--num_actors`.
      flags: of the experiment, as `--name=value`; they win over the file's.
      options: further options of `//bazel/cluster:manifests`, among them `--image`.
      population: whether the flags are a population's, with `--mode=pbt` and `--population_size`.
    """
    flags = flags + ["--num_actors={}".format(num_actors)]
    actor_jobs = "--actor_jobs={}".format(num_actor_jobs)
    evaluator = "--no-evaluator" if population else "--evaluator"
    manifests = "//bazel/cluster:manifests"
    native.filegroup(
        name = name,
        srcs = ["//:experiment"],
        # What `--build_python_zip` would put in place of the binary needs no flag this way.
        output_group = "python_zip_file",
    )
    native.genrule(
        name = name + ".manifests",
        srcs = [flag_file],
        outs = [name + ".kubernetes.yaml", name + ".slurm.sh"],
        cmd = " ".join(
            ["$(location {})".format(manifests), "--output_dir=$(RULEDIR)"] +
            ["--flag_file=$(location {})".format(flag_file)] +
            [_quoted(word) for word in ["--name=" + name, actor_jobs, evaluator] + options] +
            ["--"] + [_quoted(flag) for flag in flags] +
            ["> /dev/null"],  # Bazel would show where its outputs are.
        ),
        tools = [manifests],
    )
    if not population:
        experiment(
            name = name + ".local",
            args = ["--flagfile=%files%/$(rootpath {})".format(flag_file)] +
                   [_quoted(flag) for flag in ["--logdir=runs/" + name, actor_jobs] + flags],
            data = [flag_file],
        )

def _quoted(argument):
    """Quotes an argument so that Bazel's variables and a shell leave it as it is."""
    return "'" + argument.replace("$", "$$").replace("'", "'\\''") + "'"
