"""Acting: actor threads play environments, and their rollouts become the learner's batches.

It may know environments, the agent's policy and the shapes of rollouts; never the loss, the
learner, or whether that is in this process. Weights come in through a `WeightSource`, rollouts go
out through a `RolloutSink`, and batches come out of a `BatchFeed`.
"""
