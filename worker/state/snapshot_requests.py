"""Snapshot requests: answers to a coordinator that asked for what a step carried, as blobs.  Pure.

Every value is made a blob by the shell, and the request is answered once all of them are.  Which values those are is
the plan's business (`carried_state.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.errors import BlobMissing, StaleGeneration
from wire.protocol.messages import CarriedValue, Snapshotted

from .carried_state import Carries, Output
from .events import Action, BlobMade, BlobNotMade, DiscardBlobs, MakeBlob, Refuse, Reply


@dataclass(slots=True)
class _Asked:
    waiting: dict[int, Output]
    carries: Carries
    made: list[CarriedValue] = field(default_factory=list)


class Snapshots:
    """All that are under way, by request."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._requests: dict[int, int] = {}  # number of a blob to be made -> request
        self._next_number = 1

    def begin(self, request: int, step: int, carries: Carries | None) -> list[Action]:
        """Answer a request with what came out of a step, or refuse it."""
        if carries is None:
            return [Refuse(request, StaleGeneration("that plan is not here"))]
        values = carries.after(step)
        if values is None:
            return [Refuse(request, BlobMissing(f"what came out of step {step} is not here"))]
        if not values:
            return [Reply(request, Snapshotted(()))]
        asked = self._asked[request] = _Asked({}, carries)
        actions: list[Action] = []
        for output, tensor in values.items():
            asked.waiting[self._next_number] = output
            self._requests[self._next_number] = request
            actions.append(MakeBlob(self._next_number, tensor))
            self._next_number += 1
        return actions

    def made(self, event: BlobMade, now: float) -> list[Action]:
        """One of them is among our blobs."""
        request = self._requests.pop(event.number, 0)
        asked = self._asked.get(request)
        if asked is None:
            return [DiscardBlobs(frozenset((event.blob,)))]
        if asked.carries.over:
            del self._asked[request]
            gone = Refuse(request, StaleGeneration("that plan is not here any more"))
            return [gone, DiscardBlobs(frozenset((event.blob,)))]
        asked.carries.blobs.add(event.blob)
        asked.made.append(CarriedValue(*asked.waiting.pop(event.number), event.blob))
        if asked.waiting:
            return []
        del self._asked[request]
        return [Reply(request, Snapshotted(tuple(asked.made)))]

    def failed(self, event: BlobNotMade, now: float) -> list[Action]:
        """One of them is gone, or there is no room for it."""
        request = self._requests.pop(event.number, 0)
        return [Refuse(request, event.error)] if self._asked.pop(request, None) is not None else []

    def forget(self, request: int) -> None:
        """Nobody waits for it any more."""
        self._asked.pop(request, None)
