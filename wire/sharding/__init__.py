"""Sharding: turns a program about whole tensors, with annotations of how some are split, into one that ranks run.

`layout.py` says how a tensor lies on a grid, `factors.py` what an op asks of that, `propagate.py` finds layouts for all
tensors from those of some, `reshard.py` the cheapest way from one layout to another, and `partition.py` writes the
program of a rank.  Pure functions of graphs and layouts, which the coordinator and programs without one share.
"""
