"""Plan requests: what coordinators and other workers ask of the machine, as its events, and the tensors they send."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from wire.errors import MeshError, OutOfMemory
from wire.limits import MIB
from wire.link.link import Link
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.messages import (
    CancelStep,
    Deploy,
    Drop,
    Explain,
    Join,
    Message,
    OpenDirect,
    Pause,
    Push,
    Run,
    Snapshot,
    Suspected,
)
from wire.system import mapped_files
from wire.system.outcome import Outcome
from wire.system.shared_memory import SharedDir, remove, reserve
from wire.system.tasks import as_error, unheard
from wire.transfer.content_exchange import written

from ..state import events as ev
from .arriving_tensors import ArrivingTensors
from .link_handler import Answer, PromptAnswer, Take
from .machine_shell import MachineShell
from .tensor_refs import is_here, tensor_of

LARGE_BYTES = 32 * MIB  # memory for so much is had in 20 ms, in which the event loop stands still


@dataclass(frozen=True, slots=True)
class _Large:
    """A tensor that is written into its file by threads, as it comes."""

    name: str
    handle: int  # the open file
    buffer: PacedBuffer
    writing: asyncio.Task[OSError | None]


class PlanRequests:
    """Tensors that come as streams are written to files in `shared`.  `forget` discards what was relayed so far for a
    plan, or a step of it.  `held` gives the blobs that are here, and `joined` is called once the machine agreed."""

    def __init__(
        self,
        shell: MachineShell,
        shared: SharedDir,
        forget: Callable[..., None],
        held: Callable[[], Any],
        joined: Callable[[Link, Join], None],
        arriving: ArrivingTensors,
    ) -> None:
        self._shell = shell
        self._shared = shared
        self._forget = forget
        self._held = held
        self._joined = joined
        self._arriving = arriving
        self._files: dict[int, str] = {}  # id of a stream's buffer -> name of its file
        self._large: dict[int, _Large] = {}  # likewise

    def requests(self) -> dict[type[Message], Answer]:
        return {
            Join: self._join,
            Deploy: self._deploy,
            Drop: self._drop,
            Snapshot: self._snapshot,
            Explain: self._explain,
            OpenDirect: self._open_direct,
            Pause: self._pause,
        }

    def prompt(self) -> dict[type[Message], PromptAnswer]:
        return {Run: self._run}

    def notifications(self) -> dict[type[Message], Take]:
        return {Push: self._pushed, CancelStep: self._cancel, Suspected: self._suspected}

    # -- requests

    async def _join(self, link: Link, body: Join) -> Message:
        peer, held = link.peer, self._held()
        plans = body.continued, body.earlier, body.epochs
        joined = await self._shell.ask(
            lambda request: ev.JoinRequested(
                peer.node_id, request, peer.name, body.epoch, body.beat_s, body.silence_s, held, *plans
            )
        )
        self._joined(link, body)
        return joined

    async def _deploy(self, link: Link, body: Deploy) -> Message:
        return await self._shell.ask(lambda request: ev.DeployRequested(link.peer.node_id, request, body))

    def _run(self, link: Link, body: Run) -> Outcome[Message]:
        here = [feed for feed in body.feeds if is_here(feed.value)]
        feeds = tuple([(feed.part, feed.slot, tensor_of(link, feed.value)) for feed in here])
        step = body.step, feeds, body.committed
        return self._shell.put(lambda request: ev.RunRequested(link.peer.node_id, request, body.plan, *step))

    async def _drop(self, link: Link, body: Drop) -> Message:
        self._forget(body.plan)
        return await self._shell.ask(lambda request: ev.DropRequested(link.peer.node_id, request, body.plan, body.free))

    async def _snapshot(self, link: Link, body: Snapshot) -> Message:
        return await self._shell.ask(
            lambda request: ev.SnapshotRequested(link.peer.node_id, request, body.plan, body.step)
        )

    async def _explain(self, link: Link, body: Explain) -> Message:
        return await self._shell.ask(lambda request: ev.ExplainRequested(link.peer.node_id, request, body))

    async def _open_direct(self, link: Link, body: OpenDirect) -> Message:
        peer = link.peer
        return await self._shell.ask(
            lambda request: ev.DirectRequested(
                peer.node_id, request, body.plan, body.part, peer.shared_memory, body.name
            )
        )

    async def _pause(self, link: Link, body: Pause) -> Message:
        return await self._shell.ask(lambda request: ev.PauseRequested(link.peer.node_id, request, body.on))

    # -- notifications

    def _pushed(self, link: Link, body: Push) -> None:
        tensor = tensor_of(link, body.value, body.zeros)
        self._shell.feed(ev.TensorArrived(link.peer.node_id, body.plan, body.step, body.part, body.slot, tensor))

    def _cancel(self, link: Link, body: CancelStep) -> None:
        self._forget(body.plan, body.step)
        self._shell.feed(ev.CancelRequested(link.peer.node_id, body.plan, body.step))

    def _suspected(self, link: Link, body: Suspected) -> None:
        self._shell.feed(ev.SuspectedBy(link.peer.node_id, body.incarnation))

    # -- streams of tensors

    def open_stream(self, link: Link, header: Push, size_bytes: int) -> memoryview | PacedBuffer:
        node = link.peer.node_id
        whole_bytes = size_bytes + header.zeros
        self._arriving.check(header, node, whole_bytes)
        buffer: memoryview | PacedBuffer
        try:
            small = self._open_small(size_bytes, whole_bytes) if whole_bytes <= LARGE_BYTES else None
            buffer = self._open_large(link, size_bytes) if small is None else small
        except Exception as fault:
            self._shell.feed(ev.TensorLost(header.plan, header.step, as_error("taking a tensor failed", fault)))
            raise
        self._arriving.begin(header, node, whole_bytes)
        return buffer

    def _open_small(self, size_bytes: int, whole_bytes: int) -> memoryview | None:
        """The beginning of a file of zeros; None where there is no room now: threads may wait for memory that is being
        given back, and the loop not."""
        try:
            segment = self._shared.allocate(whole_bytes)
        except OutOfMemory:
            return None
        buffer = segment.buffer[:size_bytes]
        self._files[id(buffer)] = segment.name
        return buffer

    def _open_large(self, link: Link, size_bytes: int) -> PacedBuffer:
        buffer = PacedBuffer(mapped_files.passing(size_bytes))
        name, handle = self._shared.open()
        writing = self._shell.tasks.run("writing what arrives", written(link, buffer, handle), unheard)
        self._large[id(buffer.view)] = _Large(name, handle, buffer, writing)
        return buffer

    def stream_done(self, link: Link, header: Push, buffer: memoryview, error: MeshError | None) -> None:
        large = self._large.pop(id(buffer), None)
        if large is not None:
            landing = self._land(link, header, large, error)
            self._shell.tasks.run("taking a tensor", landing, partial(self._lost, header))
            return
        name = self._files.pop(id(buffer))
        self._arriving.end(header)
        if error is not None:
            remove(self._shared.path, name)
            return
        self._arrived(link, header, name)

    async def _land(self, link: Link, header: Push, large: _Large, error: MeshError | None) -> None:
        """All that comes of a large tensor has come: once it is in its file, it is there."""
        landed = False
        try:
            refused = await large.writing if error is None else None
            if error is None and refused is None and header.zeros:
                refused = await asyncio.to_thread(_add_zeros, large, header.zeros)
            if refused is not None:
                raise OutOfMemory("shared memory is full", cause=str(refused))
            landed = error is None
        finally:
            large.writing.cancel()
            link.give_up(large.buffer)
            os.close(large.handle)
            self._arriving.end(header)
            if not landed:
                remove(self._shared.path, large.name)
        if landed:
            self._arrived(link, header, large.name)

    def _lost(self, header: Push, error: MeshError) -> None:
        self._shell.feed(ev.TensorLost(header.plan, header.step, error))

    def _arrived(self, link: Link, header: Push, name: str) -> None:
        value = header.value
        tensor = ev.SharedFile(value.dtype, value.shape, str(self._shared.path), name)
        self._shell.feed(
            ev.TensorArrived(link.peer.node_id, header.plan, header.step, header.part, header.slot, tensor)
        )


def _add_zeros(large: _Large, size_bytes: int) -> OSError | None:
    """Lengthen a file; the error of one that has no room."""
    try:
        reserve(large.handle, large.buffer.view.nbytes + size_bytes)
    except OSError as error:
        return error
    return None
