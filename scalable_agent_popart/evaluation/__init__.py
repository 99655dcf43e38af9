"""Testing of a run, and its agent to use: the newest policy is frozen, and plays or is exported.

The package knows checkpoints, policies and environments, but nothing of training or its processes.
A configuration and a run come in; `evaluation.json`, tables, videos and agents for other
programs go out.
"""
