"""Types: what element type every value of a graph has, as far as the standard's schemas tell.

Shapes do not matter here, so nothing of a model is run or allocated.  (The shape inference of the package `onnx` knows
more, and ends the process on some malformed models.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from wire.ir.dtypes import dtype_of

from .functions import schema_of
from .program import ELEMENT_TYPES, Declared, Graph, Node

Kind = int | str  # the number of a tensor's element type, or words for what is no tensor
Kinds = dict[str, Kind]

_NUMBERS = {name: number for number, (name, _) in ELEMENT_TYPES.items()}
_BY_DTYPE = {dtype: number for number, (_, dtype) in ELEMENT_TYPES.items() if dtype is not None}
_NAMING = ("to", "dtype", "output_dtype", "output_datatype")  # attributes that name an output's element type


def kinds_of(graph: Graph, outer: Mapping[str, Kind]) -> Kinds:
    """The kind of every value of `graph` that can be known, those of the graphs around it included."""
    kinds = dict(outer)
    kinds.update({value.name: value.type for value in (*graph.inputs, *graph.known, *graph.outputs) if _says(value)})
    kinds.update({name: _number_of(array) for name, array in graph.initialisers.items()})
    for node in graph.nodes:
        for name, kind in _outputs(node, kinds):
            kinds.setdefault(name, kind)
    return kinds


def _says(declared: Declared) -> bool:
    return declared.type not in (0, "untyped")


def _number_of(array: Any) -> Kind:
    return _BY_DTYPE[dtype_of(array).name]


def _outputs(node: Node, kinds: Kinds) -> Iterator[tuple[str, Kind]]:
    schema = schema_of(node)
    if schema is None or not schema.outputs:
        return
    bound: dict[str, Kind] = {}
    for place, name in enumerate(node.inputs):
        if name in kinds and schema.inputs:
            bound.setdefault(schema.inputs[min(place, len(schema.inputs) - 1)].type_str, kinds[name])
    for place, name in enumerate(node.outputs):
        wanted = schema.outputs[min(place, len(schema.outputs) - 1)].type_str
        kind = bound.get(wanted) or _fixed(wanted) or _named(node)
        if name and kind:
            yield name, kind


def _fixed(text: str) -> Kind | None:
    """The kind that a schema writes out, as in tensor(int64)."""
    if text.startswith("seq("):
        return "a sequence"
    if text.startswith("optional("):
        return "an optional"
    return _NUMBERS.get(text.removeprefix("tensor(").removesuffix(")")) if text.startswith("tensor(") else None


def _named(node: Node) -> Kind | None:
    for attribute in _NAMING:
        number = node.attributes.get(attribute)
        if isinstance(number, int) and number:
            return number
    value = node.attributes.get("value")
    return _number_of(value) if isinstance(value, np.ndarray) else None
