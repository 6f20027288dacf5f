"""Direct calls: what a program says to an engine host of its machine, past the coordinator and the daemon.

They travel over a Unix socket that the coordinator made and the daemon connected (`OpenDirect`).  So nobody but a
process of this user can have it, and its end says that the other process, or the part, is gone.  A call and its answer
are whole tensors, in the order in which the part's graph takes and gives them.  There is one call at a time: whoever
sends more, or longer ones, is hung up on.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from ..errors import FrameError
from ..limits import KIB
from ..plain_data import PlainData

TENSORS_BYTES_MAX = 64 * KIB  # of a call or an answer: a socket takes so much without waiting for the other end
MESSAGE_BYTES_MAX = TENSORS_BYTES_MAX + 16 * KIB
READ_BYTES = MESSAGE_BYTES_MAX + 4
_LENGTH = struct.Struct("<I")

M = TypeVar("M", "DirectCall", "DirectAnswer")


class DirectCall(PlainData, frozen=True, array_like=True):
    """Run the part once, with these bytes of the inputs that are bound to no param."""

    inputs: tuple[bytes, ...]


class DirectAnswer(PlainData, frozen=True, array_like=True):
    """The bytes of all outputs, and how long it took.  Without outputs the caller is to ask the coordinator: the part
    failed, or the host has no room for it now."""

    outputs: tuple[bytes, ...] | None = None
    compute_s: float = 0.0


class Unpacker(Generic[M]):
    """A reader of messages of one kind, one at a time, from bytes as they come."""

    def __init__(self, kind: type[M]) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._came = b""

    def feed(self, data: bytes) -> M | None:
        """The message that these bytes complete; None if more must come.  FrameError for what is no message, or longer,
        or followed by another."""
        came = self._came + data if self._came else data
        if len(came) < _LENGTH.size:
            self._came = came
            return None
        (size,) = _LENGTH.unpack_from(came)
        if size > MESSAGE_BYTES_MAX or len(came) > _LENGTH.size + size:
            raise FrameError("a direct call is too long, or came before the answer to another")
        if len(came) < _LENGTH.size + size:
            self._came = came
            return None
        self._came = b""
        try:
            return self._decoder.decode(memoryview(came)[_LENGTH.size :])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError("what came is no direct call", cause=str(error)[:200]) from None


_encoder = msgspec.msgpack.Encoder()


def pack(message: DirectCall | DirectAnswer) -> bytes:
    """The bytes of a message, after their length."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body
