"""Result tolerance: how far two honest engines may differ in a node's result.  Pure.

Rounded numbers are alike within a tolerance.  What jumps where they change ever so little (a comparison, an argmax, a
floor, a branch) may be anything, and so is all that is made of it: of two scores that nearly tie, one engine takes the
first and another the second, and both are right.  A choice by a comparison with a constant does not jump if both sides
agree at that constant, which is how activations are made; that is found by computing both there.  To add an op that
jumps from float to float: a name in JUMPS; one that activations are made of: a row of SCALAR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

import numpy as np

from wire.ir.graph import WireGraph, const_value
from wire.ir.graph_memory import kept_with_graph
from wire.ir.ops import CONTROL, inner_graphs, tolerance_for


class Likeness(IntEnum):
    """How alike two results of one node may be, if what the graph was given is the same to the bit."""

    SAME = 0
    CLOSE = 1
    ANY = 2


FACTORED = frozenset({"cholesky", "solve", "lu", "qr", "eigh", "svd"})
"""Errors grow with a matrix's condition, which nobody knows, and signs of vectors are open."""

JUMPS = frozenset({"floor", "round", "sign", "rem", "atan2"})
SCALAR: dict[str, Callable[..., float]] = {
    "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "neg": lambda x: -x, "abs": abs, "max": max, "min": min,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh, "sqrt": np.sqrt,
    "div": np.divide, "recip": lambda x: np.divide(1.0, x), "broadcast": lambda x: x, "reshape": lambda x: x,
    "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
    "select": lambda test, x, y: x if test > 0 else y,
}  # fmt: skip
_COMPARISONS = ("gt", "ge", "lt", "le")
_STEPS_MAX = 32  # from a border to a side that is computed there
_Found = dict[tuple[int, int], float | None]  # by node and steps left: a node may be read on many ways


def likeness(graph: WireGraph, index: int, earlier: Sequence[Likeness]) -> Likeness:
    """The likeness of a node's results; `earlier` are those of all nodes before it."""
    node, dtype = graph.nodes[index], graph.types[index].dtype
    inputs = [earlier[operand] for operand in node.inputs]
    worst = max(inputs, default=Likeness.SAME)
    if node.op == "select" and max(inputs[1:]) is not Likeness.ANY and inputs[0] is Likeness.ANY:
        return Likeness.CLOSE if dtype.kind == "f" and _agrees_at_border(graph, *node.inputs) else worst
    if worst is Likeness.ANY or node.op in FACTORED:
        return Likeness.ANY
    if node.op in CONTROL:
        first = _first_siblings(graph)[index]
        return earlier[first] if node.op != "cond" and first < index else _control(graph, index, inputs)
    if node.op == "composite":
        return max(worst, *outputs_likeness(node.attrs["body"], inputs))
    if worst is Likeness.SAME:
        return Likeness.CLOSE if tolerance_for(node.op, dtype).rtol else Likeness.SAME
    return Likeness.ANY if dtype.kind in "biu" or node.op in JUMPS else Likeness.CLOSE


@kept_with_graph
def _first_siblings(graph: WireGraph) -> Mapping[int, int]:
    """The first of the siblings of each node, of a loop's results the one that says what holds of all."""
    return {index: first for first, group in graph.siblings.items() for index in group}


def outputs_likeness(graph: WireGraph, inputs: Sequence[Likeness]) -> list[Likeness]:
    """The likeness of a graph's outputs, for inputs that are alike so far."""
    given = dict(zip(graph.inputs, inputs, strict=True))
    by_node: list[Likeness] = []
    for index in range(len(graph.nodes)):
        by_node.append(given[index] if index in given else likeness(graph, index, by_node))
    return [by_node[place] for place in graph.outputs]


def _control(graph: WireGraph, index: int, inputs: Sequence[Likeness]) -> Likeness:
    """A branch by what both give; a loop only if nothing in it rounds, as roundings add up from turn to turn."""
    node = graph.nodes[index]
    inner = inner_graphs(node.op, node.attrs)
    if node.op == "cond":
        if inputs[0] is not Likeness.SAME:
            return Likeness.ANY
        output: int = node.attrs["output"]
        return max(outputs_likeness(branch, inputs[1:])[output] for branch in inner)
    rounded = any(inputs) or any(any(outputs_likeness(body, [Likeness.SAME] * len(body.inputs))) for body in inner)
    return Likeness.ANY if rounded else Likeness.SAME


def _agrees_at_border(graph: WireGraph, test: int, one: int, other: int) -> bool:
    """Whether both sides of a choice are equal where its comparison with a constant turns."""
    node = graph.nodes[test]
    if node.op not in _COMPARISONS:
        return False
    for moving, border in (node.inputs, node.inputs[::-1]):
        at = _value(graph, border, {})
        if at is not None:
            left, right = (_value(graph, side, {moving: at}) for side in (one, other))
            return left is not None and right is not None and math.isclose(left, right, rel_tol=1e-5, abs_tol=1e-6)
    return False


def _value(
    graph: WireGraph, index: int, known: dict[int, float], steps: int = _STEPS_MAX, found: _Found | None = None
) -> float | None:
    """What a node gives if it is made of `known` values and constants alone, each the same everywhere."""
    if index in known:
        return known[index]
    found = {} if found is None else found
    if (index, steps) not in found:
        found[index, steps] = _computed(graph, index, known, steps, found)
    return found[index, steps]


def _computed(graph: WireGraph, index: int, known: dict[int, float], steps: int, found: _Found) -> float | None:
    node = graph.nodes[index]
    if node.op == "const":
        data = const_value(node, graph.blobs)
        return float(data.reshape(-1)[0]) if data.size == 1 and data.dtype.kind in "biuf" else None
    if node.op not in SCALAR or not steps:
        return None
    values = [_value(graph, operand, known, steps - 1, found) for operand in node.inputs]
    if node.op == "mul" and 0.0 in values:  # whatever the other is
        return 0.0
    operands = [value for value in values if value is not None]
    if len(operands) < len(values):
        return None
    with np.errstate(all="ignore"):
        result = float(SCALAR[node.op](*operands))
    return result if math.isfinite(result) else None


__all__ = ["Likeness", "likeness", "outputs_likeness"]
