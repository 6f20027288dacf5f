"""Every decision of a worker, pure: events in, actions out."""
