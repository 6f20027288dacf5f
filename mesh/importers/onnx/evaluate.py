"""Evaluation: a Program's nodes as calls of rows on Arrays, so that tracing it gives a WireGraph.

A row is a function `(call, *inputs) -> Array or tuple of Arrays` in the tables of `rows/`; `Call` is what it may ask of
its node.  An op without a row is evaluated from its function's body.  To add an op: one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from wire.errors import InputError, MeshError, Unsupported

from ...core.array import Array
from ...numpy.promotion import asarray
from . import constant_folding
from .functions import expand
from .program import Graph, Node, Program

Result: TypeAlias = "Array | tuple[Array | None, ...] | list[Array]"
Row: TypeAlias = Callable[..., Result]
Scope = dict[str, Array]


# What Python and numpy say where a node's inputs and attributes do not fit its op; rows check little.
_MISFITS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class Call:
    """One node being evaluated: its attributes, its opset version, and the values it may look at."""

    __slots__ = ("_evaluation", "_scope", "node", "version")

    def __init__(self, evaluation: Evaluation, node: Node, scope: Scope) -> None:
        self._evaluation = evaluation
        self._scope = scope
        self.node = node
        self.version = node.version

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        value = self.node.attributes.get(name)
        return default if value is None else value

    def required(self, name: str) -> Any:
        """An attribute's value; InputError if the node does not have it."""
        value = self.node.attributes.get(name)
        if value is None:
            raise InputError(f"{self.node.op} has no attribute {name!r}")
        return value

    def wants(self, output: int) -> bool:
        """Whether anybody may read this output."""
        return output < len(self.node.outputs) and self.node.outputs[output] != ""

    def ints(self, name: str, given: Array | None) -> tuple[int, ...] | None:
        """Integers that older opsets have as the attribute `name`, newer ones as an input; None if neither is there."""
        if given is not None:
            return constant_folding.ints_of(given)
        value = self.node.attributes.get(name)
        return None if value is None else (value,) if isinstance(value, int) else tuple(value)

    def value(self, array: Array) -> NDArray[Any]:
        """The value of an input that shapes the graph."""
        return constant_folding.value_of(array)

    def run(self, graph: Graph, *inputs: Array) -> list[Array]:
        """The outputs of a subgraph, which also sees the names around this node."""
        return self._evaluation.graph(graph, inputs, self._scope)

    def unsupported(self, reason: str) -> Unsupported:
        """An error to raise, which names this node."""
        return unsupported(self.node, reason)


class Evaluation:
    """A Program evaluated on one set of arguments; `rows` is the table of ops by (domain, name)."""

    def __init__(self, program: Program, rows: Mapping[tuple[str, str], Row]) -> None:
        self._program = program
        self._rows = rows

    def graph(self, graph: Graph, inputs: Sequence[Array | None], outer: Scope) -> list[Array]:
        """The outputs of `graph`; `inputs` in its order, None for one that is absent."""
        scope = dict(outer)
        scope.update({name: asarray(value) for name, value in graph.initialisers.items()})
        for declared, array in zip(graph.inputs, inputs, strict=False):
            if array is not None:
                scope[declared.name] = array
            else:
                scope.pop(declared.name, None)
        self.nodes(graph.nodes, scope)
        return [scope[declared.name] for declared in graph.outputs if declared.name in scope]

    def nodes(self, nodes: Sequence[Node], scope: Scope, lenient: bool = False) -> None:
        """Evaluate `nodes` in order, each adding its outputs to `scope`.

        In a function's body (`lenient`), what nothing gives is an optional input that its node does not have either.
        """
        for node in nodes:
            inputs = [self._operand(node, name, scope, lenient) for name in node.inputs]
            outputs = self._node(node, inputs, scope) if lenient else self._placed(node, inputs, scope)
            scope.update(
                {name: out for name, out in zip(node.outputs, outputs, strict=False) if name and out is not None}
            )

    def _operand(self, node: Node, name: str, scope: Scope, lenient: bool) -> Array | None:
        if name and not lenient and name not in scope:
            raise InputError(f"{node.op} {node.label} reads {name!r}, which nothing gives")
        return scope.get(name) if name else None

    def _placed(self, node: Node, inputs: list[Array | None], scope: Scope) -> Sequence[Array | None]:
        """The outputs of a node of the file; errors name it, or the node in a branch of it that they come from."""
        try:
            return self._node(node, inputs, scope)
        except MeshError as error:
            if not error.op.startswith("ONNX "):
                error.op = f"ONNX {node.op} {node.label!r}"
            raise
        except _MISFITS as error:
            raise InputError(
                f"{node.op} version {node.version} does not take these inputs and attributes",
                op=f"ONNX {node.op} {node.label!r}",
                cause=f"{type(error).__name__}: {error}",
            ) from error

    def _node(self, node: Node, inputs: list[Array | None], scope: Scope) -> Sequence[Array | None]:
        row = self._rows.get((node.domain, node.op))
        if row is not None:
            result = row(Call(self, node, scope), *inputs)
            return (result,) if isinstance(result, Array) else result
        expanded = expand(self._program, node, [None if array is None else array.type for array in inputs])
        if expanded is None:
            raise unsupported(node, "no such op")
        body, problems = expanded
        if problems:
            raise unsupported(node, problems[0][-1])
        names = [declared.name for declared in body.inputs]
        inner = {name: array for name, array in zip(names, inputs, strict=False) if array is not None}
        self.nodes(body.nodes, inner, lenient=True)
        return [inner.get(declared.name) for declared in body.outputs]


def unsupported(node: Node, reason: str) -> Unsupported:
    """What a model asks for and this importer does not have."""
    where = f"{node.domain or 'ai.onnx'} {node.op} version {node.version}"
    return Unsupported(
        f"{where} (node {node.label!r}): {reason}", op=node.op, next_step="docs/importers.md lists what is supported"
    )
