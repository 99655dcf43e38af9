"""Reads what DeepMind Lab's own BUILD files say of its targets, without Bazel.

Their language is a dialect of Python, so they are run as Python, with rules that only record what
they are given. Labels are Bazel's: `//folder:name`, `//folder` for `//folder:folder`, `:name`
within a folder, and `@archive//folder:name` for what comes from outside of the checkout.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A rule of a BUILD file: its name and its arguments."""

    folder: str  # Relative to the checkout; the root's is "".
    name: str
    arguments: Mapping[str, Any]

    def words(self, argument: str) -> list[str]:
        """Returns an argument that is a list, empty where it is not given."""
        return list(self.arguments.get(argument, ()))

    def files(self, argument: str) -> list[str]:
        """Returns the files that a list names, relative to the checkout."""
        words = (word for word in self.words(argument) if not word.startswith((":", "/", "@")))
        return [self.path(word) for word in words]

    def labels(self, argument: str) -> list[str]:
        """Returns the labels in a list, in full."""
        words = (word for word in self.words(argument) if word.startswith((":", "/", "@")))
        return [f"//{self.folder}{word}" if word.startswith(":") else word for word in words]

    def path(self, name: str) -> str:
        """Returns the path of a file of this folder, relative to the checkout."""
        return f"{self.folder}/{name}".removeprefix("/")


class BuildFiles:
    """The BUILD files of a checkout, each read when it is first asked for.

    Raises OSError for a file that cannot be read, and ValueError for one that cannot be understood.
    """

    def __init__(self, checkout: Path):
        """Takes the checkout's root."""
        self._checkout = checkout
        self._read: dict[str, tuple[dict[str, Target], dict[str, Any]]] = {}

    def target(self, label: str) -> Target:
        """Returns the target that a label names; raises KeyError if there is none."""
        folder, _, name = label.removeprefix("//").partition(":")
        return self._file(folder)[0][name or folder.rpartition("/")[2]]

    def variable(self, name: str) -> Any:
        """Returns the value of a variable of the root's BUILD file."""
        return self._file("")[1][name]

    def needed(self, label: str) -> tuple[list[Target], list[str]]:
        """Returns a target with all that it depends on, and the labels from outside among these."""
        targets: dict[tuple[str, str], Target] = {}
        outside: dict[str, None] = {}
        waiting = [label]
        while waiting:
            label = waiting.pop()
            if label.startswith("@"):
                outside[label] = None
            elif not self._is_file(label):
                target = self.target(label)
                if (target.folder, target.name) not in targets:
                    targets[target.folder, target.name] = target
                    waiting += reversed(target.labels("deps"))
        return list(targets.values()), list(outside)

    def _is_file(self, label: str) -> bool:
        folder, _, name = label.removeprefix("//").partition(":")
        return (self._checkout / folder / name).is_file()

    def _file(self, folder: str) -> tuple[dict[str, Target], dict[str, Any]]:
        """Runs a BUILD file; returns its targets by name, and its variables."""
        if folder not in self._read:
            targets: dict[str, Target] = {}

            def record(*_: Any, name: str = "", **arguments: Any) -> None:
                targets[name] = Target(folder, name, arguments)

            text = (self._checkout / folder / "BUILD").read_text()
            rules = re.findall(r"^ *\[?(\w+)\(", text, re.MULTILINE)
            variables: dict[str, Any] = dict.fromkeys(rules, record)
            variables["select"] = lambda choices: choices["//conditions:default"]
            variables["glob"] = lambda include, exclude=(): _glob(
                self._checkout / folder, include, exclude
            )
            try:
                exec(text, variables)
            except Exception as error:
                raise ValueError(f"{folder}/BUILD: {error!r}") from error
            self._read[folder] = targets, variables
        return self._read[folder]


def _glob(folder: Path, include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Returns the files that fit one of the patterns and none of the excluded ones, sorted."""

    def fitting(patterns: Sequence[str]) -> set[str]:
        paths = (path for pattern in patterns for path in folder.glob(pattern))
        return {path.relative_to(folder).as_posix() for path in paths if path.is_file()}

    return sorted(fitting(include) - fitting(exclude))
