"""Passes over graphs that an engine runs before it compiles them, whatever it compiles for."""
