"""Redundancy: groups of copies and parity blocks, the memory that they take, and what a death costs."""
