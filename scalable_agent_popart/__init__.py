"""PopArt-IMPALA: multi-task deep reinforcement learning with adaptive normalisation."""

__version__ = "0.1.0"
