"""Writes docs/configuration.md, the page of all settings, from their declarations.

python tools/write_configuration.py
"""

if __name__ == "__main__":
    import start  # noqa: F401

from collections.abc import Sequence
from pathlib import Path

from absl import flags

import experiment
from scalable_agent_popart import settings
from scalable_agent_popart.runs import config
from scalable_agent_popart.system import program

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

_START = """\
# Flags

`experiment.py --help` prints the same list. A flag on the command line or in a flag file wins over
the default. Whole numbers may be written as `1e6`, `10k`, `200M` or `11.4B`. A flag that means
nothing in the mode asked for, or without another flag, is refused. `tools/write_configuration.py`
writes this page from [`settings.py`](../scalable_agent_popart/settings.py).

| Flag | Default | Meaning |
|---|---|---|
"""


def page() -> str:
    """The page: a table of flags, defaults and meanings, with a row for each group of settings."""
    lines = []
    for field in settings.FIELDS:
        if title := experiment.GROUPS.get(field.name):
            lines.append(f"| **{title}** | | |")
        meaning = experiment.describe(field).replace("|", "\\|")
        lines.append(f"| `--{field.name}` | {config.describe_default(field)} | {meaning} |")
    return _START + "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> None:
    """Writes the page."""
    PAGE.write_text(page())
    print(f"written: {PAGE}")


if __name__ == "__main__":
    program.run(main, flags.FLAGS)
