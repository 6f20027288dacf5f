"""The commands `mesh-worker` and `mesh-coord`: they parse flags, connect the parts, and return exit codes.

Part of the composition root.  A command is one file; a verb of `mesh-coord` is one function and one row of its table.
"""
