"""DmLab-30: the levels, and the cache of their compiled maps."""
