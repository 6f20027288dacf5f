"""Transforms: functions made of functions - derivatives, batches, recomputation.

`inner.py` runs a function and walks what it did; each transform is a table of rules, one row per op.
"""
