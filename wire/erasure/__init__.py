"""Erasure codes: n shares of which any k give the whole back, over real numbers and over bytes."""
