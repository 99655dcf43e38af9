"""Cluster jobs: one declaration, and what runs it on Kubernetes, on Slurm and on one machine."""

load("@rules_python//python:defs.bzl", "py_binary")

_RUN_LOCAL = "//bazel/cluster:run_local.py"

def cluster_job(
        name,
        flags,
        num_actors,
        image,
        actors_per_job = None,
        gpus = 1,
        evaluator = True,
        population_size = None,
        volume_claim = "runs",
        executable = "//:experiment",
        manifest_options = [],
        **kwargs):
    """Declares a training job: one learner, actor jobs, maybe an evaluator; or a population of these.

    `bazel build NAME` makes the executable, a Python zip; its name is the binary's, with `.zip`.
    `bazel build NAME.manifests` writes `NAME.kubernetes.yaml` and `NAME.slurm.sh`, which run it.
    `bazel run NAME.local -- --logdir=DIR` runs the same job as processes on this machine; further
    flags after `--` win over the job's, and `--actor_jobs=1` starts fewer actors than it has.

    With `population_size` the job is population-based training, and the rest of what is declared
    is one member. There is no `NAME.local`: one machine trains the members in turn, with
    `bazel run //:experiment -- --mode=pbt --population_size=8 --logdir=DIR FLAGS`.

    The image holds Python 3.11 as `python3`, the Python packages of `pyproject.toml`, what the
    tasks need besides, and the zip as `/app/NAME_OF_THE_BINARY.zip`.

    Args:
      name: of the job, its runs and the objects on the cluster; a DNS label of at most 40
        characters, or 36 for a population.
      flags: of the experiment, as `--name=value`; without those that a population tunes.
      num_actors: number of actor jobs, which are processes, pods and Slurm tasks.
      image: container image, as the cluster's nodes know it.
      actors_per_job: environments that each of them plays, as the experiment's `--num_actors`.
        By default its own default: at least one environment of each task.
      gpus: of the learner.
      evaluator: whether a process follows the run's checkpoints and logs their scores.
      population_size: number of members, for population-based training; by default one run is
        trained as its flags say.
      volume_claim: claim that the run directory is kept on.
      executable: a `py_binary`.
      manifest_options: further options of `//bazel/cluster:manifests`, such as
        `--actor_cpus=8` or `--slurm_option=--account=lab`.
      **kwargs: common attributes, such as `visibility`.
    """
    if actors_per_job != None:
        flags = flags + ["--num_actors={}".format(actors_per_job)]
    shared = [
        "--actor_jobs={}".format(num_actors),
        "--evaluator" if evaluator else "--no-evaluator",
    ]
    population = []
    if population_size != None:
        population = ["--population_size={}".format(population_size)]
    native.filegroup(
        name = name,
        srcs = [executable],
        # What `--build_python_zip` would put in place of the binary; needs no flag this way.
        output_group = "python_zip_file",
        **kwargs
    )
    options = shared + population + [
        "--name=" + name,
        "--image=" + image,
        "--gpus={}".format(gpus),
        "--volume_claim=" + volume_claim,
        "--executable=/app/{}.zip".format(executable.split(":")[-1].split("/")[-1]),
    ] + manifest_options
    manifests = "//bazel/cluster:manifests"
    native.genrule(
        name = name + ".manifests",
        outs = [name + ".kubernetes.yaml", name + ".slurm.sh"],
        cmd = " ".join(
            ["$(location {})".format(manifests), "--output_dir=$(RULEDIR)"] +
            [_quoted(argument) for argument in options + ["--"] + flags],
        ),
        tools = [manifests],
        **kwargs
    )
    if population:
        return
    py_binary(
        name = name + ".local",
        srcs = [_RUN_LOCAL],
        main = _RUN_LOCAL,
        args = ["--executable=$(rootpath {})".format(executable), "--logdir=runs/" + name] +
               [_quoted(argument) for argument in shared + flags],
        data = [executable],
        legacy_create_init = 0,
        **kwargs
    )

def _quoted(argument):
    """An argument as Bazel hands it on unchanged, through its own variables and a shell."""
    return "'" + argument.replace("$", "$$").replace("'", "'\\''") + "'"
