"""Which nodes of a first graph the nodes of a rewritten one come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import nn, trace
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import LEAVES
from wire.passes.dead_code import prune
from wire.passes.provenance import Provenance
from wire.passes.simplify import simplify
from wire.passes.unroll_spmd import unroll
from worker.compiler.inline_composites import inline_composites

X = np.ones((4, 6), np.float32)


def shared() -> WireGraph:
    """Nodes that simplify makes one, drops, and keeps."""
    builder = GraphBuilder()
    x = builder.input("x", (4, 6), F32)  # 0
    there = builder.add("reshape", x, shape=(24,))  # 1
    back = builder.add("reshape", there, shape=(4, 6))  # 2: x again
    twice = builder.add("neg", builder.add("neg", back))  # 3, 4: x again
    return builder.build([builder.add("exp", twice)])  # 5


def test_what_falls_away_comes_from_nothing_and_the_rest_from_itself() -> None:
    graph = shared()
    provenance = Provenance(graph)
    simple = simplify(graph, provenance=provenance)
    assert [node.op for node in simple.nodes] == ["input", "exp"]
    assert provenance.of == [frozenset({0, 2, 4}), frozenset({5})], "what is x again is found where x is"


def test_passes_follow_each_other() -> None:
    graph = trace(lambda x: nn.softmax(nn.gelu(mnp.negative(mnp.negative(x)))), X)
    provenance = Provenance(graph)
    flat = inline_composites(simplify(unroll(graph, provenance), provenance=provenance), provenance)
    assert len(provenance.of) == len(flat.nodes)
    names = {"gelu": {"erf"}, "softmax": {"exp", "reduce_max", "reduce_sum", "div"}}
    for index, node in enumerate(graph.nodes):
        if node.op == "composite":
            ops = {flat.nodes[new].op for new, origin in enumerate(provenance.of) if origin == {index}}
            assert names[node.attrs["name"]] <= ops


def turns(x: Any) -> Any:
    """A loop with a carry that nobody reads: prune has something to do."""
    (kept, _), rows = mesh.scan(lambda carry, row: ((carry[0] + row, carry[1] * 2.0), carry[0]), (x[0], x[0]), x)
    return kept, rows


@pytest.mark.parametrize("work", [turns, lambda x: mnp.sum(x @ x.T, axis=0) + 1.0], ids=["loop", "straight"])
@pytest.mark.parametrize("passed", [unroll, prune, simplify, inline_composites])
def test_every_computed_node_of_a_pass_comes_from_nodes_that_compute(work: Any, passed: Any) -> None:
    graph = trace(work, X)
    provenance = Provenance(graph)
    made = passed(graph, provenance=provenance)
    assert made == passed(graph), "noting it changes nothing"
    assert len(provenance.of) == len(made.nodes)
    for node, origin in zip(made.nodes, provenance.of, strict=True):
        assert origin and (node.op in LEAVES or any(graph.nodes[index].op not in LEAVES for index in origin))
