"""Damage for decoders: encodings taken apart and put together again, tampered bytes, and bytes made to exhaust.

`tamper` damages bytes and `spoil` the values that lie in them, by a Form.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph


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


def graph_bombs() -> dict[str, bytes]:
    """What asks a decoder of graphs for far more memory, depth or time than it costs to send."""
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


def message_bombs() -> dict[str, bytes]:
    """The same for a decoder of messages."""
    return {
        "deep arrays": b"\x91" * 100_000,
        "deep arrays in a field": b"\x92\xa9Suspected" + b"\x91" * 100_000,
        "deep maps in a field": b"\x92\xa9Suspected" + b"\x81\xa1a" * 100_000,
        "claims of parts": b"\x97\xa6Deploy\x92\x01\x01" + b"\xdd\xff\xff\xff\xff",
        "claims of bytes": b"\x93\xa9FetchBlob\xc6\xff\xff\xff\xff",
        "claims of graphs": b"\x97\xa6Deploy\x92\x01\x01\x90\xdf\xff\xff\xff\xff",
        "claims of digits": b"\x92\xa7Planned\xdb\xff\xff\xff\xff",
        "many lines": b"\x92\xa8LogLines\xdd" + (1 << 20).to_bytes(4, "big") + b"\xa0" * (1 << 20),
        "many parts": b"\x97\xa6Deploy\x92\x01\x01\xdd" + (1 << 20).to_bytes(4, "big") + b"\x95\x00" * (1 << 19),
    }


# -- damage ------------------------------------------------------------------------------------------------

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
TEXT_EXTREMES = (b"[" * 3000, b"9" * 400, b"9" * 5000, b"Infinity", b"NaN", b"-1", b"null", b"{}", b"\x00", b"\\ud800")
_ALL_EXTREMES = EXTREMES + TEXT_EXTREMES


def tamper(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One to three of: flip a bit, cut, remove, insert, repeat, splice with another, overwrite with an extreme."""
    draw = rng.random  # `randrange` takes five times as long, and most decoders are quicker than that
    out = bytearray(data)
    for _ in range(1 + int(draw() * 3)):
        at = int(draw() * (len(out) + 1))
        match int(draw() * 8):
            case 0 | 1 if out:
                out[at % len(out)] ^= 1 << int(draw() * 8)
            case 2:
                del out[at:]
            case 3:
                del out[at : at + 1 + int(draw() * 9)]
            case 4:
                out[at:at] = rng.randbytes(1 + int(draw() * 9))
            case 5:
                out[at:at] = out[at // 2 : at // 2 + 1 + int(draw() * 30)]
            case 6:
                other = others[int(draw() * len(others))]
                out[at:] = other[int(draw() * (len(other) + 1)) :]
            case _:
                extreme = _ALL_EXTREMES[int(draw() * len(_ALL_EXTREMES))]
                out[at : at + len(extreme)] = extreme
    return bytes(out)


# Values that no field, or hardly one, may have.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 53, (1 << 53) + 1, 1 << 62, (1 << 64) - 1,
    -(1 << 63), 0.0, -0.0, 1.5, -1.0, 1e308, math.nan, math.inf, -math.inf, "", "x", "\0", "\N{SNOWMAN}", "x" * 300,
    "x" * 5000, "-1", "..", "/", [], [0], [-1], [1 << 31] * 9, [0] * 20, [[]], ["x"] * 40, {}, {"x": 1},
)  # fmt: skip
ODD_IN_MSGPACK = (
    *ODD,
    b"",
    b"\xff",
    bytes(33),
    {1: 2},
    {None: None},
    msgpack.ExtType(1, b""),
    msgpack.ExtType(7, b"x"),
)
ODD_IN_JSON = (*ODD, 10**400, -(10**400), "\ud800")


def spoil(rng: random.Random, tree: Any, odd: Sequence[Any]) -> Any:
    """The tree of lists and dicts with one to three of its places wrong: another value, a key or an item too many, too
    few or elsewhere.  The tree itself stays as it is."""
    for _ in range(1 + int(rng.random() * 3)):
        tree = _spoilt(rng, tree, odd)
    return tree


def _spoilt(rng: random.Random, tree: Any, odd: Sequence[Any]) -> Any:
    draw = rng.random
    if type(tree) is list and tree and draw() < 0.95:
        at, kind = int(draw() * len(tree)), draw()
        if kind < 0.05:
            return tree[:at] + tree[at + 1 :]
        if kind < 0.1:
            return tree[:at] + tree[at : at + 1] + tree[at:]
        return [*tree[:at], _spoilt(rng, tree[at], odd), *tree[at + 1 :]]
    if type(tree) is dict and tree and draw() < 0.95:
        keys = list(tree)
        key, kind = keys[int(draw() * len(keys))], draw()
        if kind < 0.05:
            return {each: tree[each] for each in keys if each != key}
        if kind < 0.1:
            return {**tree, f"{key}x": tree[key]}
        return {**tree, key: _spoilt(rng, tree[key], odd)}
    return _another(rng, tree, odd)


def _another(rng: random.Random, leaf: Any, odd: Sequence[Any]) -> Any:
    if rng.random() < 0.5:
        return odd[int(rng.random() * len(odd))]
    match leaf:
        case bool():
            return not leaf
        case int():
            return leaf ^ 1 << int(rng.random() * 16)
        case float():
            return -leaf * 2.0 ** int(rng.random() * 80)
        case bytes():
            return tamper(rng, leaf, [leaf])
        case str():
            return tamper(rng, leaf.encode("utf-8", "replace"), [b"x"]).decode("utf-8", "replace")
        case msgpack.ExtType():
            return msgpack.ExtType(leaf.code, tamper(rng, leaf.data, [leaf.data]))
        case _:
            return [leaf]


@dataclass(frozen=True, slots=True)
class Form:
    """How bytes are a tree of lists and dicts, and which values are odd in it."""

    take_apart: Callable[[bytes], Any]
    put_together: Callable[[Any], bytes]
    odd: Sequence[Any]


def _packed_columns(fields: Any) -> bytes:
    """A graph's fields, the columns among them lists of ints, or whatever they were made."""
    if type(fields) is list and len(fields) >= 6:
        fields = [*fields[:2], *map(_column_or_other, fields[2:6]), *fields[6:]]
    packed: bytes = msgpack.packb(fields)
    return packed


def _column_or_other(value: Any) -> Any:
    if type(value) is not list:
        return value
    return column_bytes([each if type(each) is int and 0 <= each < 1 << 32 else 7 for each in value])


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False)


MSGPACK = Form(_unpacked, msgpack.packb, ODD_IN_MSGPACK)
GRAPH = Form(
    lambda data: [*(fields := _unpacked(data))[:2], *map(_column_values, fields[2:6]), *fields[6:]],
    _packed_columns,
    ODD_IN_MSGPACK,
)
JSON = Form(json.loads, lambda tree: json.dumps(tree).encode(), ODD_IN_JSON)
