"""Calls of every function of the Array API standard, as the standard writes them, on numpy arrays.

`CASES` has at least one call per function and dtype it is for; `WRONG` has calls that must raise.  Any namespace of the
standard can be given them, and numpy's own (2.1 and later) is one.  To cover a function, add calls to `_calls`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
NUMBERS = INTEGERS + FLOATS
EVERY = ("bool", *NUMBERS)

SHAPES: tuple[tuple[int, ...], ...] = ((), (5,), (3, 4), (2, 3, 2), (0, 3))


@dataclass(frozen=True)
class Call:
    """`xp.name(*args, **kwargs)`, a name with dots or without; numpy arrays among the arguments are arrays of xp."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        shown = [f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else repr(a) for a in self.args]
        return f"{self.name}({', '.join(shown)}{', ' if self.kwargs else ''}{self.kwargs or ''})"

    def made_by(self, xp: Any, wrap: Callable[[Any], Any]) -> Any:
        """The result in a namespace; `wrap` makes its arrays of numpy's."""
        return attrgetter(self.name)(xp)(
            *[_given(each, xp, wrap) for each in self.args],
            **{name: _given(each, xp, wrap) for name, each in self.kwargs.items()},
        )


def _given(value: Any, xp: Any, wrap: Callable[[Any], Any]) -> Any:
    """An argument in a namespace: its arrays and its dtypes."""
    if isinstance(value, (list, tuple)) and any(isinstance(each, np.ndarray) for each in value):
        return type(value)(wrap(each) for each in value)
    if isinstance(value, str) and value in (*EVERY, *COMPLEX):
        return getattr(xp, value)
    return wrap(value) if isinstance(value, np.ndarray) else value


def array(dtype: str, *shape: int, seed: int = 0, low: float = -9, high: float = 9) -> NDArray[Any]:
    """Values that every function has a result for, of both signs where there are any, with repetitions."""
    rng = np.random.default_rng([seed, len(dtype), *shape])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.asarray(rng.random(shape) > 0.5)
    if kind == "f":
        return np.asarray(rng.uniform(low, high, shape).round(2)).astype(dtype)
    if kind == "c":
        return np.asarray(rng.uniform(low, high, (2, *shape)).round(2).T @ [1, 1j]).T.astype(dtype)
    return np.asarray(rng.integers(0 if kind == "u" else int(low), int(high) + 1, shape)).astype(dtype)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e30, -1e-30, math.inf, -math.inf, math.nan]

FLOAT_UNARY = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log1p", "log10"),
    *("log2", "reciprocal", "sin", "sinh", "sqrt", "tan", "tanh"),
)
NUMBER_UNARY = (
    *("abs", "ceil", "floor", "isfinite", "isinf", "isnan", "negative", "positive", "round", "sign", "square"),
    "trunc",
)
FLOAT_BINARY = ["atan2", "copysign", "hypot", "logaddexp", "nextafter", "divide"]
NUMBER_BINARY = ["add", "floor_divide", "maximum", "minimum", "multiply", "remainder", "subtract"]
ORDERS = ["greater", "greater_equal", "less", "less_equal"]
STATISTICS = ["max", "mean", "min", "prod", "std", "sum", "var"]


def _elementwise() -> Iterator[Call]:
    for name in FLOAT_UNARY:
        for dtype in FLOATS:
            low, high = {"acos": (-1, 1), "asin": (-1, 1), "atanh": (-0.9, 0.9), "acosh": (1, 9)}.get(name, (-9, 9))
            for shape in SHAPES:
                yield Call(name, (array(dtype, *shape, low=low, high=high),))
            yield Call(name, (np.array(SPECIAL, dtype),))
    for name in (*NUMBER_UNARY, "signbit"):
        for dtype in FLOATS if name == "signbit" else SIGNED + FLOATS if name == "negative" else NUMBERS:
            for shape in SHAPES:
                yield Call(name, (array(dtype, *shape),))
            if dtype in FLOATS:
                yield Call(name, (np.array(SPECIAL, dtype),))
    for name in (*FLOAT_BINARY, *NUMBER_BINARY, *ORDERS, "equal", "not_equal", "pow"):
        dtypes = FLOATS if name in FLOAT_BINARY else EVERY if name in ("equal", "not_equal") else NUMBERS
        for dtype in dtypes:
            yield from _pairs(name, dtype)
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield from _pairs(name, "bool")
    yield Call("logical_not", (array("bool", 3, 4),))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        for dtype in ("bool", *INTEGERS):
            yield from _pairs(name, dtype)
    for dtype in ("bool", *INTEGERS):
        yield Call("bitwise_invert", (array(dtype, 3, 4),))
    for dtype in INTEGERS:
        for name in ("bitwise_left_shift", "bitwise_right_shift"):
            yield Call(name, (array(dtype, 3, 4), array(dtype, 4, low=0, high=7)))
    for dtype in NUMBERS:
        x = array(dtype, 3, 4)
        yield Call("clip", (x, 1, 5))
        yield Call("clip", (x,), {"max": 2})
        yield Call("clip", (x, array(dtype, 4, low=0, high=3), array(dtype, 3, 1, low=4, high=7)))
        yield Call("where", (array("bool", 3, 4), x, array(dtype, 4)))
        yield Call("where", (array("bool", 3, 1), x, 2))


def _pairs(name: str, dtype: str) -> Iterator[Call]:
    whole = {"low": 1, "high": 3} if name in ("pow", "floor_divide", "remainder", "divide") else {}
    yield Call(name, (array(dtype, 3, 4), array(dtype, 3, 4, seed=1, **whole)))
    yield Call(name, (array(dtype, 3, 1), array(dtype, 4, seed=1, **whole)))
    yield Call(name, (array(dtype), array(dtype, 2, 3, 2, seed=1, **whole)))
    yield Call(name, (array(dtype, 0, 3), array(dtype, 3, seed=1, **whole)))
    if dtype != "bool" and name not in ("atan2", "copysign", "hypot", "logaddexp", "nextafter"):
        yield Call(name, (array(dtype, 5), 2))
    if dtype in FLOATS:
        yield Call(name, tuple(np.array(side, dtype) for side in np.meshgrid(SPECIAL, SPECIAL)))
    for other in EVERY:  # of one kind: mixed kinds have no result in the standard
        if np.dtype(other).kind in _KIN[np.dtype(dtype).kind] and other != dtype and "uint64" not in (dtype, other):
            yield Call(name, (array(dtype, 5), array(other, 5, seed=1, **whole)))


_KIN = {"b": "", "i": "iu", "u": "iu", "f": "f"}


def _creation() -> Iterator[Call]:
    for dtype in EVERY:
        x = array(dtype, 3, 4)
        for name in ("zeros", "ones"):
            yield Call(name, ((2, 3),), {"dtype": dtype})
            yield Call(f"{name}_like", (x,))
        yield Call("empty_like", (x[:0],))
        yield Call("empty", ((0, 2),), {"dtype": dtype})
        yield Call("full", ((2, 3), True if dtype == "bool" else 5), {"dtype": dtype})
        yield Call("full_like", (x, True if dtype == "bool" else 5))
        yield Call("eye", (3, 4), {"k": 1, "dtype": dtype})
        yield Call("tril", (x,), {"k": -1})
        yield Call("triu", (x,), {"k": 1})
        yield Call("asarray", (x,), {"dtype": "float64"})
        yield Call("astype", (x, "int16"))
        yield Call("meshgrid", (x[0], x[:, 0]), {"indexing": "ij"})
        yield Call("meshgrid", (x[0], x[:, 0], x[1]))
    for dtype in NUMBERS:
        yield Call("arange", (7,), {"dtype": dtype})
        yield Call("arange", (2, 17, 3), {"dtype": dtype})
    for dtype in FLOATS:
        yield Call("linspace", (-1, 3, 7), {"dtype": dtype})
        yield Call("linspace", (0, 1, 5), {"dtype": dtype, "endpoint": False})
        yield Call("arange", (0.5, 3.0, 0.25), {"dtype": dtype})
        yield Call("arange", (3, -2, -1), {"dtype": dtype})
    yield Call("zeros", (4,), {"dtype": "float32"})
    yield Call("from_dlpack", (array("float32", 3, 4),))


def _manipulation() -> Iterator[Call]:
    for dtype in EVERY:
        x, t = array(dtype, 3, 4), array(dtype, 2, 3, 2)
        yield Call("broadcast_to", (x, (2, 3, 4)))
        yield Call("broadcast_arrays", (x, array(dtype, 4)))
        for axis in (0, 1, -1, None):
            yield Call("concat", ([x, array(dtype, 3, 4, seed=1)],), {"axis": axis})
        for axis in (0, 2, -1):
            yield Call("stack", ([x, array(dtype, 3, 4, seed=1)],), {"axis": axis})
            yield Call("expand_dims", (x,), {"axis": axis})
            yield Call("unstack", (t,), {"axis": axis})
        for axis in (None, 0, -1, (0, 1)):
            yield Call("flip", (t,), {"axis": axis})
        yield Call("moveaxis", (t, 0, -1))
        yield Call("moveaxis", (t, (0, 1), (2, 0)))
        yield Call("permute_dims", (t, (2, 0, 1)))
        yield Call("matrix_transpose", (t,))
        yield Call("repeat", (x, 2))
        yield Call("repeat", (x, 2), {"axis": 1})
        yield Call("repeat", (x, np.array([1, 0, 2])), {"axis": 0})
        yield Call("reshape", (t, (4, -1)))
        yield Call("reshape", (t, (3, 2, 2)), {"copy": True})
        yield Call("roll", (x, 1))
        yield Call("roll", (x, (1, -2)), {"axis": (0, 1)})
        yield Call("squeeze", (x[None, :, :, None], (0, 3)))
        yield Call("tile", (x, (2, 1, 2)))
        yield Call("take", (x, np.array([2, 0, 0])), {"axis": 0})
        yield Call("take", (x[0], np.array([1, 3])))
        yield Call("take_along_axis", (x, np.array([[0, 3], [1, 1], [2, 0]])), {"axis": 1})
        if dtype != "bool":
            yield Call("diff", (x,))
            yield Call("diff", (x,), {"axis": 0, "n": 2})
            yield Call("diff", (x,), {"prepend": x[:, :1], "append": x[:, :2]})


def _searching() -> Iterator[Call]:
    for dtype in EVERY:
        x, t = array(dtype, 3, 4), array(dtype, 2, 3, 2)
        for name in ("argmax", "argmin"):
            if dtype != "bool":
                yield Call(name, (x,))
                yield Call(name, (t,), {"axis": 1, "keepdims": True})
        for name in ("all", "any", "count_nonzero"):
            yield Call(name, (x,))
            yield Call(name, (t,), {"axis": (0, 2)})
            yield Call(name, (t,), {"axis": -1, "keepdims": True})
            yield Call(name, (x[:0],), {"axis": 0})
        yield Call("nonzero", (x,))
        for name in ("unique_all", "unique_counts", "unique_inverse"):
            yield Call(name, (x,))
        for name in ("sort", "argsort"):
            if dtype != "bool":
                yield Call(name, (x,))
                yield Call(name, (t,), {"axis": 1})
                yield Call(name, (x[:0],), {"axis": 0})
        if dtype != "bool":
            ordered = np.sort(array(dtype, 7))
            yield Call("searchsorted", (ordered, array(dtype, 2, 3, seed=1)))
            yield Call("searchsorted", (ordered, array(dtype, 5, seed=1)), {"side": "right"})
            yield Call("searchsorted", (ordered[::-1], ordered), {"sorter": np.arange(6, -1, -1)})
        yield Call("isin", (x, x[0, :2]))


def _statistics() -> Iterator[Call]:
    for dtype in NUMBERS:
        x, t = array(dtype, 3, 4, low=-2, high=3), array(dtype, 2, 3, 2, low=-2, high=3)
        for name in STATISTICS:
            if dtype in INTEGERS and name in ("mean", "std", "var"):
                continue
            yield Call(name, (x,))
            yield Call(name, (t,), {"axis": (0, 2)})
            yield Call(name, (t,), {"axis": 1, "keepdims": True})
            if name in ("std", "var"):
                yield Call(name, (x,), {"axis": 0, "correction": 1})
            if name in ("sum", "prod"):
                yield Call(name, (x[:0],), {"axis": 0})
                yield Call(name, (x,), {"dtype": "float64"})
        for name in ("cumulative_sum", "cumulative_prod"):
            yield Call(name, (x,), {"axis": 0})
            yield Call(name, (x[0],), {"include_initial": True})
            yield Call(name, (x,), {"axis": -1, "dtype": "float64"})


def _products() -> Iterator[Call]:
    for dtype in NUMBERS:
        x, t = array(dtype, 3, 4, low=-3, high=3), array(dtype, 2, 4, 3, low=-3, high=3)
        yield Call("matmul", (x, t[0]))
        yield Call("matmul", (x, t))
        yield Call("matmul", (x[0], t))
        yield Call("matmul", (t, x[:, 0]))
        yield Call("tensordot", (x, t), {"axes": ((1,), (1,))})
        yield Call("tensordot", (x, t[0]), {"axes": 1})
        yield Call("tensordot", (x, x), {"axes": 2})
        yield Call("vecdot", (x, x))
        yield Call("vecdot", (t, t[:1]), {"axis": -2})


COMPLEX_UNARY = (*FLOAT_UNARY, "abs", "conj", "imag", "isfinite", "isinf", "isnan", "negative", "positive", "real",
                 "round", "sign", "square")  # fmt: skip


def _complex() -> Iterator[Call]:
    cuts = [complex(x, y) for x in (-2.0, -0.5, -0.0, 0.0, 0.5, 2.0) for y in (0.0, -0.0, 1.5, -0.75)]
    cuts += [complex(y, x) for x in (-2.0, -0.5, 0.5, 2.0) for y in (0.0, -0.0)]
    for dtype in COMPLEX:
        x, y, t = array(dtype, 3, 4), array(dtype, 3, 4, seed=1), array(dtype, 2, 4, 3)
        for name in COMPLEX_UNARY:
            for shape in SHAPES:
                yield Call(name, (array(dtype, *shape, low=-3, high=3),))
            yield Call(name, (np.array(cuts, dtype),))
        for name in ("isfinite", "isinf", "isnan", "exp", "sqrt", "conj", "abs", "negative", "real", "imag"):
            yield Call(name, (np.array([complex(a, b) for a in SPECIAL[-3:] for b in SPECIAL[-4:]], dtype),))
        for name in ("add", "divide", "equal", "multiply", "not_equal", "pow", "subtract"):
            yield Call(name, (x, y))
            yield Call(name, (x, y[0]))
            yield Call(name, (x, 2))
            yield Call(name, (x, 1.5 - 2j))
            yield Call(name, (x, array("float64", 4, low=1)))
            yield Call(name, (array(dtype, 0, 3), array(dtype, 3)))
        for name in ("logical_and", "logical_not", "logical_or", "logical_xor"):
            given = [array("bool", 3, 4, seed=seed) for seed in (0, 1)]
            yield Call(name, (given[0],) if name == "logical_not" else tuple(given))
        yield Call("where", (array("bool", 3, 4), x, y))
        for name in ("zeros", "ones", "empty"):
            yield Call(name, ((0, 3) if name == "empty" else (2, 3),), {"dtype": dtype})
        yield Call("zeros_like", (x,))
        yield Call("full", ((2, 3), 1 - 2j), {"dtype": dtype})
        yield Call("full_like", (x, 2j))
        yield Call("eye", (3,), {"dtype": dtype})
        yield Call("linspace", (-1, 2 + 3j, 7), {"dtype": dtype})
        yield Call("tril", (x,), {"k": 1})
        yield Call("asarray", (array("float32", 3),), {"dtype": dtype})
        yield Call("astype", (x, "complex128"))
        yield Call("astype", (array("int16", 3), dtype))
        yield Call("from_dlpack", (x,))
        yield Call("meshgrid", (x[0], y[1]))
        for axis in (0, 1):
            yield Call("concat", ([x, y],), {"axis": axis})
            yield Call("stack", ([x, y],), {"axis": axis})
            yield Call("flip", (x,), {"axis": axis})
            yield Call("diff", (x,), {"axis": axis})
        yield Call("permute_dims", (t, (2, 0, 1)))
        yield Call("matrix_transpose", (t,))
        yield Call("roll", (x, 1))
        yield Call("take", (x, np.array([2, 0, 0])), {"axis": 0})
        yield Call("take_along_axis", (x, np.array([[0, 3], [1, 1], [2, 0]])), {"axis": 1})
        for name in ("all", "any", "count_nonzero", "nonzero", "sum", "prod", "mean", "unique_all"):
            yield Call(name, (np.array([[0, 1j, 2], [3, 0, 1j]], dtype),))
        for name in ("sum", "prod", "mean"):
            yield Call(name, (t,), {"axis": (0, 2), "keepdims": True})
        yield Call("sum", (array("float32", 4),), {"dtype": dtype})
        for name in ("cumulative_sum", "cumulative_prod"):
            yield Call(name, (x,), {"axis": 1, "include_initial": True})
        yield Call("matmul", (x, t))
        yield Call("matmul", (array("float32", 3, 4), t))
        yield Call("tensordot", (x, t), {"axes": ((1,), (1,))})
        yield Call("vecdot", (x, y))
        yield Call("vecdot", (x, t[:1, :, 0]), {"axis": -1})


CASES: tuple[Call, ...] = tuple(
    call
    for made in (_complex, _elementwise, _creation, _manipulation, _searching, _statistics, _products)
    for call in made()
)  # fmt: skip

X, T = array("float32", 3, 4), array("float32", 2, 3, 2)
N, Z = array("int32", 3, 4), array("complex64", 3, 4)
WRONG: tuple[Call, ...] = (
    *[Call(name, (X, array("float32", 3))) for name in ("add", "multiply", "less", "equal", "atan2", "maximum", "pow")],
    *[Call(name, (X,), {"axis": axis}) for name in (*STATISTICS, "all", "any", "argmax", "flip", "sort", "argsort",
      "cumulative_sum", "count_nonzero", "unstack", "diff") for axis in (2, -3)],
    *[Call(name, (X[:0],), {"axis": 0}) for name in ("max", "min", "argmax", "argmin")],
    *[Call(name, (X,), {"axis": (0, 0)}) for name in ("sum", "max", "all", "flip")],
    *[Call(name, (X, X)) for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift")],
    *[Call(name, (Z,)) for name in ("floor", "ceil", "trunc", "signbit", "bitwise_invert")],
    *[Call(name, (Z, Z)) for name in ("atan2", "hypot", "logaddexp", "copysign", "nextafter", "bitwise_and")],
    *[Call(name, (Z, Z)) for name in ("floor_divide", "remainder")],
    Call("iinfo", ("complex64",)),
    Call("bitwise_invert", (X,)), Call("negative", (array("bool", 3),)), Call("sign", (array("bool", 3),)),
    Call("positive", (array("bool", 3),)), Call("subtract", (array("bool", 3), array("bool", 3))),
    Call("floor_divide", (X, array("float32", 3))),
    Call("reshape", (X, (5, 2))), Call("reshape", (X, (-1, -1))), Call("reshape", (X, (-1, 5))),
    Call("broadcast_to", (X, (4, 3))), Call("broadcast_to", (X, (3,))), Call("broadcast_arrays", (X, X.T)),
    Call("concat", ([X, X.T],)), Call("concat", ([X, X[0]],)), Call("concat", ([],)),
    Call("concat", ([X],), {"axis": 2}),
    Call("stack", ([X, X.T],)), Call("stack", ([],)), Call("stack", ([X],), {"axis": 3}),
    Call("expand_dims", (X,), {"axis": 3}), Call("squeeze", (X, 0)), Call("squeeze", (X[None], 4)),
    Call("permute_dims", (X, (0,))), Call("permute_dims", (X, (0, 0))), Call("permute_dims", (X, (0, 2))),
    Call("matrix_transpose", (X[0],)), Call("moveaxis", (X, (0, 1), (0,))), Call("moveaxis", (X, 2, 0)),
    Call("repeat", (X, -1)), Call("repeat", (X, np.array([1, 2])), {"axis": 0}), Call("roll", (X, 1), {"axis": 2}),
    Call("take", (X, np.array([3])), {"axis": 0}), Call("take", (X, np.array([0])), {"axis": 2}),
    Call("take", (X, np.array([0.5])), {"axis": 0}), Call("take_along_axis", (X, np.array([0]))),
    Call("take_along_axis", (X, np.array([[4]])), {"axis": 1}),
    Call("matmul", (X, X)), Call("matmul", (X, array("float32"))), Call("matmul", (X[0], X[0, :2])),
    Call("tensordot", (X, X), {"axes": 1}), Call("tensordot", (X, X), {"axes": ((0,), (1,))}),
    Call("vecdot", (X, X[:, :2])), Call("searchsorted", (X, X)), Call("searchsorted", (X[0], X), {"side": "middle"}),
    Call("arange", (0, 3, 0)), Call("linspace", (0, 1, -1)), Call("zeros", ((-1,),)),
    Call("eye", (-1,)), Call("zeros", ((2,),), {"dtype": "float33"}), Call("astype", (X, "no dtype")),
    Call("tril", (array("float32"),)), Call("meshgrid", (X[0], X[0]), {"indexing": "xx"}),
    Call("where", (array("bool", 3, 4), X, array("float32", 3))), Call("sort", (array("float32"),)),
    Call("cumulative_sum", (X,)),
    Call("diff", (X,), {"n": -1}), Call("diff", (array("float32"),)), Call("nonzero", (array("float32"),)),
    Call("iinfo", ("float32",)), Call("finfo", ("int32",)), Call("isdtype", (np.dtype("float32"), "no kind")),
    Call("result_type", ()), Call("unstack", (array("float32"),)), Call("tile", (X, (-1, 1))),
    Call("broadcast_to", (X, (-1, 4))), Call("argmax", (X[:0],)), Call("mean", (X,), {"axis": 1.5}),
)  # fmt: skip
