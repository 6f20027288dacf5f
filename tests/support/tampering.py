"""Encodings of graphs taken apart, changed and put together again, and bytes made to exhaust a decoder."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from wire.dtypes import F32
from wire.graph import GraphBuilder, WireGraph


@dataclass(frozen=True, slots=True)
class Fields:
    """The ten fields of an encoding (docs/protocol.md, "Graph encoding"), columns as lists of ints."""

    format: int
    names: Any
    ops: Any
    arities: Any
    inputs: Any
    attrs: Any
    table: Any
    outputs: Any
    output_names: Any
    name: Any

    @classmethod
    def of(cls, graph: WireGraph) -> Fields:
        fields = msgpack.unpackb(graph.encoded)
        fields[2:6] = map(_column_values, fields[2:6])
        return cls(*fields)

    def but(self, **changed: Any) -> Fields:
        return replace(self, **changed)

    def pack(self, width: int = 4) -> bytes:
        """Any column that is still a list of ints is packed with this width."""
        fields = [getattr(self, name) for name in self.__slots__]
        fields[2:6] = [column_bytes(each, width) if isinstance(each, list) else each for each in fields[2:6]]
        packed: bytes = msgpack.packb(fields)
        return packed


def column_bytes(values: list[int], width: int = 4) -> bytes:
    return bytes([width]) + b"".join(value.to_bytes(width, "little") for value in values)


def _column_values(data: bytes) -> list[int]:
    width = data[0]
    return [int.from_bytes(data[at : at + width], "little") for at in range(1, len(data), width)]


def nested(depth: int) -> WireGraph:
    """A graph with composites `depth` deep."""
    builder = GraphBuilder()
    graph = builder.build([builder.add("exp", builder.input("x", (), F32))])
    for _ in range(depth):
        builder = GraphBuilder()
        graph = builder.build([builder.add("composite", builder.input("x", (), F32), name="again", body=graph)])
    return graph


# -- bytes that claim or contain more than they are worth ----------------------------------------------------

_WIDE = (0xC6, 0xC9, 0xDB, 0xDD, 0xDF)  # bin, ext, str, array and map with lengths of four bytes
_FILL = 100_000


def bombs() -> dict[str, bytes]:
    """What asks a msgpack decoder for far more memory, depth or time than it costs to send."""
    found = {f"claims 2^32-1 {code:#04x}": bytes([0x9A, 1, code]) + b"\xff" * 4 + bytes(64) for code in _WIDE}
    many = (_FILL).to_bytes(4, "big")
    found["deep arrays"] = b"\x9a\x01" + b"\x91" * _FILL
    found["deep maps"] = b"\x9a\x01" + b"\x81\xa1a" * _FILL
    found["nested claims"] = b"\x9a\x01" + (b"\xdd" + many) * 500 + b"\xc0" * _FILL
    found["many maps"] = b"\x9a\x01" + (b"\xdd" + many + b"\x80" * _FILL) * 9
    found["many lists"] = b"\x9a\x01" + (b"\xdd" + many + b"\x91\xc0" * _FILL) * 9
    found["long list"] = b"\x9a\x01" + b"\xdd" + (8 * _FILL).to_bytes(4, "big") + b"\xc0" * 8 * _FILL
    found["wide map"] = b"\x9a\x01\xdf" + many + b"".join(b"\xa4%04x\xc0" % number for number in range(_FILL))
    return found


def tamper(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to three of: flip a bit, cut, remove, insert, repeat, splice with another, overwrite with an extreme."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(8):
            case 0 | 1 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 2:
                del out[at:]
            case 3:
                del out[at : at + rng.randint(1, 9)]
            case 4:
                out[at:at] = rng.randbytes(rng.randint(1, 9))
            case 5:
                out[at:at] = out[at // 2 : at // 2 + rng.randint(1, 30)]
            case 6:
                other = rng.choice(others)
                out[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                extreme = rng.choice(EXTREMES)
                out[at : at + len(extreme)] = extreme
    return bytes(out)


def refuse_tampered(
    rng: random.Random, originals: list[bytes], attempt: Callable[[bytes], bool], count: int, what: str
) -> None:
    """Make `count` attempts with tampered originals: most must be refused, and the memory must stay what it was."""
    refused, began_s = 0, time.perf_counter()
    for number in range(count):
        if number == count // 10:
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused += attempt(tamper(rng, rng.choice(originals), originals))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    print(f"{count} {what}, {refused} refused, {time.perf_counter() - began_s:.0f} s, grown by {grown_kib} KiB")
    assert refused > count // 2
    assert grown_kib < 32 << 10


EXTREMES = (
    b"\xff" * 4,
    bytes(4),
    b"\x7f\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"\xcb\x7f\xf8" + bytes(6),
    b"\x91" * 40,
    b"\xa1\xff",
    b"\xc1",
)
