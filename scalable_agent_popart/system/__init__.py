"""The machine and its operating system: cores, memory, signals, threads, processes, terminal.

Of what runs on the machine it may know only the errors that end it. Any folder may use it. The
machine's properties come out; threads, signals and settings of the process go in.
"""
