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
    return _bare_graph(graph, {})


# Copies of bodies and attributes are in `bare` by the id of the original: shared ones stay shared.  These are no nested
# functions: two of those that call each other are a reference cycle, which would keep the graphs alive.


def _bare_graph(graph: WireGraph, bare: dict[int, Any]) -> WireGraph:
    if id(graph) not in bare:
        nodes = [
            node._replace(attrs=_bare_attrs(node, bare)) if node.op in GRAPH_ATTRS else node for node in graph.nodes
        ]
        bare[id(graph)] = replace(graph, nodes=tuple(nodes), origin=None)
    copied: WireGraph = bare[id(graph)]
    return copied


def _bare_attrs(node: Node, bare: dict[int, Any]) -> Attrs:
    if id(node.attrs) not in bare:
        bodies = {name: _bare_graph(node.attrs[name], bare) for name in GRAPH_ATTRS[node.op]}
        bare[id(node.attrs)] = Attrs({**node.attrs, **bodies})
    attrs: Attrs = bare[id(node.attrs)]
    return attrs
