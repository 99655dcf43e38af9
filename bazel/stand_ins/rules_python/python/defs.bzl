"""The rules built into Bazel 4, under the name they have today."""

py_binary = native.py_binary
py_library = native.py_library
py_test = native.py_test
