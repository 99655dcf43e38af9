"""What builds DeepMind Lab: reads its BUILD files, checks, writes for Ninja, makes a wheel.

Knows the engine's checkout and the machine, and nothing of this project: it runs on the standard
library alone. A checkout goes in, and a wheel comes out.
"""
