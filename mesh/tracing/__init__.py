"""Tracing: a graph of a Python function."""
