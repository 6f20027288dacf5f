"""Codes over real numbers: a tensor as n shares, of which any k give it back (docs/coding.md)."""
