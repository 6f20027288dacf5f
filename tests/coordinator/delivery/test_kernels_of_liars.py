"""Kernels inside of others, as a worker may report them: of a graph that there is not, or of what is no graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from coordinator.delivery.explainer import _simplified, _translated
from mesh.client.explanation import explanation_of
from wire.ir.graph import WireGraph
from wire.protocol.messages import Explained, KernelReport


def work(x: Any) -> Any:
    return mesh.fori_loop(0, 3, lambda _, carried: mnp.tanh(carried) + 1.0, x)


GRAPH = mesh.trace(work, np.ones(3, np.float32))
(LOOP,) = [number for number, node in enumerate(GRAPH.nodes) if isinstance(node.attrs.get("body"), WireGraph)]
BODY: WireGraph = GRAPH.nodes[LOOP].attrs["body"]


def reported(body: str, *, outer: int = LOOP) -> tuple[KernelReport, ...]:
    return KernelReport("control", (outer,), 0, 0, 0, 1), KernelReport("map", (1,), 0, 0, 0, 3, None, 0, body)


@pytest.mark.parametrize("body", [*sorted(GRAPH.nodes[LOOP].attrs.keys() - {"body"}), "nothing"])
def test_a_part_of_a_loop_that_is_no_graph_has_no_nodes(body: str) -> None:
    simple = _simplified(GRAPH)
    (loop,) = [number for number, node in enumerate(simple.simple.nodes) if "body" in node.attrs]
    outer, inner = _translated(reported(body, outer=loop), simple)
    assert outer.nodes == (LOOP,) and inner.nodes == ()


@pytest.mark.parametrize("body", ["body", "carry", "nothing"])
@pytest.mark.parametrize("outer", [LOOP, 1 << 20])
def test_a_client_shows_what_it_is_sent(body: str, outer: int) -> None:
    message = Explained(reported(body, outer=outer), "wall", 0, None, "liar", 0, "cpu", "", 1.0, 1.0, 0.0)
    kernel = explanation_of(message, GRAPH).kernels[1]
    graph = BODY if (body, outer) == ("body", LOOP) else GRAPH
    assert kernel.ops == (graph.nodes[1].op,)
