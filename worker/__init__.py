"""The worker: a daemon that keeps links and decides, and engine hosts that compute."""
