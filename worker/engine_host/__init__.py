"""The engine host: the child process that computes on one device, and the daemon's end of it."""
