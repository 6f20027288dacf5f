"""Varying: over which axes of a grid a result may differ from rank to rank.  Pure.

Where a result's spec does not name an axis, the first rank's counts.  A rank that has the same anyway may take its own,
which then need not travel.  What is not known counts as different.
"""

from __future__ import annotations

from collections.abc import Sequence

from wire.graph import WireGraph
from wire.grids import spec_of
from wire.ops import inner_graphs

ALIKE = frozenset({"all_reduce", "all_gather", "broadcast_from"})  # all ranks of a group have the same after it


def varying_axes(body: WireGraph, in_specs: Sequence[str]) -> list[frozenset[str]]:
    """For every output of a body whose inputs have these specs."""
    given = iter([frozenset(axis for dim in spec_of(text) for axis in dim) for text in in_specs])
    found: list[frozenset[str]] = []
    for node in body.nodes:
        if node.op == "input":
            found.append(next(given))
            continue
        operands = frozenset[str]().union(*(found[index] for index in node.inputs))
        over = frozenset(node.attrs.get("axes", ()) if node.op in ALIKE else ())
        inside = frozenset[str]().union(*(inner.free_axes for inner in inner_graphs(node.op, node.attrs)))
        own = frozenset(node.attrs["axes"] if node.op in _UNLIKE else ())
        found.append((operands - over) | own | inside)
    return [found[index] for index in body.outputs]


_UNLIKE = frozenset({"reduce_scatter", "all_to_all", "permute", "axis_index"})
