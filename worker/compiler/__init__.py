"""Parts that all compiling engines share: passes over graphs, and functions of numbers."""
