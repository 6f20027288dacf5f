"""Blob requests: which node is asked for which blob, and what to do when it does not have it.  Pure.

A blob is first looked for in the worker's own store, then asked of its holders in the plan's order.  Several plans may
wait for one fetch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wire.errors import BlobMissing, MeshError
from wire.protocol.messages import BlobSpec, PlanKey

from .events import AbandonFetch, Action, Fetch


@dataclass(slots=True)
class _Request:
    spec: BlobSpec
    holders: deque[str]  # that were not asked yet
    waiting: set[PlanKey]
    peers: Mapping[str, Sequence[str]]
    attempt: int = 0  # 0: queued
    holder: str = ""
    errors: list[MeshError] = field(default_factory=list)


class BlobRequests:
    """The fetches of a worker.  At most `in_flight_max` run at once; the others wait in order."""

    def __init__(self, node_id: str, in_flight_max: int) -> None:
        self._node_id = node_id
        self._in_flight_max = in_flight_max
        self._requests: dict[bytes, _Request] = {}
        self._attempts: dict[int, bytes] = {}
        self._queue: deque[bytes] = deque()
        self._next_attempt = 1

    def request(self, spec: BlobSpec, plan: PlanKey, peers: Mapping[str, Sequence[str]]) -> list[Action]:
        """Get a blob for a plan.  `peers` says where its holders listen.

        A fetch in flight is joined if the plan names its holder too.  If not, it is restarted with another holder: the
        plan may have been made because that holder died.
        """
        request = self._requests.get(spec.blob)
        holders = deque([self._node_id, *(holder for holder in spec.holders if holder != self._node_id)])
        if request is None:
            self._requests[spec.blob] = _Request(spec, holders, {plan}, peers)
            self._queue.append(spec.blob)
            return self._advance()
        request.waiting.add(plan)
        request.spec, request.peers = spec, peers
        if request.attempt == 0:
            request.holders = holders
            return []
        if request.holder in holders:
            holders.remove(request.holder)
            request.holders = holders
            return []
        abandoned = request.attempt
        self._end_attempt(request)
        request.holders = holders
        self._queue.append(spec.blob)
        return [AbandonFetch(abandoned), *self._advance()]

    def found(self, attempt: int) -> tuple[bytes, int, frozenset[PlanKey], list[Action]]:
        """The content came.  Returns its address, its size, the plans that waited for it, and what is next."""
        blob = self._attempts.get(attempt)
        if blob is None:
            return b"", 0, frozenset(), []
        request = self._requests.pop(blob)
        self._end_attempt(request)
        return blob, request.spec.size_bytes, frozenset(request.waiting), self._advance()

    def failed(self, attempt: int, error: MeshError) -> tuple[frozenset[PlanKey], MeshError, list[Action]]:
        """A holder did not have the content.  If it was the last one, returns the plans that cannot be deployed, and
        why."""
        blob = self._attempts.get(attempt)
        if blob is None:
            return frozenset(), error, []
        request = self._requests[blob]
        if request.holder != self._node_id:
            request.errors.append(error)
        self._end_attempt(request)
        if request.holders:
            self._queue.appendleft(blob)
            return frozenset(), error, self._advance()
        del self._requests[blob]
        causes = "; ".join(str(cause) for cause in request.errors[-3:]) or str(error)
        missing = BlobMissing(f"none of {len(request.spec.holders)} holders sent blob {blob.hex()[:16]}", cause=causes)
        return frozenset(request.waiting), missing, self._advance()

    def forget(self, plan: PlanKey) -> None:
        """`plan` no longer waits.  A fetch in flight goes on, since the plan that follows will most likely need it."""
        for blob, request in list(self._requests.items()):
            request.waiting.discard(plan)
            if not request.waiting and request.attempt == 0:
                del self._requests[blob]
                self._queue.remove(blob)

    def validate(self) -> None:
        assert len(self._attempts) <= self._in_flight_max
        for attempt, blob in self._attempts.items():
            assert self._requests[blob].attempt == attempt
        queued = list(self._queue)
        assert len(queued) == len(set(queued)), "a blob is queued twice"
        for blob, request in self._requests.items():
            assert (request.attempt == 0) == (blob in queued), "a fetch is neither queued nor in flight, or both"

    def _advance(self) -> list[Action]:
        actions: list[Action] = []
        while self._queue and len(self._attempts) < self._in_flight_max:
            blob = self._queue.popleft()
            request = self._requests[blob]
            request.attempt, request.holder = self._next_attempt, request.holders.popleft()
            self._attempts[request.attempt] = blob
            self._next_attempt += 1
            spec = request.spec
            addresses = tuple(request.peers.get(request.holder, ()))
            actions.append(Fetch(request.attempt, blob, spec.size_bytes, spec.keep, request.holder, addresses))
        return actions

    def _end_attempt(self, request: _Request) -> None:
        self._attempts.pop(request.attempt, None)
        request.attempt, request.holder = 0, ""
