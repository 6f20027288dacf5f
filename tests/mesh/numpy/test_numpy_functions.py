"""mesh.numpy against numpy: one row per function, and a check that no function is without one.

Where numpy would answer in float64 or int64 only because those are its defaults, mesh answers in float32 or int32
(`expected_dtype`); values are compared after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import tree
from mesh.core.array import Array
from mesh.errors import InputError, ShapeError
from mesh.numpy import numpy_extras, sets

RANDOM = np.random.default_rng(7)
F = RANDOM.standard_normal((3, 4)).astype(np.float32)
G = RANDOM.standard_normal((3, 4)).astype(np.float32)
V = RANDOM.standard_normal(5).astype(np.float32)
T3 = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
I = RANDOM.integers(-9, 10, (3, 4)).astype(np.int32)  # noqa: E741
J = RANDOM.integers(-9, 10, (3, 4)).astype(np.int32)
U = RANDOM.integers(0, 200, (3, 4)).astype(np.uint8)
B = RANDOM.random((3, 4)) > 0.5
C = RANDOM.random((3, 4)) > 0.5
D = RANDOM.standard_normal((3, 4))  # float64
E = np.zeros((0, 3), np.float32)
SPECIAL = np.array(
    [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 1e-30, -1e-30, 1e-6, -1e-6, 9.9, 10.1, 20.5, -20.5, 88.0,
     -88.0, 89.1, 103.0, -104.0, 1e4, 1e10, -1e10, 1e30, -1e30, 3e38, np.inf, -np.inf, np.nan],
    np.float32,
)  # fmt: skip
MILD = np.linspace(-7, 7, 57).astype(np.float32)
UNIT = np.array([*np.linspace(-1, 1, 41), 1e-20, -1e-5, 0.99999, 2, -2, np.nan], np.float32)
PAIRS = tuple(np.meshgrid(SPECIAL, SPECIAL))
TIES = np.array([[2, 1, 2, 0, -0.0, 1, np.nan], [1, 1, np.nan, 3, 3, 0, -1]], np.float32)
REFERENCES: dict[str, Callable[..., Any]] = {
    name: lambda x, name=name: getattr(sets, f"Unique{name.title()}Result")(*getattr(np, f"unique_{name}")(x))
    for name in ("all", "counts", "inverse")
}


@dataclass(frozen=True)
class Row:
    name: str
    calls: list[tuple[Any, ...]]
    kwargs: dict[str, Any] = field(default_factory=dict)
    reference: str | Callable[..., Any] = ""  # numpy's name, or a function of numpy arrays
    rtol: float = 3e-6
    atol: float = 0.0


FLOAT_FUNCTIONS: set[str] = set()


def float_row(name: str, *samples: np.ndarray, reference: str = "", atol: float = 0.0, rtol: float = 4e-6) -> Row:
    """A float function: float32 against numpy's float64 result rounded once, float64 against itself, and integers."""
    function = getattr(np, reference or name)
    FLOAT_FUNCTIONS.add(name)

    def exact(x: np.ndarray) -> Any:
        wide = x if x.dtype == np.float64 else x.astype(np.float64)
        return function(wide).astype(np.float64 if x.dtype == np.float64 else np.float32)

    return Row(name, [(sample,) for sample in (*samples, samples[0].astype(np.float64), np.array([1], np.int32))],
               reference=exact, atol=atol, rtol=rtol)  # fmt: skip


def binary_row(name: str, *pairs: tuple[Any, Any], **more: Any) -> Row:
    return Row(name, list(pairs), **more)


ARITHMETIC = [
    (F, G),
    (I, J),
    (F, I),
    (F, 2),
    (2, F),
    (I, 3),
    (D, F),
    (F[:, :1], G[0]),
    (U, 3),
    (E, np.float32(1)),
    PAIRS,
]
COMPARED = [(F, G), (I, J), (F, I), (B, C), PAIRS, (I, 0), (0.5, F)]
BITS = [(I, J), (B, C), (U, U[::-1]), (I, 5)]
AXES: list[dict[str, Any]] = [
    {},
    {"axis": 0},
    {"axis": -1},
    {"axis": (0, 1)},
    {"axis": 1, "keepdims": True},
    {"keepdims": True},
]


def reduction_rows(name: str, samples: list[np.ndarray], **more: Any) -> list[Row]:
    return [Row(name, [(sample,) for sample in samples], kwargs, **more) for kwargs in AXES]


ROWS: list[Row] = [
    # creation
    Row("arange", [(5,), (2, 9), (9, 2, -2), (0.0, 1.0, 0.25), (3, 3), (0, -4)]),
    Row("arange", [(6,)], {"dtype": np.int64}),
    Row("asarray", [(F,), ([[1, 2], [3, 4]],), ([1.5, 2],), (3,), (True,), ([],)]),
    Row("array", [(F,), ([1, 2, 3],)]),
    Row("empty", [((2, 0),)]),
    Row("empty_like", [(E,)]),
    Row("eye", [(3,), (2, 4)]),
    Row("eye", [(4, 3)], {"k": -1, "dtype": np.int32}),
    Row("full", [((2, 3), 7), ((2,), 1.5), (3, True)]),
    Row("full", [((2,), 3)], {"dtype": np.float16}),
    Row("full_like", [(F, 2), (I, 3), (B, True)]),
    Row("linspace", [(0, 1, 5), (-2.0, 3.0, 7), (1, 1, 1), (0, 1, 0)], rtol=1e-6, atol=1e-7),
    Row("linspace", [(0, 10, 5)], {"endpoint": False}),
    Row("meshgrid", [(V, F[0]), (V,), (V, F[0], G[0])]),
    Row("meshgrid", [(V, F[0], G[0])], {"indexing": "ij"}),
    Row("ones", [((2, 3),), (4,), ((),)]),
    Row("ones_like", [(F,), (I,)]),
    Row("tril", [(F,), (T3,)]),
    Row("tril", [(F,)], {"k": 1}),
    Row("triu", [(F,), (T3,), (I,)]),
    Row("triu", [(F,)], {"k": -1}),
    Row("zeros", [((2, 3),), (0,)]),
    Row("zeros_like", [(F,), (B,)]),
    # dtypes
    Row("astype", [(F, np.float64), (I, np.float32), (F, np.bool_), (B, np.int8)]),
    # elementwise: float functions
    float_row("acos", UNIT, reference="arccos", atol=1e-6),
    float_row("acosh", SPECIAL, np.linspace(1, 3, 30).astype(np.float32), reference="arccosh"),
    float_row("asin", UNIT, reference="arcsin"),
    float_row("asinh", SPECIAL, MILD, reference="arcsinh"),
    float_row("atan", SPECIAL, MILD, reference="arctan"),
    float_row("atanh", UNIT, reference="arctanh"),
    float_row("cos", MILD, UNIT, atol=5e-7),
    float_row("cosh", SPECIAL, MILD),
    float_row("exp", SPECIAL, MILD),
    float_row("exp2", SPECIAL, MILD),
    float_row("expm1", SPECIAL, MILD),
    float_row("log", SPECIAL, MILD),
    float_row("log10", SPECIAL, MILD),
    float_row("log1p", SPECIAL, MILD),
    float_row("log2", SPECIAL, MILD),
    float_row("reciprocal", SPECIAL, MILD),
    float_row("sin", MILD, UNIT, atol=5e-7),
    float_row("sinh", SPECIAL, MILD),
    float_row("sqrt", SPECIAL, MILD),
    float_row("tan", UNIT, np.linspace(-1.5, 1.5, 40).astype(np.float32), atol=5e-7),
    float_row("tanh", SPECIAL, MILD),
    # elementwise: the others
    Row("abs", [(F,), (I,), (U,), (B,), (SPECIAL,)]),
    binary_row("add", *ARITHMETIC, (B, C)),
    binary_row("atan2", *ARITHMETIC[:5], PAIRS, reference="arctan2"),
    binary_row("bitwise_and", *BITS),
    Row("bitwise_invert", [(I,), (B,), (U,)], reference="bitwise_invert"),
    binary_row("bitwise_left_shift", (U, 2), (np.abs(I), np.abs(J) % 8), reference="left_shift"),
    binary_row("bitwise_or", *BITS),
    binary_row("bitwise_right_shift", (U, 2), (I, np.abs(J) % 8), reference="right_shift"),
    binary_row("bitwise_xor", *BITS),
    Row("ceil", [(F * 5,), (SPECIAL,)]),
    Row("ceil", [(I,)], reference=lambda x: x),
    Row("clip", [(F, -0.5, 0.5), (I, -2, 3), (F, None, 0.1), (F, G, G + 1), (SPECIAL, -1, 1)]),
    binary_row("copysign", PAIRS, (F, -1.0), (F, G)),
    binary_row("divide", *ARITHMETIC),
    binary_row("equal", *COMPARED),
    Row("erf", [(np.array([0, 0.5, -0.5, 1, 2, 5], np.float32),)],
        reference=lambda x: np.array([0, 0.5204998778, -0.5204998778, 0.8427007929, 0.9953222650, 1], np.float32)),
    Row("floor", [(F * 5,), (SPECIAL,)]),
    Row("floor", [(I,)], reference=lambda x: x),
    binary_row("floor_divide", (F, G), (I, J + 10), (F, 2), (7, F), PAIRS, (I, 0), (U, 7)),
    binary_row("greater", *COMPARED),
    binary_row("greater_equal", *COMPARED),
    binary_row("hypot", (F, G), PAIRS, (D, F)),
    Row("isfinite", [(SPECIAL,), (I,)]),
    Row("isinf", [(SPECIAL,), (I,)]),
    Row("isnan", [(SPECIAL,), (I,)]),
    binary_row("less", *COMPARED),
    binary_row("less_equal", *COMPARED),
    binary_row("logaddexp", (F, G), PAIRS, (100 * F, 100 * G)),
    binary_row("logical_and", (B, C), (I, J), (F, 0)),
    Row("logical_not", [(B,), (I,), (SPECIAL,)]),
    binary_row("logical_or", (B, C), (I, J), (F, 0)),
    binary_row("logical_xor", (B, C), (I, J)),
    binary_row("maximum", *ARITHMETIC, (B, C)),
    binary_row("minimum", *ARITHMETIC, (B, C)),
    binary_row("multiply", *ARITHMETIC, (B, C)),
    Row("negative", [(F,), (I,), (SPECIAL,)]),
    binary_row("nextafter", PAIRS, (D, F.astype(np.float64)), rtol=0),
    binary_row("not_equal", *COMPARED),
    Row("positive", [(F,), (I,)]),
    binary_row("pow", (np.abs(F), G), (F, 2), (F, 3), (np.abs(I) % 4, np.abs(J) % 5), (2.0, F), (np.abs(F), 0.5),
    reference="power"),
    binary_row("remainder", (F, G), (I, J + 10), (F, 2), (7, F), (U, 7), (np.abs(I), 3)),
    Row("round", [(F * 5,), (SPECIAL,), (F, 2), (np.array([0.5, 1.5, 2.5, -0.5], np.float32),)]),
    Row("round", [(I,), (np.array([14, 25, 35], np.int32), -1)]),
    Row("sign", [(F,), (I,), (SPECIAL,)]),
    Row("signbit", [(SPECIAL,), (I,), (D,)], reference=lambda x: x < 0 if x.dtype.kind == "i" else np.signbit(x)),
    Row("square", [(F,), (I,)]),
    binary_row("subtract", *ARITHMETIC),
    Row("trunc", [(F * 5,), (SPECIAL,)]),
    Row("trunc", [(I,)], reference=lambda x: x),
    Row("where", [(B, F, G), (B, F, 0), (B, 1.0, F), (I, F, G), (B[:, :1], F, G[0])]),
    # reductions
    *reduction_rows("sum", [F, I, B, U, T3, E, D], rtol=1e-5, atol=1e-6),
    Row("sum", [(U,), (F,)], {"axis": 0, "dtype": np.float64}, rtol=1e-5),
    *reduction_rows("prod", [F, I % 3, B, E], rtol=1e-5),
    *reduction_rows("max", [F, I, T3, B]),
    *reduction_rows("min", [F, I, T3, B]),
    *reduction_rows("mean", [F, I, T3, D, F.astype(np.float16)], rtol=1e-3, atol=1e-6),
    *reduction_rows("var", [F, I, T3], rtol=1e-5),
    *reduction_rows("std", [F, T3], rtol=1e-5),
    Row("var", [(F,)], {"axis": 1, "ddof": 1}, rtol=1e-5),
    Row("std", [(F,)], {"axis": 1, "correction": 1},
        rtol=1e-5, reference=lambda x, axis, correction: x.std(axis, ddof=1)),
    *reduction_rows("any", [B, I, F, E]),
    *reduction_rows("all", [B, I, F, E]),
    *reduction_rows("count_nonzero", [B, I, F]),
    Row("argmax", [(F,), (I,), (B,), (np.array([1, np.nan, 3], np.float32),)]),
    Row("argmax", [(T3,), (F,)], {"axis": 1, "keepdims": True}),
    Row("argmin", [(F,), (I,), (B,), (U,), (np.array([5, -(2**31), 2**31 - 1], np.int32),)]),
    Row("argmin", [(T3,)], {"axis": -1}),
    # shapes
    Row("reshape", [(F, (4, 3)), (F, -1), (T3, (4, -1)), (E, (3, 0))]),
    Row("ravel", [(T3,)]),
    Row("permute_dims", [(T3, (2, 0, 1)), (T3, (-1, 1, 0))], reference="transpose"),
    Row("transpose", [(T3,), (T3, (0, 2, 1))]),
    Row("matrix_transpose", [(F,), (T3,)]),
    Row("swapaxes", [(T3, 0, -1)]),
    Row("moveaxis", [(T3, 0, -1), (T3, (0, 1), (-1, 0)), (T3, 2, 0)]),
    Row("expand_dims", [(F, 0), (F, -1), (F, (0, 3)), (F, (1, -1))]),
    Row("squeeze", [(F[None],), (F[:, None, :, None],), (F[:, None], 1), (F[None, ..., None], (0, -1))]),
    Row("broadcast_to", [(V, (3, 5)), (F[:, :1], (2, 3, 4)), (2.0, (2,))]),
    Row("broadcast_arrays", [(F[:, :1], G[0], np.float32(1))]),
    Row("broadcast_shapes", [((3, 1), (1, 4)), ((), (2,))]),
    Row("flip", [(T3,), (T3, 0), (T3, (0, 2))]),
    Row("roll", [(F, 1), (F, -5), (F, 2, 1), (T3, (1, -1), (0, 2)), (F, 1, (0, 1)), (E, 2)]),
    Row("concat", [([F, G],), ([F, G], 1), ([F, I], -1), ([F, V], None)], reference="concatenate"),
    Row("stack", [([F, G],), ([F, G], -1), ([F[0], G[0]], 1)]),
    Row("unstack", [(T3,)], {"axis": 1}),
    Row("split", [(F, 2, 1), (T3, [1, 3], 2), (V, [2, 2, 4]), (V, [4, 2])]),
    Row("diff", [(F,), (I,), (B,), (V[:1],), (V[:0],)]),
    Row("diff", [(T3,), (F,)], {"axis": 0, "n": 2}),
    Row("repeat", [(F, 2), (F, 0), (T3, 2, 1), (E, 2, 0), (F, 3, 1), (F, [1, 0, 2], 0)]),
    Row("tile", [(F, 2), (F, (2, 1, 3)), (V, (2, 2)), (2.0, (3,))]),
    Row("pad", [(F, 1), (F, ((1, 2), (0, 3))), (V, (2, 0)), (I, 2)]),
    Row("pad", [(F, 1)], {"constant_values": 5}),
    *[Row("pad", [(V, (2, 3)), (F, ((1, 2), (3, 0)))],
    {"mode": mode}) for mode in ("edge", "reflect", "symmetric", "wrap")],
    Row("atleast_1d", [(2.0,), (V,)]),
    Row("atleast_2d", [(2.0,), (V,), (T3,)]),
    # products
    Row("matmul", [(F, G.T), (T3, T3.swapaxes(1, 2)), (V, V), (F, F[0]), (F[:, 0], F), (T3, G.T),
        (F, T3.swapaxes(1, 2)),
                   (T3[:, None], T3.swapaxes(1, 2)), (T3[:1], T3.swapaxes(1, 2)), (T3, F[0]), (F[0], T3.swapaxes(1, 2)),
                   (I, J.T), (B, C.T), (E, F), (F, I.T)], rtol=1e-5, atol=1e-6),
    Row("tensordot", [(T3, G.T), (F, V[:4])], {"axes": 1}, rtol=1e-5, atol=1e-6),
    Row("tensordot", [(F, G)], {"axes": 2}, rtol=1e-5, atol=1e-6),
    Row("tensordot", [(V, V)], {"axes": 0}, rtol=1e-5),
    Row("tensordot", [(T3, T3.transpose(2, 0, 1))], {"axes": ([0, 2], [1, 0])}, rtol=1e-5, atol=1e-6),
    Row("vecdot", [(F, G), (T3, G), (V, V), (T3[:, :1], G)], rtol=1e-5, atol=1e-6),
    Row("vecdot", [(F, G)], {"axis": 0}, rtol=1e-5, atol=1e-6),
    Row("outer", [(V, F[0]), (F, G)]),
    Row("trace", [(F,), (F, 1)], rtol=1e-5),
    Row("diagonal", [(F,), (F, 1), (F, -2), (F, 9)]),
    Row("einsum", [(spec, *operands) for spec, *operands in (
        ("ij,kj->ik", F, G), ("ij,jk", F, G.T), ("ij,ij->", F, G), ("ij,ij->ij", F, G), ("ij->ji", F), ("ij->", F),
        ("ij->j", F),
        ("ii", F[:, :3]), ("ii->i", F[:, :3]), ("bij,bjk->bik", T3, T3.swapaxes(1, 2)), ("bij,jk->bik", T3, G.T),
        ("...ij->...ji", T3), ("...j,j", T3, F[0]), ("...ij,...jk->...ik", T3[:1], T3.swapaxes(1, 2)),
        ("ij,j->i", F, F[0]),
        ("i,j->ij", V, F[0]), ("i,j,k->kji", V, F[0], G[:, 0]), ("ij,jk,kl->il", F, G.T, G), ("bij,bkj->bik", T3, T3),
        ("ijj->i", T3[:, :, :3]), ("iji->j", T3[:, :, :2]), ("ij,ij,ij->i", F, G, F),
        ("abc,cd,def->abef", T3, F[0][:, None], T3[:1]),
        ("ba", F), ("i->i", V), ("ij,ik->jk", I, J), ("...,...", F, G), ("ij,jk->ik", F[:, :1], G),
        ("ij , jk -> ik", F, G.T),
        ("iij,j->i", T3[:, :2], F[0]), ("ij,kl->", F, G), ("ij,jk->ki", B, C.T),
    )], rtol=2e-5, atol=2e-6),
    # indexing
    Row("take", [(F, [0, -1]), (F, np.array([[0, 5], [11, -1]]))]),
    Row("take", [(T3, np.array([[0, 2], [1, -1]]))], {"axis": 1}),
    Row("take_along_axis", [(F, np.array([[0, -1], [2, 2], [3, 1]]), 1), (F, np.array([[0, 1, 2, -1]]), 0),
        (T3, np.zeros((2, 1, 4), int), 1)]),
    Row("searchsorted", [(np.array([1, 2, 2, 5], np.float32), np.array([0, 1, 2, 3, 5, 9, np.nan], np.float32)),
        (np.array([], np.float32), V),
                         (np.array([3], np.int32), I)]),
    Row("searchsorted", [(np.array([1, 2, 2, np.nan], np.float32), np.array([0, 1, 2, 3, 5, 9, np.nan],
        np.float32))], {"side": "right"}),
    Row("searchsorted", [(np.array([5, 1, 2], np.int32), np.array([0, 2, 9]))], {"sorter": np.array([1, 2, 0])}),
    Row("nonzero", [(I,), (B,), (V,)]),
    # order
    Row("sort", [(F,), (I,), (B,), (U,), (T3, 0), (T3, 1), (F, None), (E, 0), (TIES,), (D,)]),
    Row("argsort", [(F,), (I,), (B,), (U,), (T3, 1), (F, None), (E, 0), (TIES,), (SPECIAL,)], {"stable": True}),
    Row("lexsort", [([TIES[0], TIES[1]],), ([I[0], V[:4]],), ([I, F],), ([F, I], 0)]),
    Row("median", [(F,), (T3, 1), (T3, (0, 2)), (I,), (V,), (np.array([1, np.nan], np.float32),), (D, 0),
                   (np.array([[1, np.inf], [-np.inf, 1], [np.inf, np.inf]], np.float32), 1)], rtol=1e-5),
    Row("quantile", [(F, 0.3), (F, [0.0, 0.5, 1.0], 1), (T3, 0.25, (0, 1)), (V, [[0.1], [0.9]]), (I, 0.5),
        (np.array([1, 2, 3, np.inf], np.float32), 0.1), (np.array([1, np.nan], np.float32), 0.5)], rtol=1e-5),
    *[Row("quantile", [(V, [0.0, 0.1, 0.4, 0.5, 0.75, 1.0]), (F, 0.37, 1)], {"method": method}, rtol=1e-5)
      for method in ("lower", "higher", "nearest", "midpoint")],
    Row("percentile", [(F, 30), (F, [0, 50, 100], 1)], {"keepdims": True}, rtol=1e-5),
    # cumulative
    Row("cumsum", [(F,), (F, 1), (I, 0), (B, 0), (U,), (T3, -1), (E, 0), (D, 1)], rtol=1e-5, atol=1e-6),
    Row("cumsum", [(F, 0)], {"dtype": np.float64}, rtol=1e-5, atol=1e-6),
    Row("cumprod", [(F,), (F, 1), (I, 0), (B, 0), (T3, -1), (E, 0)], rtol=1e-5),
    Row("cumulative_sum", [(V,), (I[0],)], {"include_initial": True}, rtol=1e-5),
    Row("cumulative_sum", [(F,), (I,), (T3,)], {"axis": 1}, rtol=1e-5, atol=1e-6),
    Row("cumulative_prod", [(F,), (I,)], {"axis": 0, "include_initial": True}, rtol=1e-5),
    Row("cummax", [(F, 1), (I, 0), (U, 1), (np.array([1, 3, np.nan, 2], np.float32), 0)],
        reference=lambda x, axis: np.maximum.accumulate(x, axis)),
    Row("cummin", [(F, 1), (B, 0), (F,)],
        reference=lambda x, axis=None: np.minimum.accumulate(x.ravel() if axis is None else x, axis or 0)),
    # sets
    Row("isin", [(I, J), (I, [1, 2]), (F, F[0]), (I, 3), (V, V[:0]), (B, True), (SPECIAL, SPECIAL[-3:])]),
    Row("isin", [(I, J)], {"invert": True}),
    Row("unique_values", [(TIES,), (I,), (B,), (SPECIAL,), (E,), (np.float32(2),)],
        reference=lambda x: np.unique(x, equal_nan=False)),
    *[Row(f"unique_{name}", [(TIES,), (I,), (V,), (E,)], reference=REFERENCES[name])
      for name in ("all", "counts", "inverse")],
]  # fmt: skip


def expected_dtype(result: np.ndarray, args: tuple[Any, ...], kwargs: dict[str, Any]) -> np.dtype[Any]:
    """numpy's dtype, except that 64 bits must come from somewhere else than numpy's defaults."""
    if kwargs.get("dtype") is not None:
        return np.dtype(kwargs["dtype"])
    given = {leaf.dtype for leaf in tree.leaves(args) if isinstance(leaf, (np.ndarray, np.generic))}
    given |= {np.dtype(leaf) for leaf in args if isinstance(leaf, type)}
    narrow = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32, np.dtype(np.uint64): np.uint32}
    return result.dtype if result.dtype in given else np.dtype(narrow.get(result.dtype, result.dtype))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}{row.kwargs or ''}")
def test_function_equals_numpy(row: Row) -> None:
    reference = row.reference if callable(row.reference) else getattr(np, row.reference or row.name)
    for args in row.calls:
        with np.errstate(all="ignore"):
            expected = reference(*args, **row.kwargs)
        found = getattr(mnp, row.name)(*args, **row.kwargs)
        assert_same(found, expected, args, row)


LISTS = ("meshgrid", "broadcast_arrays")  # of the standard's version 2024.12; numpy has the next one's tuples


def assert_same(found: Any, expected: Any, args: tuple[Any, ...], row: Row) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        assert type(found) is (list if row.name in LISTS else type(expected))
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, args, row)
        return
    if not isinstance(found, Array):
        assert found == expected
        return
    wanted = np.asarray(expected)
    assert found.shape == wanted.shape
    if row.name not in INDICES:
        assert found.dtype == expected_dtype(wanted, args, row.kwargs)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(np.asarray(found), wanted.astype(found.dtype), rtol=row.rtol, atol=row.atol)


HALVES = [(np.float16, 2e-3, 1e-3), (ml_dtypes.bfloat16, 2e-2, 1e-2)]


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in FLOAT_FUNCTIONS], ids=lambda row: row.name)
@pytest.mark.parametrize(("dtype", "rtol", "atol"), HALVES, ids=["f16", "bf16"])
def test_float_functions_hold_in_half_precision(row: Row, dtype: Any, rtol: float, atol: float) -> None:
    for (sample,) in row.calls[:1]:
        x = sample[np.abs(sample) < 60].astype(dtype)
        with np.errstate(all="ignore"):
            expected = row.reference(x.astype(np.float64)).astype(dtype)  # type: ignore[operator]
            found = getattr(mnp, row.name)(x)
            assert found.dtype == x.dtype
            np.testing.assert_allclose(np.asarray(found, np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_signs_and_neighbours_hold_in_every_width(dtype: Any) -> None:
    x = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan], dtype)
    assert np.asarray(mnp.signbit(x)).tolist()[:6] == [False, True, False, True, False, True]
    assert np.asarray(mnp.copysign(1.0, mnp.asarray(x)))[:6].tolist() == [1, -1, 1, -1, 1, -1]
    up = np.asarray(mnp.nextafter(x, np.array(np.inf, dtype)))
    expected = np.nextafter(x, np.array(np.inf, dtype))
    np.testing.assert_array_equal(up.astype(np.float64), expected.astype(np.float64))


INDICES = {"argmax", "argmin", "argsort", "lexsort", "nonzero", "searchsorted", "count_nonzero"}  # always int32

ALIASES = {
    "absolute": "abs", "amax": "max", "amin": "min", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
    "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "around": "round",
    "bitwise_not": "bitwise_invert", "concatenate": "concat", "conjugate": "conj", "fix": "trunc",
    "invert": "bitwise_invert", "left_shift": "bitwise_left_shift", "mod": "remainder", "power": "pow",
    "right_shift": "bitwise_right_shift", "transpose": "permute_dims", "true_divide": "divide",
}  # fmt: skip
MODULES = {"fft", "linalg", "random"}  # test_fft.py, test_random.py
HABITS = {
    name for name in vars(numpy_extras) if getattr(vars(numpy_extras)[name], "__module__", "") == numpy_extras.__name__
}
HABITS |= {"degrees", "radians", "row_stack", "trapz"}  # test_numpy_habits.py
COMPLEX = {"angle", "conj", "imag", "iscomplex", "iscomplexobj", "isreal", "isrealobj", "real"}  # test_complex.py
CONSTANTS = {"e", "inf", "nan", "newaxis", "pi"}
DTYPES = {
    "bfloat16", "bool", "complex64", "complex128", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
ABOUT_DTYPES = {"can_cast", "finfo", "iinfo", "isdtype", "promote_types", "result_type"}  # test_numpy_dtypes.py


def test_every_function_has_a_row() -> None:
    covered = (
        {row.name for row in ROWS}
        | {"copy", "from_dlpack", "topk", "unique", "union1d", "intersect1d", "setdiff1d", "setxor1d"}
        | set(ALIASES)
        | MODULES
        | COMPLEX
        | {name for name in HABITS if not name.startswith("_")}
        | CONSTANTS
        | DTYPES
        | ABOUT_DTYPES
    )
    assert set(mnp.__all__) == covered


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_numpys_names_are_the_same_functions(alias: str, name: str) -> None:
    assert getattr(mnp, alias) is getattr(mnp, name)


@pytest.mark.parametrize("largest", [True, False])
def test_the_k_best_come_first(largest: bool) -> None:
    values, indices = mnp.topk(TIES, 3, largest=largest)
    order = np.argsort(-TIES if largest else TIES, axis=-1, stable=True)
    if largest:
        order = np.array([[6, 0, 2], [2, 3, 4]])  # NaN is the largest
    np.testing.assert_array_equal(np.asarray(indices), order[:, :3])
    np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(TIES, order[:, :3], -1))
    with pytest.raises(InputError, match="topk of 8 from an axis of 7"):
        mnp.topk(TIES, 8)


@pytest.mark.parametrize("x", [F, TIES, I, B, T3])
def test_descending_order_keeps_equal_elements_in_place(x: np.ndarray) -> None:
    order = np.asarray(mnp.argsort(x, descending=True))
    back = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, stable=True)[..., ::-1]
    np.testing.assert_array_equal(order, back)
    np.testing.assert_array_equal(np.asarray(mnp.sort(x, descending=True)), np.take_along_axis(x, back, -1))


@pytest.mark.parametrize("wrong", [
    lambda: mnp.sort(F, 2), lambda: mnp.argsort(np.float32(1)), lambda: mnp.cumulative_sum(F), lambda: mnp.lexsort([]),
    lambda: mnp.quantile(F, 1.5), lambda: mnp.quantile(F, 0.5, method="best"), lambda: mnp.quantile(E, 0.5),
    lambda: mnp.pad(E, 1, "edge"),
    lambda: mnp.repeat(F, [1, 2], 0), lambda: mnp.repeat(F, -1), lambda: mnp.diff(F, -1), lambda: mnp.lexsort([F, V]),
])  # fmt: skip
def test_what_cannot_be_ordered_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises((InputError, ShapeError)):
        wrong()


def test_constants() -> None:
    assert (mnp.pi, mnp.e, mnp.inf, mnp.newaxis) == (np.pi, np.e, np.inf, None)
    assert np.isnan(mnp.nan)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_integers_are_rounded_exactly(dtype: str) -> None:
    """They went through float32: 123,456,789 to tens was 123,456,792.  Python's own integers are the oracle."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    near = [
        number
        for place in (1, 2, 5)
        for number in (5 * 10**place, 15 * 10**place, 25 * 10**place + 1, 35 * 10**place - 1)
    ]
    numbers = [
        n for n in (0, 5, 15, 25, -5, -15, *near, 123_456_789, 2**53 + 123, high - 60, low + 60) if low <= n <= high
    ]
    for decimals in (-1, -2, -5, -18):
        wanted = [round(number, decimals) for number in numbers]
        kept = [place for place, number in enumerate(wanted) if low <= number <= high]
        found = np.asarray(mnp.round(np.array(numbers, dtype), decimals))
        assert found.dtype == dtype
        assert [int(found[place]) for place in kept] == [wanted[place] for place in kept]


def test_a_number_without_such_places_stays() -> None:
    for dtype, number, decimals in (
        ("float16", 1.5, 5),
        ("float32", 3e38, 2),
        ("float32", 1.5, 39),
        ("float64", 1e300, 300),
    ):
        assert mnp.round(np.array(number, dtype), decimals) == np.array(number, dtype)


HALVES = (np.random.default_rng(3).standard_normal((3, 70_001)) * 400).astype(np.float16)


@pytest.mark.parametrize("name", ["std", "nanmean", "nanstd", "average", "corrcoef", "cov"])
def test_means_of_halves_have_room_for_their_sums(name: str) -> None:
    """Sums and squares of float16 were infinite on the way, and so was a count of more than 65,504."""
    given = HALVES / np.float16(8) if name == "cov" else HALVES
    named = {"axis": 1} if name not in ("cov", "corrcoef") else {}
    weights = {"weights": np.full(given.shape, 2, np.float16)} if name == "average" else {}
    found = np.asarray(getattr(mnp, name)(given, **named, **weights))
    wanted = getattr(np, name)(given.astype(np.float64), **named, **weights)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2e-3, atol=2e-2 if name != "cov" else 2)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64", "int8"])
def test_integers_are_close_by_their_own_difference(dtype: str) -> None:
    """They were compared as float32: 16,777,217 and 16,777,216 were equal."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    left, right = np.array([high, high, low, 7], dtype), np.array([high - 1, low, high, 7], dtype)
    assert np.asarray(mnp.isclose(left, right, rtol=0, atol=0)).tolist() == [False, False, False, True]
    assert np.asarray(mnp.isclose(left, right, rtol=0, atol=1)).tolist() == [True, False, False, True]
    assert not mnp.allclose(left, right)


def test_sinc_has_derivatives_around_0() -> None:
    """The second one was 0 at 0; it is -pi^2 / 3."""
    slope = mesh.grad(lambda x: mnp.sum(mnp.sinc(x)))
    curve = mesh.grad(lambda x: mnp.sum(slope(x)))
    x = np.array([0.0, 1e-8, 1e-3, 0.0159, 0.016, 0.3])
    angle = np.pi * x[2:]
    np.testing.assert_allclose(np.asarray(mnp.sinc(x)), np.sinc(x), rtol=1e-15)
    exact = np.pi * (np.cos(angle) / angle - np.sin(angle) / angle**2)
    np.testing.assert_allclose(np.asarray(slope(x))[2:], exact, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(curve(x))[:3], -(np.pi**2) / 3, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_bincount_has_room_for_sums_of_weights(dtype: str) -> None:
    """The weights 100, 100 and 100 in uint8 summed up to 44."""
    places, weights = np.array([1, 1, 0, 1]), np.array([100, 100, 1, 100]).astype(dtype)
    np.testing.assert_array_equal(np.asarray(mnp.bincount(places, weights)), np.bincount(places, weights))


@pytest.mark.parametrize("order", [1, 2, 3, -1])
def test_norms_of_halves_have_room_for_their_sums(order: float) -> None:
    """That of (300, 400), which is 500, was infinite."""
    given = np.array([[300, 400], [-5, 7]], np.float16)
    found = np.asarray(mnp.linalg.vector_norm(given, axis=1, ord=order))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, np.linalg.vector_norm(given.astype(np.float64), axis=1, ord=order), rtol=1e-3)
    assert mnp.linalg.norm(given[0]) == 500 and mnp.linalg.norm(given).dtype == np.float16
