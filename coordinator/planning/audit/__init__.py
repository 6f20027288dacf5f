"""Audits: parts that are computed again elsewhere, and how far honest results may differ."""
