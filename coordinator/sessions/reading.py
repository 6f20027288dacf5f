"""How a session's machine (`state.py`) gives a caller the value of its state.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lifecycle.error_context import not_readable_yet
from . import events as ev
from .steps import Read

if TYPE_CHECKING:
    from .state import SessionState


def asked(machine: SessionState, event: ev.StateRequested, now: float) -> list[ev.Action]:
    if machine._over is not None:
        return [ev.RejectState(event.request, machine._over)]
    machine._reads[event.request] = Read(machine._asked)
    return read(machine, now)


def withdrawn(machine: SessionState, event: ev.StateRequestWithdrawn, now: float) -> list[ev.Action]:
    machine._reads.pop(event.request, None)
    return [*machine._abandon(event.request), *machine._issue(now)]


def read(machine: SessionState, now: float) -> list[ev.Action]:
    """Answer reads of the value that the plan has come to, or have it copied to this process first."""
    plan, actions = machine._plan, list[ev.Action]()
    if plan is None or not plan.running:
        return []
    for request, read in list(machine._reads.items()):
        if read.begun or read.value != machine._done:
            continue
        copy = next((copy for copy in machine._whole_copies if copy.value == machine._done), None)
        if copy is not None and copy.here:
            del machine._reads[request]
            actions.append(ev.DeliverState(request, copy.contents, copy.where))
            continue
        if copy is None and machine._done == plan.start:  # every other node that had what this plan began with is gone
            if machine._whole_copies:
                return [*actions, *machine._restart(None, now)]
            del machine._reads[request]
            actions.append(ev.RejectState(request, not_readable_yet(machine._last_error)))
            continue
        read.begun = True
        actions += machine._take(request) if copy is None else machine._keep(machine._again(request, copy))
    return [*actions, *machine._issue(now)]
