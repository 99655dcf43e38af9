"""Training of one run: a learner, the actors that it is handed, and the run's records.

It may know how to make a run's parts and where a run keeps its files, but neither other processes
nor populations nor evaluation. Batches of rollouts come in from the actors, and weights go back to
them. Checkpoints and logs go to the run directory, and a `Tuner` may change hyperparameters.
"""
