"""Program: an ONNX model as plain Python data, which the rows of this importer work with.

Protobuf ends in `reading.py`; attributes here are Python scalars, tuples, numpy arrays and Graphs.  Names are the
file's own.  This file knows no op.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

DOMAIN = ""  # of the standard ops; files may also write "ai.onnx"

# ONNX's number and name of each element type, and the dtype of a graph that it is, if there is one.
ELEMENT_TYPES: dict[int, tuple[str, str | None]] = {
    1: ("float", "f32"),
    2: ("uint8", "u8"),
    3: ("int8", "i8"),
    4: ("uint16", "u16"),
    5: ("int16", "i16"),
    6: ("int32", "i32"),
    7: ("int64", "i64"),
    8: ("string", None),
    9: ("bool", "bool"),
    10: ("float16", "f16"),
    11: ("double", "f64"),
    12: ("uint32", "u32"),
    13: ("uint64", "u64"),
    14: ("complex64", "c64"),
    15: ("complex128", "c128"),
    16: ("bfloat16", "bf16"),
    17: ("float8e4m3fn", None),
    18: ("float8e4m3fnuz", None),
    19: ("float8e5m2", None),
    20: ("float8e5m2fnuz", None),
    21: ("uint4", None),
    22: ("int4", None),
    23: ("float4e2m1", None),
    24: ("float8e8m0", None),
    25: ("uint2", None),
    26: ("int2", None),
}


@dataclass(frozen=True, slots=True)
class Declared:
    """What a file says of one value: `type` is the element type's number for a tensor, else words ("a sequence").

    A dimension is an int, a name, or None where the file says nothing; so is the shape as a whole.
    """

    name: str
    type: int | str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Node:
    """One operation; an absent optional input or output is "".  `proto` is what the file had, for `functions.py`."""

    op: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: Any = field(compare=False, repr=False, default=None)

    @property
    def subgraphs(self) -> Iterator[Graph]:
        return (value for value in self.attributes.values() if isinstance(value, Graph))

    @property
    def label(self) -> str:
        """How errors name it: by its name, or by its first output."""
        return self.name or next((output for output in self.outputs if output), "?")


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the order they run, from `inputs` and `initialisers` to `outputs`; a subgraph also sees outer names."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    initialisers: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    known: tuple[Declared, ...] = ()  # what the file says of values in between


@dataclass(frozen=True, slots=True)
class Program:
    """A whole model: its graph, the opset version of each domain, and `functions` of the model's own.

    A function is the file's FunctionProto by (domain, name, overload); `functions.py` expands it.
    """

    graph: Graph
    versions: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Any]
    problems: tuple[tuple[str, str, str, int, str], ...] = ()  # node, op, domain, version, reason: met while reading


def element_name(number: int) -> str:
    """ONNX's name of an element type."""
    return ELEMENT_TYPES[number][0] if number in ELEMENT_TYPES else f"element type {number}"
