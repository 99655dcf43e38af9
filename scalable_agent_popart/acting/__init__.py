"""Acting: actor threads play environments, and their rollouts become the learner's batches.

It may know environments, the policy and the shapes of rollouts, but never the learner or where it
is. Weights come in through a `WeightSource`, rollouts go out through a `RolloutSink`, and batches
come out of a `BatchFeed`.
"""
