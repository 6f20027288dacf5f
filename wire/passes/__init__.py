"""Passes: graph in, graph out, each a pure function."""
