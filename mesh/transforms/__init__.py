"""Transforms: functions made of functions - derivatives, batches, rules of one's own.  `mesh` exports them.

`step_list.py` runs a function and walks what it did.  Each transform is a table of rules, one row per op
(`vjp_rules.py`,
`jvp_rules.py`, `vmap_rules.py`), with a face over pytrees (`grad.py`, `vmap.py`, `custom_rules.py`,
`remat.py`).
"""
