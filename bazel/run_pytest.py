"""Runs one file of tests under pytest for `bazel test`."""

import os
import sys

import pytest


def main() -> int:
    """Passes Bazel's options to pytest; returns its exit code."""
    # Bazel's folders hold links: this would be the real `bazel/`, and nothing is imported from it.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    # Programs that tests start find the same modules.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])
    )
    # The home folder may be read-only, and Matplotlib keeps its list of fonts there.
    os.environ.setdefault("MPLCONFIGDIR", os.environ["TEST_TMPDIR"])
    arguments = ["-p", "no:cacheprovider", f"--junitxml={os.environ['XML_OUTPUT_FILE']}"]
    if wanted := os.environ.get("TESTBRIDGE_TEST_ONLY"):  # bazel test --test_filter=
        arguments += ["-k", wanted]
    return pytest.main([*arguments, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
