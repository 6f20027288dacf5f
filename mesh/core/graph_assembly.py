"""Graph assembly: the walk from Tensors to a WireGraph that tracing, composites and realisation share.

Each of them differs only in what a leaf becomes, which it says with `leaf`: a Tensor with a value, a handle, or a
traced argument, to the index of a node it added to the builder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wire.ir.graph import GraphBuilder

from .expression import Tensor

Leaf = Callable[[Tensor], int]


def assemble(
    builder: GraphBuilder, wanted: Sequence[Tensor], leaf: Leaf, given: Mapping[int, int] | None = None
) -> list[int]:
    """Add everything `wanted` needs to `builder`; the indices of `wanted`.  Iterative: chains may be very long.

    `given` are indices by the ids of Tensors that stand in the builder already.
    """
    placed: dict[int, int] = dict(given or {})
    alive: list[Tensor] = []  # keeps the ids in `placed` taken
    stack = [(tensor, False) for tensor in reversed(wanted)]
    while stack:
        tensor, ready = stack.pop()
        if id(tensor) in placed:
            continue
        expression = tensor.expression
        if tensor.value is not None or expression is None or expression.op in ("input", "param"):
            placed[id(tensor)] = leaf(tensor)
            alive.append(tensor)
        elif ready and expression.stands_for is not None:
            placed[id(tensor)] = placed[id(expression.stands_for)]
            alive.append(tensor)
        elif ready:
            inputs = [placed[id(operand)] for operand in expression.inputs]
            placed[id(tensor)] = builder.add(expression.op, *inputs, **expression.attrs)
            alive.append(tensor)
        else:
            alive.extend(expression.needs)
            stack.append((tensor, True))
            stack.extend([(operand, False) for operand in reversed(expression.needs)])
    return [placed[id(tensor)] for tensor in wanted]
