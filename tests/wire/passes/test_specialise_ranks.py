"""What each rank computes of a program that branches by who it is: the values of all branches unrolled, no deadlock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases.unlike_ranks import Body, X, Y, drawn, program, shared
from support.rank_parts import by_ranks

import mesh
import mesh.numpy as mnp
from mesh import Grid, PartitionSpec, collectives
from mesh.transforms.composite import composite
from wire.errors import InputError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import inner_graphs
from wire.passes.collective_order import meets, stages
from wire.passes.input_slicing import narrow
from wire.passes.specialise_ranks import specialise
from wire.passes.unroll_spmd import unroll
from worker.cpu import evaluate

P = PartitionSpec
RNG = np.random.default_rng(7)


def node_of(graph: WireGraph) -> Any:
    return next(node for node in graph.nodes if node.op == "spmd")


def bodies_of(graph: WireGraph) -> tuple[WireGraph, ...]:
    attrs = node_of(graph).attrs
    return specialise(attrs["body"], attrs["axes"], attrs["sizes"])


def right(graph: WireGraph) -> tuple[WireGraph, ...]:
    """The graphs of the ranks, which together give what the whole program means."""
    bodies, given = bodies_of(graph), {"x": X, "y": Y}
    for result, expected in zip(by_ranks(graph, given, bodies=bodies), evaluate(unroll(graph), given), strict=True):
        np.testing.assert_array_equal(result, expected)
    return bodies


def ops_in(graph: WireGraph) -> set[str]:
    inner = [region for node in graph.nodes for region in inner_graphs(node.op, node.attrs)]
    return {node.op for node in graph.nodes}.union(*map(ops_in, inner))


def meetings(graph: WireGraph) -> list[tuple[Any, ...]]:
    """The collectives in the order in which an engine starts them."""
    stage = stages(graph.nodes)
    order = sorted(range(len(graph)), key=stage.__getitem__)
    return [(graph.nodes[i].op, graph.nodes[i].attrs, graph.types[i]) for i in order
            if meets(graph.nodes[i].op, graph.nodes[i].attrs)]  # fmt: skip


# -- shares of a batch ------------------------------------------------------------------------------------


def test_every_rank_has_the_branch_that_it_takes_and_is_given_the_rows_of_it() -> None:
    bodies = right(program(shared((4, 2, 1)), out=P()))
    assert all("cond" not in ops_in(body) for body in bodies)
    assert len({meeting for body in bodies for meeting in map(str, meetings(body))}) == 2, "all meet in the same"
    flops = [body.flops for body in bodies]
    assert flops[0] > flops[1] > flops[2]
    boxes = [narrow(body)[1] for body in bodies]
    assert [box["0"] for box in boxes] == [((0, 0), (rows, 4)) for rows in (4, 2, 1)]


def test_ranks_that_take_the_same_branches_have_one_graph_with_their_number_in_it() -> None:
    def local(x: Any, y: Any) -> Any:
        rank = collectives.axis_index("dp")
        chosen = mesh.cond(rank < 2, lambda: mnp.sum(x), lambda: mnp.sum(x[:1]))
        return collectives.all_reduce(chosen + mnp.astype(rank, "float32"), "dp")[None]

    bodies = right(program(local, 4, out=P()))
    assert bodies[0] is bodies[1] and bodies[2] is bodies[3] and bodies[0] is not bodies[2]
    assert all("axis_index" in ops_in(body) for body in bodies)


PREDICATES: dict[str, Body] = {
    "eq": lambda rank, x: rank == 1,
    "le": lambda rank, x: rank <= 0,
    "table": lambda rank, x: mnp.asarray(np.array([5, 3, 5], np.int32))[rank] == 5,
    "even": lambda rank, x: rank % 2 == 0,
    "half": lambda rank, x: rank // 2 > 0,
    "any": lambda rank, x: mnp.logical_or(rank == 0, mnp.logical_not(rank < 2)),
    "between": lambda rank, x: mnp.where(rank > 0, mnp.minimum(rank, 1) * 2 - 1, -rank) > 0,
}


@pytest.mark.parametrize("name", PREDICATES)
def test_what_follows_from_a_ranks_number_is_known(name: str) -> None:
    def local(x: Any, y: Any) -> Any:
        asked = PREDICATES[name](collectives.axis_index("dp"), x)
        return mesh.cond(asked, lambda: mnp.tanh(x), lambda: mnp.exp(y))

    bodies = right(program(local))
    assert {"tanh", "exp"} == {op for body in bodies for op in ops_in(body) & {"tanh", "exp"}}
    assert all("cond" not in ops_in(body) for body in bodies)


def test_what_does_not_go_by_the_rank_stays_as_it_is() -> None:
    def by_value(x: Any, y: Any) -> Any:
        rank = mnp.astype(collectives.axis_index("dp"), "float32")
        return mesh.cond(mnp.sum(x) > rank, lambda: mnp.tanh(x), lambda: y)

    def by_number(x: Any, y: Any) -> Any:
        return x + mnp.astype(collectives.axis_index("dp"), "float32")

    for local in (by_value, by_number, lambda x, y: mesh.cond(mnp.asarray(True), lambda: x, lambda: y)):
        graph = program(local)
        assert all(body is node_of(graph).attrs["body"] for body in right(graph))


# -- how ranks meet ---------------------------------------------------------------------------------------


def swapped(x: Any, y: Any) -> Any:
    """Branches that need two results in another order."""
    rank, total, most = collectives.axis_index("dp"), collectives.all_reduce(x, "dp"), collectives.all_reduce(y, "dp")
    return mesh.cond(rank == 0, lambda: mnp.exp(most / 99) - total, lambda: mnp.exp(total / 99) - most)


def deep(x: Any, y: Any) -> Any:
    """Branches of which one has a loop ahead of its first result, and another ahead of its second."""

    def looped(value: Any) -> Any:
        return mesh.fori_loop(0, 3, lambda at, carry: carry + value, value)

    rank = collectives.axis_index("dp")
    one, other = mesh.cond(rank == 0, lambda: (looped(x), y), lambda: (x, looped(y)))
    return collectives.all_reduce(one, "dp") - 3 * collectives.all_reduce(other, "dp")


def merged(x: Any, y: Any) -> Any:
    """What one rank does twice in the same way."""
    mine = mesh.cond(collectives.axis_index("dp") == 1, lambda: x, lambda: y)
    return collectives.all_reduce(mine, "dp") + 2 * collectives.all_reduce(x, "dp")


def merged_by_all(x: Any, y: Any) -> Any:
    """What every rank does twice in the same way, and each another thing."""
    mine = mesh.cond(collectives.axis_index("dp") == 1, lambda: x, lambda: y)
    return collectives.all_reduce(mine, "dp") + 2 * collectives.all_reduce(x, "dp") + collectives.all_reduce(y, "dp")


def idle(x: Any, y: Any) -> Any:
    """What one rank only needs."""
    rank, total = collectives.axis_index("dp"), collectives.all_reduce(x, "dp")
    moved = collectives.shift(y, "dp")
    return mesh.cond(rank == 2, lambda: total + 1, lambda: y), mesh.cond(rank == 0, lambda: moved, lambda: x)


def chained(x: Any, y: Any) -> Any:
    """A meeting that for one rank lies behind another one, and for the others does not."""
    rank, total = collectives.axis_index("dp"), collectives.all_reduce(x, "dp")
    mine = mesh.cond(rank == 1, lambda: total * 2, lambda: y)
    return collectives.all_reduce(mine, "dp", "max") - total, collectives.shift(x, "dp")


def looped(x: Any, y: Any) -> Any:
    """A loop in which ranks meet, beside a branch by the rank."""
    rank = collectives.axis_index("dp")
    total = mesh.fori_loop(0, 2, lambda at, carry: collectives.all_reduce(carry, "dp"), x)
    mine = mesh.cond(rank == 0, lambda: mnp.tanh(y), lambda: y - total)
    return collectives.all_reduce(mine, "dp", "min") + total


def _normed(x: Any) -> Any:
    """What one kernel makes, and which needs its operands in another order than it has them."""
    return x - mnp.max(x)


def _mixed(x: Any, y: Any) -> Any:
    return mnp.tanh(y) - x


def composed(x: Any, y: Any) -> Any:
    rank = collectives.axis_index("dp")
    one, other = collectives.all_reduce(x, "dp"), collectives.all_reduce(y, "dp")
    mine = mesh.cond(rank == 0, lambda: composite("mixed", _mixed, one, other), lambda: composite("normed", _normed, y))
    return collectives.all_reduce(mine, "dp", "max")


@pytest.mark.parametrize("local", [swapped, deep, merged, merged_by_all, idle, chained, looped, composed])
def test_ranks_meet_in_one_order_whatever_each_computes(local: Body) -> None:
    bodies = right(program(local))
    assert len({id(body) for body in bodies}) > 1
    first, *others = map(meetings, bodies)
    assert all(other == first for other in others)


def test_of_a_grid_of_two_axes_columns_take_branches_and_rows_meet_in_them() -> None:
    def local(x: Any, y: Any) -> Any:
        one, other = collectives.axis_index("dp"), collectives.axis_index("tp")
        inside = mesh.cond(one == 0, lambda: collectives.all_reduce(x, "tp"), lambda: collectives.shift(y, "tp"))
        mine = mesh.cond(mnp.logical_and(one == 0, other == 1), lambda: mnp.tanh(x), lambda: inside)
        return collectives.all_reduce(mine, ("dp", "tp")) + inside

    bodies = right(program(local, grid=Grid((2, 2), ("dp", "tp"))))
    assert bodies[0] is bodies[2] is bodies[3] is not bodies[1]


def test_who_meets_in_a_branch_that_others_do_not_take_is_told() -> None:
    def local(x: Any, y: Any) -> Any:
        rank = collectives.axis_index("dp")
        return mesh.cond(rank == 0, lambda: collectives.all_reduce(x, "dp"), lambda: y)

    with pytest.raises(InputError, match="ranks that take part would wait for ranks that do not"):
        program(local)


# -- random programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(60), *[pytest.param(seed, marks=pytest.mark.long) for seed in range(60, 600)]])
def test_random_programs_are_right_to_the_bit(seed: int) -> None:
    ranks = 2 + seed % 3
    bodies = right(program(drawn(seed, ranks), ranks))
    first, *others = map(meetings, bodies)
    assert all(other == first for other in others)


def test_random_programs_are_of_ranks_with_unlike_graphs() -> None:
    unlike = [len(set(bodies_of(program(drawn(seed, 3), 3)))) > 1 for seed in range(20)]
    assert sum(unlike) >= 10


# -- what is read -----------------------------------------------------------------------------------------


def test_only_the_box_of_all_slices_is_given() -> None:
    builder = GraphBuilder()
    x, y, _, kept = (builder.input(name, (8, 6), F32) for name in "xyuk")
    top = builder.add("slice", x, start=(1, 0), stop=(3, 6), step=(1, 1))
    rows = builder.add("slice", x, start=(2, 1), stop=(8, 6), step=(3, 2))
    whole = builder.add("slice", y, start=(0, 0), stop=(4, 6), step=(1, 1))
    held = builder.add("slice", kept, start=(0, 0), stop=(4, 6), step=(1, 1))
    graph = builder.build([top, rows, builder.add("add", whole, held), builder.add("neg", y)])
    narrowed, boxes = narrow(graph, {"k"})
    assert boxes == {"x": ((1, 0), (5, 6)), "y": ((0, 0), (8, 6)), "k": ((0, 0), (8, 6))}
    given = {name: RNG.standard_normal((8, 6)).astype(np.float32) for name in "xyuk"}
    cut = {name: given[name][tuple(slice(at, at + size) for at, size in zip(*box, strict=True))]
           for name, box in boxes.items()}  # fmt: skip
    for one, other in zip(evaluate(narrowed, cut), evaluate(graph, given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_slice_of_all_that_is_given_is_gone() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (8,), F32)
    narrowed, boxes = narrow(
        builder.build([builder.add("neg", builder.add("slice", x, start=(2,), stop=(5,), step=(1,)))])
    )
    assert [node.op for node in narrowed.nodes] == ["input", "neg"] and boxes == {"x": ((2,), (3,))}
    empty = builder.build([builder.add("slice", x, start=(2,), stop=(2,), step=(1,))])
    assert narrow(empty)[1] == {"x": ((0,), (8,))}
