"""The bytes of a .onnx file without its large weights, and where in the file those lie.

onnx parses a file as a whole, and all of it stays in memory for as long as one node of it is referred to.  So the large
weights are taken out before it parses, and each is named as external data in a file called "", which is the model's
own.  This walks over fields as protobuf writes them (https://protobuf.dev/programming-guides/encoding), on the path
model, graph, initializer, raw_data only, and knows nothing of what they mean; what it does not understand it leaves to
onnx, which then says what is wrong.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

MAPPED_BYTES_MIN = 4096  # smaller weights are read
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # how a field is written


class _Field(NamedTuple):
    """The field `number`, from `start`, where its key is, to `stop`; what it says begins at `body`."""

    number: int
    kind: int
    start: int
    body: int
    stop: int


Slim = Callable[[_Field], bytes | None]  # what a field becomes; None: it stays


class _NotUnderstood(ValueError):
    """These bytes are not what protobuf writes."""


def slim_bytes(path: Path, onnx: ModuleType, mapped_bytes_min: int = MAPPED_BYTES_MIN) -> bytes:
    """The file's bytes with weights of at least `mapped_bytes_min` named instead; OSError if it cannot be read."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            return b""
    with data:
        try:
            slim = partial(_named, data, onnx=onnx, bytes_min=mapped_bytes_min)
            smaller = _without(data, _Field(0, _BYTES, 0, 0, len(data)), _path(onnx), slim)
        except _NotUnderstood:
            smaller = None
        return data[:] if smaller is None else smaller


def _path(onnx: ModuleType) -> tuple[int, ...]:
    """The numbers of the fields from a model to its initialisers."""
    return onnx.ModelProto.GRAPH_FIELD_NUMBER, onnx.GraphProto.INITIALIZER_FIELD_NUMBER


def _without(data: mmap.mmap, message: _Field, path: tuple[int, ...], slim: Slim) -> bytes | None:
    """The message with every field at the end of `path` slimmed; None if that changes nothing."""
    if not path:
        return slim(message)
    pieces, copied = [], message.body
    for field in _fields(data, message.body, message.stop):
        inner = _without(data, field, path[1:], slim) if (field.number, field.kind) == (path[0], _BYTES) else None
        if inner is not None:
            pieces += [data[copied : field.start], _varint(field.number << 3 | _BYTES), _varint(len(inner)), inner]
            copied = field.stop
    return b"".join([*pieces, data[copied : message.stop]]) if pieces else None


def _named(data: mmap.mmap, tensor: _Field, onnx: ModuleType, bytes_min: int) -> bytes | None:
    """A TensorProto with its raw_data named; None if it has none, has too little, or says itself where its data are."""
    proto = onnx.TensorProto
    fields = list(_fields(data, tensor.body, tensor.stop))
    raw = [field for field in fields if field.number == proto.RAW_DATA_FIELD_NUMBER and field.kind == _BYTES]
    elsewhere = (proto.EXTERNAL_DATA_FIELD_NUMBER, proto.DATA_LOCATION_FIELD_NUMBER)
    if len(raw) != 1 or any(field.number in elsewhere for field in fields):
        return None
    (lying,) = raw
    if lying.stop - lying.body < bytes_min:
        return None
    where = {"location": "", "offset": str(lying.body), "length": str(lying.stop - lying.body)}
    entries = [onnx.StringStringEntryProto(key=key, value=value) for key, value in where.items()]
    named: bytes = proto(data_location=proto.EXTERNAL, external_data=entries).SerializeToString()
    return data[tensor.body : lying.start] + data[lying.stop : tensor.stop] + named


def _fields(data: mmap.mmap, at: int, stop: int) -> Iterator[_Field]:
    while at < stop:
        start = at
        key, at = _number(data, at)
        kind = key & 7
        length = {_EIGHT: 8, _FOUR: 4}.get(kind, 0)
        if kind == _BYTES:
            length, at = _number(data, at)
        elif kind == _VARINT:
            _, at = _number(data, at)
        elif not length:
            raise _NotUnderstood
        body, at = at, at + length
        if at > stop:
            raise _NotUnderstood
        yield _Field(key >> 3, kind, start, body, at)


def _number(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A varint, seven bits a byte and the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
    raise _NotUnderstood


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
