"""Grids, specs and shard_map: what they mean, what they refuse, and that a result declared whole is provably so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases.shard_cases import CASES, Case

import mesh
import mesh.numpy as mnp
from mesh import Grid, PartitionSpec, collectives
from mesh import PartitionSpec as P
from wire.errors import AttrError, InputError, MeshError, ShapeError
from wire.ir.codec import decode_graph
from wire.ir.text import from_text, to_text
from wire.ir.verify import verify
from wire.passes.simplify import simplify
from wire.passes.unroll_spmd import unroll
from worker.cpu import evaluate

SQUARE, LINE = Grid((2, 2), ("dp", "tp")), Grid(3, "dp")
X = np.arange(24, dtype=np.float32).reshape(4, 6)

# -- grids and specs --------------------------------------------------------------------------------------


def test_a_grid_knows_its_ranks() -> None:
    grid = Grid((2, 3), ("dp", "tp"))
    assert (grid.ranks, grid.shape, grid.size("tp"), grid.size(("tp", "dp"))) == (6, {"dp": 2, "tp": 3}, 3, 6)
    assert Grid((2, -1), ("dp", "tp"), ranks=6) == grid
    assert Grid((3,), ("dp",)) == LINE


WRONG_GRIDS: list[tuple[Callable[[], Any], str]] = [
    (lambda: Grid((2, 2), ("dp", "tp"), ranks=5), "2 x 2 has 4 ranks, not 5"),
    (lambda: Grid((2, -1), ("dp", "tp"), ranks=5), "2 x 2 has 4 ranks, not 5"),
    (lambda: Grid((2, -1), ("dp", "tp")), "1 to 1024 ranks"),
    (lambda: Grid((2, 0), ("dp", "tp")), "1 to 1024 ranks"),
    (lambda: Grid((2, 2), ("dp",)), "one size per axis"),
    (lambda: Grid((), ()), "an axis at least"),
    (lambda: Grid((2, 2), ("dp", "dp")), "stands twice"),
    (lambda: Grid((2, 2), ("dp", "t-p")), "is an identifier"),
    (lambda: Grid((2, 2), ("dp", 3)), "is a str"),
    (lambda: Grid((2, 2.0), ("dp", "tp")), "are ints"),
    (lambda: Grid((2048,), "dp"), "1 to 1024 ranks"),
    (lambda: P("dp", "dp"), "used twice"),
    (lambda: P(3), "the name of an axis is a str, got int"),
    (lambda: mesh.shard_map(lambda x: x, (2,), P("dp"), P("dp")), r"\(2,\) is no Grid"),
    (lambda: mesh.on_grid(3).__enter__(), "3 is no Grid"),
    (lambda: mesh.auto_sharding(lambda x: x, 4, X), "4 is no Grid"),
    (lambda: mesh.shard(np.ones(4), P("dp"), grid=(2,)), r"\(2,\) is no Grid"),
    (lambda: P(("dp", "dp")), "used twice"),
    (lambda: P("dp:(1)2"), "part of an axis, which is not supported"),
    (lambda: P(("dp", 2)), "is a str"),
    (lambda: P("dp").on(SQUARE, 0, "x"), "of 1 dimension, and x has 0"),
    (lambda: P("pp").on(SQUARE, 1, "x"), "no axis 'pp'"),
]


@pytest.mark.parametrize(("make", "said"), WRONG_GRIDS)
def test_wrong_grids_and_specs_are_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


NAMES = st.sampled_from(["dp", "tp", "pp", "ep"])


@given(st.lists(st.one_of(st.none(), NAMES, st.lists(NAMES, max_size=3).map(tuple)), max_size=4))
def test_a_spec_and_a_grid_are_what_their_repr_says(dims: list[Any]) -> None:
    named = [name for dim in dims for name in ((dim,) if isinstance(dim, str) else dim or ())]
    if len(set(named)) != len(named):
        with pytest.raises(InputError):
            P(*dims)
        return
    spec = P(*dims)
    assert _read(repr(spec)) == spec
    assert hash(_read(repr(spec))) == hash(spec)
    if named:
        grid = Grid((2,) * len(named), tuple(named))
        assert _read(repr(grid)) == grid


def _read(text: str) -> Any:
    """What a repr makes when it is read as Python: calls of two names on literals."""
    import ast

    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    return {"Grid": Grid, "PartitionSpec": PartitionSpec}[call.func.id](*map(ast.literal_eval, call.args))


# -- blocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [P(), P("dp"), P(None, "tp"), P("dp", "tp"), P(("tp", "dp")), P(None, ("dp", "tp"))])
def test_what_is_split_and_put_together_is_the_same(spec: P) -> None:
    shapes = []

    def fn(block: Any) -> Any:
        shapes.append(block.shape)
        return block

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(np.asarray(mesh.shard_map(fn, SQUARE, spec, spec)(x)), x)
    counts = [SQUARE.size(dim) if dim else 1 for dim in (*spec.dims, (), ())[:2]]
    assert shapes == [(8 // counts[0], 8 // counts[1])]


@settings(max_examples=20, deadline=None)
@given(st.permutations(["dp", "tp", None]), st.permutations(["dp", "tp", None]))
def test_any_two_layouts_by_gathering_in_between(before: list[Any], after: list[Any]) -> None:
    x = np.arange(64, dtype=np.int32).reshape(4, 4, 4)
    gathered = mesh.shard_map(lambda block: collectives.all_gather(block, P(*before)), SQUARE, P(*before), P())(x)
    found = mesh.shard_map(lambda block: block, SQUARE, P(*after), P(*after))(gathered)
    np.testing.assert_array_equal(np.asarray(found), x)


def test_trees_numbers_and_what_is_outside() -> None:
    outside = mnp.asarray(np.full(6, 10, np.float32)) + 0

    def fn(params: Any, scale: Any) -> Any:
        return {
            "total": collectives.all_reduce(mnp.sum(params["x"]), ("dp", "tp")),
            "all": params["x"] * scale + outside[:3],
        }

    mapped = mesh.shard_map(fn, SQUARE, ({"x": P("dp", "tp"), "n": None}, None), {"total": P(), "all": P("dp", "tp")})
    found = mapped({"x": X, "n": 3}, 2)
    assert float(found["total"]) == X.sum()
    assert found["all"].dtype == np.float32, "a Python number adapts"
    np.testing.assert_array_equal(np.asarray(found["all"]), X * 2 + 10)


def test_inside_traced_functions_and_loops() -> None:
    mapped = mesh.shard_map(lambda x, w: collectives.shift(x, "dp") * w, LINE, (P("dp"), P()), P("dp"))

    def fn(x: Any, w: Any) -> Any:
        return mesh.fori_loop(0, 3, lambda _, carry: mapped(carry, w), x)

    x = np.arange(3, dtype=np.float32)
    graph = mesh.trace(fn, x, np.float32(2))
    np.testing.assert_array_equal(evaluate(graph, {"x": x, "w": np.float32(2)})[0], x * 8)
    np.testing.assert_array_equal(np.asarray(mesh.function(fn)(x, np.float32(2))), x * 8)


WRONG_CALLS: list[tuple[Callable[[], Any], type[MeshError], str]] = [
    (lambda: mesh.shard_map(lambda x: x, SQUARE, P(None, ("dp", "tp")), P())(X), ShapeError,
     r"the argument 'x': dimension 1 of \(4, 6\) is split over dp\+tp into 4 blocks, and 6 is no multiple of 4"),
    (lambda: mesh.shard_map(lambda x: x, LINE, P("dp"), P("dp"))(X), ShapeError, "into 3 blocks"),
    (lambda: mesh.shard_map(lambda x: x, SQUARE, P("dp", None, "tp"), P())(X), InputError, "of 3 dimensions.*has 2"),
    (lambda: mesh.shard_map(lambda x: x, SQUARE, P("pp"), P())(X), InputError, "no axis 'pp'.*It has dp, tp"),
    (lambda: mesh.shard_map(lambda x: x, SQUARE, (P(), P()), P())(X), InputError, "for 2 arguments.* has 1"),
    (lambda: mesh.shard_map(lambda x: x, SQUARE, "dp", P())(X), InputError, "in_specs has a str for 'x'"),
    (lambda: mesh.shard_map(lambda x: x, SQUARE, ({"a": P()},), P())(X), InputError, "in_specs"),
    (lambda: mesh.shard_map(lambda x: x, SQUARE, P(), (P(), P()))(X), InputError, "out_specs"),
    (lambda: mesh.shard_map(lambda x: x, SQUARE, P(), P("dp", None, "tp"))(X), InputError, "the result 'output' has 2"),
    (lambda: mesh.shard_map(lambda x: mesh.shard_map(lambda y: y, LINE, P(), P())(x), SQUARE, P(), P())(X), InputError,
     "a shard_map within another one"),
    (lambda: mesh.shard_map(lambda x: x, SQUARE, P("dp"), P())(X), InputError, "does not name dp.*check=False"),
    (lambda: mesh.shard_map(lambda x: x * (1 if x.sum() > 0 else 2), SQUARE, P(), P())(X), InputError, "mnp.where"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "said"), WRONG_CALLS)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], error: type[MeshError], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_a_failed_function_leaves_no_grid_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        mesh.shard_map(lambda x: 1 / 0, SQUARE, P(), P())(X)
    with pytest.raises(InputError, match="there is no grid here"):
        collectives.axis_index("dp")


def test_what_leaks_out_of_a_body_is_no_value() -> None:
    leaked: list[Any] = []
    mesh.shard_map(lambda x: leaked.append(collectives.axis_index("dp")) or x, SQUARE, P(), P())(X)
    for look in (lambda: np.asarray(leaked[0]), lambda: mesh.trace(lambda x: x + leaked[0], X)):
        with pytest.raises(AttrError, match=r"stands outside of a grid.*mesh\.shard_map"):
            look()
    again = mesh.shard_map(lambda x: x + leaked[0], SQUARE, P("dp"), P("dp"))(X)
    np.testing.assert_array_equal(
        np.asarray(again), X + np.array([[0], [0], [1], [1]]), "made again where it has a meaning"
    )


# -- results that are declared whole ----------------------------------------------------------------------

DP, TP, BOTH = {"dp"}, {"tp"}, {"dp", "tp"}
PROVEN: list[tuple[str, Callable[[Any, Any], Any], set[str]]] = [  # of x over dp and tp, and w that is whole
    ("argument", lambda x, w: x, BOTH),
    ("whole argument", lambda x, w: w, set()),
    ("mixed", lambda x, w: x + mnp.sum(w), BOTH),
    ("reduced", lambda x, w: collectives.all_reduce(x, "dp"), TP),
    ("reduced twice", lambda x, w: collectives.all_reduce(collectives.all_reduce(x, "dp", "max"), "tp"), set()),
    ("gathered", lambda x, w: collectives.all_gather(x, ("tp", "dp")), set()),
    ("broadcast", lambda x, w: collectives.broadcast(x, "tp", 1), DP),
    ("scattered", lambda x, w: collectives.reduce_scatter(collectives.all_reduce(w, "tp"), "dp", 1), DP),
    ("exchanged", lambda x, w: collectives.all_to_all(w, "tp", 0, 0), TP),
    ("permuted", lambda x, w: collectives.shift(w, "dp"), DP),
    ("numbered", lambda x, w: w * collectives.axis_index("tp"), TP),
    ("in a scan, by the carry", lambda x, w: mesh.scan(lambda c, _: (c + mnp.sum(x), c), w, None, length=2)[0], BOTH),
    ("in a scan, reduced", lambda x, w: mesh.scan(
        lambda c, row: (collectives.all_reduce(c + row, ("dp", "tp")), ()), mnp.zeros(3), x)[0], set()),
    ("in a scan, late", lambda x, w: mesh.scan(
        lambda c, _: ((c[1], c[2], mnp.sum(x)), ()), (w[0, 0],) * 3, None, length=2)[0][0], BOTH),
    ("a branch by what differs", lambda x, w: mesh.cond(mnp.sum(x) > 0, lambda: w, lambda: w + 1), BOTH),
    ("a branch by what is whole", lambda x, w: mesh.cond(mnp.sum(w) > 0, lambda: w, lambda: w + 1), set()),
    ("a loop by what differs", lambda x, w: mesh.while_loop(lambda c: c < mnp.sum(x), lambda c: c + 1, w[0, 0]), BOTH),
    ("softmax", lambda x, w: mesh.nn.softmax(collectives.all_gather(x, "tp", 1)), DP),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "over"), [row[1:] for row in PROVEN], ids=[row[0] for row in PROVEN])
def test_what_may_differ_must_be_named(fn: Callable[[Any, Any], Any], over: set[str]) -> None:
    w = np.ones((4, 6), np.float32)
    specs = (P("dp", "tp"), P())
    for named in (set(), DP, TP, BOTH):
        rank = mesh.trace(mesh.shard_map(fn, SQUARE, specs, P(), check=False), X, w).types[-1].shape
        spec = P(tuple(sorted(named))) if named and rank else P()
        mapped = mesh.shard_map(fn, SQUARE, specs, spec)
        if over <= set(spec.axes):
            mesh.trace(mapped, X, w)
        else:
            with pytest.raises(InputError, match=f"does not name {', '.join(sorted(over - set(spec.axes)))}"):
                mesh.trace(mapped, X, w)


@pytest.mark.parametrize("loop", ["cond", "while"])
def test_ranks_that_would_wait_for_others_in_vain_are_refused(loop: str) -> None:
    def fn(x: Any) -> Any:
        if loop == "cond":
            return mesh.cond(mnp.sum(x) > 0, lambda: collectives.all_reduce(x, "tp"), lambda: x)
        return mesh.while_loop(lambda c: mnp.sum(c) < 9, lambda c: collectives.all_reduce(c, "tp"), x)

    mesh.trace(mesh.shard_map(fn, SQUARE, P("dp"), P(("dp", "tp"))), X)
    with pytest.raises(InputError, match="a branch or a loop has collectives over 'tp' inside"):
        mesh.shard_map(fn, SQUARE, P(None, "tp"), P(("dp", "tp")), check=False)(X)


def test_a_proof_is_linear_in_what_nests() -> None:
    """Each of 12 results of a loop in a loop, eight deep, is a node with all of it inside."""

    def nested(depth: int, carry: Any) -> Any:
        if depth == 0:
            return [*carry[1:], collectives.shift(carry[0], "dp")]
        return mesh.scan(lambda c, _: (nested(depth - 1, c), ()), carry, None, length=2)[0]

    mapped = mesh.shard_map(lambda x: nested(6, [x + at for at in range(12)])[-1], LINE, P(), P("dp"))
    assert mesh.trace(mapped, np.ones(2, np.float32)).output_types["output"].shape == (6,)
    whole = mesh.shard_map(lambda x: nested(6, [x + at for at in range(12)])[-1], LINE, P(), P())
    with pytest.raises(InputError, match="does not name dp"):
        mesh.trace(whole, np.ones(2, np.float32))


# -- graphs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_graphs_travel_are_simplified_and_unrolled(case: Case) -> None:
    point = [array.astype(np.float32) for array in case.point()]
    graph = mesh.trace(lambda *args: case.mapped(*args), *point)
    verify(graph)
    given = dict(zip(graph.input_types, point, strict=True))
    wanted = evaluate(graph, given)
    for other in (decode_graph(graph.encoded), from_text(to_text(graph)), simplify(graph, evaluate), unroll(graph)):
        verify(other)
        for found, right in zip(evaluate(other, given), wanted, strict=True):
            np.testing.assert_allclose(found, right, 1e-6, 1e-6)
    assert not unroll(graph).has_spmd
    assert not unroll(graph).free_axes


def test_results_that_nobody_reads_are_not_computed() -> None:
    def fn(x: Any, y: Any) -> Any:
        return collectives.all_reduce(x, "dp"), collectives.all_gather(mnp.exp(y), "dp")

    mapped = mesh.shard_map(fn, LINE, P("dp"), P())
    graph = simplify(mesh.trace(lambda x, y: mapped(x, y)[0], np.ones(3, np.float32), np.ones(6, np.float32)))
    (node,) = [node for node in graph.nodes if node.op == "spmd"]
    assert [each.op for each in node.attrs["body"]] == ["input", "all_reduce"]
    assert (len(node.inputs), node.attrs["in_specs"], node.attrs["out_specs"]) == (1, ("dp",), ("-",))


def test_equal_collectives_are_one_and_none_is_folded() -> None:
    def fn(x: Any) -> Any:
        first, second = collectives.all_reduce(x, "dp"), collectives.all_reduce(x, "dp")
        return first * second + collectives.all_reduce(mnp.ones(1), "dp") + collectives.axis_index("dp")

    graph = simplify(mesh.trace(mesh.shard_map(fn, LINE, P("dp"), P("dp")), np.ones(3, np.float32)), evaluate)
    body = graph.nodes[-1].attrs["body"]
    assert [node.op for node in body.nodes if node.op in ("all_reduce", "axis_index")].count("all_reduce") == 2
    found = mesh.shard_map(fn, LINE, P("dp"), P("dp"))(np.ones(3, np.float32))
    np.testing.assert_array_equal(np.asarray(found), [12, 13, 14])


def test_what_all_ranks_compute_alike_is_unrolled_once() -> None:
    graph = mesh.trace(
        mesh.shard_map(lambda x, w: x * mnp.sum(mnp.exp(w)), LINE, (P("dp"), P()), P("dp")), np.ones(3), np.ones(5)
    )
    assert [node.op for node in unroll(graph).nodes].count("exp") == 1


def test_ranks_make_small_constants_themselves_and_are_given_the_rest() -> None:
    """None of them waits for another that computes a number, and sends it in every call."""
    rate, large = -mnp.exp(mnp.asarray(0.5)), mnp.exp(mnp.ones(100, "float32"))
    mapped = mesh.shard_map(lambda x, w: x * rate + mnp.sum(large) + w, LINE, (P("dp"), P()), P("dp"))
    x, w = np.ones(3, np.float32), np.float32(2)
    graph = mesh.trace(lambda x, w: mapped(x, -mnp.asarray(w)), x, w)
    (node,) = [node for node in graph.nodes if node.op == "spmd"]
    given = [graph.types[each].shape for each in node.inputs]
    assert given == [(3,), (), (100,)], "the argument's sign is the caller's, and large tensors are made once"
    (found,) = evaluate(graph, dict(zip(graph.input_types, (x, w), strict=True)))
    np.testing.assert_allclose(found, np.full(3, -np.exp(0.5) + 100 * np.e - 2), 1e-6)
