"""Composites: a named region of a graph (softmax, attention, ...) with its expansion as body.

An engine with a special kernel recognises the name; every other engine evaluates the body.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from wire.errors import InputError
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType

from ..core.array import Array, apply


def composite(name: str, fn: Callable[..., Array], *operands: Array, **attrs: Any) -> Array:
    """`fn(*operands, **attrs)` as one node called `name`; `attrs` are of the op table's row (axis, eps, scale).

    `fn` must depend on its arguments only and be the same object at every call (a function of a module): its expansion
    is kept per operand types and attributes.
    """
    body = _expansion(fn, tuple([operand.type for operand in operands]), tuple(sorted(attrs.items())))
    result = apply("composite", *operands, name=name, body=body, **attrs)
    if result.weak and any(operand.tensor.wide for operand in operands):  # of Python's numbers: a body in 64 bits
        wide = [Array(operand.tensor.wide or operand.tensor) for operand in operands]
        result.tensor.wide = composite(name, fn, *wide, **attrs).tensor
    return result


@lru_cache(maxsize=1024)
def _expansion(
    fn: Callable[..., Array], types: tuple[TensorType, ...], attrs: tuple[tuple[str, Any], ...]
) -> WireGraph:
    from ..tracing.trace import OUTPUT
    from .step_list import run

    graph = run(lambda *operands: [fn(*operands, **dict(attrs))], types).graph([OUTPUT])
    if graph.blobs:
        raise InputError("a composite refers to a large tensor", next_step="Pass it as an operand")
    return graph
