"""Writes docs/configuration.md, the page of all settings, from their declarations.

python tools/write_configuration.py
"""

import dataclasses
from pathlib import Path

from scalable_agent_popart import config

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

_START = """\
# Settings

Each is a flag of `experiment.py`. One that is given on the command line or in a flag file wins over
the default. One that means nothing in the mode asked for, or without another flag, is refused.
`tools/write_configuration.py` writes this page from the declarations in
[`config.py`](../scalable_agent_popart/config.py).
"""
_HEADER = ["| Flag | Default | Meaning |", "|---|---|---|"]
_TITLES = {  # Of groups of settings, each by its first.
    **{"level_name": "Run", "job_name": "Cluster", "seed": "Training"},
    **{"num_action_repeats": "Environment", "network": "Agent", "reward_clipping": "Losses"},
    **{"learning_rate": "Optimiser", "precision": "Arithmetic", "population_size": "Population"},
    **{"checkpoint_seconds": "Records", "test_num_episodes": "Test", "runs": "Report"},
}


def page() -> str:
    """The page: a table of flags, defaults and meanings for each group of settings."""
    lines = [_START]
    for cls in (config.Config, config.ReportConfig):
        for field in dataclasses.fields(cls):
            declared: config.Setting = field.metadata["setting"]
            if title := _TITLES.get(field.name):
                lines += ["", f"## {title}", "", *_HEADER]
            default = config.describe_default(field)
            lines.append(f"| `--{field.name}` | {default} | {_meaning(declared)} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _meaning(declared: config.Setting) -> str:
    """The meaning, the possible values, and what the setting needs or keeps."""
    text = [declared.help]
    if declared.range:
        text.append(f"{declared.range[0].upper()}{declared.range[1:]}.".replace(" and finite", ""))
    if declared.modes != declared.belongs_to.modes and len(declared.modes) < 3:
        text.append(f"For `--mode={'|'.join(declared.modes)}`.")
    if declared.needs:
        text.append(f"For `--{declared.needs}`.")
    if declared.belongs_to == config.CHECKPOINT:
        text.append("A run keeps its value.")
    return " ".join(text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
