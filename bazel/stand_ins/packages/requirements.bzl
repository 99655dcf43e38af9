"""No packages: with Bazel 4 they are those of the active Python environment."""

all_requirements = []
