"""Content moving between two nodes by its address: asking for it and giving it.

One BlobExchange per process that holds tensors in memory (coordinator, client).  It chooses the way: inline in the
answer, through shared memory on one host, or as a stream; and it checks what arrives against the address asked for.
It does not know where content is kept: `find` is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..deadlines import FETCH_PROGRESS
from ..errors import (
    BlobCorrupt,
    BlobMissing,
    DeadlineExceeded,
    EngineError,
    MeshError,
    NodeLost,
    OutOfMemory,
    ProtocolError,
)
from ..ir.codec import decode_graph, hash_array, hash_bytes, tensor_bytes, tensor_from
from ..ir.dtypes import dtype_named, dtype_of
from ..ir.graph import WireGraph, check_type
from ..ir.types import TensorType
from ..limits import DEFAULT, KIB, MIB
from ..link.websocket_carrier import Link
from ..protocol.flow_control import PacedBuffer
from ..protocol.messages import INLINE_BYTES_MAX, Blob, BlobStream, FetchBlob, Message, NamedValue
from ..system import mapped_files
from ..system.bounded_wait import within
from ..system.shared_memory import SharedDir, copy_to, new_name, remove, take, write_all
from ..system.tasks import Tasks, together, unheard
from ..units import size_text

OFF_LOOP_BYTES = MIB  # copies and hashes above this run in a thread, so that heartbeats are read on time
GRAPH_ON_LOOP_BYTES = KIB  # at most 250 nodes, which take 10 ms
INLINE_TOTAL_BYTES_MAX = 4 * MIB  # of the values of one message, which may have 17 MiB
FETCHES_MAX = 64  # at once
EMPTYING_S = 0.01  # how often what has arrived is looked for, while content goes into a file
T = TypeVar("T")
Room = Callable[[int], memoryview | PacedBuffer]
Taken = Callable[[Link, str, int], Awaitable[memoryview]]  # what is in a file of the other end


async def off_loop(size_bytes: int, work: Callable[..., T], *args: Any) -> T:
    """Run `work` here if it handles little, in a thread if it would hold up the loop."""
    return work(*args) if size_bytes <= OFF_LOOP_BYTES else await asyncio.to_thread(work, *args)


async def graph_from(encoded: bytes) -> WireGraph:
    """Decode a graph, in a thread if it is large: 50,000 nodes take seconds.  Raises what `decode_graph` does."""
    if len(encoded) <= GRAPH_ON_LOOP_BYTES:
        return decode_graph(encoded)
    return await asyncio.to_thread(decode_graph, encoded)


def share_now(link: Link, shared: SharedDir, data: memoryview) -> str:
    """`share_with` of so little that no thread is needed: OFF_LOOP_BYTES at most."""
    return _handed(link, shared, shared.write([data]), data.nbytes)


async def share_with(link: Link, shared: SharedDir, data: memoryview) -> str:
    """Write a file for the other end of a link: its name, to be sent at once.  NodeLost if the link has ended, and
    OutOfMemory; there is no file then, nor if this is cancelled."""
    if data.nbytes <= OFF_LOOP_BYTES:
        return share_now(link, shared, data)
    name = new_name()

    def unwanted(writing: asyncio.Task[str]) -> None:
        if not writing.cancelled() and writing.exception() is None:
            remove(shared.path, name)

    writing = Tasks().run("writing a file", asyncio.to_thread(shared.write, [data], name), unheard)
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:  # the thread writes on
        writing.add_done_callback(unwanted)
        raise
    return _handed(link, shared, name, data.nbytes)


def _handed(link: Link, shared: SharedDir, name: str, size_bytes: int) -> str:
    """The name of a file that was written, once the other end counts as its owner."""
    if link.closed:
        remove(shared.path, name)
        raise NodeLost(f"the link to {link.peer.name} has ended", node=link.peer.name)
    link.hand(str(shared.path), name, size_bytes)
    return name


def sent_separately(arrays: Iterable[NDArray[Any]]) -> list[bool]:
    """Tell which tensors of one message do not travel in it: large ones, and those for which the others leave no
    room."""
    separate, room_bytes = [], INLINE_TOTAL_BYTES_MAX
    for array in arrays:
        separate.append(array.nbytes > min(INLINE_BYTES_MAX, room_bytes))
        room_bytes -= 0 if separate[-1] else array.nbytes
    return separate


def room_for(size_bytes: int) -> memoryview:
    """A buffer in which `size_bytes` bytes may arrive; OutOfMemory if they never could.

    Not filled with zeros, so that memory is taken as bytes come and not for a size that a sender claims.
    """
    try:
        return np.empty(size_bytes, np.uint8).data
    except MemoryError:
        raise OutOfMemory(f"{size_text(size_bytes)} do not fit into memory") from None


@dataclass(slots=True)
class _Expected:
    """Content that the node at the other end of a link was asked for."""

    link: Link
    blob: bytes
    size_bytes: int
    arrived: asyncio.Future[memoryview]
    room: Room  # for its stream
    begun: bool = False  # its stream


class BlobExchange:
    """The exchange serves what `find(address)` has (its bytes, or None), and fetches from others.

    `kept(link, address, size)` may have it from before, on disk say, so that it need not be fetched over that link.
    """

    def __init__(self, shared: SharedDir | None, find: Callable[[bytes], memoryview | None]) -> None:
        self.kept: Callable[[Link, bytes, int], Awaitable[memoryview | None]] | None = None
        self._shared = shared
        self._find = find
        self._numbers = itertools.count(1)
        self._expected: dict[int, _Expected] = {}

    async def serve(self, link: Link, request: FetchBlob) -> Blob:
        """The answer to a request for content; BlobMissing if it is not here."""
        data = self._find(request.blob)
        if data is None:
            raise BlobMissing(f"blob {request.blob.hex()[:16]} is not held here")
        if data.nbytes <= INLINE_BYTES_MAX:
            return Blob(data.nbytes, data.tobytes())
        if self._shared is not None:
            with link.room_for_file(data.nbytes) as room:
                if room:
                    with contextlib.suppress(OutOfMemory):  # of shared memory: a stream takes none
                        return Blob(data.nbytes, None, await share_with(link, self._shared, data))
        await link.send_stream(BlobStream(request.blob, request.stream), data)  # first: if it fails, this is the answer
        return Blob(data.nbytes)

    async def fetch(self, link: Link, blob: bytes, size_bytes: int) -> memoryview:
        """Content of exactly this address and size; BlobMissing, BlobCorrupt or NodeLost, or OutOfMemory where there is
        no room for it here."""
        if self.kept is not None and (here := await self.kept(link, blob, size_bytes)) is not None:
            return here
        data = await self._fetched(link, blob, size_bytes, room_for, _taken)
        if await off_loop(size_bytes, hash_bytes, data) != blob:
            raise BlobCorrupt(f"what arrived for blob {blob.hex()[:16]} has another address", node=link.peer.name)
        return data

    async def fetch_into(self, link: Link, blob: bytes, size_bytes: int, handle: int) -> None:
        """Write content of this size into an open file, which has that size, and little of it into memory.  Whoever
        asks checks its address.  Raises as `fetch` does, and OSError where the file takes no more.

        Threads write it, since a disk may take seconds; a sender is never further ahead of the disk than its window.
        """
        buffer = PacedBuffer(mapped_files.passing(size_bytes))

        async def copied(link: Link, name: str, size_bytes: int) -> memoryview:
            await _in_thread(handle, copy_to, link.peer.shared_memory, name, size_bytes)
            link.bytes_received["shared"] += size_bytes
            return memoryview(b"")  # is left to write

        writing = Tasks().run("writing what arrives", written(link, buffer, handle), unheard)
        try:
            data = await self._fetched(link, blob, size_bytes, lambda _: buffer, copied)
            if data is not buffer.view:  # it did not come as a stream
                await _in_thread(handle, write_all, data)
            elif (refused := await writing) is not None:
                raise refused
        finally:
            writing.cancel()
            link.give_up(buffer)

    async def _fetched(self, link: Link, blob: bytes, size_bytes: int, room: Room, taken: Taken) -> memoryview:
        """Content as the other end gives it, unchecked: in `room` as a stream, or as it was `taken` from a file."""
        number = next(self._numbers)
        arrived: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._expected[number] = _Expected(link, blob, size_bytes, arrived, room)
        getting = self._got(link, FetchBlob(blob, number), size_bytes, arrived, taken)
        try:
            return await within(FETCH_PROGRESS, getting, link.peer.name, size_bytes, _bytes_came(link))
        except DeadlineExceeded as error:
            raise NodeLost(error.message, node=error.node, next_step=error.next_step) from None
        finally:
            del self._expected[number]
            arrived.cancel()
            if arrived.done() and not arrived.cancelled():
                arrived.exception()  # it was raised, or another was before

    async def _got(
        self, link: Link, request: FetchBlob, size_bytes: int, arrived: asyncio.Future[memoryview], taken: Taken
    ) -> memoryview:
        """What the other end gives: in its answer, in a file, or as a stream."""
        answer = await self._answer(link, request, arrived)
        if not isinstance(answer, Blob) or answer.size_bytes != size_bytes:
            raise ProtocolError(f"the answer for blob {request.blob.hex()[:16]} is not {size_bytes} bytes of content")
        if answer.data is not None:
            return memoryview(bytearray(answer.data))
        if answer.shared:
            return await taken(link, answer.shared, size_bytes)
        return await arrived

    @staticmethod
    async def _answer(link: Link, request: FetchBlob, arrived: asyncio.Future[memoryview]) -> Message:
        """What the other end answers.  One that has no memory, or whose stream was refused, cannot give it; why it was
        refused, its refuser knows better."""
        try:
            return await link.request(request)
        except EngineError as error:
            if arrived.done():
                arrived.result()
            raise BlobMissing(
                f"blob {request.blob.hex()[:16]} could not be sent", node=error.node, cause=str(error)
            ) from None

    async def fetch_all(self, link: Link, values: Sequence[NamedValue]) -> list[NDArray[Any]]:
        """Fetch as `fetch_named` does, some at a time, since a link has room for a bounded number of requests."""
        some = asyncio.Semaphore(FETCHES_MAX)

        async def fetch(value: NamedValue) -> NDArray[Any]:
            async with some:
                return await self.fetch_named(link, value)

        return await together(fetch(value) for value in values)

    async def fetch_named(self, link: Link, value: NamedValue) -> NDArray[Any]:
        """The tensor a NamedValue stands for, fetched if it did not ride along."""
        kind = TensorType(value.shape, dtype_named(value.dtype))
        check_type(kind, DEFAULT)
        if value.data is not None:
            return tensor_from(bytearray(value.data), kind)
        if value.blob is None:
            raise ProtocolError(f"the value {value.name!r} has neither data nor an address", node=link.peer.name)
        return tensor_from(await self.fetch(link, value.blob, kind.size_bytes), kind)

    def asked(self, link: Link, header: BlobStream) -> bool:
        """Whether the node at the other end of a link was asked for a stream, or was until a moment ago."""
        expected = self._expected.get(header.stream)
        return expected is None or (expected.link is link and expected.blob == header.blob)

    def open_stream(self, link: Link, header: BlobStream, size_bytes: int) -> memoryview | PacedBuffer:
        """The buffer for a stream's bytes; BlobMissing where nobody waits for it any more, ProtocolError for another
        size, or for a second stream."""
        expected = self._expected.get(header.stream)
        if expected is None or expected.arrived.done():
            raise BlobMissing(f"nobody waits for blob {header.blob.hex()[:16]}")
        if expected.link is not link or (expected.blob, expected.size_bytes) != (header.blob, size_bytes):
            raise ProtocolError(f"nobody asked for {size_bytes} bytes of blob {header.blob.hex()[:16]}")
        if expected.begun:
            raise ProtocolError(f"blob {header.blob.hex()[:16]} comes already")
        expected.begun = True
        try:
            return expected.room(size_bytes)
        except OutOfMemory as error:
            expected.arrived.set_exception(error.copy())
            raise

    def stream_done(self, link: Link, header: BlobStream, buffer: memoryview, error: MeshError | None) -> None:
        """A stream ended."""
        expected = self._expected.get(header.stream)
        if expected is None or expected.link is not link or expected.arrived.done():
            return
        if error is None:
            expected.arrived.set_result(buffer)
        else:
            expected.arrived.set_exception(NodeLost("the stream broke off", cause=str(error)))

    @staticmethod
    def named(name: str, array: NDArray[Any], sent_separately: bool, address: bytes | None = None) -> NamedValue:
        """A NamedValue for a tensor: inline or, `sent_separately`, its address, under which the other side will ask for
        it."""
        dtype = dtype_of(array).name
        if not sent_separately:
            return NamedValue(name, dtype, array.shape, tensor_bytes(array).tobytes())
        return NamedValue(name, dtype, array.shape, None, address or hash_array(array))


async def written(link: Link, buffer: PacedBuffer, handle: int) -> OSError | None:
    """Write what arrives in a buffer into an open file, until all of it is there; the error of a disk that refuses."""

    def write(begin: int, end: int, handle: int) -> None:
        try:
            write_all(buffer.view[begin:end], handle)
        except OSError:
            if not mapped_files.settle():
                raise
            os.lseek(handle, begin, os.SEEK_SET)  # once more where there was no room, and memory was being given back
            write_all(buffer.view[begin:end], handle)
        mapped_files.forget(buffer.view, begin, end)

    while (begin := buffer.emptied) < buffer.view.nbytes:
        if (end := buffer.arrived) == begin:
            await asyncio.sleep(EMPTYING_S)
            continue
        try:
            await _in_thread(handle, write, begin, end)
        except OSError as error:
            link.give_up(buffer)
            return error
        except Exception:  # no further thread, say: what else comes over this link needs its credit
            link.give_up(buffer)
            raise
        link.emptied(buffer, end - begin)
    return None


async def _in_thread(handle: int, work: Callable[..., None], *args: Any) -> None:
    """Run `work(*args, handle)` in a thread, with a descriptor of its own: the thread goes on where nobody waits for it
    any more, and the file is closed."""
    own = os.dup(handle)

    def run() -> None:
        try:
            work(*args, own)
        finally:
            os.close(own)

    try:
        running = asyncio.get_running_loop().run_in_executor(None, run)
    except RuntimeError:  # there is no further thread
        os.close(own)
        raise
    await asyncio.shield(running)  # begun in any case: it closes `own`


async def _taken(link: Link, name: str, size_bytes: int) -> memoryview:
    data = take(link.peer.shared_memory, name, size_bytes)
    link.bytes_received["shared"] += size_bytes
    return data


def _bytes_came(link: Link) -> Callable[[], float]:
    """A function that returns when bytes were last seen to have come over the bulk connection."""
    now, before, at_s = asyncio.get_running_loop().time, link.bytes_received["bulk"], -math.inf

    def seen() -> float:
        nonlocal before, at_s
        if link.bytes_received["bulk"] != before:
            before, at_s = link.bytes_received["bulk"], now()
        return at_s

    return seen
