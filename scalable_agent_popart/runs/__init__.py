"""A run: its checked configuration, its directory and record, its checkpoints and its logs.

It may know the settings and a suite's tasks, never the learner, actors or threads that make
the data. Variables, metrics and finished games come in; a run that is resumed gets them back.
"""
