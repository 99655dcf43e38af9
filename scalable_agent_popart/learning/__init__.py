"""Learning: the losses, the optimiser and the learner that owns the weights.

It may know tensors, the agent, rollouts, T, B and task ids; it never knows a run's configuration,
environments at play, threads, files or hosts. Batches of rollouts flow in; weights, metrics and the
sizes of gradients flow out.
"""
