"""Ranks meet as soon as what they exchange is there, behind nothing else, in one order whatever each is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.planning.spmd.rank_programs import RankWork
from mesh import numpy as mnp
from mesh import optim, trace
from mesh.training.data import ArrayData, Cursor, Shares, padded
from mesh.training.step import first_state, training_step
from mesh.training.step_config import Recipe
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.passes.collective_order import levels, meets, stages
from wire.passes.input_slicing import narrow
from wire.passes.simplify import simplify

GROUP: dict[str, Any] = {"axes": ("dp",), "sizes": (2,)}
LAYERS, ROWS, WIDTH = 5, 16, 8


def in_order(graph: WireGraph) -> list[int]:
    stage = stages(graph.nodes)
    return sorted(range(len(graph)), key=stage.__getitem__)


def check(graph: WireGraph) -> None:
    """Everything after what it needs, a meeting at the end of its stage, levels one after the other."""
    stage, level = stages(graph.nodes), levels(graph.nodes)
    at = {index: place for place, index in enumerate(in_order(graph))}
    for index, node in enumerate(graph.nodes):
        assert all(at[source] < at[index] for source in node.inputs)
        assert all(stage[source] <= stage[index] for source in node.inputs)
        if meets(node.op, node.attrs):
            together = [other_node for other_node, its in enumerate(stage) if its == stage[index]]
            assert max(together, key=at.__getitem__) == index
    assert [level[index] for index in in_order(graph)] == sorted(level)


def test_a_meeting_starts_behind_what_it_needs_and_nothing_else() -> None:
    builder = GraphBuilder()
    x, y = (builder.input(name, (4,), F32) for name in "xy")
    far = builder.add("tanh", builder.add("exp", builder.add("sin", x)))
    late = builder.add("all_reduce", far, **GROUP, reduction="sum")
    soon = builder.add("all_reduce", builder.add("neg", y), **GROUP, reduction="sum")
    alone = builder.add("cos", x)
    graph = builder.build([builder.add("add", late, far), soon, alone])
    check(graph)
    ops = [graph.nodes[index].op for index in in_order(graph) if graph.nodes[index].op != "input"]
    assert ops == ["neg", "all_reduce", "sin", "exp", "tanh", "all_reduce", "cos", "add"]


def test_where_ranks_do_not_meet_stages_are_levels() -> None:
    builder = GraphBuilder()
    number = builder.add("cast", builder.add("axis_index", **GROUP), dtype="f32")
    graph = builder.build([builder.add("add", number, builder.input("x", (), F32))])
    assert stages(graph.nodes) == levels(graph.nodes)


def test_views_do_not_change_the_order() -> None:
    builder = GraphBuilder()
    x, y = (builder.input(name, (8,), F32) for name in "xy")
    rows = builder.add(
        "slice", builder.add("slice", x, start=(0,), stop=(6,), step=(1,)), start=(0,), stop=(4,), step=(1,)
    )
    cut = builder.add("all_reduce", builder.add("exp", rows), **GROUP, reduction="sum")
    whole = builder.add("all_reduce", builder.add("neg", y), **GROUP, reduction="max")
    graph = builder.build([cut, whole])
    orders = [[variant.nodes[i].attrs["reduction"] for i in in_order(variant) if variant.nodes[i].op == "all_reduce"]
             for variant in (graph, narrow(graph)[0])]  # fmt: skip
    assert orders[0] == orders[1] == ["sum", "max"]


def step(portions: Any) -> tuple[WireGraph, ...]:
    """The graphs of the ranks of a training step."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in params:
            x = mnp.tanh(x @ layer)
        return mnp.mean((x - y) ** 2, axis=1)

    recipe = Recipe(loss, optim.sgd(1e-2), bucket_bytes=4 * WIDTH * WIDTH)
    shares = Shares.of(recipe, portions, ROWS)
    params = [np.ones((WIDTH, WIDTH), np.float32)] * LAYERS
    rows = np.zeros((ROWS, WIDTH), np.float32)
    batch = next(ArrayData((rows, rows), ROWS, True, 0, False).epoch(Cursor()))
    made = training_step(recipe, 2, False, True, None if shares.even else shares)
    graph = simplify(trace(made, first_state(recipe, params, 2), None, *padded(batch, shares)))
    (group,) = [group for first, group in graph.siblings.items() if graph.nodes[first].op == "spmd"]
    return RankWork(graph, group).graphs


@pytest.mark.parametrize("portions", [2, (5, 3)])
def test_gradients_leave_while_the_backward_pass_goes_on(portions: Any) -> None:
    for graph in step(portions):
        check(graph)
        order = in_order(graph)
        dots = [
            place for place, index in enumerate(order) if graph.nodes[index].op == "dot" and graph.types[index].shape
        ]
        told = [place for place, index in enumerate(order) if meets(*graph.nodes[index][::2])]
        leave = [place for place in told if graph.types[order[place]].shape == (WIDTH * WIDTH,)]
        assert len(dots) == 3 * LAYERS - 1 and len(leave) == LAYERS, "one of the dots would be the batch's gradient"
        left = [sum(dot > place for dot in dots) for place in leave]
        assert left[0] == 2 * (LAYERS - 1) and left == sorted(left, reverse=True)
        assert graph.types[order[told[-1]]].shape == (1 + 2,), "the loss, and whether all is finite, is known last"


def test_ranks_with_more_rows_or_fewer_meet_in_one_order() -> None:
    one, other = step((5, 3))
    assert one != other
    first, second = (
        [(graph.nodes[index].op, graph.types[index]) for index in in_order(graph) if meets(*graph.nodes[index][::2])]
        for graph in (one, other)
    )
    assert first == second
