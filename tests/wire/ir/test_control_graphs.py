"""Graphs inside nodes: encoded once for all siblings, written once, counted once, and never believed."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from support.cases.control_cases import graph_of, siblings
from support.cases.op_cases import cases
from support.hostile.tampering import Fields

from wire.errors import AttrError, GraphDecodeError, GraphError, LimitExceeded
from wire.ir.codec import decode_graph
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import CONTROL, WHILE_TRIPS
from wire.ir.text import from_text, to_text
from wire.ir.types import TensorType
from wire.ir.verify import verify
from wire.limits import DEFAULT
from wire.passes.simplify import simplify
from worker.cpu import evaluate

SCALAR = TensorType((), F32)


def chain(count: int, nodes: int) -> WireGraph:
    """Takes and gives `count` scalars; the first goes through so many ops."""

    def make(builder: GraphBuilder, first: int, *others: int) -> list[int]:
        for at in range(nodes):
            first = builder.add(("neg", "exp")[at % 2], first)
        return [first, *others]

    return graph_of([SCALAR] * count, make)


def looped(body: WireGraph, length: int = 3) -> WireGraph:
    """A scan of nothing but carries, every one of them an output."""
    count = len(body.outputs)
    attrs = {"body": body, "carry": count, "consts": 0, "length": length, "reverse": 0, "count": count}
    return graph_of([SCALAR] * count, lambda builder, *all: siblings(builder, "scan", *all, **attrs))


@pytest.mark.parametrize("op", sorted(CONTROL))
def test_they_come_back_from_bytes_and_text_and_simplifying(op: str) -> None:
    for case in cases(op):
        graph = case.graph
        verify(graph)
        assert decode_graph(graph.encoded).encoded == graph.encoded
        assert from_text(to_text(graph)) == graph
        simple = simplify(graph, evaluate)
        verify(simple)
        for before, after in zip(evaluate(graph, case.inputs), evaluate(simple, case.inputs), strict=True):
            assert before.tobytes() == after.tobytes()


def test_the_graph_of_siblings_is_stored_and_written_once() -> None:
    graph = looped(chain(40, 400))
    assert len(graph.siblings) == 1
    assert len(graph.encoded) < 2 * len(chain(40, 400).encoded) + 40 * 120
    assert to_text(graph).count("exp") == 200
    decoded = decode_graph(graph.encoded, replace(DEFAULT, graph_nodes_max=40 + 440 + 40))
    bodies = {id(node.attrs["body"]) for node in decoded if node.op == "scan"}
    assert len(bodies) == 1, "and held once"
    with pytest.raises(LimitExceeded):
        decode_graph(graph.encoded, replace(DEFAULT, graph_nodes_max=40 + 440 + 39))


def nested(depth: int) -> WireGraph:
    graph = chain(40, 2)
    for _ in range(depth):
        graph = looped(graph)
    return graph


def work_on(encoded: bytes, depth: int) -> None:
    """Read, check, write and simplify such a graph."""
    decoded = decode_graph(encoded)
    verify(decoded)
    assert from_text(to_text(decoded)) == decoded
    assert simplify(decoded).encoded
    assert decoded.flops == chain(40, 2).flops * 3**depth
    assert len(repr(decoded)) < 1000


def calls_for(depth: int) -> int:
    """How many functions run for it, which no other load of the machine changes."""
    encoded, seen = nested(depth).encoded, 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += event == "call"

    sys.setprofile(count)
    try:
        work_on(encoded, depth)
    finally:
        sys.setprofile(None)
    return seen


def test_nested_siblings_cost_what_they_weigh() -> None:
    """Eight deep with 40 siblings at each level, the innermost graph stands for 40^8 of itself."""
    graph = nested(8)
    tracemalloc.start()
    work_on(graph.encoded, 8)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert calls_for(6) < 3 * calls_for(3), "as much for each level"
    with pytest.raises(LimitExceeded):
        decode_graph(looped(graph).encoded)
    with pytest.raises(LimitExceeded):
        verify(looped(graph))


@pytest.mark.parametrize("again", [b"\x01\0\0\0", b"\xff" * 4, b"\0", b"", b"\0" * 5])
def test_a_number_that_no_graph_has_is_refused(again: bytes) -> None:
    fields = Fields.of(looped(chain(2, 2)))
    table = [{**row, "body": msgpack.ExtType(2, again)} if row.get("output") == 1 else row for row in fields.table]
    with pytest.raises(GraphDecodeError):
        decode_graph(fields.but(table=table).pack())


def test_a_composite_has_a_body_of_its_own() -> None:
    """Its body is put in its place, so one that could be named again would grow without bytes."""
    body = chain(1, 2)
    graph = graph_of([SCALAR], lambda b, x: [b.add("composite", x, name="n", body=body)])
    fields = Fields.of(graph)
    table = [{**row, "body": msgpack.ExtType(2, b"\0" * 4)} if "body" in row else row for row in fields.table]
    with pytest.raises(GraphDecodeError):
        decode_graph(fields.but(table=table).pack())
    table = [{**row, "output": 0} if "body" in row else row for row in fields.table]
    with pytest.raises(AttrError, match="no attribute 'output'"):
        decode_graph(fields.but(table=table).pack())


@pytest.mark.parametrize("said", ["body=%9", "body=%0", 'body=graph "" { return "0" %0 }'])
def test_a_label_in_place_of_a_graph_must_have_one(said: str) -> None:
    text = to_text(looped(chain(2, 2))).replace("body=%2", said)
    assert said in text
    with pytest.raises(GraphError):
        from_text(text)


def test_work_is_that_of_one_computation() -> None:
    body = chain(3, 5)
    body_flops = body.flops
    assert looped(body, 7).flops == 7 * body_flops
    branches = {"then": chain(1, 9), "otherwise": chain(1, 4)}
    graph = graph_of([SCALAR], lambda b, x: [b.add("cond", b.add("lt", x, x), x, **branches, output=0)])
    assert graph.flops == 1 + chain(1, 9).flops
    test = graph_of([SCALAR], lambda b, x: [b.add("lt", x, x)])
    graph = graph_of([SCALAR], lambda b, x: [b.add("while", x, test=test, body=chain(1, 4), output=0)])
    assert graph.flops == WHILE_TRIPS * (1 + chain(1, 4).flops)


def test_what_may_not_end_is_not_computed_to_simplify_a_graph() -> None:
    always = graph_of([SCALAR], lambda b, x: [b.const(np.array(True))])
    attrs = {"test": always, "body": chain(1, 1), "output": 0}
    inner = graph_of([SCALAR], lambda b, x: [b.add("while", x, **attrs)])
    graph = graph_of([], lambda b: [b.add("composite", b.const(np.float32(1)), name="endless", body=inner)])
    assert "composite" in [node.op for node in simplify(graph, evaluate)]
    assert graph.has_control and not chain(1, 1).has_control
