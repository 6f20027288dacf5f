"""Output receiver: takes what workers send of their own accord: outputs, content, and the data of link probes.

An output comes in a message, in a shared-memory file or as a stream.  What an output is for, this file does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from wire.errors import BlobMissing, MeshError, OutOfMemory, ProtocolError
from wire.ir.codec import tensor_from
from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.protocol.messages import Ballast, BlobStream, Message, Push, Value
from wire.system.shared_memory import take
from wire.system.tasks import as_error
from wire.transfer.content_exchange import BlobExchange, room_for
from wire.transfer.link_probe import Meter


class OutputReceiver:
    """Receives the outputs of plans of this `epoch`.

    `received(generation, step, slot, array)` is called for every output, and `lost(generation, step, node, error)` for
    one that could not be sent or read, so that nobody waits for it.
    """

    def __init__(
        self,
        epoch: Callable[[], int],
        blobs: BlobExchange,
        meter: Meter,
        received: Callable[[int, int, int, NDArray[Any]], None],
        lost: Callable[[int, int, str, MeshError], None],
    ) -> None:
        self._epoch = epoch
        self._blobs = blobs
        self._meter = meter
        self._received = received
        self._lost = lost

    def pushed(self, link: Link, body: Push) -> None:
        """Take an output from a message or a file, or the worker's notice that it could not send one."""
        if body.plan.epoch != self._epoch():
            return
        try:
            array = output_of(link, body)
        except Exception as fault:
            self._report_loss(link, body, as_error("taking an output failed", fault))
        else:
            self._received(body.plan.generation, body.step, body.slot, array)

    def open_stream(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        if isinstance(header, BlobStream):
            return self._blobs.open_stream(link, header, size_bytes)
        if isinstance(header, Ballast):
            return self._meter.open_stream(link, header, size_bytes)
        if not isinstance(header, Push) or header.plan.epoch != self._epoch():
            raise ProtocolError("a coordinator takes only outputs of its own plans")
        if size_bytes != type_of(header.value).size_bytes:
            raise ProtocolError(f"an output of type {type_of(header.value)} does not have {size_bytes} bytes")
        try:
            return room_for(size_bytes)
        except OutOfMemory as error:
            self._report_loss(link, header, error.copy())
            raise

    def stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        if isinstance(header, BlobStream):
            self._blobs.stream_done(link, header, buffer, error)
        elif isinstance(header, Ballast):
            self._meter.stream_done(link, header, buffer, error)
        elif error is None and isinstance(header, Push):
            array = tensor_from(buffer, type_of(header.value))
            self._received(header.plan.generation, header.step, header.slot, array)

    def _report_loss(self, link: Link, body: Push, error: MeshError) -> None:
        self._lost(body.plan.generation, body.step, link.peer.node_id, error)


def type_of(value: Value) -> TensorType:
    return TensorType(value.shape, dtype_named(value.dtype))


def output_of(link: Link, push: Push) -> NDArray[Any]:
    """The output in a message; BlobMissing for a header alone, by which a worker says that it could not send it."""
    if push.value.data is None and not push.value.shared:
        raise BlobMissing(
            "the worker could not send an output", node=link.peer.name, next_step="Its log says why, in mesh-coord logs"
        )
    return tensor_of(link, push.value)


def tensor_of(link: Link, value: Value) -> NDArray[Any]:
    """The tensor in a value, or in the file that it names; BlobMissing or BlobCorrupt if that file is not as sent."""
    kind = type_of(value)
    if value.data is not None:
        return tensor_from(bytearray(value.data), kind)
    link.bytes_received["shared"] += kind.size_bytes
    return tensor_from(take(link.peer.shared_memory, value.shared, kind.size_bytes), kind)
