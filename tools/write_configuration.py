"""Writes docs/configuration.md, the page of all settings, from their declarations.

python tools/write_configuration.py
"""

from pathlib import Path

import experiment
from scalable_agent_popart import config, settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

_START = """\
# Settings

Each is a flag of `experiment.py`, whose `--help` prints the same. One that is given on the command
line or in a flag file wins over the default. One that means nothing in the mode asked for, or
without another flag, is refused.
`tools/write_configuration.py` writes this page from the declarations in
[`settings.py`](../scalable_agent_popart/settings.py).
"""
_HEADER = ["| Flag | Default | Meaning |", "|---|---|---|"]


def page() -> str:
    """The page: a table of flags, defaults and meanings for each group of settings."""
    lines = [_START]
    for field in settings.FIELDS:
        if title := experiment.GROUPS.get(field.name):
            lines += ["", f"## {title}", "", *_HEADER]
        meaning = experiment.describe(field).replace("|", "\\|")
        lines.append(f"| `--{field.name}` | {config.describe_default(field)} | {meaning} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"written: {PAGE}")
