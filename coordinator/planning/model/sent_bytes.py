"""Sent bytes: how many bytes of a result travel to another machine.

Zeros at the end of a tensor are not sent (`wire/transfer/zeros.py`), and some programs have them in most calls: a step
of texts has room for `chunk` tokens of each, and computes a token of each in a branch of its own, with zeros behind
(`mesh/inference/kv_cache_step.py`).  Counted are the fewest elements that lie in front of zeros, so those of the branch
that fills least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from wire.ir.graph import WireGraph
from wire.ir.graph_memory import kept_with_graph
from wire.ir.types import TensorType
from wire.transfer.zeros import bytes_in_front

Fronts = Mapping[int, int]
"""By node, the elements in front of its zeros, at least; nodes that are not here have no zeros that are known of."""

NONE: Fronts = {}


def sent_bytes(kind: TensorType, front: int | None) -> int:
    """The bytes of a tensor that are sent to another machine, if `front` elements lie in front of zeros."""
    return kind.size_bytes if front is None else bytes_in_front(kind.size_bytes, front * kind.dtype.itemsize)


def fronts(graph: WireGraph, given: Fronts = NONE) -> Fronts:
    """The fronts of a graph's nodes, where those of its inputs are `given`."""
    found = dict(given)
    for index in _followed(graph):
        front = _RULES[graph.nodes[index].op](graph, index, found)
        if front < graph.types[index].size:
            found[index] = front
    return found


@kept_with_graph
def _followed(graph: WireGraph) -> tuple[int, ...]:
    return tuple([index for index, node in enumerate(graph.nodes) if node.op in _RULES])


def _of(graph: WireGraph, index: int, found: Fronts) -> int:
    return found.get(index, graph.types[index].size)


def _reshape(graph: WireGraph, index: int, found: Fronts) -> int:
    return _of(graph, graph.nodes[index].inputs[0], found)


def _pad(graph: WireGraph, index: int, found: Fronts) -> int:
    """Rows of zeros behind."""
    (x, fill), attrs = graph.nodes[index].inputs, graph.nodes[index].attrs
    behind = not any((*attrs["low"], *attrs["interior"], *attrs["high"][1:]))
    return _of(graph, x, found) if behind and _is_zero(graph, fill) else graph.types[index].size


def _update(graph: WireGraph, index: int, found: Fronts) -> int:
    """Whole rows over the first ones."""
    x, rows, start = graph.nodes[index].inputs
    first = graph.types[x].shape[1:] == graph.types[rows].shape[1:] and _is_zero(graph, start)
    return max(_of(graph, x, found), _of(graph, rows, found)) if first else graph.types[index].size


def _select(graph: WireGraph, index: int, found: Fronts) -> int:
    """Rows up to some number, and zeros behind: perhaps no row."""
    mask, _, other = graph.nodes[index].inputs
    return 0 if _is_zero(graph, other) and _is_beginning(graph, mask) else graph.types[index].size


def _cond(graph: WireGraph, index: int, found: Fronts) -> int:
    _, operands, attrs = graph.nodes[index]
    return min(_of_branch(attrs[name], attrs["output"], operands[1:], found) for name in ("then", "otherwise"))


def _of_branch(branch: WireGraph, output: int, operands: tuple[int, ...], found: Fronts) -> int:
    given = {inner: found[outer] for inner, outer in zip(branch.inputs, operands, strict=True) if outer in found}
    return _of(branch, branch.outputs[output], fronts(branch, given))


_RULES: Mapping[str, Callable[[WireGraph, int, Fronts], int]] = {
    "reshape": _reshape,
    "pad": _pad,
    "dynamic_update_slice": _update,
    "select": _select,
    "cond": _cond,
}


def _is_zero(graph: WireGraph, index: int) -> bool:
    """Whether all of it is 0, as far as that is known."""
    node = graph.nodes[index]
    return node.op == "const" and "data" in node.attrs and not any(node.attrs["data"])


def _is_beginning(graph: WireGraph, index: int) -> bool:
    """Whether it is true for the first rows, up to some number."""
    node, (rows, *others) = graph.nodes[index], graph.types[index].shape or (1,)
    if node.op != "lt" or math.prod(others) != 1:
        return False
    place, count = node.inputs
    if graph.nodes[place].op == "reshape":
        (place,) = graph.nodes[place].inputs
    return graph.nodes[place].op == "iota" and graph.types[place].shape == (rows,) and not graph.types[count].shape
