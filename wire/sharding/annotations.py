"""Annotations: what a graph says of how its tensors are to lie, and how `spmd` nodes say how theirs do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..ir.graph import WireGraph
from ..ir.grids import check_spec, spec_of, spec_text
from ..ir.types import Attrs
from .layout import Axes, Dims


def asked_axes(graph: WireGraph, axes: Axes | None) -> Axes | None:
    """The grid of a graph's constraints, or `axes`; None if nothing is asked for, InputError if there are two grids."""
    asked = {Axes(node.attrs["axes"], node.attrs["sizes"]) for node in graph.nodes if node.op == "constraint"}
    asked |= {axes} if axes is not None else set()
    if not asked:
        return None
    all_axes = asked | {Axes(node.attrs["axes"], node.attrs["sizes"]) for node in graph.nodes if node.op == "spmd"}
    if len(all_axes) > 1:
        grids = " and ".join(
            sorted(f"{'x'.join(map(str, grid_axes.sizes))} ({', '.join(grid_axes.names)})" for grid_axes in all_axes)
        )
        raise InputError(f"a program is split over one grid, got {grids}", next_step="Use one grid for all of it")
    return all_axes.pop()


def asked_layouts(graph: WireGraph, axes: Axes, specs: Mapping[str, Dims]) -> dict[int, Dims]:
    """The layouts that constraints, `spmd` nodes and `specs` (of inputs, params and outputs by name) ask for, by node.

    InputError naming what is not there; AttrError if a spec does not fit.
    """
    names = dict(zip(graph.output_names, graph.outputs, strict=True))
    names |= {graph.nodes[index].attrs["name"]: index for index in (*graph.inputs, *graph.params)}
    layouts: dict[int, Dims] = {}
    for name, dims in specs.items():
        if name not in names:
            raise InputError(
                f"the graph has no input, param or output {name!r}", next_step=f"It has: {', '.join(names)}"
            )
        check_spec(dims, len(graph.types[names[name]].shape), axes.names)
        layouts[names[name]] = dims
    for index, (op, _, attrs) in enumerate(graph.nodes):
        if op == "constraint":
            layouts[index] = spec_of(attrs["spec"])
        elif op == "spmd":
            layouts[index] = spec_of(attrs["out_specs"][attrs["output"]])
    return layouts


def spmd_attrs(body: WireGraph, axes: Axes, in_specs: Iterable[Dims], out_specs: Iterable[Dims]) -> dict[str, Any]:
    """The attributes of an `spmd` node, but for `output`."""
    texts = {"in_specs": in_specs, "out_specs": out_specs}
    return {
        "body": body,
        "axes": axes.names,
        "sizes": axes.sizes,
        **{name: tuple([spec_text(dims) for dims in specs]) for name, specs in texts.items()},
    }


def spmd_specs(attrs: Attrs) -> tuple[Sequence[Dims], Sequence[Dims]]:
    """The layouts of an `spmd` node's operands and results."""
    operands, results = ([spec_of(text) for text in attrs[name]] for name in ("in_specs", "out_specs"))
    return operands, results
