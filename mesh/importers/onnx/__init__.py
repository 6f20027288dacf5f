"""ONNX: `load` makes a Model of a .onnx file or an onnx.ModelProto.

`reading.py` turns the file into plain data (`program.py`), `scope.py` refuses at once all that is not supported,
`static.py` finds the inputs whose values shape the graph, and `evaluate.py` runs the nodes by the rows of `rows/` on
Arrays, so that tracing the Model gives a WireGraph.  docs/importers.md lists what is supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from wire.dtypes import DType, dtype_named
from wire.errors import InputError

from ...array import Array
from ...model import InputSpec, Model, Value
from ...numpy.promotion import asarray
from . import known
from .evaluate import Evaluation
from .program import ELEMENT_TYPES, Declared, Program
from .reading import read
from .rows import ROWS
from .scope import require_supported
from .static import needed_names

INLINE_BYTES_MAX = 64  # an initialiser up to this size is a constant of the graph, a larger one a param


def load(source: Any, dims: Mapping[str, int] | None = None) -> Model:
    """The Model in `source`, a path or an onnx.ModelProto; `dims` gives free dimensions a size.

    A dimension that has no name in the file is called after its input and its place: "x.0".  ConfigError without the
    package `onnx`, InputError for what is no model, Unsupported listing all that this importer does not have.
    """
    program = read(source)
    require_supported(program, ROWS)
    needed = needed_names(program)
    initialisers = program.graph.initialisers
    params = {
        name: value for name, value in initialisers.items() if name not in needed and value.nbytes > INLINE_BYTES_MAX
    }
    inputs = [each for each in program.graph.inputs if each.name not in initialisers]
    names = [each.name for each in program.graph.outputs]
    rest = {name: value for name, value in initialisers.items() if name not in params}
    kept = replace(program, graph=replace(program.graph, initialisers=rest))
    name = program.graph.name or (Path(source).stem if isinstance(source, (str, Path)) else "")
    specs = [_spec(each, each.name in needed, dims or {}) for each in inputs]
    return Model(name, partial(run, kept), specs, names, params)


def run(program: Program, params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
    """The outputs of a model by name; `params` and the program's own initialisers are what it is made of."""
    graph = program.graph
    scope = {name: asarray(value) for name, value in {**graph.initialisers, **params, **inputs}.items()}
    Evaluation(program, ROWS).nodes(graph, scope)
    missing = [declared.name for declared in graph.outputs if declared.name not in scope]
    if missing:
        raise InputError(f"no node of the model gives its output {missing[0]!r}")
    outputs = {declared.name: scope[declared.name] for declared in graph.outputs}
    known.fold(list(outputs.values()))
    return outputs


def _spec(declared: Declared, static: bool, dims: Mapping[str, int]) -> InputSpec:
    if declared.shape is None:
        raise InputError(f"the model does not say how many dimensions its input {declared.name!r} has")
    shape = [
        _dimension(f"{declared.name}.{place}" if dim is None else dim, dims) for place, dim in enumerate(declared.shape)
    ]
    return InputSpec(declared.name, _dtype(declared), tuple(shape), static)


def _dimension(dim: int | str, dims: Mapping[str, int]) -> int | str:
    return dims.get(dim, dim) if isinstance(dim, str) else dim


def _dtype(declared: Declared) -> DType:
    assert isinstance(declared.type, int)  # `scope.py` has refused anything else
    name = ELEMENT_TYPES[declared.type][1]
    assert name is not None
    return dtype_named(name)
