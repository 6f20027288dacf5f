"""verify: graphs put together by hand are refused with the decoder's errors; every good graph passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases.random_graphs import big_graph, random_graph

from wire.errors import AttrError, DTypeError, GraphError, LimitExceeded, ShapeError, UnknownOp
from wire.ir.dtypes import F32, I32
from wire.ir.graph import GraphBuilder, Node, WireGraph
from wire.ir.types import NO_ATTRS, Attrs, TensorType
from wire.ir.verify import verify
from wire.limits import DEFAULT

X = TensorType((2, 3), F32)
INPUT = Node("input", (), Attrs({"name": "x", "shape": (2, 3), "dtype": "f32"}))


def test_random_graphs_and_a_large_one_are_valid() -> None:
    for seed in range(100):
        verify(random_graph(seed).graph)
    verify(big_graph(2_000))


def graph(*nodes: Node, types: tuple[TensorType, ...] | None = None, **fields: Any) -> WireGraph:
    """A graph as given, nothing checked: the input, `nodes`, and the last node as output."""
    whole = (INPUT, *nodes)
    made = WireGraph(whole, (len(whole) - 1,), ("y",), types or (X,) * len(whole))
    return replace(made, **fields)


def unary(op: str, source: Any, attrs: Any = NO_ATTRS) -> Node:
    return Node(op, (source,), attrs)


BODY = graph(unary("exp", 0))
BROKEN: dict[str, tuple[WireGraph, type[GraphError], str]] = {
    "a forward reference": (graph(unary("exp", 2), unary("exp", 0)), GraphError, r"does not come before.*exp \(node 1"),
    "a self reference": (graph(unary("exp", 1)), GraphError, "does not come before"),
    "a negative index": (graph(unary("exp", -1)), GraphError, "does not come before"),
    "an index that is no int": (graph(unary("exp", False)), GraphError, "does not come before"),
    "inputs that are a list": (graph(Node("exp", [0], NO_ATTRS)), GraphError, "does not come before"),  # type: ignore[arg-type]
    "an unknown op": (graph(unary("frobnicate", 0)), UnknownOp, "unknown op 'frobnicate'"),
    "too few inputs": (graph(unary("add", 0)), GraphError, "takes 2 inputs, got 1"),
    "too many inputs": (graph(Node("exp", (0, 0), NO_ATTRS)), GraphError, "takes 1 input, got 2"),
    "no inputs to concat": (graph(Node("concat", (), Attrs({"axis": 0}))), LimitExceeded, "takes 1 to"),
    "a missing attribute": (graph(unary("reduce_sum", 0)), AttrError, "needs the attribute 'axes'"),
    "an unknown attribute": (graph(unary("exp", 0, Attrs({"axis": 0}))), AttrError, "has no attribute 'axis'"),
    "an attribute of another kind": (graph(unary("reduce_sum", 0, Attrs({"axes": 1}))), AttrError, "must be ints"),
    "attributes that are a dict": (graph(unary("exp", 0, {})), AttrError, "got dict"),
    "an axis out of range": (graph(unary("reduce_sum", 0, Attrs({"axes": (2,)}))), AttrError, "outside rank 2"),
    "a wrong dtype": (graph(unary("not", 0)), DTypeError, "bool or an integer"),
    "a wrong shape": (graph(unary("reshape", 0, Attrs({"shape": (5,)}))), ShapeError, "cannot reshape"),
    "a stored type that is not derived": (
        graph(unary("exp", 0), types=(X, TensorType((3, 2), F32))),
        GraphError,
        r"stored type f32\[3,2\] is not the derived one, f32\[2,3\]",
    ),
    "a stored dtype that is not derived": (graph(types=(TensorType((2, 3), I32),)), GraphError, "is not the derived"),
    "fewer types than nodes": (graph(unary("exp", 0), types=(X,)), GraphError, "2 nodes have 1 types"),
    "an output out of range": (graph(outputs=(1,)), GraphError, "not indices of 1 nodes"),
    "a negative output": (graph(outputs=(-1,)), GraphError, "not indices"),
    "fewer names than outputs": (graph(outputs=(0, 0)), GraphError, "2 outputs have 1 names"),
    "an output name twice": (graph(outputs=(0, 0), output_names=("y", "y")), GraphError, "two outputs are named 'y'"),
    "a leaf name twice": (graph(INPUT), GraphError, "two leaves are named 'x'"),
    "a name that is no string": (graph(output_names=(3,)), GraphError, "a name is a string"),
    "a name that is no text": (graph(output_names=("\ud800",)), GraphError, "half a surrogate pair"),
    "a long name": (graph(name="n" * 257), LimitExceeded, "at most 256 bytes"),
    "a long output name": (graph(output_names=("n" * 257,)), LimitExceeded, "at most 256 bytes"),
    "a large inline constant": (
        graph(Node("const", (), Attrs({"shape": (20_000,), "dtype": "f32", "data": bytes(80_000)}))),
        LimitExceeded,
        "an inline constant",
    ),
    "a tensor of exabytes": (
        graph(unary("broadcast", 0, Attrs({"shape": (1 << 31, 1 << 20, 2, 3)}))),
        LimitExceeded,
        "exceeds",
    ),
    "a bad node in a composite": (
        graph(unary("composite", 0, Attrs({"name": "c", "body": replace(BODY, types=(X, TensorType((), F32)))}))),
        GraphError,
        "is not the derived one",
    ),
    "a composite whose body takes other operands": (
        graph(unary("cast", 0, Attrs({"dtype": "i32"})), unary("composite", 1, Attrs({"name": "c", "body": BODY})),
              types=(X, TensorType((2, 3), I32), X)),
        ShapeError,
        r"takes \(f32\[2,3\]\), got \(i32\[2,3\]\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_is_refused(what: str) -> None:
    broken, error, said = BROKEN[what]
    with pytest.raises(error, match=said) as caught:
        verify(broken)
    assert type(caught.value) is error


def test_bodies_nest_only_so_deep() -> None:
    inner = BODY
    for depth in range(DEFAULT.nesting_max + 1):
        verify(inner)
        inner = graph(unary("composite", 0, Attrs({"name": f"c{depth}", "body": inner})))
    with pytest.raises(LimitExceeded, match="nest deeper than 8"):
        verify(inner)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"graph_nodes_max": 3}, "nodes exceed 3"),
        ({"graph_edges_max": 2}, "edges exceed 2"),
        ({"rank_max": 1}, "rank 2 exceeds 1"),
        ({"dim_max": 2}, "dimension 3 exceeds 2"),
        ({"tensor_bytes_max": 20}, "exceeds 20 B"),
        ({"attrs_per_node_max": 2}, "attributes exceed 2"),
        ({"name_bytes_max": 2}, "at most 2 bytes"),
        ({"graph_bytes_max": 50}, "exceeds 50"),
    ],
)
def test_limits_hold(limit: dict[str, int], said: str) -> None:
    with pytest.raises(LimitExceeded, match=said):
        verify(graph(unary("exp", 0), unary("exp", 1), unary("exp", 2)), replace(DEFAULT, **limit))


def test_a_held_constant_has_the_size_of_its_type() -> None:
    builder = GraphBuilder()
    made = builder.build([builder.const(np.zeros((200, 100), np.float32))])
    verify(made)
    verify(replace(made, blobs={}))
    (address,) = made.blobs
    with pytest.raises(GraphError, match="the constant held has 12 bytes"):
        verify(replace(made, blobs={address: np.zeros(3, np.float32)}))
