"""Graph memory: what a graph keeps beside its nodes: what was derived from it, and how it was made (`origin`).

A cache whose keys are graphs would hold the graphs, a megabyte each, long after the last plan that uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from .graph import Node, WireGraph
from .ops import GRAPH_ATTRS
from .types import Attrs

T = TypeVar("T")


def kept_with_graph(derive: Callable[[WireGraph], T]) -> Callable[[WireGraph], T]:
    """A function that derives something from a graph, once for each object.  Its result must not hold the graph."""
    name = f"{derive.__module__}.{derive.__qualname__}"

    @wraps(derive)
    def derived(graph: WireGraph) -> T:
        memory = vars(graph)
        if name not in memory:
            memory[name] = derive(graph)
        known: T = memory[name]
        return known

    return derived


def without_origins(graph: WireGraph) -> WireGraph:
    """A copy that cannot be transformed any more.  The records of how the graphs in it were made are larger than the
    graphs."""
    bare: dict[int, Any] = {}  # copies of bodies and attributes, by the id of the original: shared ones stay shared

    def body_of(inner: WireGraph) -> WireGraph:
        if id(inner) not in bare:
            nodes = [node._replace(attrs=attrs_of(node)) if node.op in GRAPH_ATTRS else node for node in inner.nodes]
            bare[id(inner)] = replace(inner, nodes=tuple(nodes), origin=None)
        body: WireGraph = bare[id(inner)]
        return body

    def attrs_of(node: Node) -> Attrs:
        if id(node.attrs) not in bare:
            bodies = {name: body_of(node.attrs[name]) for name in GRAPH_ATTRS[node.op]}
            bare[id(node.attrs)] = Attrs({**node.attrs, **bodies})
        attrs: Attrs = bare[id(node.attrs)]
        return attrs

    return body_of(graph)
