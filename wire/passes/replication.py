"""varying: over which axes of a grid a value may differ from rank to rank, and where it is surely the same.

The idea is JAX's (shard_map, "varying manual axes"): what a rank is given differs over the axes of its spec; an op's
result differs where an operand does; a reduction, a gathering or a broadcast over axes makes their ranks agree, and
`axis_index` makes them differ.  It is a proof of sameness only: what is not proven may be the same all the same.

Axes do not mix, so each is asked for alone: along one axis a graph is, for every output, the set of the inputs that
make it differ.  Such a set is an int: a bit for each input, and bit 0 for what differs whatever is given.  That of a
graph inside a node is found once, and of a loop the closure over its carry, so the work is linear however deep graphs
nest and whatever repeats.

Pure.  `through` is the rule of one node, for code that walks expressions of another kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InputError
from ..ir.graph import WireGraph
from ..ir.ops import COLLECTIVES, inner_graphs
from ..ir.types import Attrs

Over = frozenset[str]
"""The axes over which a value may differ."""

NOWHERE: Over = frozenset()
AGREED = frozenset({"all_reduce", "all_gather", "broadcast_from"})
ALWAYS = 1


class _Reach(NamedTuple):
    """What ranks differ in, for a graph or a node, along one axis: by result which inputs make it differ, and of which
    the predicates in it must be free, as they decide whether ranks meet."""

    results: tuple[int, ...]
    asked: int


_Known = dict[tuple[object, ...], _Reach]  # by the axis and the ids of graphs, which a call keeps alive


def varying(graph: WireGraph, given: Sequence[Over]) -> list[Over]:
    """The axes over which each output of a body may differ, whose inputs differ over `given`.

    InputError where a branch or a loop has collectives inside and its predicate may differ within their group: some
    ranks would wait for others that never come.
    """
    axes_of_output: list[set[str]] = [set() for _ in graph.outputs]
    known: _Known = {}
    for axis in sorted(NOWHERE.union(graph.free_axes, *given)):
        reach = _of_graph(graph, axis, known)
        masks = [ALWAYS if axis in over else 0 for over in given]
        if _composed(reach.asked, masks):
            raise _not_agreed(axis)
        for axes, result in zip(axes_of_output, reach.results, strict=True):
            if _composed(result, masks):
                axes.add(axis)
    return [frozenset(axes) for axes in axes_of_output]


def through(op: str, attrs: Attrs, operands: Sequence[Over]) -> Over:
    """The axes over which the result of a node may differ, whose operands do over `operands`."""
    named = attrs["axes"] if op in COLLECTIVES else ()
    inside = [inner.free_axes for inner in inner_graphs(op, attrs)] if op != "spmd" else []
    known: _Known = {}
    axes = NOWHERE.union(named, *inside, *operands)
    masks = {axis: [ALWAYS if axis in over else 0 for over in operands] for axis in axes}
    return frozenset(axis for axis in axes if _of_node(op, attrs, masks[axis], axis, known)[0])


def _of_graph(graph: WireGraph, axis: str, known: _Known) -> _Reach:
    key = (axis, id(graph))
    if key not in known:
        masks: list[int] = []
        asked, inputs = 0, 0
        for op, sources, attrs in graph.nodes:
            if op == "input":
                inputs += 1
                masks.append(1 << inputs)
            else:
                mask, more = _of_node(op, attrs, [masks[index] for index in sources], axis, known)
                masks.append(mask)
                asked |= more
        known[key] = _Reach(tuple([masks[index] for index in graph.outputs]), asked)
    return known[key]


def _of_node(op: str, attrs: Attrs, operands: Sequence[int], axis: str, known: _Known) -> tuple[int, int]:
    """What makes the result differ, and what the predicates in it, in terms of what makes operands differ."""
    if op in COLLECTIVES and axis in attrs["axes"]:
        return (0 if op in AGREED else ALWAYS), 0
    rule = _INSIDE.get(op)
    if rule is None:
        return _joined(operands), 0
    key = (axis, op, attrs.get("carry"), len(operands), *map(id, inner_graphs(op, attrs)))
    if key not in known:
        known[key] = rule(attrs, len(operands), axis, known)
    reach = known[key]
    return _composed(reach.results[attrs.get("output", 0)], operands), _composed(reach.asked, operands)


def _joined(masks: Sequence[int]) -> int:
    joined = 0
    for mask in masks:
        joined |= mask
    return joined


def _composed(mask: int, operands: Sequence[int]) -> int:
    """A set of operands, in terms of what makes them differ."""
    bits, rest = mask & ALWAYS, mask >> 1
    while rest:
        lowest = rest & -rest
        bits |= operands[lowest.bit_length() - 1]
        rest ^= lowest
    return bits


# -- graphs inside nodes ----------------------------------------------------------------------------------


def _composite(attrs: Attrs, count: int, axis: str, known: _Known) -> _Reach:
    return _of_graph(attrs["body"], axis, known)


def _cond(attrs: Attrs, count: int, axis: str, known: _Known) -> _Reach:
    asked, *operands_masks = [2 << place for place in range(count)]
    branches = [_of_graph(attrs[name], axis, known) for name in ("then", "otherwise")]
    results = zip(
        *[[_composed(result, operands_masks) for result in branch.results] for branch in branches], strict=True
    )
    inside = _joined([_composed(branch.asked, operands_masks) for branch in branches])
    return _Reach(
        tuple([asked | then | other for then, other in results]), inside | _decisive("cond", attrs, axis, asked)
    )


def _while(attrs: Attrs, count: int, axis: str, known: _Known) -> _Reach:
    test, body = _of_graph(attrs["test"], axis, known), _of_graph(attrs["body"], axis, known)
    inputs = _closed([result | test.results[0] for result in body.results], count)
    asked = _composed(test.results[0], inputs)
    inside = _composed(test.asked | body.asked, inputs)
    return _Reach(tuple(inputs[: len(body.results)]), inside | _decisive("while", attrs, axis, asked))


def _scan(attrs: Attrs, count: int, axis: str, known: _Known) -> _Reach:
    body, carry = _of_graph(attrs["body"], axis, known), attrs["carry"]
    inputs = _closed(body.results[:carry], count)
    rows = [_composed(result, inputs) for result in body.results[carry:]]
    return _Reach((*inputs[:carry], *rows), _composed(body.asked, inputs))


_INSIDE = {"composite": _composite, "cond": _cond, "while": _while, "scan": _scan}


def _closed(turned: Sequence[int], count: int) -> list[int]:
    """What makes each of `count` inputs of a body differ after any number of turns, of which one gives the carry so."""
    reached = [2 << place | mask for place, mask in enumerate(turned)]
    for middle in range(len(reached)):
        for place, mask in enumerate(reached):
            if mask >> (middle + 1) & 1:
                reached[place] = mask | reached[middle]
    return [*reached, *[2 << place for place in range(len(reached), count)]]


def _decisive(op: str, attrs: Attrs, axis: str, asked: int) -> int:
    """The predicate, if ranks along the axis meet inside."""
    return asked if any(axis in inner.free_axes for inner in inner_graphs(op, attrs)) else 0


def _not_agreed(axis: str) -> InputError:
    return InputError(
        f"a branch or a loop has collectives over {axis!r} inside, and its predicate may differ along that axis: ranks "
        "that take part would wait for ranks that do not",
        next_step="Make the predicate the same on all of them, e.g. with mesh.collectives.all_reduce",
    )
