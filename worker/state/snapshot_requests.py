"""Snapshot requests: a coordinator asks for the carried values of a step, as blobs.  Pure.

The shell makes a blob of every value, and the request is answered once it has made all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.errors import BlobMissing, StaleGeneration
from wire.protocol.messages import CarriedValue, Snapshotted

from .carried_state import CarriedState, Output
from .events import Action, BlobMade, BlobNotMade, DiscardBlobs, MakeBlob, Refuse, Reply


@dataclass(slots=True)
class _Snapshot:
    waiting: dict[int, Output]
    carried: CarriedState
    values: list[CarriedValue] = field(default_factory=list)


class SnapshotRequests:
    """The requests that are not answered yet."""

    def __init__(self) -> None:
        self._snapshots: dict[int, _Snapshot] = {}  # by request
        self._requests: dict[int, int] = {}  # number of a blob to be made -> request
        self._next_number = 1

    def begin(self, request: int, step: int, carried: CarriedState | None) -> list[Action]:
        """Begin a snapshot of a step's values, or refuse the request."""
        if carried is None:
            return [Refuse(request, StaleGeneration("that plan is not here"))]
        values = carried.values_of(step)
        if values is None:
            return [Refuse(request, BlobMissing(f"what came out of step {step} is not here"))]
        if not values:
            return [Reply(request, Snapshotted(()))]
        snapshot = self._snapshots[request] = _Snapshot({}, carried)
        actions: list[Action] = []
        for output, tensor in values.items():
            snapshot.waiting[self._next_number] = output
            self._requests[self._next_number] = request
            actions.append(MakeBlob(self._next_number, tensor))
            self._next_number += 1
        return actions

    def blob_made(self, event: BlobMade, now: float) -> list[Action]:
        """A value is in the blob store."""
        request = self._requests.pop(event.number, 0)
        snapshot = self._snapshots.get(request)
        if snapshot is None:
            return [DiscardBlobs(frozenset((event.blob,)))]
        if snapshot.carried.ended:
            del self._snapshots[request]
            refusal = Refuse(request, StaleGeneration("that plan is not here any more"))
            return [refusal, DiscardBlobs(frozenset((event.blob,)))]
        snapshot.carried.blobs.add(event.blob)
        snapshot.values.append(CarriedValue(*snapshot.waiting.pop(event.number), event.blob))
        if snapshot.waiting:
            return []
        del self._snapshots[request]
        return [Reply(request, Snapshotted(tuple(snapshot.values)))]

    def blob_failed(self, event: BlobNotMade, now: float) -> list[Action]:
        """A value is gone, or the store has no room for it."""
        request = self._requests.pop(event.number, 0)
        return [Refuse(request, event.error)] if self._snapshots.pop(request, None) is not None else []

    def forget(self, request: int) -> None:
        """Nobody waits for the answer any more."""
        self._snapshots.pop(request, None)
