"""The machine and its operating system: cores, memory, signals, threads, processes, terminal.

It may know the errors that end a program, and the names of the program's modules, but nothing else
of what runs on the machine. Any folder may use it. The machine's properties come out; threads,
signals and settings of the process go in.
"""
