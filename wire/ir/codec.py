"""The bytes of a WireGraph and of tensors, and their addresses.

A graph is one msgpack array of columns (docs/protocol.md, "Graph encoding"):

    [format, op names, op column, arity column, input column, attr column, attr table, outputs, output names, name]

Columns are little-endian integer arrays in the narrowest width that fits; an input is stored as its distance
back, so a node can only refer to earlier nodes.  The attr table holds each distinct attribute set once; an array
there is a tuple of ints or of strings.  A graph inside a node, such as a composite's body, is the encoding of that
graph; where an op has several results, whose nodes differ in one attribute, a graph that the table holds already is its
number there.
The canonical bytes, over which the hash is taken, are this encoding with an empty name.

Decoding checks the structure of all columns at once with numpy before any node is made, then derives types
with the op table's rules, one rule evaluation per distinct (op, attrs, operand types).
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from ..collector import collector_paused
from ..errors import AttrError, GraphDecodeError, GraphError, LimitExceeded, VersionMismatch
from ..limits import DEFAULT, Limits
from ..units import size_text
from .graph import Node, WireGraph, check_arity, check_type, little_endian
from .ops import OPS, check_attrs, op_named
from .types import Attrs, HostArray, TensorType

FORMAT = 1
_WIDTHS: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
_GRAPH_EXT = 1  # msgpack extension type of a nested graph
_AGAIN_EXT = 2  # of its number among those that the same attribute table holds before, four bytes


def encode_graph(graph: WireGraph, name: str = "") -> bytes:
    """The graph as bytes; with the default name these are the canonical bytes."""
    op_codes, table = _numbering(), _numbering()
    attr_codes: dict[int, int] = {}  # most nodes share the object with others, and an id is quick to hash
    ops: list[int] = []
    arities: list[int] = []
    sources: list[int] = []
    attr_column: list[int] = []
    for op, inputs, attrs in graph.nodes:
        ops.append(op_codes[op])
        arities.append(len(inputs))
        sources.extend(inputs)
        code = attr_codes.get(id(attrs))
        if code is None:
            code = attr_codes[id(attrs)] = table[attrs]
        attr_column.append(code)
    counts = _integers(arities)
    places = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
    columns = (_integers(ops), counts, places - _integers(sources), _integers(attr_column))
    packed: bytes = msgpack.packb(
        [FORMAT, list(op_codes), *map(_column, columns), _shared(table), graph.outputs, graph.output_names, name],
        default=_pack_graph,
    )
    return packed


def decode_graph(data: bytes, limits: Limits = DEFAULT, expected_hash: bytes | None = None) -> WireGraph:
    """The graph in `data`, fully checked.

    Raises GraphDecodeError for bytes that are not a graph, VersionMismatch for another format, LimitExceeded,
    and the op table's own GraphErrors.  With `expected_hash` the bytes must have that address, which is asked before
    anything is decoded: bytes with the hash of canonical bytes are those bytes, so a graph in any other encoding
    (of wider columns, say, or with a name) never passes under its canonical address.
    """
    if expected_hash is not None and hash_bytes(data) != expected_hash:
        raise GraphDecodeError(
            f"the hash of the bytes is {hash_bytes(data).hex()[:16]}, not {expected_hash.hex()[:16]}"
        )
    structure = decode_structure(data, limits)
    return WireGraph(
        structure.nodes,
        structure.outputs,
        structure.output_names,
        derive_types(structure.nodes, limits),
        structure.name,
    )


class Structure(NamedTuple):
    """A decoded graph whose indices are checked and whose types are not yet derived."""

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    output_names: tuple[str, ...]
    name: str


def decode_structure(data: bytes, limits: Limits = DEFAULT) -> Structure:
    """The nodes and outputs in `data`, with every index, arity and attribute checked but no type derived."""
    return _Reader(limits).read(data)


def derive_types(nodes: tuple[Node, ...], limits: Limits = DEFAULT) -> tuple[TensorType, ...]:
    """The type of every node by the op table's rules; equal (op, attrs, operand types) are derived once."""
    types: list[TensorType] = []
    type_ids: list[int] = []  # small ints make the memo's keys cheap
    known: dict[TensorType, int] = {}
    memo: dict[tuple[Any, ...], tuple[TensorType, int]] = {}
    for index, (op, inputs, attrs) in enumerate(nodes):
        key = (op, id(attrs), *[type_ids[i] for i in inputs])
        entry = memo.get(key)
        if entry is None:
            try:
                result = OPS[op].infer(attrs, [types[i] for i in inputs])
                check_type(result, limits)
            except GraphError as error:
                error.op = error.op or f"{op} (node {index})"
                raise
            entry = memo[key] = (result, known.setdefault(result, len(known)))
        types.append(entry[0])
        type_ids.append(entry[1])
    return tuple(types)


def hash_bytes(data: Any) -> bytes:
    """The 32-byte address of raw content: BLAKE2b-256."""
    return hashlib.blake2b(data, digest_size=32).digest()


def content_hasher() -> hashlib.blake2b:
    """A hasher for content that comes in pieces; its digest is that of `hash_bytes`."""
    return hashlib.blake2b(digest_size=32)


def hash_array(array: HostArray) -> bytes:
    """The address of a tensor: BLAKE2b-256 of its little-endian C-order bytes.  Shape and dtype are not part of it."""
    return hash_bytes(tensor_bytes(array))


def tensor_bytes(array: HostArray) -> memoryview:
    """The little-endian C-order bytes of a tensor, without a copy where memory already has that layout."""
    flat = little_endian(np.ascontiguousarray(array)).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def tensor_copy(array: HostArray) -> bytes:
    """A copy of what `tensor_bytes` gives: for what is small it is made sooner than a view of the memory."""
    return little_endian(array).tobytes()


def tensor_from(data: Any, kind: TensorType) -> HostArray:
    """The tensor of type `kind` in `data`, a view of it; GraphDecodeError unless the length is exactly right."""
    size_bytes = memoryview(data).nbytes
    if size_bytes != kind.size_bytes:
        raise GraphDecodeError(f"a tensor {kind} has {kind.size_bytes} bytes, got {size_bytes}")
    array: HostArray = np.frombuffer(data, kind.dtype.numpy).reshape(kind.shape)
    return array if sys.byteorder == "little" else array.byteswap()


# -- packing ----------------------------------------------------------------------------------------------


def _numbering() -> defaultdict[Any, int]:
    """Numbers its keys from 0 in the order they are first asked for."""
    return defaultdict(itertools.count().__next__)


def _integers(values: list[int]) -> NDArray[np.uint32]:
    """What `np.array` gives, in half the time."""
    return np.frombuffer(array("I", values), np.uint32)


def _column(values: NDArray[np.uint32]) -> bytes:
    largest = int(values.max()) if len(values) else 0
    width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return bytes([width]) + values.astype(_WIDTHS[width]).tobytes()


def _shared(table: Iterable[Attrs]) -> list[Mapping[str, Any]]:
    """The attribute sets, with numbers in place of the graphs that siblings share."""
    rows: list[Mapping[str, Any]] = list(table)
    if not any("output" in row for row in rows):
        return rows
    numbers: dict[WireGraph, int] = {}
    count = 0
    for place, row in enumerate(rows):
        packed = dict(row)
        for name, value in row.items():
            if isinstance(value, WireGraph):
                if "output" in row and value in numbers:
                    packed[name] = msgpack.ExtType(_AGAIN_EXT, numbers[value].to_bytes(4, "little"))
                    continue
                numbers.setdefault(value, count)
                count += 1
        rows[place] = packed
    return rows


def _pack_graph(value: object) -> msgpack.ExtType:
    assert isinstance(value, WireGraph), f"an attribute may not be {type(value).__name__}"
    return msgpack.ExtType(_GRAPH_EXT, value.encoded)


# -- unpacking --------------------------------------------------------------------------------------------


class _Reader:
    """The reader of one graph and those nested in it, which counts what all of them together may still contain."""

    __slots__ = ("_depth", "_edges", "_inner", "_items", "_limits", "_lists", "_nodes", "_tables")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._depth = 0
        self._nodes = limits.graph_nodes_max
        self._edges = limits.graph_edges_max
        self._tables = limits.graph_nodes_max
        self._lists = limits.graph_nodes_max * _LISTS_PER_NODE
        self._items = limits.graph_nodes_max * _ITEMS_PER_NODE
        self._inner: list[WireGraph] = []  # the graphs in the attribute table that is being read

    def read(self, data: bytes) -> Structure:
        limits = self._limits
        fields = self._unpack(data)
        if len(fields) != 10:
            raise GraphDecodeError(f"a graph has 10 fields, got {len(fields)}")
        _, names, op_bytes, arity_bytes, input_bytes, attr_bytes, table, outputs, output_names, name = fields
        op_names = _strings(names, limits, "op names")
        for op_name in op_names:
            op_named(op_name)
        ops = _read_column(op_bytes, "op")
        count = len(ops)
        self._nodes -= count
        if self._nodes < 0:
            raise LimitExceeded(f"more than {limits.graph_nodes_max} nodes, those of inner graphs included")
        arities = _read_column(arity_bytes, "arity", count)
        attr_codes = _read_column(attr_bytes, "attr", count)
        edges = int(arities.sum(dtype=np.int64))
        self._edges -= edges
        if self._edges < 0:
            raise LimitExceeded(f"more than {limits.graph_edges_max} edges, those of inner graphs included")
        distances = _read_column(input_bytes, "input", edges)
        if type(table) is not tuple or not set(map(type, table)) <= {Attrs}:
            raise GraphDecodeError("the attribute table is not a list of maps")
        _check_below(ops, len(op_names), "op")
        _check_below(attr_codes, len(table), "attr")
        sources = np.repeat(np.arange(count, dtype=np.int64), arities) - distances
        if edges and (int(sources.min()) < 0 or int(distances.min()) < 1):
            raise GraphDecodeError("an input refers to a node that does not come before it")
        _check_arities(ops, arities, op_names, limits)
        _check_attr_kinds(ops, attr_codes, op_names, table)
        _check_leaf_names(ops, attr_codes, op_names, table)
        with collector_paused():
            nodes = _make_nodes(ops, arities, attr_codes, sources, op_names, table)
        wanted = _indices(outputs, count)
        labels = _strings(output_names, limits, "output names")
        if len(labels) != len(wanted) or len(set(labels)) != len(labels):
            raise GraphDecodeError("outputs and output names differ in number, or a name stands twice")
        return Structure(nodes, wanted, labels, *_strings((name,), limits, "name"))

    def _unpack(self, data: bytes) -> tuple[Any, ...]:
        """The fields.  A first pass that makes nothing finds every length that the bytes do not fill."""
        limits = self._limits
        if len(data) > limits.graph_bytes_max:
            raise LimitExceeded(f"a graph of {size_text(len(data))} exceeds {size_text(limits.graph_bytes_max)}")
        _check_format(data)
        try:
            walker = msgpack.Unpacker(max_buffer_size=len(data))
            walker.feed(data)
            walker.skip()
            fields: tuple[Any, ...] = msgpack.unpackb(
                data,
                use_list=False,
                object_hook=self._read_attrs,
                list_hook=self._count_list,
                max_array_len=limits.graph_nodes_max,
                max_map_len=limits.attrs_per_node_max,
            )
        except _NOT_MSGPACK as error:
            raise GraphDecodeError("not a graph", cause=f"{type(error).__name__}: {error}"[:200]) from None
        return fields

    def _count_list(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        self._lists -= 1
        if self._lists < 0:
            raise LimitExceeded(f"more than {_LISTS_PER_NODE} lists per node")
        return values

    def _read_attrs(self, entry: dict[Any, Any]) -> Attrs:
        limits = self._limits
        self._tables -= 1
        if self._tables < 0:
            raise LimitExceeded(f"more than {limits.graph_nodes_max} attribute sets")
        for key, value in entry.items():  # a key that is no text is no attribute of any op: `check_attrs` says so
            kind = type(value)
            if kind is str:
                if 4 * len(value) > limits.name_bytes_max:  # a character has at most four bytes
                    _check_text(value, limits, "a string attribute")
            elif kind is tuple:
                self._items -= len(value)
                if len(value) > limits.attr_items_max or self._items < 0:
                    raise LimitExceeded(
                        f"an attribute has at most {limits.attr_items_max} items, and {_ITEMS_PER_NODE} per node"
                    )
                for item in value if value and type(value[0]) is str else ():
                    if type(item) is str and 4 * len(item) > limits.name_bytes_max:
                        _check_text(item, limits, "a string in an attribute")
            elif kind is bytes:
                if len(value) > limits.inline_const_bytes_max:
                    raise LimitExceeded(f"an inline constant has at most {size_text(limits.inline_const_bytes_max)}")
            elif kind is msgpack.ExtType and value.code == _GRAPH_EXT:
                entry[key] = self._read_nested(value.data)
            elif kind is msgpack.ExtType and value.code == _AGAIN_EXT and "output" in entry:
                entry[key] = self._again(value.data)
            elif kind not in _SCALARS:
                raise GraphDecodeError(f"an attribute may not be {kind.__name__}")
        return Attrs(entry)

    def _read_nested(self, data: bytes) -> WireGraph:
        if self._depth == self._limits.nesting_max:
            raise LimitExceeded(f"graphs nest deeper than {self._limits.nesting_max}")
        around, self._inner = self._inner, []
        self._depth += 1
        inner = self.read(data)
        self._depth -= 1
        self._inner = around
        types = derive_types(inner.nodes, self._limits)
        self._inner.append(WireGraph(inner.nodes, inner.outputs, inner.output_names, types, inner.name))
        return self._inner[-1]

    def _again(self, data: bytes) -> WireGraph:
        number = int.from_bytes(data, "little")
        if len(data) != 4 or number >= len(self._inner):
            raise GraphDecodeError(f"there is no graph {number} before this one")
        return self._inner[number]


_SCALARS = frozenset({bool, int, float})
_LISTS_PER_NODE = 8  # an op has at most four attributes that are lists
_ITEMS_PER_NODE = 16  # of the lists in attributes, over all nodes: two per axis
_NOT_MSGPACK = (ValueError, msgpack.UnpackException, RecursionError, OverflowError, TypeError)


def _check_format(data: bytes) -> None:
    """The first two bytes of every format are a short array's and the format's."""
    if len(data) < 2 or data[0] >> 4 != 9 or data[1] >> 7:
        raise GraphDecodeError("not a graph: no format number")
    if data[1] != FORMAT:
        raise VersionMismatch(
            f"graph format {data[1]}, this node reads {FORMAT}",
            expected=str(FORMAT),
            got=str(data[1]),
            upgrade="this node" if data[1] > FORMAT else "the sender",
        )


def _read_column(data: Any, what: str, count: int | None = None) -> HostArray:
    if not isinstance(data, bytes) or not data or data[0] not in _WIDTHS or (len(data) - 1) % data[0]:
        raise GraphDecodeError(f"the {what} column is not an integer array")
    column: HostArray = np.frombuffer(data, _WIDTHS[data[0]], offset=1)
    if count is not None and len(column) != count:
        raise GraphDecodeError(f"the {what} column has {len(column)} entries, expected {count}")
    return column


def _check_below(column: HostArray, bound: int, what: str) -> None:
    if len(column) and int(column.max()) >= bound:
        raise GraphDecodeError(f"the {what} column refers past its table of {bound}")


def _check_arities(ops: HostArray, arities: HostArray, op_names: tuple[str, ...], limits: Limits) -> None:
    for pair in _distinct(ops.astype(np.int64) << 32 | arities.astype(np.int64)):
        check_arity(op_names[pair >> 32], pair & 0xFFFFFFFF, limits)


def _distinct(column: HostArray) -> list[int]:
    """np.unique without it: its first use in a process imports numpy.ma: that takes longer than to read most graphs."""
    ordered = np.sort(column)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    firsts: list[int] = ordered[first].tolist()
    return firsts


def _check_text(value: str, limits: Limits, what: str) -> None:
    if len(value.encode()) > limits.name_bytes_max:
        raise LimitExceeded(f"{what} has at most {limits.name_bytes_max} bytes")


def _check_attr_kinds(
    ops: HostArray, attr_codes: HostArray, op_names: tuple[str, ...], attributes: Sequence[Attrs]
) -> None:
    for pair in _distinct(ops.astype(np.int64) << 32 | attr_codes.astype(np.int64)):
        check_attrs(OPS[op_names[pair >> 32]], attributes[pair & 0xFFFFFFFF])


def _make_nodes(
    ops: HostArray,
    arities: HostArray,
    attr_codes: HostArray,
    sources: HostArray,
    op_names: tuple[str, ...],
    attributes: Sequence[Attrs],
) -> tuple[Node, ...]:
    ends = np.cumsum(arities, dtype=np.int64).tolist()
    flat = tuple(sources.tolist())
    inputs = [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    names = map(op_names.__getitem__, ops.tolist())
    fields = zip(names, inputs, map(attributes.__getitem__, attr_codes.tolist()), strict=True)
    return tuple(map(tuple.__new__, itertools.repeat(Node), fields))  # as Node._make, without a Python call per node


def _check_leaf_names(
    ops: HostArray, attr_codes: HostArray, op_names: tuple[str, ...], attributes: Sequence[Attrs]
) -> None:
    named = np.array([name in ("input", "param") for name in op_names], np.bool_)
    seen: set[str] = set()
    for code in attr_codes[named[ops]].tolist():
        name = attributes[code]["name"]
        if name in seen:
            raise AttrError(f"two leaves are named {name!r}")
        seen.add(name)


def _indices(values: Any, count: int) -> tuple[int, ...]:
    if not isinstance(values, tuple) or any(type(value) is not int or not 0 <= value < count for value in values):
        raise GraphDecodeError("the outputs are not indices of nodes")
    return values


def _strings(values: Any, limits: Limits, what: str) -> tuple[str, ...]:
    if not isinstance(values, tuple) or any(type(value) is not str for value in values):
        raise GraphDecodeError(f"the {what} are not strings")
    for value in values:
        _check_text(value, limits, f"each of the {what}")
    return values
