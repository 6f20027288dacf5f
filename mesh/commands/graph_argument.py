"""The GRAPH argument: a .wire file, or a model that `mesh.load` reads, as a graph for the given inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.file import load_params
from wire.ir.graph import WireGraph

from ..models.load import load
from ..models.model import InputSpec
from .arrays import read_arrays, read_inputs, read_some_inputs


@dataclass(frozen=True, slots=True)
class Source:
    """A graph with the values to run it on."""

    graph: WireGraph
    inputs: Mapping[str, NDArray[Any]]
    params: Mapping[str, NDArray[Any]]


def read_program(path: str, flags: Sequence[str], dims: Sequence[str]) -> Source:
    """The program in `path` with the values of its `--input NAME=FILE.npy` flags; `dims` are `NAME=SIZE`."""
    if _is_graph(path, dims):
        graph = WireGraph.load(path)
        return Source(graph, read_inputs(graph, flags), load_params(path))
    model = load(path, read_dims(dims))
    values = model.given([read_arrays(flags)])
    graph = model.graph(values)
    inputs = {name: np.ascontiguousarray(array) for name, array in model.dynamic(values).items()}
    return Source(graph, inputs, {name: model.weights[name] for name in graph.param_types})


def read_graph(path: str, flags: Sequence[str], dims: Sequence[str]) -> tuple[WireGraph, tuple[str, ...]]:
    """The graph in `path` alone, and its free dimensions without a size, which are 1.

    Only those inputs of a model are needed whose values the graph depends on; others may give sizes of dimensions.
    """
    if _is_graph(path, dims):
        graph = WireGraph.load(path)
        read_some_inputs(graph, flags)  # a plan needs none, and a wrong one is wrong here, too
        return graph, ()
    model = load(path, read_dims(dims))
    values = read_arrays(flags)
    specs = {
        dim: size
        for spec in model.inputs
        if spec.name in values
        for dim, size in zip(spec.shape, values[spec.name].shape, strict=False)
        if isinstance(dim, str)
    }
    unknown = tuple([dim for dim in model.free if dim not in specs])
    sizes = {**dict.fromkeys(unknown, 1), **specs}
    missing = [spec.sized(sizes) for spec in model.inputs if spec.name not in values and not spec.optional]
    graph = model.graph(model.given([{**values, **{spec.name: _like(spec) for spec in missing}}]))
    return graph, unknown


def _is_graph(path: str, dims: Sequence[str]) -> bool:
    """Whether it is a .wire file, whose dimensions all have a size."""
    is_wire = Path(path).suffix == ".wire"
    if is_wire and dims:
        raise InputError(f"{path} is a graph, which has no free dimensions", next_step=f"Leave --dim {dims[0]} away")
    return is_wire


def read_dims(flags: Sequence[str]) -> dict[str, int]:
    """The sizes of `--dim NAME=SIZE` flags."""
    sizes: dict[str, int] = {}
    for text in flags:
        name, equals, size = text.partition("=")
        if not equals or not name or not size.isdecimal():
            raise InputError(f"--dim {text!r} is not NAME=SIZE", next_step="Write --dim batch=1, say")
        sizes[name] = int(size)
    return sizes


def _like(spec: InputSpec) -> NDArray[Any]:
    """An array of the shape and dtype of an input that takes no memory."""
    if spec.static:
        raise InputError(
            f"the graph depends on the values of the input {spec.name!r} ({spec})",
            next_step=f"Add --input {spec.name}=FILE.npy",
        )
    return np.broadcast_to(np.zeros((), spec.dtype.numpy), [int(dim) for dim in spec.shape])
