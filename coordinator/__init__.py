"""The coordinator: plans, calls, sessions and jobs over the workers of a mesh."""
