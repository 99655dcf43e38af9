"""How this repository's folders, programs and tests become targets.

A folder is one library of all its Python files, found by globs; its `deps` are the folders it may
import, to which `tests/unit/architecture_test.py` holds it.
"""

load("@packages//:requirements.bzl", "all_requirements")
load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

# Bazel changes into a folder of its own before it starts a program. Paths in flags start where the
# user is, and those of a target's own flags, which begin with `%files%`, in that folder. A program
# started by its path also has its folder's modules first.
_START = """\
import os, runpy, sys

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    sys.argv = [word.replace("%files%", os.getcwd()) for word in sys.argv]
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    runpy.run_path(os.path.join(folder, "{script}"), run_name="__main__")
"""

def _start_impl(ctx):
    start = ctx.actions.declare_file(ctx.label.name + ".py")
    ctx.actions.write(start, _START.format(script = ctx.attr.script))
    return [DefaultInfo(files = depset([start]))]

_start = rule(
    implementation = _start_impl,
    attrs = {"script": attr.string(mandatory = True)},
)

def folder(name = None, srcs = None, deps = [], **kwargs):
    """The Python files of a folder and of those below it that have no BUILD file.

    Args:
      name: of the target; by default the folder's own.
      srcs: by default all the folder's files, with its tables and templates.
      deps: what it may import, next to the package's own files, which every folder of it may.
      **kwargs: further attributes of the library.
    """
    package = native.package_name()
    if package.startswith("scalable_agent_popart") and (name or "/" in package):
        deps = deps + ["//scalable_agent_popart"]
    py_library(
        name = name or package.split("/")[-1],
        srcs = native.glob(["**/*.py"]) if srcs == None else srcs,
        # The root's glob would also find files behind Bazel's own links.
        data = native.glob(["**/*.csv", "**/*.j2", "**/*.toml"]) if srcs == None else [],
        deps = deps,
        visibility = ["//visibility:public"],
        **kwargs
    )

def program(name, library, start = None, **kwargs):
    """Makes a script a program, with what the library of its folder depends on.

    Args:
      name: of the target and, unless `start` is given, of the script `NAME.py`.
      library: of the script's folder.
      start: label of what starts another program's script, with flags of its own in `args`.
      **kwargs: further attributes of the program.
    """
    if not start:
        start = ":" + name + "_start"
        _start(name = name + "_start", script = name + ".py")
    py_binary(
        name = name,
        srcs = [start],
        main = start + ".py",
        deps = [library] + all_requirements,
        # Made-up `__init__.py` files would turn folders of scripts into packages.
        legacy_create_init = 0,
        visibility = ["//visibility:public"],
        **kwargs
    )

def pytest_tests(deps, data):
    """Makes each file of tests in this folder and those below it a test, run by pytest."""
    for path in native.glob(["**/*_test.py"]):
        slow = path.startswith("slow/")
        py_test(
            name = path[:-len(".py")],
            size = "large" if slow else "medium",
            srcs = ["//bazel:run_pytest.py"],
            main = "//bazel:run_pytest.py",
            args = [native.package_name() + "/" + path] + (["-m", "slow"] if slow else []),
            deps = deps + all_requirements,
            data = data,
            legacy_create_init = 0,
        )
