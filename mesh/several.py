"""Ops with several results, as Arrays: a node for each, all of one computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wire.graph import Node, WireGraph, infer
from wire.types import Attrs

from .array import Array
from .expression import Expression, Tensor


def several(op: str, operands: Sequence[Array], **attrs: Any) -> list[Array]:
    """Every result of `op`; GraphError if the operands do not fit."""
    graph: WireGraph = attrs["then" if op == "cond" else "body"]
    tensors = tuple([array.tensor for array in operands])
    types = [tensor.type for tensor in tensors]
    found = []
    for output in range(len(graph.outputs)):
        attributes = Attrs({**attrs, "output": output})
        found.append(Array(Tensor(Expression(op, tensors, attributes), infer(Node(op, (), attributes), types))))
    return found
