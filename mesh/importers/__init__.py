"""Importers: models of other programs as graphs of ours.

Each folder (or file) is the only place that imports its program's package, and does so when it is used.
"""
