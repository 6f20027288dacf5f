"""What calls and sessions share of a plan: its lifecycle and the shell around it, events, error texts and time-outs."""
