"""Atari-57: the games in training and from recorded starts."""
