"""An empty list, since Bazel 4 takes the packages of the active Python environment."""

all_requirements = []
