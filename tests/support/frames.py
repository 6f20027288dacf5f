"""One frame of every kind, and ways to damage their bytes."""

from __future__ import annotations

import random

from wire.errors import Busy
from wire.frames import (
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


def mutate(rng: random.Random, data: bytes) -> bytes:
    """One to three of: flip, cut, insert, duplicate, overwrite with extremes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = rng.randbytes(rng.randint(1, 9))
            case 3:
                out[at:at] = out[: rng.randint(0, 20)]
            case _:
                out[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\x7f" * 4, b"\xdd\xff\xff\xff"])
    return bytes(out)
