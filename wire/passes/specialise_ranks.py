"""specialise: what each rank of a grid computes of a body that branches by rank.

    cond(axis_index == 0, of five rows, of three)       # rank 0: of five rows; all others: of three

What follows from a rank's own numbers and constants is known when a plan is made, so a branch that goes by these alone
is taken here, and what only others need falls away.  `axis_index` itself stays, so ranks that take the same branches
have one graph.  Branches and loops with collectives inside stay as they are, and so do branches inside of loops.

Ranks meet in one order.  A body has it by its `stages` (`collective_order.py`), but without some branches a rank may
have another: then all are given the order of the body, each meeting behind the one before it.  What a rank does not
need of a meeting, it takes part in for the others.

It knows no devices.  To know the value of another op: a row of _VALUES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.graph import GraphBuilder, Node, WireGraph, const_value
from ..ir.grids import Axes, Sizes, block, coordinates
from ..ir.types import TensorType
from .collective_order import depths, levels, meets

Place = tuple[int, ...]
"""Where a branch stands: its first node, after those of the branches that it is in."""
Choices = Mapping[Place, bool]
Value = NDArray[Any] | None  # None where it is not known


def specialise(body: WireGraph, axes: Axes, sizes: Sizes) -> tuple[WireGraph, ...]:
    """A graph for each rank, with the inputs and outputs of `body` and its values; `body` itself where no branch goes
    by the rank.  Equal graphs are one object."""
    alike = (body,) * math.prod(sizes)
    if not (body.has_control and body.free_axes):
        return alike
    body = _flat(body)
    by_rank = [frozenset(_known_choices(body, axes, sizes, at).items()) for at in coordinates(sizes)]
    if len(set(by_rank)) == 1:
        return alike
    kinds = {choices: dict(choices) for choices in by_rank}
    making = {case: _RankGraph(body, choices) for case, choices in kinds.items()}
    orders = {case: rank_graph.order() for case, rank_graph in making.items()}
    if len(set(orders.values())) > 1 or None in orders.values():
        together = _RankGraph(body, {}).order()
        if together is None or any(not body.nodes[index].inputs for index in together):
            return alike
        making |= {case: _RankGraph(body, kinds[case], together) for case, order in orders.items() if order != together}
    one: dict[WireGraph, WireGraph] = {}
    graphs = {case: rank_graph.graph() for case, rank_graph in making.items()}
    return tuple(one.setdefault(graphs[case], graphs[case]) for case in by_rank)


def _flat(graph: WireGraph) -> WireGraph:
    """`graph` without composites that ask for axes."""
    if not any(node.op == "composite" and node.attrs["body"].free_axes for node in graph.nodes):
        return graph
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: list[int] = []
    for node in graph.nodes:
        operands = [placed[index] for index in node.inputs]
        if node.op == "composite" and node.attrs["body"].free_axes:
            inner = _flat(node.attrs["body"])
            placed += builder.graph(inner, dict(zip(inner.input_types, operands, strict=True)))
        else:
            placed.append(builder.copy(node, operands))
    return builder.build([placed[index] for index in graph.outputs], graph.output_names, graph.name)


# -- a graph of one kind of rank --------------------------------------------------------------------------


class _RankGraph:
    """The graph of the ranks that make these choices; the meetings of `together` one behind the other, in that order.

    With `plain` composites are replaced by their bodies, as engines do before they look at stages.
    """

    def __init__(self, body: WireGraph, choices: Choices, together: Sequence[int] = (), plain: bool = False) -> None:
        self._choices, self._plain = choices, plain
        self._body, self._builder = body, GraphBuilder()
        self._meetings: dict[int, list[int]] = {}  # by their first node in the body, the nodes here
        self._first_of = _first_of(body)
        self._before = dict(zip(together[1:], together[:-1], strict=True)) if together else {}
        self._builder.blobs.update(body.blobs)
        inputs = [self._builder.input(name, *kind) for name, kind in body.input_types.items()]
        placed = self._place(body, inputs, (), self._walk())
        outputs = [placed[index] for index in body.outputs]
        needed = set(self._builder.order(outputs))
        idle = [nodes[0] for nodes in self._meetings.values() if not needed.intersection(nodes)]
        if idle:
            outputs[0] = self._builder.add("after", outputs[0], *idle)
        self._outputs = outputs

    def graph(self) -> WireGraph:
        return self._builder.build(self._outputs, self._body.output_names, self._body.name)

    def order(self) -> tuple[int, ...] | None:
        """The meetings, as nodes of the body, in the order in which an engine comes to them; None where two of them
        became one."""
        if len({nodes[0] for nodes in self._meetings.values()}) < len(self._meetings):
            return None
        if any(node.op == "composite" for node in self._builder.nodes):
            return _RankGraph(self._body, self._choices, plain=True).order()
        level, depth = levels(self._builder.nodes), depths(self._builder.nodes)
        position = {index: place for place, index in enumerate(self._builder.order(self._outputs))}

        def turn(meeting: int) -> tuple[int, int, int]:
            first, *_ = nodes = self._meetings[meeting]
            return level[first], depth[first], min(position[node] for node in nodes if node in position)

        return tuple(sorted(self._meetings, key=turn))

    def _walk(self) -> Sequence[int]:
        """The nodes of the body, so that each comes after what it is placed behind."""
        if not self._before:
            return range(len(self._body))
        behind = {index: list(node.inputs) for index, node in enumerate(self._body.nodes)}
        for index, first in self._first_of.items():
            if first in self._before:
                behind[index].append(self._before[first])
        for meeting, before in self._before.items():
            behind[meeting].append(before)
        return tuple(TopologicalSorter(behind).static_order())

    def _place(self, graph: WireGraph, given: Sequence[int], inside: Place, walk: Sequence[int]) -> dict[int, int]:
        """The nodes of a graph, which is the body or a branch in it."""
        placed = dict(zip(graph.inputs, given, strict=True))
        first_of = self._first_of if not inside else _first_of(graph)
        branches: dict[int, list[int]] = {}
        for index in walk:
            if index in placed:
                continue
            node, first = graph.nodes[index], first_of.get(index, index)
            operands = [placed[source] for source in node.inputs]
            chosen = self._choices.get((*inside, first)) if node.op == "cond" else None
            if chosen is not None:
                if first not in branches:
                    branches[first] = self._branch(node, operands, chosen, (*inside, first))
                placed[index] = branches[first][node.attrs["output"]]
            elif node.op == "composite" and self._plain:
                placed[index] = self._inlined(node.attrs["body"], operands)[0]
            elif not inside and meets(node.op, node.attrs):
                placed[index] = self._meeting(node, first, operands)
            else:
                placed[index] = self._builder.copy(node, operands)
        return placed

    def _branch(self, node: Node, operands: Sequence[int], chosen: bool, inside: Place) -> list[int]:
        branch = node.attrs["then" if chosen else "otherwise"]
        placed = self._place(branch, operands[1:], inside, range(len(branch)))
        return [placed[index] for index in branch.outputs]

    def _inlined(self, body: WireGraph, operands: Sequence[int]) -> list[int]:
        placed = self._place(body, operands, _NOT_CHOSEN, range(len(body)))
        return [placed[index] for index in body.outputs]

    def _meeting(self, node: Node, first: int, operands: list[int]) -> int:
        before = self._before.get(first)
        if before is not None:
            operands[0] = self._builder.add("after", operands[0], self._meetings[before][0])
        node_result = self._builder.copy(node, operands)
        self._meetings.setdefault(first, []).append(node_result)
        return node_result


_NOT_CHOSEN: Place = (-1,)  # nothing in a composite is


def _first_of(graph: WireGraph) -> dict[int, int]:
    return {index: first for first, group in graph.siblings.items() for index in group}


# -- what a rank knows ------------------------------------------------------------------------------------


def _known_choices(body: WireGraph, axes: Axes, sizes: Sizes, at: Sequence[int]) -> dict[Place, bool]:
    """The branches that the rank at these coordinates is known to take, of those that it comes to."""
    choices: dict[Place, bool] = {}

    def values_of(graph: WireGraph, given: Sequence[Value], inside: Place) -> list[Value]:
        values: list[Value] = []
        branches: dict[int, list[Value]] = {}
        first_of = _first_of(graph)
        rest = iter(given)
        for index, node in enumerate(graph.nodes):
            operands = [values[source] for source in node.inputs]
            if node.op == "input":
                values.append(next(rest))
            elif node.op == "cond":
                first = first_of[index]
                if first not in branches:
                    branches[first] = taken(node, operands, (*inside, first))
                values.append(branches[first][node.attrs["output"]])
            elif node.op == "axis_index":
                values.append(np.asarray(block((node.attrs["axes"],), axes, sizes, at)[0], np.int32))
            else:
                values.append(_value(node, graph.types[index], operands))
        return [values[index] for index in graph.outputs]

    def taken(node: Node, operands: Sequence[Value], inside: Place) -> list[Value]:
        asked, *given = operands
        if asked is None or meets(node.op, node.attrs):
            return [None] * len(node.attrs["then"].outputs)
        choices[inside] = bool(asked)
        return values_of(node.attrs["then" if asked else "otherwise"], given, inside)

    with np.errstate(all="ignore"):
        values_of(body, [None] * len(body.inputs), ())
    return choices


KNOWN_MAX = 4096  # elements of what is looked into


def _value(node: Node, kind: TensorType, operands: Sequence[Value]) -> Value:
    """The value of a node of whole numbers and truths, where all operands are known."""
    rule = _VALUES.get(node.op)
    if rule is None or kind.dtype.kind not in "biu" or kind.size > KNOWN_MAX:
        return None
    values = [operand for operand in operands if operand is not None]
    if len(values) < len(operands):
        return None
    value = rule(node, kind, values)
    return None if value is None else np.asarray(value, kind.dtype.numpy)


Rule = Callable[[Node, TensorType, list[NDArray[Any]]], Any]


def _elementwise(function: np.ufunc) -> Rule:
    return lambda node, kind, given: function(*given)


def _divided(function: np.ufunc) -> Rule:
    """A rule of quotients, where all divisors have one on every machine: neither 0 nor -1."""
    return lambda node, kind, given: function(*given) if given[1].all() and (given[1] + 1).all() else None


def _gathered(node: Node, kind: TensorType, given: list[NDArray[Any]]) -> Any:
    data, places = given
    axis = node.attrs["axis"]
    if node.attrs["batch_dims"]:
        return None
    return np.take(data, np.clip(places, 0, data.shape[axis] - 1), axis)


_VALUES: dict[str, Rule] = {
    "const": lambda node, kind, given: const_value(node, {}) if "data" in node.attrs else None,
    "cast": lambda node, kind, given: given[0] != 0 if kind.dtype.kind == "b" else given[0].astype(kind.dtype.numpy),
    "select": lambda node, kind, given: np.where(given[0] > 0, given[1], given[2]),
    "reshape": lambda node, kind, given: given[0].reshape(kind.shape),
    "broadcast": lambda node, kind, given: np.broadcast_to(given[0], kind.shape),
    "gather": _gathered,
    "div": _divided(np.floor_divide),
    "rem": _divided(np.remainder),
    "eq": _elementwise(np.equal),
    "ne": _elementwise(np.not_equal),
    "lt": _elementwise(np.less),
    "le": _elementwise(np.less_equal),
    "gt": _elementwise(np.greater),
    "ge": _elementwise(np.greater_equal),
    "and": _elementwise(np.bitwise_and),
    "or": _elementwise(np.bitwise_or),
    "xor": _elementwise(np.bitwise_xor),
    "not": _elementwise(np.invert),
    "add": _elementwise(np.add),
    "mul": _elementwise(np.multiply),
    "neg": _elementwise(np.negative),
    "max": _elementwise(np.maximum),
    "min": _elementwise(np.minimum),
}

__all__ = ["specialise"]
