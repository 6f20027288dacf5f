"""Erasure codes: n shares of which any k restore the data, over real numbers and over bytes."""
