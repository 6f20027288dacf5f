"""Notifications: the coordinator's part that takes what workers send of itself: outputs, content, and what is only
measured.

An output that does not come is told of, so that nobody waits for it.  What an output is for, it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from wire.errors import MeshError, OutOfMemory, ProtocolError
from wire.ir.codec import tensor_from
from wire.link.link import Link
from wire.protocol.messages import Ballast, BlobStream, Message, Push
from wire.system.tasks import as_error
from wire.transfer.content_exchange import BlobExchange, room_for
from wire.transfer.link_probe import Meter

from .output_receiver import output_of, type_of


class Arriving:
    """Outputs of plans of the `epoch` that it is then; `came(generation, step, slot, array)` and
    `lost(generation, step, node, error)` hear of them."""

    def __init__(
        self,
        epoch: Callable[[], int],
        blobs: BlobExchange,
        meter: Meter,
        came: Callable[[int, int, int, NDArray[Any]], None],
        lost: Callable[[int, int, str, MeshError], None],
    ) -> None:
        self._epoch = epoch
        self._blobs = blobs
        self._meter = meter
        self._came = came
        self._lost = lost

    def pushed(self, link: Link, body: Push) -> None:
        """An output in a message or in a file; or the word that one could not be sent."""
        if body.plan.epoch != self._epoch():
            return
        try:
            array = output_of(link, body)
        except Exception as fault:
            self._tell(link, body, as_error("taking an output failed", fault))
        else:
            self._came(body.plan.generation, body.step, body.slot, array)

    def open_stream(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        """As Handler has it."""
        if isinstance(header, BlobStream):
            return self._blobs.open_stream(header, size_bytes)
        if isinstance(header, Ballast):
            return self._meter.open_stream(size_bytes)
        if not isinstance(header, Push) or header.plan.epoch != self._epoch():
            raise ProtocolError("a coordinator takes only outputs of its own plans")
        if size_bytes != type_of(header.value).size_bytes:
            raise ProtocolError(f"an output of type {type_of(header.value)} does not have {size_bytes} bytes")
        try:
            return room_for(size_bytes)
        except OutOfMemory as error:
            self._tell(link, header, error.copy())
            raise

    def stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        """As Handler has it."""
        if isinstance(header, BlobStream):
            self._blobs.stream_done(header, buffer, error)
        elif isinstance(header, Ballast):
            self._meter.stream_done(link, header, error)
        elif error is None and isinstance(header, Push):
            array = tensor_from(buffer, type_of(header.value))
            self._came(header.plan.generation, header.step, header.slot, array)

    def _tell(self, link: Link, body: Push, error: MeshError) -> None:
        self._lost(body.plan.generation, body.step, link.peer.node_id, error)
