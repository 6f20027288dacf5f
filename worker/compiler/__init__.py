"""What engines share that compile, whatever they compile for: passes over graphs, and functions of numbers."""
