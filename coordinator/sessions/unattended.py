"""What a session's machine (`state.py`) does while nobody drives its session, and as another client claims it.  Pure.

A durable session may have a name, and then outlasts its client.  While that is away, the value that it has come to is
copied, and again when a death has made the copy thin.  Another client claims it after that; then nobody can have feeds
of earlier steps any more.  Where this process was started anew as well, the workers say how many steps they have done:
a step that any client has the answer of, all of them have done.  If some are gone, the newest copy counts, until the
session was claimed (`Attendance.unsure`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import events as ev

if TYPE_CHECKING:
    from .state import SessionState

STORE_AGAIN_S = 2.0  # after a copy failed that no step would be followed by another of
TRIES_MAX = 3  # to store the state, before a claim is answered without


def client_went(machine: SessionState, event: ev.ClientWent, now: float) -> list[ev.Action]:
    if machine.over:
        return []
    machine._attendance.away = event.away
    machine._attendance.left = event.away and machine._attendance.claimed
    machine._attendance.stored()
    return move(machine, now)


def claim_asked(machine: SessionState, event: ev.ClaimRequested, now: float) -> list[ev.Action]:
    if machine.over:
        return []
    machine._attendance.claimed, machine._attendance.left = True, False
    return [*move(machine, now), *machine._issue(now)]


def attend(machine: SessionState, now: float) -> list[ev.Action]:
    """Once nothing is in flight: store the state so that it outlives a worker, and this process with the client; then a
    program that claims the session may have it.  For a claim all is done that was asked for; otherwise as much as may
    be before the client was heard to have its answers."""
    here, plan, claimed = machine._attendance, machine._plan, machine._attendance.claimed
    if here.again.is_over(now):
        here.again.end()
    if plan is None or not plan.running or plan.ending or plan.steps or (claimed and machine._done < machine._asked):
        return []
    if _is_stored(machine):
        here.stored()
    elif not here.again and not any(pending.purpose == "copy" for pending in machine._pending.values()):
        here.again.begin(now, STORE_AGAIN_S)
        here.tries += 1
        return _store(machine, now)
    if claimed and (_is_stored(machine) or here.tries > TRIES_MAX):
        return [*_forget_feeds_of_others(machine), ev.Claimed(machine._delivered), *machine._issue(now)]
    return []


def move(machine: SessionState, now: float) -> list[ev.Action]:
    """Go over to a better plan once nothing is in flight and the client, if it is there, has all answers: a step that
    it lacks the answer of would be done again."""
    plan = machine._plan
    if plan is None or not plan.running or not plan.ending or plan.steps:
        return []
    unheard = machine._safe < machine._done and not machine._attendance
    return [] if unheard else machine._restart(None, now)


def _is_stored(machine: SessionState) -> bool:
    """Whether nothing more can be done for the value that the plan has come to.  The first one is in the journal."""
    copied = any(copy.value == machine._done and copy.whole and copy.intact for copy in machine._copies)
    made = machine._plan is not None and machine._done > machine._plan.start and machine._replicated
    return machine._done == 0 or copied or made or machine.policy.copies == "none"


def _store(machine: SessionState, now: float) -> list[ev.Action]:
    """Copy the value that the plan has come to, or the copy that it began with once more."""
    assert machine._plan is not None
    if machine._done > machine._plan.start:
        return machine._take("copy")
    copy = next((copy for copy in machine._whole_copies if copy.value == machine._done), None)
    return machine._snapped(machine._again("copy", copy), now) if copy is not None else []


def _forget_feeds_of_others(machine: SessionState) -> list[ev.Action]:
    """Let copies go whose later feeds the next client has not.  In a session without other copies they are here."""
    needless = machine._attendance.unsure or (_is_stored(machine) and machine.policy.copies != "none")
    machine._acknowledged = machine._delivered
    machine._attendance.handed_over()
    return [*machine._trim_lost(), *machine._trim(lambda copy: needless and copy.value < machine._done)]
