"""The machine and its operating system: cores, memory, signals, threads, processes, terminal.

It may know nothing of what runs on the machine, and any folder may use it. The machine's
properties come out; threads, signals and settings of the process go in.
"""
