"""Calls: the state machine of calls, plans and deaths, its events, and the errors that it gives."""
