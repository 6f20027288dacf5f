"""The text form of a WireGraph: one line per node, exact both ways.

    graph "attention" {
      %0 = input name="x" : f32[2,3]
      %1 = const data=[0.5] : f32[]
      %2 = mul %0 %1 : f32[2,3]
      %3 = reduce_sum %2 axes=(1) : f32[2]
      return "y" %3, "scaled" %2
    }

A line is `%name = op operands attributes : type`.  Labels are any word and are defined before they are used; `#`
starts a comment.  What the type says is not said again: an attribute `shape` or `dtype` of the op's row is always the
result's.  Attribute values, by the kind of the row:

    int -3      ints (0, 2)      float 1e-05, -0.0, inf, nan, nan(7ff8000000000001)      str "as in JSON"
    strs ("dp", "tp")        bytes 0x00ff        address @<64 hex digits>
    data [1.0, -0.0] or 0x...     graph graph "" { ... } or %3

`data` is written as numbers (of complex ones both parts) where there are few and they give back the same bytes, in hex
otherwise.  A large constant is its address; its content is not part of the text.  Of a node with several results, a
graph that an earlier node has in the same attribute is that node's label.  To add an attribute kind: a row in _WRITERS
and one in _Reader.values.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import GraphDecodeError, GraphError
from ..limits import DEFAULT, Limits
from .dtypes import BY_NAME, PARTS, DType
from .graph import Node, WireGraph, infer
from .ops import GRAPH_ATTRS, MULTIPLE, OPS
from .types import Attrs, TensorType
from .verify import verify

NUMBERS_MAX = 16  # a constant of more elements is written in hex


def to_text(graph: WireGraph) -> str:
    """The graph as text that `from_text` reads back to an equal one, labels being node indices."""
    return "\n".join(_lines(graph, "")) + "\n"


def from_text(text: str, limits: Limits = DEFAULT) -> WireGraph:
    """The graph in `text`, verified.

    Raises GraphDecodeError with line and column for text that is not a graph, and the op table's own GraphErrors with
    the line for nodes that cannot be.  It may be the body of an spmd node: `verify.check_bound` asks.
    """
    reader = _Reader(text, limits)
    graph = reader.graph(depth=0)
    reader.expect("end")
    verify(graph, limits, graph.free_axes)
    return graph


# -- writing ----------------------------------------------------------------------------------------------


def _lines(graph: WireGraph, indent: str) -> Iterator[str]:
    yield f"graph {_quoted(graph.name)} {{"
    printed: dict[tuple[str, WireGraph], int] = {}
    for index, (node, kind) in enumerate(zip(graph.nodes, graph.types, strict=True)):
        yield f"{indent}  %{index} = {_node(node, kind, indent + '  ', printed)}"
        for name in GRAPH_ATTRS.get(node.op, ()):
            printed.setdefault((name, node.attrs[name]), index)
    returned = (f"{_quoted(name)} %{index}" for name, index in zip(graph.output_names, graph.outputs, strict=True))
    yield f"{indent}  return {', '.join(returned)}"
    yield f"{indent}}}"


def _node(node: Node, kind: TensorType, indent: str, printed: dict[tuple[str, WireGraph], int]) -> str:
    kinds = {name: row.rstrip("?") for name, row in OPS[node.op].attrs.items()}
    attr_names = [name for name in node.attrs if name not in _IN_TYPE]
    attr_names.sort(key=lambda name: (kinds[name] == "graph", name))
    attrs = []
    for name in attr_names:
        if name == "data":
            attrs.append(f"data={_data(node.attrs['data'], kind)}")
        elif kinds[name] == "graph" and node.op in MULTIPLE and (name, node.attrs[name]) in printed:
            attrs.append(f"{name}=%{printed[name, node.attrs[name]]}")
        elif kinds[name] == "graph":
            attrs.append(f"{name}=" + "\n".join(_lines(node.attrs[name], indent)))
        else:
            attrs.append(f"{name}={_WRITERS[name if name == 'blob' else kinds[name]](node.attrs[name])}")
    return f"{' '.join([node.op, *[f'%{source}' for source in node.inputs], *attrs])} : {kind}"


_IN_TYPE = frozenset({"shape", "dtype"})


def _quoted(value: str) -> str:
    return json.dumps(value)


def _float(value: float) -> str:
    bits = struct.pack(">d", value)
    return f"nan({bits.hex()})" if math.isnan(value) and bits != _NAN else repr(value)


_NAN = struct.pack(">d", math.nan)

_WRITERS: dict[str, Callable[[Any], str]] = {
    "int": str,
    "ints": lambda value: f"({', '.join(map(str, value))})",
    "float": _float,
    "str": _quoted,
    "strs": lambda value: f"({', '.join(map(_quoted, value))})",
    "bytes": lambda value: f"0x{value.hex()}",
    "blob": lambda value: f"@{value.hex()}",
}


def _data(data: bytes, kind: TensorType) -> str:
    if 0 < kind.size <= NUMBERS_MAX:
        words = [_number(value) for value in np.frombuffer(data, PARTS.get(kind.dtype, kind.dtype).numpy)]
        if _packed(words, kind.dtype) == data:
            return f"[{', '.join(words)}]"
    return f"0x{data.hex()}"


def _number(value: Any) -> str:
    return str(value).lower()  # numpy writes the shortest digits that give the scalar back


def _packed(words: list[str], dtype: DType) -> bytes:
    """The little-endian bytes of numbers; ValueError or OverflowError if one is not of the dtype."""
    dtype = PARTS.get(dtype, dtype)
    convert = float if dtype.kind == "f" else _BOOLS.__getitem__ if dtype.kind == "b" else int
    wide = np.float64 if dtype.kind == "f" else dtype.numpy
    with np.errstate(over="ignore"):
        return np.array([convert(word) for word in words], wide).astype(dtype.numpy.newbyteorder("<")).tobytes()


_BOOLS = {"false": False, "true": True}


# -- reading ----------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


_TOKEN = re.compile(
    r"""(?P<skip>(?:\s|\#[^\n]*)+)
    |(?P<label>%\w+)
    |(?P<string>"(?:\\.|[^"\\\n])*")
    |(?P<address>@[0-9a-f]*)
    |(?P<hex>0x[0-9a-f]*)
    |(?P<type>\w+\[[0-9,\ ]*\])
    |(?P<nan>nan\([0-9a-f]{16}\))
    |(?P<number>-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf\b)|nan\b)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>[{}()=:,\[\]])""",
    re.VERBOSE,
)


class _Reader:
    """Recursive descent over the tokens, one method per form."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        self._tokens = self._scan()
        self._next = next(self._tokens)

    # -- forms

    def graph(self, depth: int) -> WireGraph:
        self._expect_word("graph")
        if depth > self._limits.nesting_max:
            self._fail(f"graphs nest deeper than {self._limits.nesting_max}")
        name = self._string()
        self.expect("{")
        nodes: list[Node] = []
        types: list[TensorType] = []
        labels: dict[str, int] = {}
        while self._next.kind == "label":
            label = self._take()
            if label.text in labels:
                self._fail(f"{label.text} is defined twice", label)
            node, kind = self._node(labels, nodes, types, depth)
            labels[label.text] = len(nodes)
            nodes.append(node)
            types.append(kind)
        outputs, names = self._returned(labels)
        self.expect("}")
        return WireGraph(tuple(nodes), outputs, names, tuple(types), name)

    def _node(
        self, labels: dict[str, int], nodes: list[Node], types: list[TensorType], depth: int
    ) -> tuple[Node, TensorType]:
        self.expect("=")
        op = self.expect("word")
        if op.text not in OPS:
            self._fail(f"unknown op {op.text!r}", op)
        inputs = []
        while self._next.kind == "label":
            inputs.append(self._operand(labels))
        attrs: dict[str, Any] = {}
        while self._next.kind == "word" and self._next.text != "return":
            self._attr(op.text, attrs, labels, nodes, depth)
        self.expect(":")
        at = self._next
        kind = self._type()
        node = Node(op.text, tuple(inputs), self._finished(op.text, attrs, kind, at))
        try:
            derived = infer(node, [types[source] for source in inputs], self._limits)
        except GraphError as error:
            error.op = f"{error.op}, line {self._place(op)[0]}"
            raise
        if derived != kind:
            self._fail(f"{op.text} gives {derived}, not {kind}", at)
        return node, kind

    def _attr(self, op: str, attrs: dict[str, Any], labels: dict[str, int], nodes: list[Node], depth: int) -> None:
        name = self.expect("word")
        kind = OPS[op].attrs.get(name.text, "").rstrip("?")
        if not kind or name.text in _IN_TYPE:
            self._fail(f"{op} has no attribute {name.text!r} to write", name)
        if name.text in attrs:
            self._fail(f"{name.text} stands twice", name)
        self.expect("=")
        if name.text == "data" and self._next.text == "[":
            attrs["data"] = self._numbers()
        elif name.text == "blob":
            attrs["blob"] = self._bytes("address", 1)
        elif kind == "graph" and op in MULTIPLE and self._next.kind == "label":
            attrs[name.text] = self._graph_of(labels, nodes, name.text)
        elif kind == "graph":
            attrs[name.text] = self.graph(depth + 1)
        else:
            attrs[name.text] = self._values[kind](self)

    def _graph_of(self, labels: dict[str, int], nodes: list[Node], name: str) -> WireGraph:
        """The graph that an earlier node has as its attribute `name`."""
        at = self._next
        inner = nodes[self._operand(labels)].attrs.get(name)
        if not isinstance(inner, WireGraph):
            self._fail(f"{at.text} has no graph {name!r}", at)
        return inner

    def _finished(self, op: str, attrs: dict[str, Any], kind: TensorType, at: _Token) -> Attrs:
        """The attributes with what the type says, and numbers as bytes."""
        from_type = {"shape": kind.shape, "dtype": kind.dtype.name}
        attrs |= {name: from_type[name] for name in _IN_TYPE & OPS[op].attrs.keys()}
        if isinstance(attrs.get("data"), list):
            try:
                attrs["data"] = _packed(attrs["data"], kind.dtype)
            except (ValueError, OverflowError, KeyError) as error:
                self._fail(f"the data are not numbers of {kind.dtype.name}", at, cause=str(error)[:100])
        return Attrs(attrs)

    def _returned(self, labels: dict[str, int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        self._expect_word("return")
        outputs, names = [], []
        while self._next.kind == "string":
            names.append(self._string())
            outputs.append(self._operand(labels))
            if self._next.kind != ",":
                break
            self._take()
        return tuple(outputs), tuple(names)

    def _operand(self, labels: dict[str, int]) -> int:
        label = self.expect("label")
        if label.text not in labels:
            self._fail(f"{label.text} is not defined above", label)
        return labels[label.text]

    def _type(self) -> TensorType:
        token = self.expect("type")
        name, _, dims = token.text[:-1].partition("[")
        if name not in BY_NAME:
            self._fail(f"unknown dtype {name!r}", token)
        shape = [self._parsed(int, dim, token) for dim in dims.split(",")] if dims.strip() else []
        return TensorType(tuple(shape), BY_NAME[name])

    # -- values

    def _int(self) -> int:
        token = self.expect("number")
        value: int = self._parsed(int, token.text, token)
        return value

    def _ints(self) -> tuple[int, ...]:
        return tuple(self._listed("number", self._int))

    def _strs(self) -> tuple[str, ...]:
        return tuple(self._listed("string", self._string))

    def _listed(self, kind: str, item: Callable[[], Any]) -> Iterator[Any]:
        self.expect("(")
        while self._next.kind == kind:
            yield item()
            if self._next.kind != ",":
                break
            self._take()
        self.expect(")")

    def _float(self) -> float:
        if self._next.kind == "nan":
            (value,) = struct.unpack(">d", bytes.fromhex(self._take().text[4:-1]))
        else:
            token = self.expect("number")
            value = self._parsed(float, token.text, token)
        return float(value)

    def _string(self) -> str:
        token = self.expect("string")
        value: str = self._parsed(json.loads, token.text, token)
        self._parsed(str.encode, value, token)  # half a surrogate pair is JSON but no text
        return value

    def _bytes(self, kind: str = "hex", prefix: int = 2) -> bytes:
        token = self.expect(kind)
        value: bytes = self._parsed(bytes.fromhex, token.text[prefix:], token)
        return value

    def _numbers(self) -> list[str]:
        self.expect("[")
        words = []
        while self._next.kind in ("number", "word"):
            words.append(self._take().text)
            if self._next.kind != ",":
                break
            self._take()
        self.expect("]")
        return words

    _values: dict[str, Callable[[_Reader], Any]] = {  # noqa: RUF012  # a table, never changed
        "int": _int, "ints": _ints, "float": _float, "str": _string, "strs": _strs, "bytes": _bytes,
    }  # fmt: skip

    # -- tokens

    def _scan(self) -> Iterator[_Token]:
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                self._fail("expected a token", _Token("", self._text[position], position))
            kind = match.lastgroup or ""
            if kind != "skip":
                yield _Token(match.group() if kind == "sign" else kind, match.group(), position)
            position = match.end()
        while True:
            yield _Token("end", "the end", len(self._text))

    def _take(self) -> _Token:
        token, self._next = self._next, next(self._tokens)
        return token

    def expect(self, kind: str) -> _Token:
        if self._next.kind != kind:
            self._fail(f"expected {_NAMES.get(kind, repr(kind))}")
        return self._take()

    def _expect_word(self, word: str) -> None:
        if self._next.text != word:
            self._fail(f"expected {word!r}")
        self._take()

    def _parsed(self, parse: Callable[[str], Any], text: str, token: _Token) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            self._fail("not a value of this kind", token, cause=str(error)[:100])

    def _fail(self, message: str, token: _Token | None = None, cause: str = "") -> NoReturn:
        token = token or self._next
        line, column = self._place(token)
        raise GraphDecodeError(f"line {line} column {column}: {message}, at {token.text[:40]!r}", cause=cause)

    def _place(self, token: _Token) -> tuple[int, int]:
        before = self._text[: token.start]
        return before.count("\n") + 1, token.start - before.rfind("\n")


_NAMES = {
    "label": "a label such as %3",
    "word": "a word",
    "string": "a string in double quotes",
    "type": "a type such as f32[2,3]",
    "number": "a number",
    "hex": "bytes such as 0x00ff",
    "address": "an address such as @00ff",
    "end": "nothing more",
}
