"""What calls and sessions share of a plan: events and actions, error texts, and the time-outs of steps."""
