"""Sessions: stateful programs: their state machine, its shell, and copies of their state."""
