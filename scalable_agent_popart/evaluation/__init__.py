"""Testing of a run: its newest policy is frozen and plays, and scores and videos are the result.

The package knows checkpoints, policies and environments, but nothing of training or its processes.
A configuration and a run directory come in; `evaluation.json`, tables and videos go out.
"""
