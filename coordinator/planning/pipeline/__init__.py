"""Pipelines: a training step cut into stages of micro-batches."""
