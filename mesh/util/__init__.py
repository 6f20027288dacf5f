"""Checks of arguments, units, and other helpers that know nothing of arrays."""
