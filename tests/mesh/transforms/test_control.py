"""cond, while_loop, fori_loop, scan and map: what Python's own branches and loops give, over any pytree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.core.inprocess import evaluate as evaluate_here
from mesh.core.realise import using
from mesh.functions.compiled import handle_of
from wire.errors import InputError
from wire.ir.codec import decode_graph
from wire.passes.simplify import simplify

X = np.arange(6, dtype=np.float32).reshape(3, 2)


class Pair(NamedTuple):
    left: Any
    right: Any


def same(found: Any, expected: Any) -> None:
    """Structure, dtypes and values."""
    (left, structure), (right, wanted) = mesh.tree.flatten(found), mesh.tree.flatten(expected)
    assert structure == wanted
    for a, b in zip(map(np.asarray, left), map(np.asarray, right), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("asked", [True, False, 0, 2, -0.5, np.float32(0), np.int64(3)])
def test_cond_computes_one_branch(asked: Any) -> None:
    def branched(x: Any, pred: Any) -> Any:
        return mesh.cond(
            pred, lambda pair: Pair(pair.left + x, 1.0), lambda pair: Pair(x, pair.right), Pair(x * 2, 0.5)
        )

    chosen = Pair(X * 3, np.float32(1)) if asked else Pair(X, np.float32(0.5))
    same(mesh.evaluate(branched, X, np.asarray(asked)), chosen)
    same(mesh.evaluate(lambda x: branched(x, asked), X), chosen)


def test_a_branch_that_is_not_taken_may_be_endless() -> None:
    def endless(x: Any) -> Any:
        return mesh.while_loop(lambda c: c == c, lambda c: c + 1, x)

    assert mesh.evaluate(lambda x: mesh.cond(x.sum() > 0, lambda: 1.0, lambda: endless(x[0, 0])), X) == 1


def test_while_loop_turns_as_long_as_its_test_holds() -> None:
    def grown(x: Any, limit: Any) -> Any:
        return mesh.while_loop(
            lambda state: state["x"].sum() < limit,
            lambda state: {"x": state["x"] * 2 + x, "n": state["n"] + 1},
            {"x": x, "n": 0},
        )

    for limit in (0.0, 100.0, 1e6):
        value, turns = X, 0
        while value.sum() < limit:
            value, turns = value * 2 + X, turns + 1
        same(mesh.evaluate(grown, X, np.float32(limit)), {"x": value, "n": np.int32(turns)})


@pytest.mark.parametrize(("lower", "upper"), [(0, 0), (0, 4), (-2, 3), (3, 1)])
def test_fori_loop_between_python_ints_is_a_scan_and_else_a_while(lower: int, upper: int) -> None:
    total = 0.5
    for at in range(lower, upper):
        total = total * 0.5 + at
    fixed = mesh.trace(lambda x: mesh.fori_loop(lower, upper, lambda i, c: c * 0.5 + i, x), np.float32(0.5))
    assert "scan" in [node.op for node in fixed]

    def counted(x: Any, first: Any, last: Any) -> Any:
        return mesh.fori_loop(first, last, lambda i, c: c * 0.5 + i, x)

    moving = mesh.trace(counted, np.float32(0.5), lower, upper)
    assert "while" in [node.op for node in moving]
    same(mesh.evaluate(counted, np.float32(0.5), lower, upper), np.float32(total))
    same(np.asarray(mesh.fori_loop(lower, upper, lambda i, c: c * 0.5 + i, 0.5)), np.float32(total))


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_goes_over_rows(reverse: bool) -> None:
    def turn(carry: Any, row: Any) -> Any:
        total = carry["total"] * 0.5 + row["x"]
        return {"total": total}, (total.sum(), row["n"] + 1)

    n = np.array([5, 6, 7], np.int32)
    total, ys = np.zeros(2, np.float32), [(0.0, 0)] * 3
    for at in range(2, -1, -1) if reverse else range(3):
        total = total * np.float32(0.5) + X[at]
        ys[at] = total.sum(), n[at] + 1
    found = mesh.evaluate(
        lambda x, n: mesh.scan(turn, {"total": mnp.zeros(2)}, {"x": x, "n": n}, reverse=reverse), X, n
    )
    sums, counts = (np.array(column) for column in zip(*ys, strict=True))
    same(found, ({"total": total}, (sums.astype(np.float32), counts.astype(np.int32))))


def test_scan_without_rows_and_map() -> None:
    last, before = mesh.scan(lambda carry, nothing: (carry * 2, carry), np.float32(1), None, length=5)
    same((last, before), (np.float32(32), np.array([1, 2, 4, 8, 16], np.float32)))
    same(mesh.evaluate(lambda x: mesh.map(lambda row: {"y": row.sum()}, x), X), {"y": X.sum(axis=1)})
    same(mesh.scan(lambda carry, x: (carry + x, ()), 0, np.zeros((0,), np.int32)), (np.int32(0), ()))


def test_functions_use_what_is_outside_of_them() -> None:
    """Arguments of outer functions, arrays of any size, handles, and results of outer loops."""
    large, weight = np.linspace(0, 1, 40_000, dtype=np.float32), np.array([2, 3], np.float32)
    handle = handle_of(weight)

    def nested(x: Any) -> Any:
        doubled = x * 2

        def turn(carry: Any, row: Any) -> Any:
            inner = mesh.fori_loop(0, 2, lambda i, c: c + doubled.sum() * i + (row * mnp.asarray(handle)).sum(), carry)
            return mesh.cond(inner > 100, lambda: inner - large.sum(), lambda: inner), row + doubled[0]

        return mesh.scan(turn, 0.0, x)

    carry, rows = np.float32(0), []
    for row in X:
        for at in range(2):
            carry = carry + (X * 2).sum() * at + (row * weight).sum()
        carry = carry - large.sum() if carry > 100 else carry
        rows.append(row + X[0] * 2)
    graph = mesh.trace(nested, X)
    assert decode_graph(graph.encoded).encoded == graph.encoded
    assert simplify(graph).encoded
    assert not [node for node in graph if node.op == "const" and "blob" in node.attrs and not graph.blobs]
    same(mesh.evaluate(nested, X), (carry, np.array(rows)))


def test_a_python_number_takes_the_dtype_that_the_body_gives_it() -> None:
    x = X.astype(np.float64)
    carry, _ = mesh.scan(lambda carry, row: (carry + row.sum(), None), 0, x)
    assert (carry.type.dtype.name, float(carry)) == ("f64", 15.0)
    found = mesh.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, 1.0 * np.ones((3, 2))))
    assert found[1].type.dtype.name == "f64"
    result = mesh.cond(True, lambda: 1, lambda: np.float16(2))
    assert (result.type.dtype.name, float(result)) == ("f16", 1.0)


def test_a_body_is_traced_once_or_until_its_dtypes_are_known() -> None:
    times = []

    def body(carry: Any, x: Any) -> Any:
        times.append(1)
        return carry + x, None

    mesh.scan(body, np.float32(0), np.ones(1000, np.float32))
    assert len(times) == 1
    mesh.scan(body, 0, np.ones(1000, np.float32))
    assert len(times) == 3


def test_a_loop_is_one_node_for_each_result_whatever_its_length() -> None:
    graph = mesh.trace(lambda x: mesh.scan(lambda c, row: (c + row.sum(), c), 0.0, x), np.ones((10_000, 3), np.float32))
    assert [node.op for node in graph].count("scan") == 2
    assert len(graph.siblings) == 1 and len(graph) < 8


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: mesh.cond(mnp.ones(2), lambda: 1, lambda: 2), r"one bool, got f32\[2\]"),
    (lambda: mesh.cond(True, lambda: 1, lambda: (1,)), "different structures"),
    (lambda: mesh.cond(True, lambda: {"a": mnp.ones(2)}, lambda: {"a": mnp.ones(3)}), r"'a': f32\[2\] and f32\[3\]"),
    (lambda: mesh.cond(True, lambda: mnp.ones(2), lambda: mnp.ones(2, dtype="int32")), r"f32\[2\] and i32\[2\]"),
    (lambda: mesh.while_loop(lambda c: c, lambda c: c + 1, 0), r"one bool, got i32\[\]"),
    (lambda: mesh.while_loop(lambda c: (c > 0,), lambda c: c + 1, 0), "one bool, got tuple"),
    (lambda: mesh.while_loop(lambda c: True, lambda c: (c, c), 0), r"turns a carry \* into tuple"),
    (lambda: mesh.while_loop(lambda c: True, lambda c: {"h": mnp.ones(3)}, {"h": mnp.ones(2)}),
     r"carry of while_loop at 'h' is f32\[2\], and its body gives f32\[3\]"),
    (lambda: mesh.scan(lambda c, x: (c > 0, x), mnp.ones(2), X), r"is f32\[2\], and its body gives bool\[2\]"),
    (lambda: mesh.scan(lambda c, x: c, 0, X), "returns .carry, y., got Array"),
    (lambda: mesh.scan(lambda c, x: (c, x), 0, None), "needs a length"),
    (lambda: mesh.scan(lambda c, x: (c, x), 0, X, length=4), "4 .length. and 3"),
    (lambda: mesh.scan(lambda c, x: (c, x), 0, (X, X.T)), "3 .0. and 2 .1."),
    (lambda: mesh.scan(lambda c, x: (c, x), 0, {"n": np.float32(1)}), r"xs at 'n' is f32\[\]"),
    (lambda: mesh.fori_loop(0, mnp.ones(2, dtype="int32"), lambda i, c: c, 0), r"bounds .* integers, got i32\[2\]"),
    (lambda: mesh.fori_loop(0, mnp.asarray(1.5), lambda i, c: c, 0), r"bounds .* integers, got f32\[\]"),
    (lambda: mesh.map(lambda x: "text", X), "result of body.*str"),
]  # fmt: skip


@pytest.mark.parametrize(("use", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_does_not_fit_is_named(use: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        use()


def test_a_loop_runs_once_for_all_of_its_results_that_somebody_holds() -> None:
    calls = []

    def evaluator(work: Any, inputs: Any) -> Any:
        calls.append(work)
        return evaluate_here(work, inputs)

    with using(evaluator):
        last, rows = mesh.scan(lambda c, x: (c + x, c * x), 0.0, np.arange(5, dtype=np.float32))
        assert float(last) == 10
        np.testing.assert_array_equal(np.asarray(rows), [0, 0, 2, 9, 24])
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("then", "otherwise", "wanted"),
    [
        (0.5, 1, np.float32(0.5)),
        (1, 0.5, np.float32(1)),
        (2, True, np.int32(2)),
        (0.5, np.int32(3), np.float32(0.5)),
        (0.5, np.float16(3), np.float16(0.5)),
        (3, np.uint8(200), np.uint8(3)),
    ],
)
def test_branches_of_python_numbers_promote_as_sums_do(then: Any, otherwise: Any, wanted: Any) -> None:
    """0.5 beside 1 was cast to the dtype of the other branch: 0."""
    same(mesh.cond(True, lambda: then, lambda: otherwise), wanted)
    same(mesh.cond(False, lambda: otherwise, lambda: then), wanted)


def test_a_python_number_as_a_carry_widens_to_what_the_body_gives() -> None:
    """It was cast to the dtype of the first carry: all of these were 0.  The numbers are JAX's."""
    same(mesh.fori_loop(0, 3, lambda i, c: c * 0.5, 3), np.float32(0.375))
    same(mesh.while_loop(lambda c: c > 0.1, lambda c: c * 0.5, 3), np.float32(0.09375))
    same(mesh.scan(lambda c, x: (0.5, c), 3, X), (np.float32(0.5), np.array([3, 0.5, 0.5], np.float32)))
    same(mesh.scan(lambda c, x: (c + 2, c), True, X), (np.int32(7), np.array([1, 3, 5], np.int32)))


def test_what_would_cut_a_number_off_is_refused() -> None:
    rows = np.array([1, 2, 3], np.int32)
    for refused in (
        lambda: mesh.scan(lambda c, x: (x, c), 0.5, rows),
        lambda: mesh.scan(lambda c, x: (0.5, c), np.int32(3), rows),
        lambda: mesh.scan(lambda c, x: (300, c), np.uint8(3), rows),
        lambda: mesh.cond(True, lambda: 300, lambda: np.uint8(3)),
    ):
        with pytest.raises(InputError):
            refused()
