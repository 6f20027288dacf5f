"""Output receiver: takes what workers send of their own accord: outputs, content, and the data of link probes.

An output comes in a message, in a shared-memory file or as a stream.  What an output is for, this file does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from wire.errors import BlobMissing, MeshError, OutOfMemory, ProtocolError, StaleGeneration
from wire.ir.codec import tensor_from
from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.messages import Ballast, BlobStream, Message, Push, Value
from wire.system.shared_memory import remove, take
from wire.system.tasks import as_error
from wire.transfer.content_exchange import BlobExchange, room_for
from wire.transfer.link_probe import Meter


class Takes(Protocol):
    """What takes the outputs of a plan (`coordinator/lifecycle/plan_shell.py`)."""

    def output_type(self, link: Link, generation: int, step: int, slot: int) -> TensorType | None:
        """The type of an output that a step waits for from this worker; None for any other."""

    def take_output(self, link: Link, generation: int, step: int, slot: int, value: Value) -> None:
        """Take an output, if a step waits for it."""

    def output(self, generation: int, step: int, slot: int, array: NDArray[Any]) -> None:
        """Take an output that `output_type` said is waited for."""

    def output_lost(self, generation: int, step: int, node: str, error: MeshError) -> None:
        """An output could not be sent or read: nobody need wait for it."""


class OutputReceiver:
    """Receives the outputs of plans of this `epoch`.  `plan(generation)` gives what takes those of a plan."""

    def __init__(
        self, epoch: Callable[[], int], blobs: BlobExchange, meter: Meter, plan: Callable[[int], Takes]
    ) -> None:
        self._epoch = epoch
        self._blobs = blobs
        self._meter = meter
        self._plan = plan
        self._arriving: dict[tuple[int, int, int], memoryview] = {}  # streams, by generation, step and slot

    def pushed(self, link: Link, body: Push) -> None:
        """Take an output from a message or a file, or the worker's notice that it could not send one."""
        if body.plan.epoch != self._epoch():
            let_go(link, body.value)
            return
        plan = self._plan(body.plan.generation)
        try:
            if body.value.data is not None or body.value.shared:
                plan.take_output(link, body.plan.generation, body.step, body.slot, body.value)
            elif plan.output_type(link, body.plan.generation, body.step, body.slot) is not None:
                raise not_sent(link)
        except Exception as fault:
            self._report_loss(link, body, as_error("taking an output failed", fault))

    def open_stream(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        if isinstance(header, BlobStream):
            return self._blobs.open_stream(link, header, size_bytes)
        if isinstance(header, Ballast):
            return self._meter.open_stream(link, header, size_bytes)
        assert isinstance(header, Push)  # the table of permissions names no other
        key = header.plan.generation, header.step, header.slot
        kind = self._plan(key[0]).output_type(link, *key) if header.plan.epoch == self._epoch() else None
        if kind is None or key in self._arriving:
            raise StaleGeneration("nobody waits for this output")
        check_type_of(header.value, kind)
        if size_bytes != kind.size_bytes:
            raise ProtocolError(f"an output of type {kind} does not have {size_bytes} bytes")
        try:
            buffer = self._arriving[key] = room_for(size_bytes)
        except OutOfMemory as error:
            self._report_loss(link, header, error.copy())
            raise
        return buffer

    def stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        if isinstance(header, BlobStream):
            self._blobs.stream_done(link, header, buffer, error)
        elif isinstance(header, Ballast):
            self._meter.stream_done(link, header, buffer, error)
        elif isinstance(header, Push):
            key = header.plan.generation, header.step, header.slot
            del self._arriving[key]
            plan = self._plan(key[0])
            try:
                if error is None and (kind := plan.output_type(link, *key)) is not None:
                    plan.output(*key, tensor_from(buffer, kind))
            except Exception as fault:
                self._report_loss(link, header, as_error("taking an output failed", fault))

    def _report_loss(self, link: Link, body: Push, error: MeshError) -> None:
        plan = self._plan(body.plan.generation)
        plan.output_lost(body.plan.generation, body.step, link.peer.node_id, error)


def type_of(value: Value) -> TensorType:
    return TensorType(value.shape, dtype_named(value.dtype))


def check_type_of(value: Value, kind: TensorType) -> None:
    """Raise ProtocolError for a tensor of another type than it should have."""
    if (value.dtype, value.shape) != (kind.dtype.name, kind.shape):
        raise ProtocolError(f"a tensor of type {kind} came as {value.dtype}{list(value.shape)}")


def not_sent(link: Link) -> MeshError:
    """The error for a header alone, by which a worker says that it could not send an output."""
    return BlobMissing(
        "the worker could not send an output", node=link.peer.name, next_step="Its log says why, in mesh-coord logs"
    )


def let_go(link: Link, value: Value) -> None:
    """Remove the file of a tensor that nobody waits for any more: the process that gets its name owns it."""
    if value.shared:
        remove(link.peer.shared_memory, value.shared)


def tensor_of(link: Link, value: Value) -> NDArray[Any]:
    """The tensor in a value, or in the file that it names; BlobMissing or BlobCorrupt if that file is not as sent."""
    kind = type_of(value)
    if value.data is not None:
        return tensor_from(bytearray(value.data), kind)
    link.bytes_received["shared"] += kind.size_bytes
    return tensor_from(take(link.peer.shared_memory, value.shared, kind.size_bytes), kind)
