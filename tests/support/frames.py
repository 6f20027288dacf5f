"""One frame of every kind."""

from __future__ import annotations

from wire.errors import Busy
from wire.protocol.frames import (
    Cancel,
    Credit,
    ErrorReply,
    Frame,
    Goodbye,
    Hello,
    HelloAck,
    HelloBody,
    Notify,
    Piece,
    Ping,
    Pong,
    Refuse,
    Reply,
    Request,
    StreamAbort,
    StreamChunk,
    StreamOpen,
    StreamRefuse,
)

LINK = bytes(range(16))
BUSY = Busy("it works for another", node="w1", next_step="wait")
FRAMES: list[Frame] = [
    Hello((1, 0), LINK, True, b"who"),
    HelloAck((1, 3), LINK, False, b"me"),
    Refuse((2, 1), BUSY),
    Goodbye("done"),
    Request(7, b"ask"),
    Reply(1 << 40, b"answer"),
    ErrorReply(9, BUSY),
    Cancel(9),
    Notify(b""),
    Piece(100, 97, b"end"),
    StreamOpen(3, 1 << 33, b"header"),
    StreamChunk(3, 5, b"bytes"),
    StreamAbort(3, BUSY),
    StreamRefuse(3, BUSY),
    Credit(1 << 22),
    Ping(1),
    Pong((1 << 64) - 1),
]
BODY = HelloBody(
    "id", "w1", "worker", "home", "boot", 3, "0.1", {"add": b"12345678"}, ("127.0.0.1:7100",), "h", "/dev/shm/x", 42, 1
)
