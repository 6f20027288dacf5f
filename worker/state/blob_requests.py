"""Which blob is asked of whom, and what to do when a holder does not have it.

Pure.  A blob is first looked for in our own store, then asked of its holders in the plan's order; several plans may
wait for one fetch.  It does not know how content travels or where it is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wire.errors import BlobMissing, MeshError
from wire.protocol.messages import BlobSpec, PlanKey

from .events import AbandonFetch, Action, Fetch


@dataclass(slots=True)
class _Want:
    spec: BlobSpec
    holders: deque[str]
    waiting: set[PlanKey]
    peers: Mapping[str, Sequence[str]]
    attempt: int = 0  # 0: queued
    holder: str = ""
    errors: list[MeshError] = field(default_factory=list)


class Fetches:
    """All fetches of a worker.  At most `in_flight_max` run at once; the others wait in order."""

    def __init__(self, own: str, in_flight_max: int) -> None:
        self._own = own
        self._in_flight_max = in_flight_max
        self._wants: dict[bytes, _Want] = {}
        self._attempts: dict[int, bytes] = {}
        self._queue: deque[bytes] = deque()
        self._next_attempt = 1

    def want(self, spec: BlobSpec, plan: PlanKey, peers: Mapping[str, Sequence[str]]) -> list[Action]:
        """`plan` needs this content; `peers` says where holders listen.

        A fetch under way is joined if its holder still counts as one for this plan, and restarted elsewhere if not:
        that holder may be the very node whose death the plan answers.
        """
        found = self._wants.get(spec.blob)
        holders = deque([self._own, *(holder for holder in spec.holders if holder != self._own)])
        if found is None:
            self._wants[spec.blob] = _Want(spec, holders, {plan}, peers)
            self._queue.append(spec.blob)
            return self._advance()
        found.waiting.add(plan)
        found.spec, found.peers = spec, peers
        if found.attempt == 0:
            found.holders = holders
            return []
        if found.holder in holders:
            holders.remove(found.holder)
            found.holders = holders
            return []
        abandoned = found.attempt
        self._end_attempt(found)
        found.holders = holders
        self._queue.append(spec.blob)
        return [AbandonFetch(abandoned), *self._advance()]

    def found(self, attempt: int) -> tuple[bytes, int, frozenset[PlanKey], list[Action]]:
        """The content came: its address, its size, the plans that waited for it, and what is next."""
        blob = self._attempts.get(attempt)
        if blob is None:
            return b"", 0, frozenset(), []
        want = self._wants.pop(blob)
        self._end_attempt(want)
        return blob, want.spec.size_bytes, frozenset(want.waiting), self._advance()

    def failed(self, attempt: int, error: MeshError) -> tuple[frozenset[PlanKey], MeshError, list[Action]]:
        """This holder did not have it.  If it was the last one: the plans that cannot be deployed, and why."""
        blob = self._attempts.get(attempt)
        if blob is None:
            return frozenset(), error, []
        want = self._wants[blob]
        if want.holder != self._own:
            want.errors.append(error)
        self._end_attempt(want)
        if want.holders:
            self._queue.appendleft(blob)
            return frozenset(), error, self._advance()
        del self._wants[blob]
        causes = "; ".join(str(each) for each in want.errors[-3:]) or str(error)
        missing = BlobMissing(f"none of {len(want.spec.holders)} holders sent blob {blob.hex()[:16]}", cause=causes)
        return frozenset(want.waiting), missing, self._advance()

    def forget(self, plan: PlanKey) -> None:
        """`plan` no longer waits.  What is under way goes on: the plan that follows will most likely want it."""
        for blob, want in list(self._wants.items()):
            want.waiting.discard(plan)
            if not want.waiting and want.attempt == 0:
                del self._wants[blob]
                self._queue.remove(blob)

    def waits(self, plan: PlanKey) -> bool:
        return any(plan in want.waiting for want in self._wants.values())

    def validate(self) -> None:
        assert len(self._attempts) <= self._in_flight_max
        for attempt, blob in self._attempts.items():
            assert self._wants[blob].attempt == attempt
        queued = list(self._queue)
        assert len(queued) == len(set(queued)), "a blob is queued twice"
        for blob, want in self._wants.items():
            assert (want.attempt == 0) == (blob in queued), "a fetch is neither queued nor under way, or both"

    def _advance(self) -> list[Action]:
        actions: list[Action] = []
        while self._queue and len(self._attempts) < self._in_flight_max:
            blob = self._queue.popleft()
            want = self._wants[blob]
            want.attempt, want.holder = self._next_attempt, want.holders.popleft()
            self._attempts[want.attempt] = blob
            self._next_attempt += 1
            spec = want.spec
            where = tuple(want.peers.get(want.holder, ()))
            actions.append(Fetch(want.attempt, blob, spec.size_bytes, spec.keep, want.holder, where))
        return actions

    def _end_attempt(self, want: _Want) -> None:
        self._attempts.pop(want.attempt, None)
        want.attempt, want.holder = 0, ""
