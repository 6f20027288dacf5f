"""How outputs get from a worker: in a message or in a shared-memory file; streams are the runtime's."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from wire.errors import BlobMissing
from wire.ir.codec import tensor_from
from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.protocol.messages import Push, Value
from wire.system.shared_memory import take


def type_of(value: Value) -> TensorType:
    return TensorType(value.shape, dtype_named(value.dtype))


def output_of(link: Link, push: Push) -> NDArray[Any]:
    """What a worker sends apart from its answer; BlobMissing where it says, with a header alone, that it could not."""
    if push.value.data is None and not push.value.shared:
        raise BlobMissing(
            "the worker could not send an output", node=link.peer.name, next_step="Its log says why, in mesh-coord logs"
        )
    return tensor_of(link, push.value)


def tensor_of(link: Link, value: Value) -> NDArray[Any]:
    """What a value carries or names; BlobMissing or BlobCorrupt where the file is not as it was sent."""
    kind = type_of(value)
    if value.data is not None:
        return tensor_from(bytearray(value.data), kind)
    link.bytes_received["shared"] += kind.size_bytes
    return tensor_from(take(link.peer.shared_memory, value.shared, kind.size_bytes), kind)
