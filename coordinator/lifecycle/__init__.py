"""The life of a plan, the same under calls and sessions: its states, its events, its deadlines, and its shell."""
