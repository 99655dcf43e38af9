"""One run in many processes: the learner's side, the actors' side, the wire and the keys.

It may know training and everything below it; only the launch script may know it. Rollouts come to
the learner's queue from actor jobs, and weights go back, over a port that only the run's own
certificates open.
"""

import os

# gRPC reads it when it is imported, and would otherwise report every stranger who connects.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
