"""A GGUF file: metadata and named tensors, mapped; every count, size and offset is checked before it is used.

The format is that of https://github.com/ggml-org/ggml (gguf.md).  Written out here because the package `gguf`
trusts the file: a count or a length beyond its end makes it loop or fail without a word of where.  That package is the
reference of the tests.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, Unsupported
from wire.units import need_text, room_text

from ...util.file_bytes import file_bytes
from .blocks import BLOCKS, UNKNOWN, Block

MAGIC = b"GGUF"
VERSIONS = (2, 3)
AXES_MAX = 4
ALIGNMENT, ALIGNMENT_MAX = 32, 1 << 16
SCALARS = {  # by the number of a type: its struct
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9
LEAST_BYTES = {**{number: struct.calcsize(form) for number, form in SCALARS.items()}, STRING: 8}
ENTRY_BYTES_MIN = 13  # of metadata: a name's length, a type and a byte
TENSOR_BYTES_MIN = 24  # of a tensor's entry: a name's length, axes, a type and an offset


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as it lies in the file: `shape` as numpy has it, the last axis next to each other."""

    block: Block
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class File:
    """The metadata by key, and the tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def read(path: Path) -> File:
    """The file, whose tensors stay mapped.

    Raises
    ------
    InputError
        If it is missing, cut off or damaged; it says what and where.
    Unsupported
        If it has a version or types of tensors that are not known; it names them.
    """
    data = file_bytes(path, "a GGUF file")
    at = _Cursor(path, data)
    if at.take(4).tobytes() != MAGIC:
        raise InputError(f"{path} is no GGUF file: it begins with {bytes(data[:4])!r}")
    version = at.number("<I")
    if version not in VERSIONS:
        turned = " (big-endian)" if version.to_bytes(4, "big")[::-1] and version >> 24 else ""
        raise Unsupported(f"{path} is of GGUF version {version}{turned}", next_step=f"Known: {VERSIONS}, little-endian")
    tensors, entries = at.number("<Q"), at.number("<Q")
    at.room(tensors, TENSOR_BYTES_MIN, "tensors")
    at.room(entries, ENTRY_BYTES_MIN, "entries of metadata")
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key = at.text("the name of an entry")
        metadata[key] = at.value(at.number("<I"), key)
    return File(path, metadata, _tensors(at, tensors, metadata))


def _tensors(at: _Cursor, count: int, metadata: dict[str, Any]) -> dict[str, Tensor]:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= ALIGNMENT_MAX or alignment & (alignment - 1):
        raise at.damaged(f"general.alignment is a power of 2 up to {ALIGNMENT_MAX}, got {alignment!r:.60}")
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name, axes = at.text("the name of a tensor"), at.number("<I")
        if axes > AXES_MAX or name in entries:
            raise at.damaged(f"the tensor {name!r:.80} {'is there twice' if name in entries else f'has {axes} axes'}")
        dims = tuple([at.number("<Q") for _ in range(axes)])
        if 0 in dims:
            raise at.damaged(f"the tensor {name!r:.80} has the shape {dims[::-1]}, which holds nothing")
        entries[name] = dims[::-1], at.number("<I"), at.number("<Q")
    strange = {number for _, number, _ in entries.values() if number not in BLOCKS}
    if strange:
        named = [
            f"{name!r} ({UNKNOWN.get(entry[1], entry[1])})" for name, entry in entries.items() if entry[1] in strange
        ]
        known = ", ".join(block.name for block in BLOCKS.values())
        raise Unsupported(
            f"{at.path} has tensors of types that are not known ({len(named)}): {', '.join(named[:4])}",
            next_step=f"Known: {known}. Quantise the model again to one of these",
        )
    start = -(-at.place // alignment) * alignment
    tensors, spans = {}, []
    for name, (shape, number, offset) in entries.items():
        block = BLOCKS[number]
        size_bytes, rest = divmod(math.prod(shape) * block.size_bytes, block.weights)
        if rest or (shape and shape[-1] % block.weights):
            raise at.damaged(
                f"{name!r:.80} of {shape} does not consist of blocks of {block.weights}, as {block.name} has"
            )
        if offset % alignment or start + offset + size_bytes > len(at.data):
            raise at.damaged(
                f"{name!r:.80} of {shape} has {need_text(size_bytes)} at byte {offset}, of "
                f"{room_text(max(len(at.data) - start, 0))} that there are, in steps of {alignment}"
            )
        spans.append((offset, offset + size_bytes, name))
        tensors[name] = Tensor(block, shape, at.data[start + offset : start + offset + size_bytes])
    spans.sort()
    for (_, end, before), (begin, _, name) in pairwise(spans):
        if begin < end:
            raise at.damaged(f"{before!r:.80} and {name!r:.80} share bytes")
    return tensors


class _Cursor:
    """A place in the file, which is never beyond its end."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data
        self.place = 0

    def take(self, count: int) -> NDArray[np.uint8]:
        if count > len(self.data) - self.place:
            raise self.damaged(f"{need_text(count)} are announced at byte {self.place}, of {room_text(len(self.data))}")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)).tobytes())[0])

    def room(self, count: int, least_bytes: int, what: str) -> None:
        """Raise InputError if the rest of the file can't hold so many."""
        if count * least_bytes > len(self.data) - self.place:
            raise self.damaged(f"it tells of {count} {what}, and has {room_text(len(self.data) - self.place)} more")

    def text(self, what: str) -> str:
        length = self.number("<Q")
        try:
            return self.take(length).tobytes().decode()
        except UnicodeDecodeError:
            raise self.damaged(f"{what} at {self.place - length} is no UTF-8") from None

    def texts(self, count: int, key: str) -> list[str]:
        """Texts one after the other; a tokenizer has hundreds of thousands of them."""
        view, place, end, found = self.data.data, self.place, len(self.data), []
        try:
            for _ in range(count):
                begin = place + 8
                length = int.from_bytes(view[place:begin], "little")
                place = begin + length
                if place > end:
                    raise self.damaged(f"{need_text(length)} are announced at byte {begin}, of {room_text(end)}")
                found.append(str(view[begin:place], "utf-8"))
        except UnicodeDecodeError:
            raise self.damaged(f"a text of {key!r:.80} at {begin} is no UTF-8") from None
        self.place = place
        return found

    def value(self, kind: int, key: str) -> Any:
        reader = self._reader(kind, key)
        if reader is not None:
            return reader()
        inner, count = self.number("<I"), self.number("<Q")
        reader = self._reader(inner, key)
        if reader is None:
            raise self.damaged(f"{key!r:.80} is a list of lists")
        self.room(count, LEAST_BYTES[inner], f"elements of {key!r:.80}")
        if inner == STRING:
            return self.texts(count, key)
        if inner in SCALARS:
            values = np.frombuffer(self.take(count * LEAST_BYTES[inner]).tobytes(), SCALARS[inner]).tolist()
            return [bool(value) for value in values] if inner == BOOL else values
        raise AssertionError(inner)  # there is no other type with a reader

    def _reader(self, kind: int, key: str) -> Callable[[], Any] | None:
        """What reads a value of this kind; None for a list."""
        if kind == STRING:
            return lambda: self.text(f"a text of {key!r:.80}")
        if kind in SCALARS:
            form = SCALARS[kind]
            return lambda: (bool if kind == BOOL else lambda value: value)(
                struct.unpack(form, self.take(struct.calcsize(form)).tobytes())[0]
            )
        if kind != ARRAY:
            raise self.damaged(f"{key!r:.80} is of the type {kind}, which there is not")
        return None

    def damaged(self, why: str) -> InputError:
        return InputError(f"{self.path} is damaged or cut off: {why}", next_step="Download it again")
