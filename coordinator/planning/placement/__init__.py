"""Placement: which worker computes which node of a graph that is not split."""
