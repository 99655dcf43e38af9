"""The agent: the policy network and what it remembers from step to step.

It may know tensors, TensorFlow and the shapes of rollouts and observations; it never knows tasks,
values, losses, flags or environments themselves. Observations, rewards and last actions flow in;
features, logits, sampled actions and a recurrent state flow out to the actors and the learner.
"""
