"""ONNX: `load` makes a Model of a .onnx file or an onnx.ModelProto.

`reading.py` turns the file into plain data (`program.py`), `support_check.py` refuses at once all that is not
supported,
`static_inputs.py` finds the inputs whose values shape the graph, and `evaluate.py` runs the nodes by the rows of
`rows/` on Arrays, so that tracing the Model gives a WireGraph.  docs/importers.md lists what is supported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.dtypes import DType, dtype_named, dtype_of
from wire.ir.graph import WireGraph

from ...core.array import Array
from ...models.model import InputSpec, Model, Value, parted
from ...numpy.promotion import asarray
from . import constant_folding
from .evaluate import Evaluation
from .program import ELEMENT_TYPES, Declared, Program
from .reading import read
from .rows import ROWS
from .static_inputs import needed_names
from .support_check import require_supported

INLINE_BYTES_MAX = 64  # an initialiser up to this size is a constant of the graph, a larger one a param


def load(source: Any, follow_links: bool = False) -> Model:
    """The Model in `source`, a path or an onnx.ModelProto.  Files that it names for its weights may be links if
    `follow_links` says so.

    A dimension that has no name in the file is called after its input and its place: "x.0".  ConfigError without the
    package `onnx`, InputError for what is no model, Unsupported listing all that this importer does not have.
    """
    program = read(source, follow_links=follow_links)
    require_supported(program, ROWS)
    name = program.graph.name or (Path(source).stem if isinstance(source, (str, Path)) else "")
    return OnnxModel(name, program)


class OnnxModel(Model):
    """A Model that evaluates a Program.

    `static_inputs.py` says which inputs are static, by names alone.  Where a value turns out to be read after all (a
    branch whose results differ in shape, say), its input becomes static when the model is traced.
    """

    def __init__(self, name: str, program: Program) -> None:
        needed = needed_names(program)
        initialisers = program.graph.initialisers
        large = {
            key: value for key, value in initialisers.items() if key not in needed and value.nbytes > INLINE_BYTES_MAX
        }
        params, buffers = parted(large, _statistics(program))
        specs = {proto.name: _spec(proto, needed, initialisers.get(proto.name)) for proto in program.graph.inputs}
        inputs = [spec for name, spec in specs.items() if name not in initialisers]
        outputs = [proto.name for proto in program.graph.outputs]
        super().__init__(name, self._evaluated, inputs, outputs, params, buffers=buffers)
        self.defaults = tuple([spec for name, spec in specs.items() if name in initialisers])
        self._program = program
        self._fixed: frozenset[str] = frozenset()  # params that are read for their values

    def graph(self, given: Mapping[str, Any], remember: bool = True) -> WireGraph:
        try:
            return super().graph(given, remember)
        except constant_folding.Needed as needed:
            self._fix(needed)
            return self.graph(self.given([given]), remember)

    def _fix(self, needed: constant_folding.Needed) -> None:
        """Let what was asked for be known from now on."""
        names = needed.names & {*self.weights, *[spec.name for spec in self._specs if not spec.static]}
        if not names - self._fixed:
            raise needed
        self._fixed |= names & self.weights.keys()
        self.inputs, self.defaults = (
            tuple([replace(spec, static=spec.static or spec.name in names) for spec in specs])
            for specs in (self.inputs, self.defaults)
        )

    def _evaluated(self, params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        graph = self._program.graph
        weights = {name: array for name, array in params.items() if name not in self._fixed}
        scope = {name: asarray(value) for name, value in {**graph.initialisers, **weights, **inputs}.items()}
        Evaluation(self._program, ROWS).nodes(graph.nodes, scope)
        missing = [name for name in self.outputs if name not in scope]
        if missing:
            raise InputError(f"no node of the model gives its output {missing[0]!r}")
        outputs = {name: scope[name] for name in self.outputs}
        constant_folding.fold(list(outputs.values()))
        return outputs


def _statistics(program: Program) -> set[str]:
    """The initialisers that are running means and variances of a BatchNormalization, which no training changes."""
    nodes = (node for node in program.graph.nodes if node.op == "BatchNormalization")
    return {name for node in nodes for name in node.inputs[3:5]}


def _spec(declared: Declared, needed: Collection[str], value: NDArray[Any] | None) -> InputSpec:
    """The input that a file declares, which may have a value in it."""
    static = declared.name in needed
    if value is not None and (declared.shape is None or not isinstance(declared.type, int)):
        return InputSpec(declared.name, dtype_of(value), value.shape, static)
    if declared.shape is None:
        raise InputError(f"the model does not say how many dimensions its input {declared.name!r} has")
    shape = [f"{declared.name}.{place}" if dim is None else dim for place, dim in enumerate(declared.shape)]
    return InputSpec(declared.name, _dtype(declared), tuple(shape), static)


def _dtype(declared: Declared) -> DType:
    assert isinstance(declared.type, int)  # `support_check.py` has refused anything else
    name = ELEMENT_TYPES[declared.type][1]
    assert name is not None
    return dtype_named(name)
