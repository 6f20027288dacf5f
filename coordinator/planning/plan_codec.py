"""Questions and plans as bytes, for the process that plans ahead and for keeping what it made.

Both ends are the same version of this program, so a value is written as it is: the number of its class in `_CLASSES`
and its fields.  A graph is its encoding, once however often it occurs.  What a device computes is long and the same in
every question, so it is written and read once.  To carry another class, add it to the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import msgspec

from wire.ir.codec import decode_graph
from wire.ir.graph import WireGraph

from .model.plan import (
    Audit,
    Candidate,
    Carry,
    Edge,
    FromConst,
    FromInput,
    FromParam,
    FromPart,
    FromState,
    Gang,
    ParamPlace,
    Part,
    Pieces,
    Plan,
    Window,
    WorkerShare,
)
from .model.profiles import DeviceProfile, Link, Profiles, WorkerProfile
from .planner import Question
from .session_planner import SessionQuestion, Stateful

AnyQuestion = Question | SessionQuestion

_CLASSES: tuple[type[Any], ...] = (
    FromInput, FromParam, FromPart, FromConst, Part, Edge, WorkerShare, ParamPlace, Audit, Plan,
    DeviceProfile, WorkerProfile, Link, Profiles, Question, Window, Pieces, FromState, Carry, Gang, Candidate,
    SessionQuestion, Stateful,
)  # fmt: skip
_NUMBERS = {kind: number for number, kind in enumerate(_CLASSES)}
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _CLASSES}
_GRAPH, _TUPLE, _SET, _MAP, _TEXTS = range(len(_CLASSES), len(_CLASSES) + 5)
TEXTS_REMEMBERED = 64  # mappings of texts, one per kind of device


def question_bytes(question: AnyQuestion) -> bytes:
    return _pack(question)


def question_from(data: bytes, known: Iterable[WireGraph] = ()) -> AnyQuestion:
    """The question; graphs that are `known` are not read again."""
    question = _Unpacker(data, known=known).value
    assert isinstance(question, Question | SessionQuestion)
    return question


def plan_bytes(plan: Plan) -> bytes:
    return _pack(plan)


def plan_from(data: bytes, asked: WireGraph, known: Iterable[WireGraph] = ()) -> Plan:
    """The plan; its graphs get the large constants of the graph that was asked for.

    What is `known` need not be read again: the plans of a graph share its simplified form, which is half of the bytes.
    """
    plan = _Unpacker(data, asked.blobs, known).value
    assert isinstance(plan, Plan)
    return plan


def seconds_in(data: bytes) -> float:
    """The predicted seconds of a plan, without making it."""
    plain, _ = msgspec.msgpack.decode(data)
    return float(plain[1 + _FIELDS[Plan].index("seconds")])


def _pack(value: object) -> bytes:
    graphs: dict[bytes, int] = {}
    plain = _plain(value, graphs)
    return msgspec.msgpack.encode((plain, list(graphs)))


def _plain(value: Any, graphs: dict[bytes, int]) -> Any:
    """Lists that begin with a number for what they are; strings, numbers and bytes as they are."""
    number = _NUMBERS.get(type(value))
    if number is not None:
        return [number, *[_plain(getattr(value, name), graphs) for name in _FIELDS[type(value)]]]
    match value:
        case WireGraph():
            return [_GRAPH, graphs.setdefault(value.encoded, len(graphs))]
        case tuple():
            return [_TUPLE, *[_plain(item, graphs) for item in value]]
        case frozenset():
            return [_SET, *[_plain(item, graphs) for item in sorted(value)]]
        case Mapping():
            pairs = tuple(value.items())
            if pairs and all(_is_named_texts(*pair) for pair in pairs):
                return [_TEXTS, _texts_bytes(pairs)]
            return [_MAP, *[_plain(item, graphs) for pair in pairs for item in pair]]
    assert value is None or isinstance(value, str | int | float | bytes), f"{type(value).__name__} is not carried"
    return value


def _is_named_texts(name: Any, texts: Any) -> bool:
    """Whether it is an item of a mapping from texts to tuples of texts, as `dtypes_by_op` is."""
    return type(name) is str and type(texts) is tuple and all(type(text) is str for text in texts)


@lru_cache(TEXTS_REMEMBERED)
def _texts_bytes(pairs: tuple[tuple[str, tuple[str, ...]], ...]) -> bytes:
    return msgspec.msgpack.encode(pairs)


@lru_cache(TEXTS_REMEMBERED)
def _texts_from(data: bytes) -> Mapping[str, tuple[str, ...]]:
    return dict(msgspec.msgpack.decode(data, type=tuple[tuple[str, tuple[str, ...]], ...]))


class _Unpacker:
    def __init__(self, data: bytes, blobs: Mapping[bytes, Any] | None = None, known: Iterable[WireGraph] = ()) -> None:
        plain, encodings = msgspec.msgpack.decode(data)
        there = {graph.encoded: graph for graph in known}
        graphs = (there.get(encoding) or decode_graph(encoding) for encoding in encodings)
        self._graphs = [replace(graph, blobs=blobs) if blobs else graph for graph in graphs]
        self.value = self._decode(plain)

    def _decode(self, plain: Any) -> Any:
        if type(plain) is not list:
            return plain
        number = plain[0]
        if number == _GRAPH:
            return self._graphs[plain[1]]
        if number == _TEXTS:
            return _texts_from(plain[1])
        items = [self._decode(item) for item in plain[1:]]
        if number < _GRAPH:
            return _CLASSES[number](*items)
        if number == _MAP:
            return dict(zip(items[::2], items[1::2], strict=True))
        return frozenset(items) if number == _SET else tuple(items)
