"""Ops with several results, as Arrays: a node for each, all of one computation.

Siblings know of each other for as long as they live, so that who computes one keeps the others too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from wire.ir.graph import Node, infer
from wire.ir.ops import result_count
from wire.ir.types import Attrs

from .array import Array
from .expression import Expression, Tensor


def several(op: str, operands: Sequence[Array], **attrs: Any) -> list[Array]:
    """Every result of `op`; GraphError if the operands do not fit."""
    count = result_count(op, Attrs(attrs))
    tensors = tuple([array.tensor for array in operands])
    types = [tensor.type for tensor in tensors]
    arrays = []
    for output in range(count):
        attributes = Attrs({**attrs, "output": output})
        arrays.append(Array(Tensor(Expression(op, tensors, attributes), infer(Node(op, (), attributes), types))))
    family = tuple([ref(array.tensor) for array in arrays])
    _FAMILIES.update((array.tensor, family) for array in arrays)
    return arrays


def siblings_of(tensor: Tensor) -> list[Tensor]:
    """The other results of the same computation that somebody holds."""
    family = [reference() for reference in _FAMILIES.get(tensor, ())]
    return [sibling for sibling in family if sibling is not None and sibling is not tensor]


_FAMILIES: WeakKeyDictionary[Tensor, tuple[ref[Tensor], ...]] = WeakKeyDictionary()
