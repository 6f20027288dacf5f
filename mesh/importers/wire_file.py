"""`.wire` files, of graphs that were traced and saved, as Models: with the values of their params."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wire.errors import InputError
from wire.ir.file import load_params
from wire.ir.graph import WireGraph

from ..core.array import Array
from ..models.model import InputSpec, Model, Value, parted
from ..transforms.graph_function import graph_function, without_params


def load(path: Path) -> Model:
    """The graph in the file; InputError naming a param whose value is not saved with it.  Its shapes are fixed."""
    graph, params = WireGraph.load(path), load_params(path)
    missing = sorted(graph.param_types.keys() - params.keys())
    if missing:
        raise InputError(
            f"{path} has no value of the param {missing[0]!r}", next_step="Save it with graph.save(path, params)"
        )
    names, computed = without_params(graph).input_types, graph_function(graph)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        values = {**params, **inputs}
        outputs = computed(*[values[name] for name in names])
        return dict(zip(graph.output_names, outputs, strict=True))

    inputs = [InputSpec(name, kind.dtype, kind.shape) for name, kind in graph.input_types.items()]
    trained, buffers = parted(params)
    return Model(graph.name, function, inputs, graph.output_names, trained, buffers=buffers)
