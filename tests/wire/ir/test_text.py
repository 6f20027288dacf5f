"""The text form: exact both ways, and every mistake is named with its line and column."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from support.cases.random_graphs import random_graph

from wire.errors import GraphDecodeError, GraphError, LimitExceeded, ShapeError
from wire.ir.dtypes import BF16, BOOL, F16, F32, F64, DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.text import from_text, to_text

GOLDEN = Path(__file__).parents[2] / "golden" / "graph.txt"


def everything() -> WireGraph:
    """One of each kind of attribute and value."""
    body = GraphBuilder()
    x = body.input("x", (2, 3), F32)
    softened = body.build([body.add("tanh", x)], name="a body")
    outer = GraphBuilder()
    x = outer.input("x", (2, 3), F32)
    nested = outer.build([outer.add("composite", x, name="soft", body=softened)], names=["only"])
    builder = GraphBuilder()
    x = builder.input("x", (2, 3), F32)
    mask = builder.input('a "mask"\n', (3,), BOOL)
    weight = builder.param("layer/größe", (3, 2), F32)
    large = builder.const(np.arange(90_000, dtype=np.float32).reshape(300, 300))
    specials = builder.const(np.array([0.1, -0.0, np.nan, np.inf, -np.inf, 1e-45], np.float32))
    payload = builder.const(np.array([0x7FC00001], np.uint32).view(np.float32))
    halves = builder.const(np.array([[65504.0, 6e-8]], np.float16))
    brains = builder.const(np.array(3.140625, BF16.numpy))
    empty = builder.const(np.zeros((0, 4), np.int8))
    many = builder.const(np.arange(17, dtype=np.uint8))
    big = builder.const(np.uint64(2**64 - 1))
    switch = builder.const(np.array([True, False]))
    line = builder.add("iota", shape=(4, 2), dtype="i64", axis=1)
    dot = builder.add("dot", x, weight, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    chosen = builder.add("select", mask, x, builder.add("neg", x))
    named = [
        builder.add("composite", chosen, name="nested", body=nested, axis=-1, eps=eps, scale=-0.0)
        for eps in (1e-05, float("nan"), float("inf"))
    ]
    part = builder.add("slice", large, start=(0, 10), stop=(300, 20), step=(7, 1))
    bits = builder.add("random_bits", builder.const(np.array([1, 2], np.uint32)), shape=(5,))
    kept = [dot, *named, part, specials, payload, halves, brains, empty, many, big, switch, line, bits, dot]
    return builder.build(kept, names=[f"out {place}" for place in range(len(kept))], name="everything")


def assert_same(graph: WireGraph, wanted: WireGraph) -> None:
    assert (graph.nodes, graph.types, graph.outputs) == (wanted.nodes, wanted.types, wanted.outputs)
    assert (graph.output_names, graph.name, graph.encoded) == (wanted.output_names, wanted.name, wanted.encoded)


def test_the_golden_text_is_written_and_read() -> None:
    assert to_text(everything()) == GOLDEN.read_text(), "if that is meant: GOLDEN.write_text(to_text(everything()))"
    assert_same(from_text(GOLDEN.read_text()), everything())


def test_random_graphs_come_back() -> None:
    for seed in range(200):
        graph = random_graph(seed).graph
        text = to_text(graph)
        assert_same(from_text(text), graph)
        assert to_text(from_text(text)) == text
        assert text.count("\n  %") == len(graph), "one line per node"


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64])
def test_every_pattern_of_a_float_comes_back(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    for _ in range(500):
        builder = GraphBuilder()
        raw = np.frombuffer(rng.bytes(4 * dtype.itemsize), dtype.numpy)
        graph = builder.build([builder.const(raw)])
        assert_same(from_text(to_text(graph)), graph)


def test_a_complex_constant_is_both_parts_of_each_number() -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.const(np.array([1 - 2j, complex(-0.0, np.inf)], np.complex64))])
    assert "data=[1.0, -2.0, -0.0, inf] : c64[2]" in to_text(graph)
    assert from_text(to_text(graph)) == graph


def test_a_nan_attribute_keeps_its_payload() -> None:
    (strange,) = np.array([0xFFF8000000000005], np.uint64).view(np.float64).tolist()
    builder, body = GraphBuilder(), GraphBuilder()
    identity = body.build([body.input("x", (), F32)])
    graph = builder.build([builder.add("composite", builder.input("x", (), F32), name="c", body=identity, eps=strange)])
    assert "eps=nan(fff8000000000005)" in to_text(graph)
    assert from_text(to_text(graph)).encoded == graph.encoded


def test_a_person_may_write_it_freely() -> None:
    text = """
    graph ""{ # any labels, any layout
      %image = input name="image" : f32[ 2, 3 ]
      %half=const data=[0.5]:f32[]   %y = mul
          %image %half : f32[2,3]
      return "y" %y
    }"""
    builder = GraphBuilder()
    scaled = builder.add("mul", builder.input("image", (2, 3), F32), builder.const(np.float32(0.5)))
    assert from_text(text) == builder.build([scaled], ["y"])
    assert from_text(str(builder.build([], name="empty"))).name == "empty"


def lines(*nodes: str, returned: str = '"y" %x') -> str:
    given = ('%x = input name="x" : f32[2,3]', *nodes, f"return {returned}")
    return "\n".join(('graph "g" {', *(f"  {line}" for line in given), "}\n"))


MISTAKES = [
    ("", "line 1 column 1: expected 'graph', at 'the end'"),
    ("digraph {}", "line 1 column 1: expected 'graph', at 'digraph'"),
    ("graph {", r"line 1 column 7: expected a string in double quotes, at '{'"),
    (lines("%y = exp %z : f32[2,3]"), "line 3 column 12: %z is not defined above"),
    (lines("%y = exp %y : f32[2,3]"), "line 3 column 12: %y is not defined above"),
    (lines("%x = exp %x : f32[2,3]"), "line 3 column 3: %x is defined twice"),
    (lines("%y = expand %x : f32[2,3]"), "line 3 column 8: unknown op 'expand'"),
    (lines("%y = exp %x"), "line 4 column 3: expected ':', at 'return'"),
    (lines("%y = exp %x : f33[2,3]"), "line 3 column 17: unknown dtype 'f33'"),
    (lines("%y = exp %x : f32[2,,3]"), "line 3 column 17: not a value of this kind"),
    (lines("%y = exp %x : f32[3,2]"), r"line 3 column 17: exp gives f32\[2,3\], not f32\[3,2\]"),
    (lines("%y = exp %x axis=3 : f32[2,3]"), "line 3 column 15: exp has no attribute 'axis' to write"),
    (lines("%y = reshape %x shape=(6) : f32[6]"), "line 3 column 19: reshape has no attribute 'shape' to write"),
    (lines("%y = argmax %x axis=1 axis=1 : i32[2]"), "line 3 column 25: axis stands twice"),
    (lines("%y = argmax %x axis=1.5 : i32[2]"), "line 3 column 23: not a value of this kind"),
    (lines("%y = argmax %x axis=(1) : i32[2]"), r"line 3 column 23: expected a number, at '\('"),
    (lines(f"%y = argmax %x axis={'9' * 5000} : i32[2]"), "line 3 column 23: not a value of this kind"),
    (lines("%y = reduce_sum %x axes=(1 : f32[2]"), r"line 3 column 30: expected '\)', at ':'"),
    (lines("%y = const data=[1.0, x] : f32[2]"), "line 3 column 30: the data are not numbers of f32"),
    (lines("%y = const data=[300] : u8[1]"), "the data are not numbers of u8"),
    (lines("%y = const data=[1, x] : c64[1]"), "the data are not numbers of c64"),
    (lines("%y = const data=[2] : bool[1]"), "the data are not numbers of bool"),
    (lines("%y = const data=0x0 : u8[1]"), "line 3 column 19: not a value of this kind"),
    (lines("%y = const blob=0x00 : u8[1]"), "line 3 column 19: expected an address such as @00ff"),
    (lines('%y = input name="\\ud800" : u8[1]'), "line 3 column 19: not a value of this kind"),
    (lines('%y = input name="\\x" : u8[1]'), "line 3 column 19: not a value of this kind"),
    (lines("%y = exp ? : f32[2,3]"), r"line 3 column 12: expected a token, at '\?'"),
    (lines(returned='"y" %z'), "line 3 column 14: %z is not defined above"),
    (lines() + "graph", "line 5 column 1: expected nothing more, at 'graph'"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(GraphDecodeError, match=said):
        from_text(text)


def test_nodes_that_cannot_be_keep_their_own_error() -> None:
    with pytest.raises(ShapeError, match=r"cannot reshape.*reshape, line 3"):
        from_text(lines("%y = reshape %x : f32[7]"))
    with pytest.raises(GraphError, match="two leaves are named 'x'"):
        from_text(lines('%y = input name="x" : f32[2,3]'))
    with pytest.raises(LimitExceeded, match="dimension"):
        from_text(lines(f"%y = broadcast %x : f32[{1 << 40},2,3]"))


def test_bodies_nest_only_so_deep() -> None:
    text = 'graph "" { %c = composite body=' * 100
    with pytest.raises(GraphDecodeError, match="graphs nest deeper than 8"):
        from_text(text)


def test_damaged_text_raises_nothing_but_graph_errors() -> None:
    rng = random.Random(1)
    whole = GOLDEN.read_text()
    refused = 0
    for _ in range(600):
        at, letter = rng.randrange(len(whole)), rng.choice('%"{}()[]=:,@#x0-1.e\\ \n')
        damaged = rng.choice((whole[:at], whole[:at] + whole[at + 1 :], whole[:at] + letter + whole[at + 1 :]))
        try:
            from_text(damaged)
        except GraphError:
            refused += 1
    assert refused > 300, "most damage makes another text than a graph's"
