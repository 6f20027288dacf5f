"""What messages are made of: the types of their fields, with their limits, and the base classes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, structs

from ...limits import KIB

with_fields = structs.replace  # a copy of a message with other values in some fields
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Index = Annotated[int, Meta(ge=0, le=1 << 20)]
Port = Annotated[int, Meta(ge=0, lt=1 << 16)]
Dims = Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 31)], ...], Meta(max_length=8)]
Generations = Annotated[tuple[Count, ...], Meta(max_length=65_536)]  # of plans
Epochs = Annotated[tuple[Count, ...], Meta(max_length=4096)]  # of coordinators
Seconds = Annotated[float, Meta(ge=0)]
Addresses = Annotated[tuple[Name, ...], Meta(max_length=32)]  # "host:port" each, best first
REVOCATIONS_BYTES_MAX = 64 * KIB  # of 1,024 nodes: 37 KiB
INLINE_BYTES_MAX = 64 * KIB  # a tensor up to this size is inside its message
Certificate = Annotated[bytes, Meta(max_length=2 * KIB)]
RevocationList = Annotated[bytes, Meta(max_length=REVOCATIONS_BYTES_MAX)]
Inline = Annotated[bytes, Meta(max_length=INLINE_BYTES_MAX)]
COORDINATOR_NODE = ""  # the node id that stands for the coordinator in messages
RELAY_BYTES_MAX = 512 * KIB  # a tensor that is relayed is sent in pieces of this size


class Message(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


class Record(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the structs in fields of messages."""


class Value(Record, frozen=True):
    """A tensor and where its bytes are.

    If `data` is set, it has the bytes.  If `shared` is set, it names a file in the sender's shared-memory directory,
    which the receiver owns from then on.  With neither, the bytes follow as a stream whose header names the tensor.
    """

    dtype: Name
    shape: Dims
    data: Inline | None = None
    shared: Name = ""


class PlanKey(Record, frozen=True):
    """Identifies a plan: the coordinator's start and the number of the plan since then."""

    epoch: Count
    generation: Count


PlanKeys = Annotated[tuple[PlanKey, ...], Meta(max_length=65_536)]


class Done(Message, frozen=True):
    """The request was carried out."""
