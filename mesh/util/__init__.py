"""Checks of arguments, units, and what else knows nothing of arrays."""
