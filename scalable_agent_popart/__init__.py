"""PopArt-IMPALA: multi-task deep reinforcement learning with adaptive normalisation."""
