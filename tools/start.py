"""Begins a tool, which imports this first: other Pythons and Ctrl-C end it without a traceback."""

import sys
from pathlib import Path

# A Python without the project's packages does not have the project itself, either.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scalable_agent_popart.system import signals

signals.end_at_ctrl_c()
