"""Steady log: a program's own handlers and filters cannot stop what writes to the log.

`logging` guards its own handlers.  A filter that raises, or a handler of a program's own, reaches whoever wrote the
line: in the thread of a mesh that may be a link that is being made, or the event loop itself, and all that wait for it
wait for ever.  So every logger of these packages comes from here.
"""

from __future__ import annotations

import logging

_FAILURES = logging.NullHandler()


class SteadyLogger(logging.Logger):
    """A logger that prints on stderr what handlers and filters raise, as logging does with what its own raise."""

    def handle(self, record: logging.LogRecord) -> None:
        try:
            super().handle(record)
        except Exception:
            _FAILURES.handleError(record)


def steady_logger(name: str) -> logging.Logger:
    """The logger of this name, whoever asked for it first."""
    found = logging.getLogger(name)
    if not isinstance(found, SteadyLogger):
        found.__class__ = _steady(type(found))
    return found


def _steady(kind: type[logging.Logger]) -> type[logging.Logger]:
    """The same class of loggers, which a program may have chosen (`logging.setLoggerClass`), but steady."""
    return SteadyLogger if kind is logging.Logger else type(kind.__name__, (SteadyLogger, kind), {})
