"""Simulation: a mesh in one process under a virtual clock, and workers that are slower than their machine.

The coordinator, the workers and the protocol are the real ones.  `loop.py` is the clock, `network.py` the wires and
their faults; the same seed gives the same run.  Of real worker processes, `throttled_worker.py` makes one slower.
Processes that neither simulate nor throttle import nothing from here.
"""
