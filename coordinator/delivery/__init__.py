"""Delivery: plans, inputs and weights to workers, and what they send back."""
