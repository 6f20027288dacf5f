"""The bytes of a WireGraph and of tensors, and their addresses.

A graph is one msgpack array of columns (docs/protocol.md, "Graph encoding"):

    [format, op names, op column, arity column, input column, attr column, attr table, outputs, output names, name]

Columns are little-endian integer arrays in the narrowest width that fits; an input is stored as its distance
back, so a node can only refer to earlier nodes.  The attr table holds each distinct attribute set once.  A
composite's body is the encoding of its graph.  The canonical bytes, over which the hash is taken, are this
encoding with an empty name.

Decoding checks the structure of all columns at once with numpy before any node is made, then derives types
with the op table's rules, one rule evaluation per distinct (op, attrs, operand types).
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from .errors import AttrError, GraphDecodeError, GraphError, LimitExceeded, VersionMismatch
from .graph import Node, WireGraph, check_arity, check_type, little_endian
from .limits import DEFAULT, Limits
from .ops import OPS, check_attrs, op_named
from .types import Attrs, TensorType

FORMAT = 1
_WIDTHS = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
_GRAPH_EXT = 1  # msgpack extension type of a nested graph
_TUPLE_EXT = 2  # and of a tuple of ints


def encode_graph(graph: WireGraph, name: str = "") -> bytes:
    """The graph as bytes; with the default name these are the canonical bytes."""
    op_codes: dict[str, int] = {}
    attr_codes: dict[Attrs, int] = {}
    ops, attrs, arities, distances = [], [], [], []
    for index, (op, inputs, attributes) in enumerate(graph.nodes):
        ops.append(op_codes.setdefault(op, len(op_codes)))
        attrs.append(attr_codes.setdefault(attributes, len(attr_codes)))
        arities.append(len(inputs))
        for source in inputs:
            distances.append(index - source)
    columns = [_column(values) for values in (ops, arities, distances, attrs)]
    table = [{key: _pack_value(value) for key, value in attributes.items()} for attributes in attr_codes]
    fields = [FORMAT, list(op_codes), *columns, table, list(graph.outputs), list(graph.output_names), name]
    packed: bytes = msgpack.packb(fields)
    return packed


def decode_graph(data: bytes, limits: Limits = DEFAULT, expected_hash: bytes | None = None) -> WireGraph:
    """The graph in `data`, fully checked.

    Raises GraphDecodeError for bytes that are not a graph, VersionMismatch for another format, LimitExceeded,
    and the op table's own GraphErrors.  With `expected_hash` the content must have that address.
    """
    structure = decode_structure(data, limits)
    graph = WireGraph(
        structure.nodes,
        structure.outputs,
        structure.output_names,
        derive_types(structure.nodes, limits),
        structure.name,
    )
    if expected_hash is not None and graph.hash != expected_hash:
        raise GraphDecodeError(f"the graph's hash is {graph.hash.hex()[:16]}, expected {expected_hash.hex()[:16]}")
    return graph


class Structure:
    """A decoded graph whose indices are checked and whose types are not yet derived."""

    __slots__ = ("name", "nodes", "output_names", "outputs")

    def __init__(
        self, nodes: tuple[Node, ...], outputs: tuple[int, ...], output_names: tuple[str, ...], name: str
    ) -> None:
        self.nodes = nodes
        self.outputs = outputs
        self.output_names = output_names
        self.name = name


def decode_structure(data: bytes, limits: Limits = DEFAULT, depth: int = 0) -> Structure:
    """The nodes and outputs in `data`, with every index, arity and attribute checked but no type derived."""
    fields = _unpack(data, limits)
    if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
        raise GraphDecodeError("not a graph: no format number")
    if fields[0] != FORMAT:
        older = "this node" if fields[0] > FORMAT else "the sender"
        raise VersionMismatch(
            f"graph format {fields[0]}, this node reads {FORMAT}",
            expected=str(FORMAT),
            got=str(fields[0]),
            upgrade=older,
        )
    if len(fields) != 10:
        raise GraphDecodeError(f"a graph has 10 fields, got {len(fields)}")
    _, names, op_bytes, arity_bytes, input_bytes, attr_bytes, table, outputs, output_names, name = fields
    op_names = _strings(names, limits, "op names")
    for op_name in op_names:
        op_named(op_name)
    ops = _read_column(op_bytes, "op")
    count = len(ops)
    if count > limits.graph_nodes_max:
        raise LimitExceeded(f"{count} nodes exceed {limits.graph_nodes_max}")
    arities = _read_column(arity_bytes, "arity", count)
    attr_codes = _read_column(attr_bytes, "attr", count)
    edges = int(arities.sum(dtype=np.int64)) if count else 0
    if edges > limits.graph_edges_max:
        raise LimitExceeded(f"{edges} edges exceed {limits.graph_edges_max}")
    distances = _read_column(input_bytes, "input", edges)
    if not isinstance(table, list) or len(table) > max(count, 1):
        raise GraphDecodeError("the attribute table is not a list of at most one entry per node")
    _check_below(ops, len(op_names), "op")
    _check_below(attr_codes, len(table), "attr")
    sources = np.repeat(np.arange(count, dtype=np.int64), arities) - distances
    if edges and (int(sources.min()) < 0 or int(distances.min()) < 1):
        raise GraphDecodeError("an input refers to a node that does not come before it")
    _check_arities(ops, arities, op_names, limits)
    attributes = [_read_attrs(entry, limits, depth) for entry in table]
    _check_attr_kinds(ops, attr_codes, op_names, attributes)
    nodes = _make_nodes(ops, arities, attr_codes, sources, op_names, attributes)
    _check_leaf_names(nodes, limits)
    wanted = _indices(outputs, count)
    labels = _strings(output_names, limits, "output names")
    if len(labels) != len(wanted) or len(set(labels)) != len(labels):
        raise GraphDecodeError("outputs and output names differ in number, or a name stands twice")
    return Structure(nodes, wanted, tuple(labels), _strings([name], limits, "name")[0])


def derive_types(nodes: tuple[Node, ...], limits: Limits = DEFAULT) -> tuple[TensorType, ...]:
    """The type of every node by the op table's rules; equal (op, attrs, operand types) are derived once."""
    types: list[TensorType] = []
    type_ids: list[int] = []  # small ints make the memo's keys cheap
    known: dict[TensorType, int] = {}
    memo: dict[tuple[Any, ...], tuple[TensorType, int]] = {}
    for index, (op, inputs, attrs) in enumerate(nodes):
        key = (op, id(attrs), *[type_ids[i] for i in inputs])
        found = memo.get(key)
        if found is None:
            try:
                result = OPS[op].infer(attrs, [types[i] for i in inputs])
                check_type(result, limits)
            except GraphError as error:
                error.op = error.op or f"{op} (node {index})"
                raise
            found = memo[key] = (result, known.setdefault(result, len(known)))
        types.append(found[0])
        type_ids.append(found[1])
    return tuple(types)


def hash_bytes(data: Any) -> bytes:
    """The 32-byte address of raw content: BLAKE2b-256."""
    return hashlib.blake2b(data, digest_size=32).digest()


def hash_array(array: NDArray[Any]) -> bytes:
    """The address of a tensor: BLAKE2b-256 of its little-endian C-order bytes.  Shape and dtype are not part of it."""
    return hash_bytes(tensor_bytes(array))


def tensor_bytes(array: NDArray[Any]) -> memoryview:
    """The little-endian C-order bytes of a tensor, without a copy where memory already has that layout."""
    flat = little_endian(np.ascontiguousarray(array)).reshape(-1)
    return memoryview(flat.view(np.uint8)) if flat.size else memoryview(b"")


def tensor_from(data: Any, kind: TensorType) -> NDArray[Any]:
    """The tensor of type `kind` in `data`, a view of it; GraphDecodeError unless the length is exactly right."""
    size_bytes = memoryview(data).nbytes
    if size_bytes != kind.size_bytes:
        raise GraphDecodeError(f"a tensor {kind} has {kind.size_bytes} bytes, got {size_bytes}")
    array: NDArray[Any] = np.frombuffer(data, kind.dtype.numpy).reshape(kind.shape)
    return array if sys.byteorder == "little" else array.byteswap()


# -- packing ----------------------------------------------------------------------------------------------


def _column(values: list[int]) -> bytes:
    largest = max(values, default=0)
    width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return bytes([width]) + np.array(values, _WIDTHS[width]).tobytes()


def _pack_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE_EXT, msgpack.packb(value))
    if isinstance(value, WireGraph):
        return msgpack.ExtType(_GRAPH_EXT, value.encoded)
    return value


# -- unpacking --------------------------------------------------------------------------------------------


def _unpack(data: bytes, limits: Limits) -> Any:
    if len(data) > limits.graph_bytes_max:
        raise LimitExceeded(f"a graph of {len(data)} bytes exceeds {limits.graph_bytes_max}")
    try:
        return msgpack.unpackb(
            data, strict_map_key=True, max_ext_len=limits.graph_bytes_max, max_bin_len=limits.graph_bytes_max
        )
    except (
        ValueError,
        UnicodeDecodeError,
        msgpack.UnpackException,
        RecursionError,
        MemoryError,
        OverflowError,
        TypeError,
    ) as error:
        raise GraphDecodeError("not a graph", cause=f"{type(error).__name__}: {error}"[:200]) from None


def _read_column(data: Any, what: str, count: int | None = None) -> NDArray[Any]:
    if not isinstance(data, bytes) or not data or data[0] not in _WIDTHS or (len(data) - 1) % data[0]:
        raise GraphDecodeError(f"the {what} column is not an integer array")
    column: NDArray[Any] = np.frombuffer(data, _WIDTHS[data[0]], offset=1)
    if count is not None and len(column) != count:
        raise GraphDecodeError(f"the {what} column has {len(column)} entries, expected {count}")
    return column


def _check_below(column: NDArray[Any], bound: int, what: str) -> None:
    if len(column) and int(column.max()) >= bound:
        raise GraphDecodeError(f"the {what} column refers past its table of {bound}")


def _check_arities(ops: NDArray[Any], arities: NDArray[Any], op_names: list[str], limits: Limits) -> None:
    seen = np.unique(ops.astype(np.int64) << 32 | arities.astype(np.int64))
    for pair in seen.tolist():
        check_arity(op_names[pair >> 32], pair & 0xFFFFFFFF, limits)


def _read_attrs(entry: Any, limits: Limits, depth: int) -> Attrs:
    if not isinstance(entry, dict) or len(entry) > limits.attrs_per_node_max:
        raise GraphDecodeError(f"a node's attributes are a map of at most {limits.attrs_per_node_max} entries")
    if any(type(key) is not str for key in entry):
        raise GraphDecodeError("attribute names are strings")
    return Attrs({key: _read_value(value, limits, depth) for key, value in entry.items()})


def _read_value(value: Any, limits: Limits, depth: int) -> Any:
    if isinstance(value, msgpack.ExtType):
        if value.code == _TUPLE_EXT:
            items = _unpack(value.data, limits)
            if not isinstance(items, list) or any(type(item) is not int for item in items):
                raise GraphDecodeError("a tuple attribute holds ints")
            return tuple(items)
        if value.code == _GRAPH_EXT:
            if depth >= limits.nesting_max:
                raise LimitExceeded(f"graphs nest deeper than {limits.nesting_max}")
            inner = decode_structure(value.data, limits, depth + 1)
            return WireGraph(
                inner.nodes, inner.outputs, inner.output_names, derive_types(inner.nodes, limits), inner.name
            )
    if type(value) is str and len(value.encode("utf-8", "surrogatepass")) > limits.name_bytes_max:
        raise LimitExceeded(f"a string attribute has at most {limits.name_bytes_max} bytes")
    if type(value) is bytes and len(value) > limits.inline_const_bytes_max:
        raise LimitExceeded(f"an inline constant has at most {limits.inline_const_bytes_max} bytes; send it as a blob")
    if type(value) in (bool, int, float, str, bytes):
        return value
    raise GraphDecodeError(f"an attribute may not be {type(value).__name__}")


def _check_attr_kinds(
    ops: NDArray[Any], attr_codes: NDArray[Any], op_names: list[str], attributes: list[Attrs]
) -> None:
    seen = np.unique(ops.astype(np.int64) << 32 | attr_codes.astype(np.int64))
    for pair in seen.tolist():
        check_attrs(OPS[op_names[pair >> 32]], attributes[pair & 0xFFFFFFFF])


def _make_nodes(
    ops: NDArray[Any],
    arities: NDArray[Any],
    attr_codes: NDArray[Any],
    sources: NDArray[Any],
    op_names: list[str],
    attributes: list[Attrs],
) -> tuple[Node, ...]:
    ends = np.cumsum(arities, dtype=np.int64).tolist()
    flat = sources.tolist()
    nodes, start, make = [], 0, Node._make
    for op, end, code in zip(ops.tolist(), ends, attr_codes.tolist(), strict=True):
        nodes.append(make((op_names[op], tuple(flat[start:end]), attributes[code])))
        start = end
    return tuple(nodes)


def _check_leaf_names(nodes: tuple[Node, ...], limits: Limits) -> None:
    seen: set[str] = set()
    for node in nodes:
        if node.op in ("input", "param"):
            name = node.attrs["name"]
            if name in seen:
                raise AttrError(f"two leaves are named {name!r}", op=node.op)
            seen.add(name)


def _indices(values: Any, count: int) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int or not 0 <= value < count for value in values):
        raise GraphDecodeError("the outputs are not indices of nodes")
    return tuple(values)


def _strings(values: Any, limits: Limits, what: str) -> list[str]:
    if not isinstance(values, list) or any(type(value) is not str for value in values):
        raise GraphDecodeError(f"the {what} are not strings")
    if any(len(value.encode("utf-8", "surrogatepass")) > limits.name_bytes_max for value in values):
        raise LimitExceeded(f"one of the {what} is longer than {limits.name_bytes_max} bytes")
    return values
