"""Log lines: events of workers as the lines of a coordinator daemon's log.  Pure.

A death is one line that says who is gone and how that was seen, and one that says where its work went; a return is one
line.  What is not in LINES is for jobs' logs and for watchers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from wire.protocol.reports import Event

# The kind of an event, and how its line is written.
LINES: Mapping[str, tuple[int, str]] = {
    "joined": (logging.INFO, "{node} joined"),
    "healthy": (logging.INFO, "{node} answers again"),
    "suspect": (logging.WARNING, "{node} is suspect: {text}"),
    "dead": (logging.WARNING, "{node} is gone: {text}"),
    "leaving": (logging.INFO, "{node} leaves: {text}"),
    "paused": (logging.INFO, "{node} takes no work: {text}"),
    "resumed": (logging.INFO, "{node} takes work again"),
    "stuck": (logging.WARNING, "{node} is stuck: {text}"),
    "stalled": (logging.WARNING, "work is done anew: {text}"),
    "unstuck": (logging.INFO, "{node} is not stuck any more: {text}"),
    "devices": (logging.WARNING, "{node} has other devices: {text}"),
    "quarantined": (logging.WARNING, "{node} is in quarantine: {text}"),
}


class LogLines:
    """Turns events into lines of the log."""

    def __init__(self) -> None:
        self._gone: dict[str, None] = {}  # whose work has not been placed anew yet
        self._absent: set[str] = set()
        self._leaving: set[str] = set()

    def lines(self, event: Event, idle: bool) -> list[tuple[int, str]]:
        """The lines of an event, each with its level; `idle` says that no work is in flight."""
        if event.kind == "planned":
            gone, self._gone = ", ".join(self._gone), {}
            return [(logging.INFO, f"the work of {gone} goes on: {event.text}")] if gone else []
        if event.kind not in LINES:
            return []
        level, form = LINES[event.kind]
        text = form.format(node=event.node, text=event.text)
        if event.kind == "leaving":
            self._leaving.add(event.node)
        if event.kind == "dead":
            level = logging.INFO if event.node in self._leaving else level  # as it was asked to
            self._leaving.discard(event.node)
            self._absent.add(event.node)
            text += "; no work was in flight" if idle else ""
            self._gone |= {} if idle else {event.node: None}
        if event.kind in ("joined", "healthy") and event.node in self._absent:
            self._absent.discard(event.node)
            text = f"{event.node} is back"
        return [(level, text)]
