"""WireGraph: the expression graph that every process agrees on.

Immutable, hash-consed, topologically ordered.  A node is `(op, inputs, attrs)`; its inputs are indices of
earlier nodes, so a graph cannot contain a cycle.  Shapes and dtypes are derived from the op table by whoever
reads the graph and never travel.  `hash` is the BLAKE2b-256 of the canonical encoding (`codec.py`): network
identity, common-subexpression key and cache key in one.  The graph's `name` is a label and not part of it.

Node order is canonical: inputs in their declared order, then a depth-first post-order from the outputs.  So two
builders that add the same nodes in another order make equal graphs, and dead code is dropped (inputs stay, because
they are the signature).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cached_property import cached_property
from ..errors import AttrError, GraphError, InputError, LimitExceeded, ShapeError
from ..limits import DEFAULT, Limits
from ..units import counted, size_text
from .dtypes import DType, dtype_of
from .ops import COLLECTIVES, CONTROL, MULTIPLE, OPS, VARIADIC, VARYING, check_attrs, inner_graphs, op_named
from .types import NO_ATTRS, Attrs, TensorType

NODE_BYTES = 1 << 10  # that a node takes in memory, with what is made of it; about


class Node(NamedTuple):
    """One operation; `inputs` are indices of earlier nodes."""

    op: str
    inputs: tuple[int, ...]
    attrs: Attrs


@dataclass(frozen=True, eq=False, repr=False)
class WireGraph:
    """A tensor program with named inputs and params and ordered, named outputs.

    `mesh.trace` makes one.  Equality and hashing go by content.

    Parameters
    ----------
    nodes : tuple of Node
        The ops, each after its operands.
    outputs : tuple of int
        The index of the node that each output is.
    output_names : tuple of str
        The outputs' names.
    types : tuple of TensorType
        The shape and dtype of each node.
    name : str, optional
        A name for people.
    blobs : mapping of bytes to numpy.ndarray, optional
        The large constants that this process has, by address.  They are saved in a file, and not encoded with the
        graph.
    origin : object, optional
        What `mesh` remembers of how the graph was made.  It never leaves this process.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import mesh
    >>> graph = mesh.trace(lambda x: x @ x, np.ones((4, 4), np.float32))
    >>> [node.op for node in graph.nodes], graph.flops_of(1)
    (['input', 'dot'], 128)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     graph.save(os.path.join(folder, "square.wire"))
    ...     mesh.WireGraph.load(os.path.join(folder, "square.wire")) == graph
    True
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    output_names: tuple[str, ...]
    types: tuple[TensorType, ...]
    name: str = ""
    blobs: Mapping[bytes, NDArray[Any]] = field(default_factory=dict)
    origin: Any = field(default=None, repr=False)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Indices of the input nodes, in signature order."""
        return self._leaves("input")

    @cached_property
    def params(self) -> tuple[int, ...]:
        """Indices of the param nodes: tensors that are bound by name, live on the workers and change seldom."""
        return self._leaves("param")

    @cached_property
    def input_types(self) -> dict[str, TensorType]:
        """The type of each input, by its name."""
        return {self.nodes[index].attrs["name"]: self.types[index] for index in self.inputs}

    @cached_property
    def param_types(self) -> dict[str, TensorType]:
        """The type of each param, by its name."""
        return {self.nodes[index].attrs["name"]: self.types[index] for index in self.params}

    @cached_property
    def output_types(self) -> dict[str, TensorType]:
        """The type of each output, by its name."""
        return {name: self.types[index] for name, index in zip(self.output_names, self.outputs, strict=True)}

    @cached_property
    def flops(self) -> int:
        """Scalar operations of one evaluation, by the table's work column; siblings are one piece of work."""
        again = self._again
        return sum(self.flops_of(index) for index in range(len(self.nodes)) if index not in again)

    @cached_property
    def siblings(self) -> dict[int, tuple[int, ...]]:
        """The nodes that are results of one computation, by the first of them: those of an op with several results
        that differ in `output` only."""
        groups: dict[Any, list[int]] = {}
        for index, (op, inputs, attrs) in enumerate(self.nodes):
            if op in MULTIPLE:
                shared = Attrs({name: value for name, value in attrs.items() if name != "output"})
                groups.setdefault((op, inputs, shared), []).append(index)
        return {group[0]: tuple(group) for group in groups.values()}

    @cached_property
    def total_nodes(self) -> int:
        """The number of its nodes, with those of branches and bodies; results of one computation share theirs."""
        again = self._again
        inside: int = sum(
            inner.total_nodes
            for index, (op, _, attrs) in enumerate(self.nodes)
            if index not in again
            for inner in inner_graphs(op, attrs)
        )
        return len(self.nodes) + inside

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory with its large constants, about."""
        return self.total_nodes * NODE_BYTES + sum(array.nbytes for array in self.blobs.values())

    @property
    def _again(self) -> set[int]:
        """The nodes that are further results of a computation, after its first."""
        return {index for first, group in self.siblings.items() for index in group if index != first}

    @cached_property
    def has_control(self) -> bool:
        """Whether this graph, or a graph inside it, branches or loops."""
        return any(
            op in CONTROL or any(inner.has_control for inner in inner_graphs(op, attrs)) for op, _, attrs in self.nodes
        )

    @cached_property
    def work_varies(self) -> bool:
        """Whether the values decide how much there is to do."""
        return any(
            op in VARYING or any(inner.work_varies for inner in inner_graphs(op, attrs)) for op, _, attrs in self.nodes
        )

    @cached_property
    def free_axes(self) -> Mapping[str, int]:
        """The axes, with their sizes, over which it has collectives: what the grid that it runs on must have.

        AttrError if one axis has two sizes.
        """
        free: dict[str, int] = {}
        for op, _, attrs in self.nodes:
            if op in COLLECTIVES:
                _join_axes(free, dict(zip(attrs["axes"], attrs["sizes"], strict=True)))
            elif op != "spmd":  # which binds them all
                for inner in inner_graphs(op, attrs):
                    _join_axes(free, inner.free_axes)
        return free

    @cached_property
    def has_spmd(self) -> bool:
        """Whether this graph, or a graph inside it, is computed by ranks."""
        return any(
            op == "spmd" or any(inner.has_spmd for inner in inner_graphs(op, attrs)) for op, _, attrs in self.nodes
        )

    @cached_property
    def stands_alone(self) -> bool:
        """Whether it has neither params nor large constants, as a graph inside a node must."""
        return not self.params and not any(node.op == "const" and "blob" in node.attrs for node in self.nodes)

    def flops_of(self, index: int) -> int:
        """Count the floating-point operations of one node.

        Parameters
        ----------
        index : int
            The node.

        Returns
        -------
        int
            The number of operations.

        Raises
        ------
        InputError
            If the graph has no such node.
        """
        if not isinstance(index, int) or not 0 <= index < len(self.nodes):
            raise InputError(f"a node of this graph is an int from 0 to {len(self.nodes) - 1}, not {index!r:.80}")
        node = self.nodes[index]
        return OPS[node.op].flops(node.attrs, [self.types[i] for i in node.inputs], self.types[index])

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes."""
        from .codec import encode_graph

        return encode_graph(self)

    @cached_property
    def hash(self) -> bytes:
        """BLAKE2b-256 of the canonical bytes."""
        from .codec import hash_bytes

        return hash_bytes(self.encoded)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WireGraph) and self.encoded == other.encoded

    def __hash__(self) -> int:
        return hash(self.hash)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __repr__(self) -> str:
        return f"WireGraph({self.name!r}, {counted(len(self.nodes), 'node')}, {self.hash.hex()[:16]})"

    def __str__(self) -> str:
        from .text import to_text

        return to_text(self)

    def save(self, path: str | Path, params: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Write a `.wire` file: the graph and its large constants.

        Parameters
        ----------
        path : str or Path
            The file.
        params : mapping of str to numpy.ndarray, optional
            The values of its params, which are written as well.

        Raises
        ------
        InputError
            If the file cannot be written.
        """
        from .file import path_of, save_graph

        save_graph(self, path_of(path), params or {})

    @staticmethod
    def load(path: str | Path) -> WireGraph:
        """Read a `.wire` file.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        WireGraph
            The graph; `wire.ir.file.load_params` reads the params that were saved with it.

        Raises
        ------
        InputError
            If there is no such file.
        GraphDecodeError
            If it is damaged.
        """
        from .file import load_graph

        return load_graph(path)

    def _leaves(self, op: str) -> tuple[int, ...]:
        return tuple(index for index, node in enumerate(self.nodes) if node.op == op)


class GraphBuilder:
    """A builder of a WireGraph, node by node.  Equal nodes are one node; types are known at once.

        builder = GraphBuilder()
        x = builder.input("x", (2, 3), F32)
        graph = builder.build([builder.add("exp", x)])

    Every method raises GraphError (ShapeError, DTypeError, AttrError, UnknownOp, LimitExceeded) naming the op.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self.nodes: list[Node] = []
        self.types: list[TensorType] = []
        self.blobs: dict[bytes, NDArray[Any]] = {}
        self._limits = limits
        self._attrs: dict[Attrs, Attrs] = {}  # equal attributes are one object, which makes encoding quick
        self._index: dict[tuple[str, tuple[int, ...], int], int] = {}  # by op, inputs and the id of those attributes
        self._results: dict[tuple[Any, ...], TensorType] = {}  # by what a type follows from
        self._names: dict[str, Node] = {}

    def input(self, name: str, shape: Sequence[int], dtype: DType) -> int:
        """A tensor given at every call."""
        return self._named("input", name, shape, dtype)

    def param(self, name: str, shape: Sequence[int], dtype: DType) -> int:
        """A tensor bound by name that lives on the workers, such as a weight."""
        return self._named("param", name, shape, dtype)

    def const(self, value: Any) -> int:
        """A constant; above `inline_const_bytes_max` its content address is stored and the array kept in `blobs`."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        dtype = dtype_of(array)
        attrs: dict[str, Any] = {"shape": tuple(array.shape), "dtype": dtype.name}
        if array.nbytes <= self._limits.inline_const_bytes_max:
            attrs["data"] = little_endian(array).tobytes()
        else:
            from .codec import hash_array

            attrs["blob"] = hash_array(array)
            self.blobs[attrs["blob"]] = array
        return self._push(Node("const", (), Attrs(attrs)))

    def add(self, op: str, *inputs: int, **attrs: Any) -> int:
        """The node `op(*inputs, **attrs)`, as its index."""
        return self._push(Node(op, inputs, Attrs(attrs) if attrs else NO_ATTRS))

    def graph(self, graph: WireGraph, bindings: Mapping[str, int]) -> list[int]:
        """Copy another graph in, its inputs and params replaced by `bindings` (name to index); its outputs' indices."""
        self.blobs.update(graph.blobs)
        placed: list[int] = []
        for node in graph.nodes:
            if node.op in ("input", "param") and node.attrs["name"] in bindings:
                placed.append(bindings[node.attrs["name"]])
            else:
                placed.append(self._push(Node(node.op, tuple([placed[i] for i in node.inputs]), node.attrs)))
        return [placed[index] for index in graph.outputs]

    def put(self, node: Node) -> int:
        """A node over nodes that are here, as its index: `add` without taking its attributes apart."""
        return self._push(node)

    def copy(self, node: Node, inputs: Iterable[int], kind: TensorType | None = None) -> int:
        """A node of another graph over `inputs`, as its index.  `kind` is its type there, which spares inferring it
        anew: give it only if `inputs` have the types of its operands there."""
        return self._push(Node(node.op, tuple(inputs), node.attrs), kind=kind)

    def build(self, outputs: Iterable[int], names: Sequence[str] | None = None, name: str = "") -> WireGraph:
        """The finished graph in canonical order, without dead code."""
        wanted = tuple(outputs)
        if names is None:
            names = tuple(str(position) for position in range(len(wanted)))
        if len(set(names)) != len(wanted):
            raise GraphError(f"{len(wanted)} outputs need as many distinct names, got {list(names)}")
        for label in (*names, name):
            check_name(label, self._limits)
        order = self.order(wanted)
        place = {index: position for position, index in enumerate(order)}
        nodes = tuple(
            [
                Node(op, tuple([place[i] for i in inputs]), attrs)
                for op, inputs, attrs in map(self.nodes.__getitem__, order)
            ]
        )
        used = {node.attrs["blob"] for node in nodes if node.op == "const" and "blob" in node.attrs}
        return WireGraph(
            nodes,
            tuple(place[index] for index in wanted),
            tuple(names),
            tuple(self.types[index] for index in order),
            name,
            {address: self.blobs[address] for address in used if address in self.blobs},
        )

    def order(self, outputs: Iterable[int]) -> list[int]:
        """The nodes that these outputs need, and the inputs, as they would stand in a graph of them."""
        order = [index for index, node in enumerate(self.nodes) if node.op == "input"]
        done = set(order)
        for output in outputs:
            stack = [(output, 0)]
            while stack:
                index, position = stack.pop()
                if index in done:
                    continue
                inputs = self.nodes[index].inputs
                while position < len(inputs) and inputs[position] in done:
                    position += 1
                if position < len(inputs):
                    stack.append((index, position + 1))
                    stack.append((inputs[position], 0))
                else:
                    done.add(index)
                    order.append(index)
        return order

    def _named(self, op: str, name: str, shape: Sequence[int], dtype: DType) -> int:
        check_name(name, self._limits)
        sizes = tuple([int(dim) for dim in shape])
        node = Node(op, (), Attrs({"dtype": dtype.name, "name": name, "shape": sizes}))
        known = self._names.setdefault(name, node)
        if known is not node and known != node:
            raise GraphError(f"{op} {name!r} is already declared with another shape, dtype or kind", op=op)
        return self._push(node, (op, sizes, dtype))

    def _push(self, node: Node, signature: tuple[Any, ...] = (), kind: TensorType | None = None) -> int:
        """Nodes of one `signature` have one type.  `kind` is the node's type, if it is known."""
        op, inputs, attrs = node
        try:
            kept = self._attrs.setdefault(attrs, attrs)
        except TypeError:  # a value that cannot be hashed, such as a list, is of no attribute's kind
            check_attrs(op_named(op), attrs)
            raise
        known = self._index.get((op, inputs, id(kept)))
        if known is not None:
            return known
        if inputs and (min(inputs) < 0 or max(inputs) >= len(self.nodes)):
            raise GraphError(f"{op} takes an input that does not exist", op=op)
        node = node if kept is attrs else Node(op, inputs, kept)
        result = self._result(node, signature) if kind is None else kind
        if len(self.nodes) >= self._limits.graph_nodes_max:
            raise LimitExceeded(f"a graph has at most {self._limits.graph_nodes_max} nodes")
        self.nodes.append(node)
        self.types.append(result)
        self._index[op, inputs, id(kept)] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def _result(self, node: Node, signature: tuple[Any, ...]) -> TensorType:
        """The type of a node, derived once for all nodes of one op, with equal attributes, over operands alike."""
        types = [self.types[index] for index in node.inputs]
        signature = signature or (node.op, id(node.attrs), *types)
        result = self._results.get(signature)
        if result is None:
            result = self._results[signature] = infer(node, types, self._limits)
        return result


def _join_axes(free: dict[str, int], more: Mapping[str, int]) -> None:
    for axis, size in more.items():
        if free.setdefault(axis, size) != size:
            raise AttrError(f"the axis {axis!r} has the sizes {free[axis]} and {size}")


def infer(node: Node, types: Sequence[TensorType], limits: Limits = DEFAULT) -> TensorType:
    """The type of `node` over operands of `types`, everything checked; GraphError names the op."""
    op = op_named(node.op)
    try:
        check_arity(node.op, len(types), limits)
        check_attrs(op, node.attrs)
        result = op.infer(node.attrs, types)
        check_type(result, limits)
    except GraphError as error:
        error.op = error.op or node.op
        raise
    return result


FIRST_NEEDED = frozenset({"concat", "after"})  # variadic ops that take one operand at least


def check_arity(op: str, count: int, limits: Limits) -> None:
    """Raise LimitExceeded or GraphError unless `op` takes `count` inputs."""
    expected = OPS[op].inputs
    if expected is None:
        if (op in FIRST_NEEDED and count == 0) or count > limits.variadic_inputs_max:
            raise LimitExceeded(f"{op} takes 1 to {limits.variadic_inputs_max} inputs, got {count}", op=op)
    elif count != expected:
        raise GraphError(f"{op} takes {counted(expected, 'input')}, got {count}", op=op)


def check_type(result: TensorType, limits: Limits) -> None:
    """Raise LimitExceeded or ShapeError unless a tensor of this type may exist; all sums are exact Python ints."""
    shape = result.shape
    if len(shape) > limits.rank_max:
        raise LimitExceeded(f"rank {len(shape)} exceeds {limits.rank_max}")
    size_bytes = result.dtype.itemsize
    for dim in shape:
        if dim < 0:
            raise ShapeError(f"negative dimension in shape {shape}")
        if dim > limits.dim_max:
            raise LimitExceeded(f"dimension {dim} exceeds {limits.dim_max}")
        size_bytes *= max(dim, 1)
    if size_bytes > limits.tensor_bytes_max:
        raise LimitExceeded(f"a tensor of shape {shape} exceeds {size_text(limits.tensor_bytes_max)}")


def check_name(name: Any, limits: Limits) -> None:
    """GraphError or LimitExceeded unless this is text that may be the name of something."""
    if not isinstance(name, str):
        raise GraphError(f"a name is a string, got {type(name).__name__}")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise GraphError(f"the name {name!r} is not text: it holds half a surrogate pair") from None
    if size_bytes > limits.name_bytes_max:
        raise LimitExceeded(f"a name has at most {limits.name_bytes_max} bytes")


def little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """The array with little-endian items, which is how every tensor travels; no copy where it already is."""
    return array if array.dtype.byteorder not in (">",) else array.astype(array.dtype.newbyteorder("<"))


def const_value(node: Node, blobs: Mapping[bytes, NDArray[Any]]) -> NDArray[Any]:
    """The value of a const node, read-only; BlobMissing if it is large and `blobs` does not hold it."""
    from ..errors import BlobMissing
    from .dtypes import dtype_named

    dtype = dtype_named(node.attrs["dtype"])
    if "data" in node.attrs:
        return np.frombuffer(node.attrs["data"], dtype.numpy).reshape(node.attrs["shape"])
    data = blobs.get(node.attrs["blob"])
    if data is None:
        raise BlobMissing(f"constant {node.attrs['blob'].hex()[:16]} is not here", op="const")
    return data.reshape(node.attrs["shape"])


__all__ = [
    "VARIADIC",
    "GraphBuilder",
    "Node",
    "WireGraph",
    "check_arity",
    "check_name",
    "check_type",
    "const_value",
    "infer",
    "little_endian",
]
