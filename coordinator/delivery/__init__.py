"""Delivery: sends plans, inputs and weights to workers, and receives what they send back."""
