"""Relay: tensors between two workers that cannot connect, piece by piece through their coordinator.

    sender --Relay(to, piece)--> coordinator --Relay(from, piece)--> receiver --Done--> coordinator --Done--> sender

A piece counts as sent when its receiver has it, and only a few are in flight at once, so nobody holds more than those:
neither the coordinator, whatever the tensor's size, nor a socket before a receiver that is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ..bounds import RELAYED_PIECES
from ..deadlines import RELAY
from ..errors import NodeLost, ProtocolError
from ..limits import KIB
from ..link.link import Link
from ..protocol.messages import RELAY_BYTES_MAX, Done, PlanKey, Push, Relay
from ..system.tasks import Tasks, unheard

PIECES_MAX = RELAYED_PIECES.most  # enough for gigabit and 30 ms there and back

assert RELAY_BYTES_MAX > 256 * KIB  # longer than a chunk, so that pieces go on bulk and heartbeats past them


class RelaySender:
    """One worker's end where tensors begin."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(PIECES_MAX)
        self._tasks = Tasks()

    async def send(self, link: Link, node: str, push: Push, data: memoryview) -> None:
        """Return when `node` has all of `data`; `link` leads to the coordinator.  MeshError if it got lost."""
        pieces: set[asyncio.Task[None]] = set()
        try:
            for offset in range(0, max(data.nbytes, 1), RELAY_BYTES_MAX):
                await self._room.acquire()
                piece = Relay(node, push, data.nbytes, offset, bytes(data[offset : offset + RELAY_BYTES_MAX]))
                task = self._tasks.run("relaying a tensor", _send_piece(link, piece), unheard)
                task.add_done_callback(self._piece_over)
                pieces.add(task)
                for done in [transfer for transfer in pieces if transfer.done()]:
                    pieces.discard(done)
                    done.result()
            await asyncio.gather(*pieces)
        finally:
            for transfer in pieces:
                transfer.cancel()

    def _piece_over(self, task: asyncio.Task[None]) -> None:
        self._room.release()
        if not task.cancelled():
            task.exception()  # one piece's is raised, and says it for all


async def _send_piece(link: Link, piece: Relay) -> None:
    answer = await link.request(piece, RELAY.seconds)
    if not isinstance(answer, Done):
        raise ProtocolError(f"expected Done, got {type(answer).__name__}", node=link.peer.name)


async def pass_on(link: Link | None, sender: str, piece: Relay) -> Done:
    """The coordinator's part: hand a piece from `sender` to the worker at the end of `link`."""
    if link is None:
        raise NodeLost("the worker that a tensor was to be relayed to is gone", node=piece.node)
    await _send_piece(link, Relay(sender, piece.push, piece.size_bytes, piece.offset, piece.data))
    return Done()


Key = tuple[str, PlanKey, int, int, int]  # sender, plan, step, part, slot


@dataclass(slots=True)
class _Arriving:
    size_bytes: int
    label: str
    missing: set[int]  # offsets


@dataclass(slots=True)
class RelayReceiver:
    """One worker's end where tensors arrive.

    `allocate` gives a label to a tensor of a given size from a node, or raises a MeshError for one that is not wanted.
    `write` keeps a piece under the label, from an offset on; MeshError where it has no room.  `release` takes back what
    was never completed.
    """

    allocate: Callable[[str, Push, int], str]
    write: Callable[[str, int, bytes], None]
    release: Callable[[Push, str], None]
    _arriving: dict[Key, tuple[Push, _Arriving]] = field(default_factory=dict)

    def take(self, piece: Relay) -> str | None:
        """Keep a piece; the label of the tensor once it is complete.  ProtocolError for what does not fit, and what
        `allocate` and `write` raise."""
        push, size = piece.push, piece.size_bytes
        key = piece.node, push.plan, push.step, push.part, push.slot
        if key not in self._arriving:
            label = self.allocate(piece.node, push, size)
            offsets = set(range(0, max(size, 1), RELAY_BYTES_MAX))
            self._arriving[key] = push, _Arriving(size, label, offsets)
        arriving = self._arriving[key][1]
        end = min(piece.offset + RELAY_BYTES_MAX, arriving.size_bytes)
        if piece.offset not in arriving.missing or len(piece.data) != end - piece.offset:
            raise ProtocolError(f"a relayed piece of {len(piece.data)} bytes at {piece.offset} does not belong there")
        self.write(arriving.label, piece.offset, piece.data)
        arriving.missing.discard(piece.offset)
        if arriving.missing:
            return None
        del self._arriving[key]
        return arriving.label

    def forget(self, plan: PlanKey | None = None, step: int | None = None) -> None:
        """What is over does not arrive any more: a step, a plan, or everything."""
        for key, (push, arriving) in list(self._arriving.items()):
            if plan in (None, push.plan) and step in (None, push.step):
                del self._arriving[key]
                self.release(push, arriving.label)
