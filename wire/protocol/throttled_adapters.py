"""Adapter names of throttled workers: they say how slow a worker was made, so that nobody takes its speed for the
machine's.  Workers send them as they join, and `mesh-coord doctor` warns of them.  Pure.
"""

from __future__ import annotations

_MARK = "throttled: "


def throttled_name(adapter: str, throttle: str) -> str:
    """The name of an adapter with the throttle beside it."""
    return f"{adapter} ({_MARK}{throttle})"


def throttle_in(adapter: str) -> str:
    """The throttle in a `throttled_name`; "" in any other name."""
    _, mark, throttle = adapter.partition(f"({_MARK}")
    return throttle.removesuffix(")") if mark else ""
