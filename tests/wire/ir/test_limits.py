"""docs/protocol.md, "Limits": every limit on a graph holds at N - 1 and N and refuses N + 1.

Frames' limits are in tests/wire/protocol/test_frames.py, a link's in tests/wire/protocol/test_protocol.py, an
identity's and the fields' of messages in tests/wire/protocol/test_frames.py and test_messages.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
from support.hostile.tampering import Fields, nested

from wire.errors import AttrError, GraphDecodeError, GraphError, LimitExceeded
from wire.ir.codec import decode_graph, encode_graph
from wire.ir.dtypes import F32, U8
from wire.ir.graph import GraphBuilder, WireGraph
from wire.limits import DEFAULT, GIB, KIB, Limits

ROOT = Path(__file__).parents[3]
WIDE_OPEN = Limits(**{limit.name: 1 << 62 for limit in fields(Limits)})  # builds what DEFAULT refuses


def chain(nodes: int) -> WireGraph:
    builder = GraphBuilder(WIDE_OPEN)
    last = builder.input("x", (), F32)
    for number in range(nodes - 1):
        last = builder.add(("neg", "exp")[number % 2], last)
    return builder.build([last])


def long_chain(nodes: int) -> bytes:
    """The encoding of a chain, made at once."""
    fields, more = Fields.of(chain(2)), nodes - 2
    return fields.but(
        ops=fields.ops + [1] * more,
        arities=fields.arities + [1] * more,
        inputs=fields.inputs + [1] * more,
        attrs=fields.attrs + [1] * more,
        outputs=[nodes - 1],
    ).pack()


def concats(edges: int) -> WireGraph:
    """Exactly so many edges."""
    builder = GraphBuilder(WIDE_OPEN)
    last = builder.input("x", (0,), F32)
    while edges:
        count = min(edges, 4)
        last = builder.add("concat", *[last] * count, axis=0)
        edges -= count
    return builder.build([last])


def concat_of(count: int) -> WireGraph:
    builder = GraphBuilder(WIDE_OPEN)
    return builder.build([builder.add("concat", *[builder.input("x", (0,), F32)] * count, axis=0)])


def shaped(*shape: int) -> WireGraph:
    builder = GraphBuilder(WIDE_OPEN)
    return builder.build([builder.input("x", shape, U8)])


def constant(size: int) -> WireGraph:
    builder = GraphBuilder(WIDE_OPEN)
    return builder.build([builder.const(np.zeros(size, np.uint8))])


def named(size: int) -> WireGraph:
    builder = GraphBuilder(WIDE_OPEN)
    return builder.build([builder.input("ü" * (size // 2) + "x" * (size % 2), (), F32)])


def output_named(size: int) -> WireGraph:
    return replace(shaped(1), output_names=("n" * size,))


def two_bodies(nodes: int) -> WireGraph:
    """Two composites of different bodies, `nodes` nodes in all."""
    builder = GraphBuilder(WIDE_OPEN)
    x = builder.input("x", (), F32)
    inner = nodes - 3
    bodies = chain(inner // 2), chain(inner - inner // 2)
    return builder.build([builder.add("composite", x, name=str(at), body=body) for at, body in enumerate(bodies)])


SMALL = replace(DEFAULT, graph_nodes_max=20, graph_edges_max=30)

LIMITED: list[tuple[str, Callable[[int], WireGraph], int, Limits]] = [
    ("nodes", chain, 20, SMALL),
    ("nodes of composites", two_bodies, 20, SMALL),
    ("edges", concats, 30, replace(DEFAULT, graph_edges_max=30)),
    ("inputs of a variadic op", concat_of, 4096, DEFAULT),
    ("rank", lambda n: shaped(*[1] * n), 8, DEFAULT),
    ("a dimension", lambda n: shaped(n), 1 << 31, DEFAULT),
    ("bytes of a tensor", lambda n: shaped(n, 1 << 20), 64 * KIB, DEFAULT),
    ("nesting", nested, 8, DEFAULT),
    ("an inline constant", constant, 64 * KIB, DEFAULT),
    ("the bytes of a name", named, 256, DEFAULT),
    ("the bytes of an output's name", output_named, 256, DEFAULT),
]


@pytest.mark.parametrize(("what", "make", "most", "limits"), LIMITED, ids=[row[0] for row in LIMITED])
def test_a_limit_holds_exactly(what: str, make: Callable[[int], WireGraph], most: int, limits: Limits) -> None:
    for size in (most - 1, most):
        graph = make(size)
        assert decode_graph(graph.encoded, limits) == graph
    with pytest.raises(LimitExceeded):
        decode_graph(make(most + 1).encoded, limits)


def test_the_graph_limits_are_those_that_are_written_down() -> None:
    assert (DEFAULT.graph_nodes_max, DEFAULT.graph_edges_max) == (100_000, 1_000_000)
    assert len(decode_graph(long_chain(100_000))) == 100_000
    with pytest.raises(LimitExceeded, match="100000 nodes"):
        decode_graph(long_chain(100_001))
    assert 64 * KIB << 20 == DEFAULT.tensor_bytes_max == 64 * GIB


def test_the_bytes_of_a_graph() -> None:
    graph = chain(10)
    size = len(graph.encoded)
    for most in (size + 1, size):
        assert decode_graph(graph.encoded, replace(DEFAULT, graph_bytes_max=most)) == graph
    with pytest.raises(LimitExceeded, match=f"a graph of {size} B"):
        decode_graph(graph.encoded, replace(DEFAULT, graph_bytes_max=size - 1))


def test_the_bytes_of_a_graphs_own_name() -> None:
    for size in (255, 256):
        assert decode_graph(encode_graph(chain(1), "n" * size)).name == "n" * size
    with pytest.raises(LimitExceeded, match="256 bytes"):
        decode_graph(encode_graph(chain(1), "n" * 257))


@pytest.mark.parametrize(("count", "error"), [(15, AttrError), (16, AttrError), (17, GraphDecodeError)])
def test_attributes_of_a_node(count: int, error: type[GraphError]) -> None:
    """No op has so many, so up to the limit the op table refuses, and beyond it the decoder."""
    table = [{f"a{number:02}": number for number in range(count)}]
    with pytest.raises(error):
        decode_graph(Fields.of(chain(1)).but(table=table).pack())


@pytest.mark.parametrize(("count", "error"), [(4095, "rank 4095"), (4096, "rank 4096"), (4097, "at most 4096 items")])
def test_items_of_an_attribute(count: int, error: str) -> None:
    table = [{"dtype": "f32", "name": "x", "shape": [1] * count}]
    with pytest.raises(LimitExceeded, match=error):
        decode_graph(Fields.of(chain(1)).but(table=table).pack())


@pytest.mark.parametrize(("last", "error"), [(16, "rank 16"), (17, "16 per node")])
def test_items_of_all_attributes(last: int, error: str) -> None:
    """Those of one node may be many, but not those of every node."""
    limits = replace(DEFAULT, graph_nodes_max=20)
    table = [{"dtype": "f32", "name": str(at), "shape": [1] * (16 if at < 19 else last)} for at in range(20)]
    with pytest.raises(LimitExceeded, match=error):
        decode_graph(Fields.of(chain(1)).but(table=table).pack(), limits)


def test_strings_in_an_attribute() -> None:
    graph = chain(1)
    for size, error in ((256, AttrError), (257, LimitExceeded)):
        table = [{"dtype": "f32", "name": "x", "shape": ["n" * size]}]
        with pytest.raises(error):
            decode_graph(Fields.of(graph).but(table=table).pack())


@pytest.mark.parametrize(("size", "refused"), [(255, False), (256, False), (257, True)])
def test_the_builder_and_a_string_attribute_hold_to_names_of_256_bytes(size: int, refused: bool) -> None:
    body = chain(2)
    table = [{"dtype": "f32", "name": "x", "shape": []}, {"body": msgpack.ExtType(1, body.encoded), "name": "n" * size}]
    builder = GraphBuilder()
    outer = builder.build([builder.add("composite", builder.input("x", (), F32), name="n", body=body)])
    data = Fields.of(outer).but(table=table).pack()
    if refused:
        with pytest.raises(LimitExceeded):
            decode_graph(data)
        with pytest.raises(LimitExceeded):
            GraphBuilder().input("n" * size, (), F32)
    else:
        decode_graph(data)
        GraphBuilder().input("n" * size, (), F32)


def test_outputs_and_attribute_sets_are_no_more_than_nodes_may_be() -> None:
    data = Fields.of(chain(1))
    for count in (19, 20):
        names = [str(number) for number in range(count)]
        assert len(decode_graph(data.but(outputs=[0] * count, output_names=names).pack(), SMALL).outputs) == count
        decode_graph(data.but(table=data.table * count).pack(), SMALL)
    with pytest.raises(GraphError):
        decode_graph(data.but(outputs=[0] * 21, output_names=[str(at) for at in range(21)]).pack(), SMALL)
    with pytest.raises(GraphError):
        decode_graph(data.but(table=data.table * 21).pack(), SMALL)


def test_every_limit_is_used() -> None:
    text = "".join(path.read_text() for path in (ROOT / "wire").rglob("*.py"))
    unused = [limit.name for limit in fields(Limits) if not re.search(rf"\.{limit.name}\b", text)]
    assert not unused
