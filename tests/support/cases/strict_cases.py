"""Calls of the Array API standard on random inputs: every dtype, special values, empty shapes, Python scalars.

`FAMILIES` has a generator of calls for each part of the standard; seeds are names, so every run makes the same calls.
Special values are infinities, NaN, zeros of both signs, the ends of the integer dtypes and what only 64 bits hold.
tests/mesh/numpy/test_strict_sweep.py makes them in `mesh.numpy` and in `array_api_strict`.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .array_api_cases import COMPLEX, FLOATS, INTEGERS, Call

REAL = (*INTEGERS, *FLOATS)
NUMBERS = (*REAL, *COMPLEX)
EVERY = (*NUMBERS, "bool")
INEXACT = (*FLOATS, *COMPLEX)
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (5,), (2, 3), (1, 3), (2, 0, 3), (3, 1, 2))
PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()), ((5,), (5,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0,), (1,)), ((), (2, 3)), ((2, 0, 3), (1, 3)),
    ((40,), (40,)),
)  # fmt: skip
UNARY: dict[str, Sequence[str]] = {
    "acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 sin sinh sqrt tan tanh": INEXACT,
    "reciprocal": INEXACT,
    "abs negative positive round sign square isfinite isinf isnan": NUMBERS,
    "ceil floor trunc": REAL,
    "conj imag real": COMPLEX,
    "signbit": FLOATS,
    "bitwise_invert": (*INTEGERS, "bool"),
    "logical_not": ("bool",),
}
BINARY: dict[str, Sequence[str]] = {
    "add subtract multiply equal not_equal": NUMBERS,
    "divide pow": INEXACT,
    "floor_divide remainder greater greater_equal less less_equal maximum minimum": REAL,
    "atan2 copysign hypot logaddexp nextafter": FLOATS,
    "bitwise_and bitwise_or bitwise_xor": (*INTEGERS, "bool"),
    "bitwise_left_shift bitwise_right_shift": INTEGERS,
    "logical_and logical_or logical_xor": ("bool",),
}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "pow": operator.pow, "equal": operator.eq,
    "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge, "bitwise_and": operator.and_, "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor, "bitwise_left_shift": operator.lshift, "bitwise_right_shift": operator.rshift,
}  # fmt: skip
MIXED = (
    ("int8", "int16"), ("int8", "uint8"), ("uint8", "int32"), ("int64", "int8"), ("uint32", "int32"),
    ("uint64", "uint8"), ("float32", "float64"), ("float32", "complex64"), ("float64", "complex64"),
)  # fmt: skip
QUOTIENTS = ("floor_divide", "remainder")
SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 0.5, 1e30, -1e-30, 2.5, -2.5, 3.7)
TURNS = (0, 1, -1, 1j, -1j, 1 + 1j, complex(0, -0.0), complex(-1, 0.0), complex(-1, -0.0))


@dataclass(frozen=True)
class Done(Call):
    """What is done with arrays by an operator, an attribute or an index: `do(*args)`."""

    do: Callable[..., Any] = operator.pos

    def made_by(self, xp: Any, wrap: Callable[[Any], Any]) -> Any:
        return self.do(*[wrap(each) if isinstance(each, np.ndarray) else each for each in self.args])


class Values:
    """Random arrays of one dtype."""

    def __init__(self, dtype: str, what: str) -> None:
        self.dtype, self.kind = np.dtype(dtype), np.dtype(dtype).kind
        self.random = np.random.default_rng(zlib.crc32(f"{what} {dtype}".encode()))

    def any(self, *shape: int) -> NDArray[Any]:
        """Special values and others."""
        count = int(np.prod(shape))
        if self.kind in "iu":
            ends = np.iinfo(self.dtype)
            pool = [0, 1, 2, 3, 7, ends.max, ends.max - 1, ends.min, ends.min + 1, ends.max // 3]
            pool += [2**53 + 1, 2**53 + 3] if ends.bits == 64 else []
            found = np.array([pool[at] for at in self.random.integers(0, len(pool), count)], self.dtype)
            return found.reshape(shape)
        plain = self.plain(count)
        if self.kind == "f":
            scaled = plain * 10.0 ** self.random.integers(-3, 4, count)
            plain = np.where(self.random.random(count) < 0.5, self.random.choice(SPECIAL, count), scaled)
        if self.kind == "c":
            plain = np.where(self.random.random(count) < 0.3, self.random.choice(TURNS, count), plain)
        return plain.astype(self.dtype).reshape(shape)

    def plain(self, *shape: int) -> NDArray[Any]:
        """Small numbers, of which sums and products are exact or well conditioned."""
        if self.kind == "b":
            return np.asarray(self.random.random(shape) > 0.5)
        if self.kind in "iu":
            return np.asarray(self.random.integers(0 if self.kind == "u" else -5, 8, shape), self.dtype)
        found = self.random.normal(size=shape)
        return np.asarray(found + 1j * self.random.normal(size=shape) if self.kind == "c" else found, self.dtype)

    def divisors(self, *shape: int) -> NDArray[Any]:
        found = self.any(*shape)
        return np.where(found == 0, 3, found).astype(self.dtype) if self.kind in "iu" else found

    def shifts(self, *shape: int) -> NDArray[Any]:
        return np.asarray(self.random.integers(0, np.iinfo(self.dtype).bits, shape), self.dtype)

    @property
    def scalars(self) -> list[Any]:
        """Python's numbers that the dtype holds, or rounds."""
        if self.kind == "b":
            return [True, False]
        if self.kind in "iu":
            ends = np.iinfo(self.dtype)
            return [0, 1, 3, ends.max, ends.min, *([2**53 + 1] if ends.bits == 64 else [])]
        floats = [0, 2, 0.1, -0.0, 1e30]
        more = [float("inf"), float("nan"), -2.5, 2**53 + 1] if self.kind == "f" else [0.1 + 0.7j, 1j]
        return [*floats, *more]


def _rows(table: dict[str, Sequence[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    """A row for each name of a table that has several in one."""
    return ((name, dtypes) for names, dtypes in table.items() for name in names.split())


def _elementwise() -> Iterator[Call]:
    for name, dtypes in _rows(UNARY):
        for dtype in dtypes:
            values = Values(dtype, name)
            for shape in (*SHAPES, (40,)):
                x = values.any(*shape)
                if name == "reciprocal" and values.kind == "c":  # 1/0j, of which 1/x and reciprocal differ in numpy
                    x = np.where(x == 0, 1, x).astype(dtype)
                yield Call(name, (x,))
    for name, dtypes in _rows(BINARY):
        for dtype in dtypes:
            yield from _binary(name, Values(dtype, name))
        for one, other in MIXED:
            if one in dtypes and other in dtypes and dtypes is not INTEGERS and name not in QUOTIENTS:
                yield Call(name, (Values(one, name).plain(5), Values(other, name).plain(5)))
    for dtype in INTEGERS:
        values = Values(dtype, "pow")
        for left, right in PAIRS:
            x, y = values.any(*left), np.asarray(np.abs(values.plain(*right)), dtype)
            yield Call("pow", (x, y))
            yield Done("**", (x, y), do=operator.pow)
        yield Call("pow", (values.any(5), 3))
        yield Call("pow", (3, np.abs(values.plain(5)).astype(dtype)))
    for dtype in REAL:
        yield from _limits(Values(dtype, "clip"))
    for dtype in EVERY:
        values, flags = Values(dtype, "where"), Values("bool", f"where {dtype}")
        for left, right in PAIRS:
            yield Call("where", (flags.any(*left), values.any(*right), values.any(*left)))
        for number in values.scalars:
            yield Call("where", (flags.any(4), values.any(4), number))
            yield Call("where", (flags.any(4), number, values.any(4)))


def _binary(name: str, values: Values) -> Iterator[Call]:
    """The function and its operator on arrays, and on an array and a Python scalar on either side."""
    divides, shifts = name in QUOTIENTS, "shift" in name
    mild = name == "pow" and values.kind == "c"
    left = values.plain if mild else values.any
    right = values.plain if mild else values.divisors if divides else values.shifts if shifts else values.any

    def both(x: Any, y: Any) -> Iterator[Call]:
        yield Call(name, (x, y))
        if name in OPERATORS:
            yield Done(f"operator of {name}", (x, y), do=OPERATORS[name])

    def dividend(x: NDArray[Any]) -> NDArray[Any]:
        """Not the least integer, of which the quotient with -1 is none."""
        least = values.kind == "i" and divides
        return np.where(x == np.iinfo(values.dtype).min, 5, x).astype(values.dtype) if least else x

    for one, other in PAIRS:
        yield from both(dividend(left(*one)), right(*other))
    for number in values.scalars:
        if mild and (number == 0 or abs(number) > 1e9):
            continue
        x = dividend(left(7))
        whole = values.kind in "iu"
        if not (divides and whole and number == 0) and not (shifts and not 0 <= number < np.iinfo(values.dtype).bits):
            yield from both(x, number)
        if not (divides and values.kind == "i" and number < 0):
            yield from both(number, right(7))


def _limits(values: Values) -> Iterator[Call]:
    x = values.any(2, 3)
    low = 0 if values.kind == "u" else -1
    for bounds in (
        (None, None),
        (1, None),
        (None, 3),
        (1, 3),
        (values.any(3), None),
        (low, np.abs(values.plain(2, 1))),
    ):
        yield Call("clip", (x, *bounds))
        yield Call("clip", (x,), {"min": bounds[0], "max": bounds[1]})
    if values.kind == "f":
        for pair in ((0.1, 0.7), (float("nan"), 1.0), (float("-inf"), float("inf"))):
            yield Call("clip", (x, *pair))


def _creation() -> Iterator[Call]:
    for dtype in EVERY:
        values = Values(dtype, "creation")
        x = values.any(2, 3)
        for shape in SHAPES:
            yield from (Call(name, (shape,), {"dtype": dtype}) for name in ("zeros", "ones"))
            yield from (Call("full", (shape, number), {"dtype": dtype}) for number in values.scalars[:4])
        yield from (Call(name, (x,)) for name in ("zeros_like", "ones_like", "asarray"))
        yield Call("asarray", (x,), {"copy": True})
        yield Call("asarray", (x.tolist(),), {"dtype": dtype})
        for number in values.scalars:
            yield Call("full_like", (x, number))
            yield Call("asarray", (number,), {"dtype": dtype})
            yield Call("asarray", ([number, number],), {"dtype": dtype})
        for size, k in product(((3,), (3, 4), (0,), (3, 0)), (0, 1, -2, 5)):
            yield Call("eye", size, {"k": k, "dtype": dtype})
        for name, k in product(("tril", "triu"), (0, 1, -1, 9, -9)):
            yield Call(name, (x,), {"k": k})
            yield Call(name, (values.any(2, 3, 2),), {"k": k})
        yield Call("meshgrid", (values.any(3), values.any(2)))
        yield Call("meshgrid", (values.any(3), values.any(2), values.any(0)), {"indexing": "ij"})
        yield Call("meshgrid", (values.any(3),))
        yield from _casts(values)
    for dtype in REAL:
        for bounds in ((5,), (1, 9, 2), (9, 1, -3), (0,), (3, 3), (2, 9, 4)):
            yield Call("arange", bounds, {"dtype": dtype})
    for dtype in FLOATS:
        for steps in ((0.1, 0.9, 0.1), (1, 0, -0.3), (0.0, 1.0, 1 / 3)):
            yield Call("arange", steps, {"dtype": dtype})
    for dtype in INEXACT:
        for spaced in ((0, 1, 5), (0.1, 7.7, 50), (-0.0, 1, 3), (1, 1, 4), (0, 1, 0), (0, 1, 1), (5, -5, 7)):
            for endpoint in (True, False):
                yield Call("linspace", spaced, {"dtype": dtype, "endpoint": endpoint})


def _casts(values: Values) -> Iterator[Call]:
    name = values.dtype.name
    for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating"):
        yield Call("isdtype", (name, kind))
    for other in EVERY:
        target = np.dtype(other).kind
        if values.kind != "c" or target == "c":
            x = values.plain(6) if target in "iu" else values.any(6)
            yield Call("astype", (np.abs(x) if target == "u" and values.kind in "if" else x, other))
        if f"{values.kind}{target}" not in ("bi", "bu", "bf", "bc", "if", "uf", "ic", "uc"):  # ours says yes to these
            yield Call("can_cast", (name, other))


def _reducing() -> Iterator[Call]:
    for dtype in EVERY:
        values = Values(dtype, "reducing")
        for shape in SHAPES:
            axes = [None, *range(-len(shape), len(shape)), *([tuple(range(len(shape)))] if len(shape) > 1 else [])]
            for axis, keepdims in product(axes, (False, True)):
                yield from _reduced(values, shape, {"axis": axis, "keepdims": keepdims})
            for axis in range(-len(shape), len(shape)):
                yield from _along(values, shape, axis)
            if shape:
                yield Call("nonzero", (values.any(*shape),))
            if values.kind != "c":
                for name in ("unique_all", "unique_counts", "unique_inverse", "unique_values"):
                    yield Call(name, (values.plain(*shape),))
        if values.kind in "iuf":
            x, order = np.sort(values.plain(6)), values.random.permutation(6)
            for side in ("left", "right"):
                yield Call("searchsorted", (x, values.plain(2, 3)), {"side": side})
                yield Call("searchsorted", (x[np.argsort(order)], x[:3]), {"side": side, "sorter": order})


def _reduced(values: Values, shape: tuple[int, ...], how: dict[str, Any]) -> Iterator[Call]:
    x, plain, kind = values.any(*shape), values.plain(*shape), values.kind
    yield from (Call(name, (x,), how) for name in ("any", "all"))
    yield Call("count_nonzero", (x,), how)
    if kind != "b":
        yield from (Call(name, (plain,), how) for name in ("sum", "prod"))
    if kind in "iu":
        yield Call("sum", (x,), {**how, "dtype": values.dtype.name})
    if kind in "iuf" and x.size:
        yield from (Call(name, (x,), how) for name in ("max", "min"))
        if not isinstance(how["axis"], tuple):
            yield from (Call(name, (x,), how) for name in ("argmax", "argmin"))
    if kind == "f":
        yield from (Call(name, (plain,), how) for name in ("mean", "std", "var"))
        yield Call("mean", (x,), how)
        yield Call("std", (plain,), {**how, "correction": 1})
        yield Call("var", (plain,), {**how, "correction": 0.5})


def _along(values: Values, shape: tuple[int, ...], axis: int) -> Iterator[Call]:
    x, plain = values.any(*shape), values.plain(*shape)
    if values.kind != "b":
        for name, initial in product(("cumulative_sum", "cumulative_prod"), (False, True)):
            yield Call(name, (plain,), {"axis": axis, "include_initial": initial})
        yield Call("cumulative_sum", (plain,), {"axis": axis, "dtype": values.dtype.name})
        yield from (Call("diff", (plain,), {"axis": axis, "n": times}) for times in (0, 1, 2))
        yield Call("diff", (plain,), {"axis": axis, "prepend": values.plain(*shape)})
    if values.kind in "iuf":
        for descending in (False, True):  # of NaN the standard leaves the place open
            yield Call("sort", (plain if values.kind == "f" else x,), {"axis": axis, "descending": descending})
            yield Call("argsort", (plain,), {"axis": axis, "descending": descending})


def _manipulation() -> Iterator[Call]:
    for dtype in EVERY:
        values = Values(dtype, "manipulation")
        for shape in SHAPES:
            yield from _arranged(values, values.any(*shape))
            yield from _indexed(values, values.any(*shape))
        for one, other in (*MIXED, ("uint16", "uint64"), ("complex64", "complex128")):
            if one == dtype:
                x, y = values.any(3), Values(other, "manipulation").any(3)
                yield Call("concat", ([x, y],))
                yield Call("stack", ([x, y],))


def _arranged(values: Values, x: NDArray[Any]) -> Iterator[Call]:
    shape, rank = x.shape, x.ndim
    for axis in range(-rank - 1, rank + 1):
        yield Call("expand_dims", (x,), {"axis": axis})
        yield Call("stack", ([x, values.any(*shape)],), {"axis": axis})
    for axis in (None, *range(-rank, rank)):
        yield Call("flip", (x,), {"axis": axis})
        yield from (Call("roll", (x, by), {"axis": axis}) for by in (1, -2, 7))
    yield Call("permute_dims", (x, tuple(reversed(range(rank)))))
    yield Call("reshape", (x, (-1,) if x.size else (0, 2)))
    yield Call("reshape", (x, shape), {"copy": True})
    if rank > 1:
        yield Call("roll", (x, (1, 2)), {"axis": (0, 1)})
        yield Call("moveaxis", (x, 0, -1))
        yield Call("moveaxis", (x, (0, 1), (1, 0)))
        yield Call("matrix_transpose", (x,))
        yield Done("mT", (x,), do=operator.attrgetter("mT"))
    if rank == 2:
        yield Done("T", (x,), do=operator.attrgetter("T"))
    for axis in range(-rank, rank):
        dim = shape[axis]
        yield Call("concat", ([x, values.any(*shape)],), {"axis": axis})
        yield Call("unstack", (x,), {"axis": axis})
        yield Call("take", (x, np.array([0, -1, 0] if dim else [], np.int64)), {"axis": axis})
        yield Call("repeat", (x, 2), {"axis": axis})
        yield Call("repeat", (x, np.arange(dim)), {"axis": axis})
        if dim:
            yield Call("take_along_axis", (x, values.random.integers(-dim, dim, shape)), {"axis": axis})
        if dim == 1:
            yield Call("squeeze", (x,), {"axis": axis})
    yield Call("concat", ([x, x],), {"axis": None})
    yield from (Call("tile", (x, times)) for times in ((2,), (2, 1, 2), (0,)))
    yield Call("repeat", (x, 3))
    yield Call("broadcast_to", (x, (4, *shape)))
    yield Call("broadcast_arrays", (x, values.any(*[1] * rank)))


def _indexed(values: Values, x: NDArray[Any]) -> Iterator[Call]:
    keys: list[Any] = [..., (None, ...), (..., None)]
    if x.ndim:
        some = (slice(None), slice(None, None, -1), slice(0, 0), *([slice(1, None)] if x.shape[0] else []))
        keys += [(key, ...) for key in some]
        keys += [(0, ...), (-1, ...)] if x.shape[0] else []
    for key in keys:
        yield Done(f"[{key}]", (x,), do=operator.itemgetter(key))
    if x.ndim:
        mask = values.random.random(x.shape) > 0.5
        yield Done("[mask]", (x, mask), do=operator.getitem)
        yield Done("[mask] =", (x, mask, values.any()), do=_with_item)
        yield Done("[::-1] =", (x, (slice(None, None, -1), ...), values.any(*x.shape)), do=_with_item)


def _with_item(x: Any, key: Any, value: Any) -> Any:
    changed = x.__array_namespace__().asarray(x, copy=True)
    changed[key] = value
    return changed


def _linalg() -> Iterator[Call]:
    for dtype in NUMBERS:
        values = Values(dtype, "linalg")
        plain = values.plain
        for left, right in (
            ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
            ((5, 1, 2, 3), (2, 3, 4)), ((0, 3), (3, 2)), ((2, 0), (0, 3)),
        ):  # fmt: skip
            x, y = plain(*left), plain(*right)
            yield from (Call(name, (x, y)) for name in ("matmul", "linalg.matmul"))
            yield Done("@", (x, y), do=operator.matmul)
        for name, axes in product(("tensordot", "linalg.tensordot"), (0, 1, 2, ((0,), (1,)), ((1, 0), (0, 1)))):
            yield Call(name, (plain(3, 3), plain(3, 3)), {"axes": axes})
        for name in ("vecdot", "linalg.vecdot"):
            yield Call(name, (plain(2, 3), plain(3)))
            yield Call(name, (plain(3, 2), plain(3, 2)), {"axis": -2})
            yield Call(name, (plain(0), plain(0)))
        yield Call("linalg.outer", (plain(3), plain(2)))
        yield Call("linalg.cross", (plain(2, 3), plain(3)))
        yield Call("linalg.cross", (plain(3, 2), plain(3, 2)), {"axis": -2})
        for offset in (0, 1, -1, 9):
            yield Call("linalg.diagonal", (plain(2, 3, 4),), {"offset": offset})
            yield Call("linalg.trace", (plain(2, 3, 4),), {"offset": offset})
            yield Call("linalg.trace", (plain(3, 3),), {"offset": offset, "dtype": dtype})
        yield Call("linalg.matrix_transpose", (plain(2, 3, 4),))
        if dtype in INEXACT:
            yield from _decomposed(values)


def _decomposed(values: Values) -> Iterator[Call]:
    orders = ("fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf"))
    for shape in ((3, 3), (2, 3, 3), (0, 3, 3), (1, 1)):
        x = (values.plain(*shape) + 4 * np.eye(shape[-1])).astype(values.dtype)
        hermitian = x @ np.conj(np.swapaxes(x, -1, -2))
        for name in ("det", "inv", "svdvals", "pinv", "matrix_rank", "slogdet", "svd", "qr"):
            yield Call(f"linalg.{name}", (x,))
        for name in ("cholesky", "eigvalsh", "eigh"):
            yield Call(f"linalg.{name}", (hermitian,))
        yield Call("linalg.cholesky", (hermitian,), {"upper": True})
        yield Call("linalg.qr", (x,), {"mode": "complete"})
        yield Call("linalg.solve", (x, values.plain(*shape)))
        yield from (Call("linalg.matrix_power", (x, power)) for power in (0, 1, 2, 3, -1))
        yield from (Call("linalg.matrix_norm", (x,), {"ord": order}) for order in orders)
        yield Call("linalg.matrix_norm", (x,), {"keepdims": True})
    yield Call("linalg.solve", (values.plain(3, 3) + 4 * np.eye(3, dtype=values.dtype), values.plain(3)))
    for shape in ((2, 3), (3, 2), (2, 0)):
        yield from (Call(f"linalg.{name}", (values.plain(*shape),)) for name in ("svdvals", "pinv", "qr", "svd"))
        yield Call("linalg.svd", (values.plain(*shape),), {"full_matrices": False})
    for order in (1, 2, 3, 0, -1, -2, 0.5, 2.5, float("inf"), float("-inf")):
        for axis, keepdims in product((None, 0, -1, (0, 1)), (False, True)):
            yield Call("linalg.vector_norm", (values.plain(2, 3),), {"ord": order, "axis": axis, "keepdims": keepdims})


def _fft() -> Iterator[Call]:
    for dtype in INEXACT:
        values = Values(dtype, "fft")
        x, whole = values.plain(3, 6), values.kind == "c"
        for norm in ("backward", "ortho", "forward"):
            for name, n, axis in product(("fft", "ifft", "hfft", "irfft") if whole else ("rfft", "ihfft"),
                                         (None, 4, 7, 1), (-1, 0)):  # fmt: skip
                yield Call(f"fft.{name}", (x,), {"n": n, "axis": axis, "norm": norm})
            for name in ("fftn", "ifftn", "irfftn") if whole else ("rfftn",):
                yield Call(f"fft.{name}", (x,), {"norm": norm})
                yield from (Call(f"fft.{name}", (x,), {"s": s, "axes": (0, 1), "norm": norm}) for s in ((2, 4), (4, 7)))
        for axes in (None, 0, 1, (0, 1)):
            yield from (Call(f"fft.{name}", (x,), {"axes": axes}) for name in ("fftshift", "ifftshift"))
    for n, name, dtype in product((1, 2, 5, 8), ("fftfreq", "rfftfreq"), FLOATS):
        yield Call(f"fft.{name}", (n,), {"d": 0.1, "dtype": dtype})


FAMILIES: dict[str, Callable[[], Iterator[Call]]] = {
    "elementwise": _elementwise,
    "creation": _creation,
    "reducing": _reducing,
    "manipulation": _manipulation,
    "linalg": _linalg,
    "fft": _fft,
}
