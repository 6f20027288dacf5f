"""A mesh in one process under a virtual clock: the real coordinator, workers and protocol over a network of memory.

`loop.py` is the clock, `network.py` the wires and their faults.  The same seed gives the same run.
"""
