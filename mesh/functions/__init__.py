"""Functions and steps that are traced once and called often."""
