"""Transforms: functions made of functions - derivatives, batches, rules of one's own.  `mesh` exports them.

`inner.py` runs a function and walks what it did.  Each transform is a table of rules, one row per op (`vjp.py`,
`jvp.py`, `vmap.py`), with a face over pytrees (`derivatives.py`, `batching.py`, `custom.py`,
`remat.py`).
"""
