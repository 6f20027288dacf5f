"""The mains of `mesh-worker` and `mesh-coord`: flags in, parts connected, exit codes out.

Part of the composition root.  A command is one file; a verb of `mesh-coord` is one function and one row of its table.
"""
