"""From Arrays to a WireGraph: the one walk that tracing, composites and realisation share.

Each of them differs only in what a leaf becomes, which it says with `leaf`: an Array with a value, a handle, or a
traced argument, to the index of a node it added to the builder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wire.graph import GraphBuilder

from .array import Array

Leaf = Callable[[Array], int]


def assemble(builder: GraphBuilder, wanted: Sequence[Array], leaf: Leaf) -> list[int]:
    """Add everything `wanted` needs to `builder`; the indices of `wanted`.  Iterative: chains may be very long."""
    placed: dict[int, int] = {}
    alive: list[Array] = []  # keeps the ids in `placed` taken
    stack = [(array, False) for array in reversed(wanted)]
    while stack:
        array, ready = stack.pop()
        if id(array) in placed:
            continue
        expression = array.expression
        if array.value is not None or expression is None or expression.op in ("input", "param"):
            placed[id(array)] = leaf(array)
            alive.append(array)
        elif ready:
            inputs = [placed[id(operand)] for operand in expression.inputs]
            placed[id(array)] = builder.add(expression.op, *inputs, **expression.attrs)
            alive.append(array)
        else:
            alive.extend(expression.inputs)
            stack.append((array, True))
            stack.extend([(operand, False) for operand in reversed(expression.inputs)])
    return [placed[id(array)] for array in wanted]
