"""Record writer: has it written down where a durable session's state is, before any of it is let go.

An action by which something may be lost that a record names waits until a newer record is written.  Nothing else waits
for the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from wire.bounds import RECORD_WAITS
from wire.errors import MeshError
from wire.system.steady_log import steady_logger

from . import events as ev
from .manifest import SessionRecord

log = steady_logger("graph_mesh.coordinator")

LETS_GO = (ev.SendDrop, ev.ReleaseCopy, ev.ForgetFeeds, ev.Claimed)
AGAIN_S = 1.0  # after the disk refused a record
REFUSED_S = 5.0  # after so long what waits is done all the same: workers have no room for ever more copies
PAUSE = 9  # times what a record took to be written, until the next one
PAUSE_S_MAX = 1.0  # workers hold all that waits for a record, which is a copy of the state after every few steps
DUE_MAX = RECORD_WAITS.most  # each is a copy that some worker still holds, or feeds
WriteRecord = Callable[[SessionRecord], Awaitable[None]]


class RecordWriter:
    """The writer of one durable session: it performs actions, and has a new record written before what follows it."""

    def __init__(
        self,
        write: WriteRecord,
        record: Callable[[], SessionRecord],
        act: Callable[[ev.Action], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        clock: Callable[[], float],
    ) -> None:
        self._write, self._record, self._act, self._spawn, self._clock = write, record, act, spawn, clock
        self._about: object = None  # what the record was about that was written last, or will be soon
        self._unwritten = False
        self._over = False
        self._writing: asyncio.Task[None] | None = None
        self._due: deque[ev.Action] = deque()
        self._covered = 0  # so many of these, the first, wait only for the record that is being written

    def begin(self, about: object) -> None:
        """A record about this is written down already."""
        self._about = about

    def perform(self, actions: Iterable[ev.Action], about: object) -> None:
        """Perform actions after which the record is `about` something; None for a session that is over."""
        self._over = about is None
        if about not in (None, self._about):
            self._about, self._unwritten = about, True
            if self._writing is None:
                self._writing = self._spawn(self._write_all())
        if self._over or len(self._due) > DUE_MAX:
            self._act_due(len(self._due))
        for action in actions:
            if self._writing is not None and isinstance(action, LETS_GO) and not self._over:
                self._due.append(action)
            else:
                self._act(action)

    async def _write_all(self) -> None:
        """Write the record of now, again and again while it changes, and do what waited for it.  So many writes are put
        together that they take a small share of the time.

        Where the disk refuses for a while, as a full one does, the session continues and is not durable."""
        refused_since_s: float | None = None
        durable = True
        while self._unwritten and not self._over:
            self._unwritten, self._covered, began_s = False, len(self._due), self._clock()
            try:
                await self._write(self._record())
            except MeshError as error:
                self._unwritten = True
                refused_since_s = began_s if refused_since_s is None else refused_since_s
                if durable and self._clock() - refused_since_s >= REFUSED_S:
                    log.warning("a session ends with this process until its state can be written down: %s", error)
                    durable = False
                if not durable:
                    self._act_due(len(self._due))
                await asyncio.sleep(AGAIN_S)
                continue
            if not durable:
                log.info("the state of a session is written down again")
            refused_since_s, durable = None, True
            self._act_due(self._covered)
            await asyncio.sleep(min(PAUSE * (self._clock() - began_s), PAUSE_S_MAX))
        self._writing = None
        self._act_due(len(self._due))

    def _act_due(self, count: int) -> None:
        """Do the first of what waits for a record."""
        for _ in range(min(count, len(self._due))):
            self._covered = max(self._covered - 1, 0)
            self._act(self._due.popleft())
