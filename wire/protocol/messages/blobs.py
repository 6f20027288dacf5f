"""Blobs: content by its address, and how any node gets it from any other."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .fields import Count, Dims, Hash, Inline, Message, Name, Record


class BlobSpec(Record, frozen=True):
    """Content that a worker will need: its address, size, tensor type, and the nodes that hold it, nearest first
    ("" is the coordinator).  `keep` allows the worker to store it on its disk, and after the plan, for a later plan.
    Weights have `keep`, the state of a session does not."""

    blob: Hash
    size_bytes: Count
    dtype: Name
    shape: Dims
    holders: Annotated[tuple[Name, ...], Meta(max_length=64)]
    keep: bool = True


class FetchBlob(Message, frozen=True):
    """Send this content.  Answered by Blob.  `stream` is the id that the bytes will have if they are sent as a
    stream."""

    blob: Hash
    stream: Count


class Blob(Message, frozen=True):
    """Content: inline, in a shared-memory file, or in a stream headed BlobStream, which was sent before this answer."""

    size_bytes: Count
    data: Inline | None = None
    shared: Name = ""


class BlobStream(Message, frozen=True):
    """Header of the stream that answers the FetchBlob with the same `stream` id."""

    blob: Hash
    stream: Count
