"""How this repository's modules, programs and tests become targets.

`deps` are what a file imports (`tests/build_files_test.py` compares the two), `data` is what it
reads or starts.
"""

load("@packages//:requirements.bzl", "all_requirements")
load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

_PACKAGE = "scalable_agent_popart"

# Bazel changes into a folder of its own before it starts a program; paths in flags are meant
# from where the user is. A program started by its path also has its folder's modules first.
_START = """\
import os, runpy, sys

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
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

def module(name, srcs = None, deps = [], **kwargs):
    """A module; its name is its file's unless `srcs` says otherwise."""
    packaged = native.package_name().split("/")[0] == _PACKAGE
    py_library(
        name = name,
        srcs = srcs or [name + ".py"],
        deps = deps + (["//" + _PACKAGE] if packaged else []),
        imports = [] if packaged else ["."],
        **kwargs
    )

def program(name, deps = [], data = [], **kwargs):
    """A script: `NAME` is to be run, `NAME_lib` to be imported."""
    module(name = name + "_lib", srcs = [name + ".py"], deps = deps, data = data)
    _start(name = name + "_start", script = name + ".py")
    py_binary(
        name = name,
        srcs = [":" + name + "_start"],
        main = name + "_start.py",
        deps = [":" + name + "_lib"] + all_requirements,
        # Made-up `__init__.py` files would turn folders of scripts into packages.
        legacy_create_init = 0,
        **kwargs
    )

def pytest_test(name, deps = [], package_deps = [], data = [], size = "medium", **kwargs):
    """A file of tests, run by pytest: `NAME` is the test, `NAME_lib` for tests that import it.

    Args:
      name: of the file, without `.py`.
      deps: what it imports.
      package_deps: what it imports of `//scalable_agent_popart`, by name.
      data: what it reads or starts.
      size: "small" if it takes seconds, "large" if it takes minutes.
      **kwargs: further attributes of the test.
    """
    module(
        name = name + "_lib",
        srcs = [name + ".py"],
        deps = deps + ["//{}:{}".format(_PACKAGE, dep) for dep in package_deps],
        data = data,
        testonly = True,
    )
    py_test(
        name = name,
        size = size,
        # Loading TensorFlow alone may take a slow machine most of a small test's minute.
        timeout = "long" if size == "large" else "moderate",
        srcs = ["//bazel:run_pytest.py"],
        main = "//bazel:run_pytest.py",
        args = [native.package_name() + "/" + name + ".py"],
        deps = [":" + name + "_lib", ":conftest"] + all_requirements,
        data = ["//:pyproject.toml"],
        legacy_create_init = 0,
        **kwargs
    )
