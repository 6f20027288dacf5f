"""Action failures: the event by which the machine learns that an action could not be performed.  Pure.

An action that is answered by an event has a row here, so that nothing waits for an answer that will not come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wire.errors import MeshError

from . import events as ev

_EVENTS: dict[type, Callable[[Any, MeshError], ev.Event]] = {
    ev.LinkTo: lambda action, error: ev.LinkFailed(action.node, error),
    ev.Fetch: lambda action, error: ev.BlobNotFound(action.attempt, error),
    ev.Prepare: lambda action, error: ev.PrepareFailed(action.prepared, error),
    ev.Execute: lambda action, error: ev.ExecuteFailed(action.run, error),
    ev.ExplainPart: lambda action, error: ev.ExecuteFailed(action.run, error),
    ev.MakeBlob: lambda action, error: ev.BlobNotMade(action.number, error),
    ev.SendPush: lambda action, error: ev.PushFailed(action.push, error),
    ev.StartHost: lambda action, error: ev.HostLost(action.device, error),
    ev.KeepServed: lambda action, error: ev.ServedNotKept(action.epoch, error),
}


_DOING = {
    ev.LinkTo: "dialling",
    ev.Fetch: "fetching content",
    ev.Prepare: "preparing a part",
    ev.Execute: "running a part",
    ev.ExplainPart: "explaining a part",
    ev.MakeBlob: "taking a snapshot",
    ev.SendPush: "sending a tensor",
    ev.StartHost: "starting an engine host",
    ev.KeepServed: "writing whom this worker serves",
    ev.ReplyRan: "returning outputs",
    ev.OpenDirect: "connecting an engine host for direct calls",
}


def doing(action: ev.Action) -> str:
    """The text for people of what an action does."""
    return _DOING.get(type(action), f"the worker's {type(action).__name__}")


def failure_of(action: ev.Action, error: MeshError) -> ev.Event | None:
    """The event that `action` failed; None if nobody waits for its answer."""
    event = _EVENTS.get(type(action))
    return None if event is None else event(action, error)
