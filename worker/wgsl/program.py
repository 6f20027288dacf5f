"""A compiled part as plain data: shader texts, buffers and the dispatches over them; what the disk cache stores.

It knows neither graphs nor wgpu.  `to_json` and `from_json` are exact inverses; `from_json` checks everything it reads,
because a cache file may be damaged.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from wire.ir.dtypes import BOOL
from wire.ir.types import TensorType

FORMAT = 3
KINDS = ("input", "const", "slot", "texture")
PAD = 16  # buffers are multiples of one vec4, which is a texel of a texture


@dataclass(frozen=True, slots=True)
class Buffer:
    """Device memory: an `input` (name), a `const` (content key), or a reusable `slot` or `texture`; size padded to PAD.

    A texture has the extent of its size (`extent`).
    """

    kind: str
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run shader `shader` on `grid` workgroups with `buffers` bound in order.

    A buffer that is there several times is bound in as many pieces: its first one, the next, and so on.
    """

    shader: int
    buffers: tuple[int, ...]
    grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Module:
    """A shader's text, which of its bindings it stores to, and the shape class that its form was chosen for, if any."""

    text: str
    stored: tuple[bool, ...]
    shape_class: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """`outputs` are buffer numbers in order, -1 for a tensor without elements."""

    modules: tuple[Module, ...]
    buffers: tuple[Buffer, ...]
    dispatches: tuple[Dispatch, ...]
    outputs: tuple[int, ...]

    @property
    def memory_bytes(self) -> int:
        """Device memory of a run beyond inputs and params."""
        return sum(buffer.size_bytes for buffer in self.buffers if buffer.kind != "input")


def stored_size(type_: TensorType) -> int:
    """The bytes of a tensor on the device, where a bool takes four."""
    return type_.size * (4 if type_.dtype is BOOL else type_.dtype.itemsize)


def padded(size_bytes: int) -> int:
    """A buffer's size for a tensor of `size_bytes` bytes; never zero."""
    return max(PAD, size_bytes + -size_bytes % PAD)


def extent(size_bytes: int) -> tuple[int, int]:
    """Width and height of the texture for `size_bytes` bytes, in texels.  The width is a power of two and no less than
    the height, so that element i of four numbers lies at (i % width, i // width); it is that of whole textures, too."""
    texels = max(1, -(-size_bytes // PAD))
    width = 1 << math.isqrt(texels - 1).bit_length()
    return width, -(-texels // width)


def texture_size(size_bytes: int) -> int:
    """The bytes of the texture for a tensor of `size_bytes` bytes: its last row may be filled in part."""
    width, height = extent(size_bytes)
    return width * height * PAD


def to_json(program: Program) -> str:
    return json.dumps(
        {
            "format": FORMAT,
            "modules": [[module.text, list(module.stored), module.shape_class] for module in program.modules],
            "buffers": [[buffer.kind, buffer.name, buffer.size_bytes] for buffer in program.buffers],
            "dispatches": [[d.shader, list(d.buffers), list(d.grid)] for d in program.dispatches],
            "outputs": list(program.outputs),
        }
    )


def from_json(text: str) -> Program:
    """The program; ValueError if the text is not one."""
    try:
        data: Any = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}")
        program = Program(
            tuple(Module(str(text), tuple(bool(s) for s in stored), str(of)) for text, stored, of in data["modules"]),
            tuple(Buffer(str(kind), str(name), int(size)) for kind, name, size in data["buffers"]),
            tuple(Dispatch(int(s), tuple(map(int, b)), _grid(g)) for s, b, g in data["dispatches"]),
            tuple(map(int, data["outputs"])),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a program: {error!r}") from error
    _check(program)
    return program


def _grid(values: Any) -> tuple[int, int, int]:
    x, y, z = (int(value) for value in values)
    return x, y, z


def _check(program: Program) -> None:
    count = len(program.buffers)
    for buffer in program.buffers:
        if buffer.kind not in KINDS or buffer.size_bytes <= 0 or buffer.size_bytes % PAD:
            raise ValueError(f"not a buffer: {buffer}")
    for dispatch in program.dispatches:
        if not 0 <= dispatch.shader < len(program.modules) or min(dispatch.grid) < 1:
            raise ValueError(f"not a dispatch: {dispatch}")
        if len(dispatch.buffers) != len(program.modules[dispatch.shader].stored):
            raise ValueError("a dispatch binds another number of buffers than its shader declares")
        if not all(0 <= buffer < count for buffer in dispatch.buffers):
            raise ValueError("a dispatch binds a buffer that is not there")
    if not all(-1 <= output < count for output in program.outputs):
        raise ValueError("an output that is not there")
    textures = {number for number, buffer in enumerate(program.buffers) if buffer.kind == "texture"}
    if textures & set(program.outputs):
        raise ValueError("an output in a texture")
    sizes = {program.buffers[number].size_bytes for number in textures}
    if any(texture_size(size) != size for size in sizes):
        raise ValueError("a texture of another size than it says")
