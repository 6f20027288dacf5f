"""numpy's names that are short compositions, and the extension `linalg`, against numpy itself: at least a row each."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array
from mesh.errors import InputError, ShapeError
from mesh.numpy import linalg, numpy_extras

RANDOM = np.random.default_rng(11)
F = RANDOM.standard_normal((3, 4)).astype(np.float32)
G = RANDOM.standard_normal((3, 4)).astype(np.float32)
V = RANDOM.standard_normal(5).astype(np.float32)
W = RANDOM.standard_normal(3).astype(np.float32)
T3 = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
I = RANDOM.integers(-9, 10, (3, 4)).astype(np.int32)  # noqa: E741
B = RANDOM.random((3, 4)) > 0.5
S = np.array([0.0, -0.0, 1, -8, 2.5, np.inf, -np.inf, np.nan, 1e-30], np.float32)
PAIRS = tuple(np.meshgrid(S, S))
REGULAR = np.stack([RANDOM.standard_normal((3, 3)) + 3 * np.eye(3) for _ in range(2)]).astype(np.float32)
DEFINITE = (REGULAR @ REGULAR.swapaxes(1, 2)).astype(np.float32)
HOLES = np.array([[1, np.nan, 3], [np.nan, np.nan, np.nan], [5, 0, -2]], np.float32)


@dataclass(frozen=True)
class Row:
    name: str
    calls: list[tuple[Any, ...]]
    kwargs: dict[str, Any] = field(default_factory=dict)
    rtol: float = 3e-6
    atol: float = 1e-6
    reference: Callable[..., Any] | None = None


ROWS = [
    *[Row(name, [([F, G],), ([V, V],), ([1.0, 2.0],), ([T3, T3],)]) for name in ("vstack", "hstack", "dstack")],
    Row("column_stack", [([V, V],), ([F, W],)]),
    Row("atleast_3d", [(1.0,), (V,), (F,), (T3,)]),
    Row("append", [(F, G), (F, G, 1), (V, 3.0)]),
    Row("array_split", [(V, 2), (V, 3), (F, 3, 1), (V, 7), (V, [2, 3])]),
    Row("vsplit", [(F, 3), (F, [1])]), Row("hsplit", [(F, 2), (V, 5)]), Row("dsplit", [(T3, 2)]),
    Row("flipud", [(F,)]), Row("fliplr", [(F,)]),
    *[Row("rot90", [(F, k), (T3, k, (1, 2)), (T3, k, (2, 0))]) for k in range(-1, 5)],
    Row("delete", [(F, 1, 0), (F, [0, 2], 1), (V, slice(1, 3)), (F, 5), (F, -1, 1)]),
    Row("identity", [(3,)]), Row("tri", [(3,), (3, 4, 1), (4, 2, -1)]),
    Row("diag", [(F,), (V,), (V, 1), (V, -2), (F, 1), (I[0],)]), Row("diagflat", [(F,), (V, 1)]),
    Row("logspace", [(0, 2, 5), (-1, 1, 4, False), (0, 3, 4, True, 2.0)]),
    Row("geomspace", [(1, 1000, 4), (1, 16, 4, False)], rtol=2e-5),
    Row("indices", [((2, 3),), ((4,),)]),
    Row("rint", [(F,), (S,)]), Row("divmod", [(F, G), (I, 4)], rtol=1e-5, atol=1e-5),
    Row("fmod", [(F, G), (I, 4), (I, -3)]), Row("fmax", [PAIRS, (F, 0)]), Row("fmin", [PAIRS, (F, 0)]),
    Row("float_power", [(np.abs(F), G), (I, 2)], rtol=1e-5), Row("heaviside", [(S, np.float32(0.5)), (F, 1.0)]),
    Row("logaddexp2", [(F, G), PAIRS]), Row("cbrt", [(F,), (S,), (np.array([1e30, -27, 1e-20], np.float32),)]),
    Row("sinc", [(F,), (np.array([0, 1, 0.5, -2.25], np.float32),)], atol=1e-6),
    Row("deg2rad", [(F,), (I,)]), Row("rad2deg", [(F,)]),
    Row("nan_to_num", [(S,), (I,)]),
    Row("nan_to_num", [(S,)], {"nan": 1.0, "posinf": 5.0, "neginf": -5.0}),
    Row("isclose", [PAIRS, (F, F * np.float32(1 + 1e-6)), (F, G)]),
    Row("isclose", [PAIRS], {"equal_nan": True, "rtol": 0.1}),
    Row("allclose", [(F, F + np.float32(1e-9)), (F, G)]), Row("array_equal", [(F, F), (F, G), (F, V)]),
    Row("isposinf", [(S,)]), Row("isneginf", [(S,)]),
    Row("ptp", [(F,), (I, 0), (T3, (0, 2))]), Row("ptp", [(F, 1)], {"keepdims": True}),
    Row("average", [(F,), (F, 1), (F, 0, W), (F, None, np.abs(G))], rtol=1e-5),
    *[Row(name, [(HOLES[[0, 2]],), (HOLES[[0, 2]], 1), (I, 0)]) for name in ("nansum", "nanprod", "nanmax", "nanmin",
      "nanmean")],
    *[Row(name, [(HOLES, 1)], {"keepdims": True}) for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean")],
    Row("dot", [(F, G.T), (V, V), (F, 2.0), (F, G[0]), (T3, T3.swapaxes(1, 2)), (W, F)], rtol=1e-5, atol=1e-5),
    Row("inner", [(F, G), (V, V), (T3, F)], rtol=1e-5, atol=1e-5), Row("vdot", [(F, G)], rtol=1e-5, atol=1e-5),
    Row("kron", [(F, G), (V, F), (I[:2], I[:1])]), Row("cross", [(W, W[::-1]), (F.T, G.T)], atol=1e-5),
    Row("ediff1d", [(F,), (I,)]),
    Row("trapezoid", [(V,), (F, np.arange(4.0, dtype=np.float32) ** 2), (F,)], rtol=1e-5, atol=1e-5),
    Row("trapezoid", [(F,)], {"dx": 0.5, "axis": 0}, rtol=1e-5),
    Row("interp", [(np.linspace(-1, 6, 20, dtype=np.float32), np.array([0, 1, 3, 5], np.float32), V[:4]),
                   (S, np.array([0, 2], np.float32), V[:2]), (V, np.array([1], np.float32), V[:1])], atol=1e-5),
    Row("interp", [(V, np.array([0, 1], np.float32), V[:2])], {"left": -9.0, "right": 9.0}, atol=1e-5),
    Row("digitize", [(V, np.array([-1, 0, 1], np.float32))]),
    Row("digitize", [(I, np.array([-3, 0, 4]))], {"right": True}),
    Row("gradient", [(F,), (V,), (V, 2.0), (F, 0.5, 2.0)], rtol=1e-5, atol=1e-6), Row("gradient", [(F,)], {"axis": 1}),
    Row("trace", [(T3,), (T3, 1), (T3, 0, 2, 1)], atol=1e-5), Row("diagonal", [(T3,), (T3, -1), (T3, 1, 0, 2)]),
    *[Row("convolve", [(V, W), (W, V), (V, V), (I[0], I[1, :3])], {"mode": mode}, atol=1e-5)
      for mode in ("full", "same", "valid")],
    Row("select", [([F > 0, F < -1], [F, G], 7.0), ([B], [I])]),
    *[Row(name, [(HOLES[[0, 2]], 1), (F, 0), (F,)], {"ddof": 1}, rtol=1e-5) for name in ("nanvar", "nanstd")],
    *[Row(name, [(S,), (S, 0), (np.stack([S, S[::-1]]), 0), (V, None)], {"ddof": ddof}) for name in ("nanvar", "nanstd")
      for ddof in (0, 2)],
    Row("fabs", [(F,), (I,), (np.array([-128, 5], np.int16),)]),
    Row("cov", [(F,), (V,), (V[:0],), (V[:1],)], rtol=1e-4), Row("cov", [(F[:, :1],)], {"ddof": 3}),
    Row("cov", [(F,)], {"ddof": 0}, rtol=1e-4), Row("corrcoef", [(F,)], rtol=1e-4),
    Row("bincount", [(np.abs(I[0]),), (np.abs(I[0]), V[:4]), (np.zeros(0, np.int32),)], {"minlength": 3}),
    Row("compress", [([True, False, True], F, 0), (B[0], F, 1), (B.ravel()[:5], F)]),
    Row("partition", [(F, 3)], reference=lambda x, kth: np.sort(x)),
    Row("argpartition", [(F, 3)], reference=lambda x, kth: np.argsort(x, stable=True)),
    Row("tril_indices", [(4,), (3, -1, 5)]), Row("triu_indices", [(4,), (3, 1, 5)]),
    Row("argwhere", [(B,), (V,), (1.0,)]), Row("flatnonzero", [(B,), (I,)]), Row("extract", [(B, F)]),
]  # fmt: skip
LINALG = [
    Row("cross", [(W, W[::-1]), (F.T, G.T)], atol=1e-5),
    Row("diagonal", [(F,), (T3,)]), Row("trace", [(F,), (T3,)], atol=1e-5), Row("trace", [(I,)], {"offset": 1}),
    Row("matmul", [(F, G.T)], atol=1e-5), Row("matrix_transpose", [(T3,)]), Row("outer", [(V, W)]),
    Row("tensordot", [(F, G.T)], {"axes": 1}, atol=1e-5), Row("vecdot", [(F, G)], atol=1e-5),
    *[Row("matrix_norm", [(F,), (T3,)], {"ord": ord, "keepdims": ord == 1}, rtol=1e-5)
      for ord in ("fro", 1, -1, math.inf, -math.inf)],
    *[Row("vector_norm", [(V,), (F,)], {"ord": ord}, rtol=1e-5) for ord in (0, 1, 2, 3, 2.5, math.inf, -math.inf)],
    Row("vector_norm", [(T3,)], {"axis": (0, 2), "keepdims": True}, rtol=1e-5), Row("vector_norm", [(F,)], {"axis": 1}),
    *[Row("matrix_power", [(F[:, :3], n), (I[:, :3] % 3, n), (T3[:, :, :3], n)], rtol=1e-4, atol=1e-4)
      for n in (0, 1, 2, 5)],
    Row("matrix_power", [(REGULAR, n) for n in (-1, -3)], rtol=1e-4, atol=1e-4),
    *[Row("matrix_norm", [(F,), (T3,)], {"ord": ord, "keepdims": ord == 2}, rtol=1e-5) for ord in (2, -2, "nuc")],
    *[Row("norm", [(F, ord), (T3, ord, (0, 2)), (T3, ord, (2, 1), True)], rtol=1e-5)
      for ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)],
    Row("norm", [(F,), (V,), (T3,), (V, 3), (T3, None, 1), (T3, 1, -1, True), (T3, None, (0, 1)), (V, 0)], rtol=1e-5),
    Row("cholesky", [(DEFINITE,), (DEFINITE[0],)], rtol=1e-5), Row("cholesky", [(DEFINITE,)], {"upper": True}, 1e-5),
    *[Row(name, [(REGULAR,), (REGULAR[0],), (np.zeros((0, 0)),)], rtol=1e-4)
      for name in ("det", "inv", "slogdet", "svd", "svdvals", "qr")],
    Row("det", [(np.ones((3, 3), np.float32),)]), Row("slogdet", [(np.zeros((2, 2)),)]),
    *[Row(name, [(F,), (T3,), (F.T,)], rtol=1e-4) for name in ("svd", "svdvals", "qr", "pinv", "matrix_rank")],
    Row("svd", [(T3,)], {"full_matrices": False}, rtol=1e-4), Row("qr", [(T3,)], {"mode": "complete"}, rtol=1e-4),
    Row("pinv", [(REGULAR @ np.diag([1, 1e-3, 0]),), (np.ones((3, 2)),)], {"rtol": 1e-2}, rtol=1e-4),
    Row("matrix_rank", [(np.outer(W, V),), (np.zeros((2, 3)),), (np.zeros((0, 3)),), (T3[:, :1],)]),
    Row("matrix_rank", [(DEFINITE @ np.diag([1, 1e-3, 0]),)], {"rtol": 1e-2}),
    *[Row(name, [(DEFINITE,), (DEFINITE[0],)], rtol=1e-4) for name in ("eigh", "eigvalsh")],
    Row("solve", [(REGULAR, W), (REGULAR, F), (REGULAR[0], T3), (REGULAR, T3[:1]), (REGULAR[0], F[:, 0])], rtol=1e-4),
    Row("solve_triangular", [(REGULAR, W), (REGULAR[0], T3)], rtol=1e-4, reference=lambda a, b: np.linalg.solve(np.triu(
        a), b)),
    Row("solve_triangular", [(REGULAR, W), (REGULAR[0], F)], {"lower": True, "unit_diagonal": True}, rtol=1e-4,
        reference=lambda a, b, **_: np.linalg.solve(np.tril(a, -1) + np.eye(3), b)),
    Row("lstsq", [(F.T, V[:4]), (F.T, G.T), (F, W), (np.ones((2, 3), np.float32), V[:2])], rtol=1e-4),
    *[Row("cond", [(REGULAR, p), (REGULAR[0], p)], rtol=1e-4) for p in (None, 2, -2, 1, "fro", math.inf)],
    Row("cond", [(F,)], rtol=1e-4),
    Row("cond", [(np.zeros((2, 2), np.float32), p) for p in (None, 2, -2, 1, "fro", math.inf)]),
    Row("multi_dot", [([F, G.T],), ([V[:3], F, G.T, W],), ([F, G.T, F, V[:4]],), ([V, V],)], rtol=1e-4, atol=1e-5),
]  # fmt: skip
BITS_64 = {"float64": "float32", "int64": "int32"}


def same(found: Any, expected: Any, row: Row, args: tuple[Any, ...]) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, row, args)
        return
    assert isinstance(found, Array)
    wanted = np.asarray(expected)
    assert found.shape == wanted.shape
    given = {np.asarray(each).dtype for each in args if isinstance(each, np.ndarray)}
    if wanted.dtype not in given and row.name not in ("fmod", "diag"):
        assert found.dtype == BITS_64.get(wanted.dtype.name, wanted.dtype), row
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(np.asarray(found), wanted.astype(found.dtype), row.rtol, row.atol)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}{row.kwargs or ''}")
def test_a_habit_equals_numpys(row: Row) -> None:
    reference = row.reference or getattr(np, row.name)
    for args in row.calls:
        with np.errstate(all="ignore"):
            expected = reference(*args, **row.kwargs)
        same(getattr(mnp, row.name)(*args, **row.kwargs), expected, row, args)


@pytest.mark.parametrize("row", LINALG, ids=lambda row: f"{row.name}{row.kwargs or ''}")
def test_a_function_of_linalg_equals_numpys(row: Row) -> None:
    for args in row.calls:
        expected = (row.reference or getattr(np.linalg, row.name))(*args, **row.kwargs)
        same(getattr(mnp.linalg, row.name)(*args, **row.kwargs), expected, row, args)


def test_least_squares_of_few_ranks_have_residuals_that_are_nan() -> None:
    x, residuals, rank, _ = mnp.linalg.lstsq(np.ones((3, 2)), np.array([1.0, 2, 3]))
    assert int(rank) == 1 and np.isnan(np.asarray(residuals)).tolist() == [True]
    np.testing.assert_allclose(np.asarray(x), [1, 1])


REALISED = {"argwhere", "array_equal", "bincount", "compress", "extract", "flatnonzero"}
IN_PLACE: dict[str, Callable[[Any, Any], None]] = {
    "copyto": lambda xp, x: xp.copyto(x, G),
    "putmask": lambda xp, x: xp.putmask(x, B, G),
    "put_along_axis": lambda xp, x: xp.put_along_axis(x, np.array([[1], [0], [3]]), np.float32(9), 1),
    "put_along_axis 0": lambda xp, x: xp.put_along_axis(x, np.array([[2, 0, 0, 1]]), G[:1], 0),
    "fill_diagonal": lambda xp, x: xp.fill_diagonal(x, 7.0),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("row", [row for row in ROWS if row.name not in REALISED], ids=lambda row: row.name)
def test_a_habit_is_traced(row: Row) -> None:
    args = row.calls[0]
    places = [place for place, each in enumerate(args) if isinstance(each, np.ndarray)]

    def function(*arrays: Any) -> Any:
        given = list(args)
        for place, array in zip(places, arrays, strict=True):
            given[place] = array
        return getattr(mnp, row.name)(*given, **row.kwargs)

    found, expected = (
        mesh.evaluate(function, *[args[place] for place in places]),
        function(*[args[place] for place in places]),
    )
    for one, other in zip(mesh.tree.leaves(found), mesh.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))


def test_every_habit_has_a_row() -> None:
    functions = [each for each in vars(numpy_extras).values() if inspect.isfunction(each)]
    public = {each.__name__ for each in functions if each.__module__ == numpy_extras.__name__}
    assert {name for name in public if not name.startswith("_")} == {row.name for row in ROWS} | {
        name.split()[0] for name in IN_PLACE
    }
    assert set(linalg.__all__) == {row.name for row in LINALG}
    assert (mnp.degrees, mnp.radians, mnp.row_stack, mnp.trapz) == (
        mnp.rad2deg, mnp.deg2rad, mnp.vstack, mnp.trapezoid)  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_changes_an_array_in_place_changes_it_as_in_numpy(name: str) -> None:
    mine, theirs = mnp.asarray(F), F.copy()
    IN_PLACE[name](mnp, mine)
    IN_PLACE[name](np, theirs)
    np.testing.assert_array_equal(np.asarray(mine), theirs)


def test_counting_a_known_number_of_integers_is_traced() -> None:
    found = mesh.evaluate(lambda x: mnp.bincount(x, length=4), np.array([0, 3, 3, 9, 1], np.int32))
    assert found.tolist() == [1, 1, 0, 2]


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setdiff1d", "setxor1d"])
def test_sets_equal_numpys(name: str) -> None:
    for one, other in ((I, I[:2]), (I[0], I[1]), (F, F[0]), (I, I[:0])):
        np.testing.assert_array_equal(np.asarray(getattr(mnp, name)(one, other)), getattr(np, name)(one, other))


def test_unique_gives_what_is_asked_for() -> None:
    np.testing.assert_array_equal(np.asarray(mnp.unique(I)), np.unique(I))
    for one, other in zip(mnp.unique(I, True, True, True), np.unique(I, True, True, True), strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("wrong", [
    lambda: mnp.vstack([F, V]), lambda: mnp.delete(F, 9, 0), lambda: mnp.diag(T3), lambda: mnp.rot90(F, 1, (1, 1)),
    lambda: mnp.array_split(F, 0), lambda: mnp.average(F, 0, V), lambda: mnp.average(F, None, V),
    lambda: mnp.convolve(F, V), lambda: mnp.convolve(V, W, "whole"), lambda: mnp.interp(V, F, F),
    lambda: mnp.cross(V, V), lambda: mnp.cov(T3), lambda: mnp.bincount(I[0] - 99), lambda: mnp.bincount(F),
    lambda: mnp.fill_diagonal(mnp.asarray(V), 0), lambda: mnp.put_along_axis(mnp.asarray(F), [[9]], 0, 1),
    lambda: mnp.select([B], [I, I]), lambda: mnp.gradient(F[:1]), lambda: mnp.linalg.outer(F, V), lambda: mnp.kron(
    np.zeros((1,) * 5), V), lambda: mnp.linalg.matrix_power(F, 2), lambda: mnp.linalg.matrix_power(F, -1),
    lambda: mnp.linalg.matrix_norm(V), lambda: mnp.linalg.matrix_norm(F, ord="max"), lambda: mnp.dot(F, F),
    *[partial(getattr(mnp.linalg, name), F) for name in ("cholesky", "det", "eigh", "eigvalsh", "inv", "slogdet")],
    *[partial(getattr(mnp.linalg, name), V) for name in ("cholesky", "det", "eigh", "inv", "qr", "svd", "svdvals",
      "matrix_rank", "pinv")],
    lambda: mnp.linalg.qr(F, mode="raw"), lambda: mnp.linalg.solve(F, W), lambda: mnp.linalg.solve(F[:, :3], V),
    lambda: mnp.linalg.solve(REGULAR, REGULAR[:, :2]), lambda: mnp.linalg.solve(REGULAR, np.ones((5, 3, 1))),
    lambda: mnp.linalg.solve_triangular(F, W), lambda: mnp.linalg.lstsq(T3, W), lambda: mnp.linalg.lstsq(F, V),
    lambda: mnp.linalg.multi_dot([F]), lambda: mnp.linalg.multi_dot([F, F]), lambda: mnp.linalg.multi_dot([F, V, F]),
    lambda: mnp.linalg.norm(T3, 2), lambda: mnp.linalg.norm(T3, axis=(0, 1, 2)), lambda: mnp.linalg.norm(F, "max"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises((InputError, ShapeError)):
        wrong()
