"""Calls of every function of the Array API standard on numbers of 64 bits that the next smaller dtype cannot hold.

Some are the same number in the smaller dtype, so that an order, an equality or a difference shows it.  `CASES` are on
numpy arrays; `WAYS` are the ways in which their numbers can be given: as nested lists and Python scalars with a dtype,
or as numpy's arrays and scalars.  To cover a function, add a row to `_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mesh
import mesh.numpy as mnp
from wire.ir.graph import WireGraph

from .array_api_cases import FLOAT_UNARY, NUMBER_BINARY, ORDERS, Call

F = np.array([0.1, 16777217.0, -1 / 3, 0.1 + 2.0**-40, 16777216.0, -2.7e8 - 1e-7])
I = np.array([2**53 + 1, 2**53, -(2**62) - 1, 7, 2**40 + 1, 2**40])  # noqa: E741  # as in numpy's names of dtypes
U = np.array([2**63 + 5, 2**63 + 4, 3, 2**53 + 1, 2**32 + 7, 2**32], np.uint64)
C = np.array(
    [0.1 + 16777217.0j, -1 / 3 + 0.7j, 0.1 + 2.0**-40 + 16777217.0j, 16777216.0 - 0.3j, 1e-9 + 1.1j, 0.9 - 2e8j]
)
EVERY = (F, I, U, C)
REAL = (F, I, U)
UNIT = np.array([0.1, -0.7, 0.1 + 2.0**-40, 1 - 2.0**-40, -1 / 3])
SMALL = np.array([0.1, 1.0000001, -1 / 3, 2.7 + 2.0**-40, -3.3])
ABOVE = np.array([1 + 2.0**-40, 16777217.0, 3.3, 1e300, 1.1])
OVER = np.array([1e300, -1e300, 1e-300, 16777217.0, 5e-324])
SCALARS = {"f": (0.1, 16777217.0), "i": (2**53 + 1, 3), "u": (2**63 + 5, 3), "c": (0.1 + 0.7j, 1 / 3)}
DOMAINS = {"acos": UNIT, "asin": UNIT, "atanh": UNIT, "acosh": ABOVE, "log": ABOVE, "log2": ABOVE, "log10": ABOVE,
           "log1p": ABOVE, "sqrt": ABOVE, "exp": SMALL, "expm1": SMALL, "sinh": SMALL, "cosh": SMALL}  # fmt: skip
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")


def wrapped_list(array: NDArray[Any]) -> Any:
    """An array of Python's numbers, by its dtype's name."""
    return mnp.asarray(array.tolist(), dtype=array.dtype.name)


def unwrapped(array: NDArray[Any]) -> Any:
    """As numpy gives it: a numpy scalar where it has no dimension."""
    return array[()]


WAYS: dict[str, Callable[[NDArray[Any]], Any]] = {"python": wrapped_list, "numpy": unwrapped}


def judged(call: Call) -> list[NDArray[Any]]:
    """What numpy gives, whose default dtypes of floats and integers have 64 bits."""
    if call.name in ("fft.fftfreq", "fft.rfftfreq"):
        call = Call(call.name, call.args, {"d": call.kwargs["d"]})
    with np.errstate(all="ignore"):
        return results(call.made_by(np, lambda array: array))


def results(found: Any) -> list[Any]:
    """The arrays of a result, be they one or several."""
    return list(found) if isinstance(found, (list, tuple)) else [found]


def check(call: Call, found: Any) -> None:
    """AssertionError unless `found` are numpy's values to the precision of 64 bits; positions may be int32."""
    wanted = judged(call)
    assert len(found) == len(wanted), call.id
    for one, other in zip(map(np.asarray, found), map(np.asarray, wanted), strict=True):
        assert one.shape == other.shape, call.id
        assert one.dtype == other.dtype or (one.dtype, other.dtype) == (np.int32, np.int64), call.id
        rtol = 0 if other.dtype.kind in "iub" else 1e-10 if "linalg" in call.name else 2e-14
        largest = np.abs(other[np.isfinite(other)]).max(initial=0) if rtol else 0
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(one, other, rtol, rtol * largest / 1000, err_msg=call.id)


def graphs(size: int = 100, realised: Mapping[str, Any] = {}) -> Iterator[tuple[tuple[Call, ...], WireGraph]]:
    """All calls but those of functions that are `realised` only, `size` of them in a graph that takes no inputs; its
    outputs are their results in order."""
    traced = [call for call in CASES if call.name not in (*realised, "from_dlpack")]
    for first in range(0, len(traced), size):
        some = tuple(traced[first : first + size])
        yield some, mesh.trace(lambda calls=some: [results(call.made_by(mnp, wrapped_list)) for call in calls])


def check_all(calls: tuple[Call, ...], outputs: Any) -> None:
    """`check` of every call, of the outputs of its graph."""
    left = iter(outputs)
    for call in calls:
        check(call, [next(left) for _ in judged(call)])
    assert next(left, None) is None


def _calls() -> Iterator[Call]:
    yield from _elementwise()
    yield from _creation()
    yield from _arranging()
    yield from _reducing()
    yield from _matrices()
    yield from _transforms()


def _both(name: str, *arrays: NDArray[Any], **more: Any) -> Iterator[Call]:
    """The call on arrays, and on the first number of each."""
    yield Call(name, arrays, more)
    yield Call(name, tuple(np.asarray(array[0]) for array in arrays), more)


def _elementwise() -> Iterator[Call]:
    for name in FLOAT_UNARY:
        yield from _both(name, DOMAINS.get(name, F))
        if name not in ("acosh", "log1p", "expm1"):  # of which numpy's are less precise where they are complex
            yield from _both(name, C if name in ("log", "sqrt", "reciprocal") else UNIT + 0.7j)
    for name in ("abs", "negative", "positive", "round", "sign", "square"):
        for x in EVERY if name in ("square", "positive") else (F, I, C):
            yield from _both(name, x if name != "square" or x.dtype.kind != "i" else x[3:])
    for name in ("ceil", "floor", "trunc", "isfinite", "isinf", "isnan"):
        for x in (*REAL, OVER):
            yield from _both(name, x)
    for name in ("conj", "imag", "real"):
        yield from _both(name, C)
    for name in ("signbit", "square"):
        yield from _both(name, OVER if name == "signbit" else F)
    for name in (*NUMBER_BINARY, *ORDERS, "equal", "not_equal", "divide"):
        whole = name in ("floor_divide", "remainder", *ORDERS, "maximum", "minimum")
        for x in (F,) if name == "divide" else REAL if whole else EVERY:
            yield from _both(name, x, x[::-1])
            for number in SCALARS[x.dtype.kind]:
                yield Call(name, (x, number))
    for name in ("atan2", "copysign", "hypot", "logaddexp", "nextafter"):
        yield from _both(name, F, F[::-1])
        yield Call(name, (F, 0.1))
    yield from _both("pow", ABOVE[:3], SMALL[:3])
    yield Call("pow", (F[:2], 0.1))
    yield Call("pow", (I[3:4], 3))
    yield Call("pow", (UNIT + 0.7j, 0.1 + 0.7j))
    for name in BITS:
        for x, number in ((I, 2**53 + 1), (U, 2**63 + 5)):
            yield from _both(name, x, x[::-1])
            yield Call(name, (x, number))
    for x in (I, U):
        yield from _both("bitwise_invert", x)
        for name in ("bitwise_left_shift", "bitwise_right_shift"):
            yield Call(name, (x[3:], np.array([1, 2, 3], x.dtype)))
            yield Call(name, (x[3:], 2))
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield Call(name, (OVER != 0, OVER > 1e-323))
    yield Call("logical_not", (OVER > 1e-323,))
    for x, low, high in ((F, -0.1, 0.1 + 2.0**-41), (I, -(2**62), 2**53), (U, 4, 2**63 + 4)):
        yield Call("clip", (x, low, high))
        yield Call("clip", (x, np.asarray(low, x.dtype), np.asarray(high, x.dtype)))
        yield Call("where", (x > 7, x, low if x is not U else 5))
        yield Call("where", (x > 7, high, x))
        yield Call("where", (x > 7, x, x[::-1]))


def _creation() -> Iterator[Call]:
    for x in EVERY:
        dtype, (number, other) = x.dtype.name, SCALARS[x.dtype.kind]
        yield Call("full", ((2, 2), number), {"dtype": dtype})
        yield Call("full", ((), other), {"dtype": dtype})
        yield Call("full_like", (x, number))
        yield Call("asarray", (number,), {"dtype": dtype})
        yield Call("asarray", ([number, other, x.tolist()[0]],), {"dtype": dtype})
        yield Call("asarray", ((x.tolist(), x.tolist()[::-1]),), {"dtype": dtype})
        yield Call("asarray", (x,))
        yield Call("asarray", (x,), {"dtype": "complex128" if x is not I else "int64"})
        for name in ("zeros", "ones", "empty"):
            yield Call(name, ((0,) if name == "empty" else (2,),), {"dtype": dtype})
            yield Call(f"{name}_like", (x[:0] if name == "empty" else x,))
        yield Call("eye", (2,), {"k": 2**31, "dtype": dtype})
        yield Call("tril", (x.reshape(2, 3),), {"k": -(2**33)})
        yield Call("triu", (x.reshape(2, 3),), {"k": 1})
        yield Call("meshgrid", (x, x[:2]))
        yield Call("astype", (x, "float64" if x is not C else "complex128"))
        yield Call("from_dlpack", (x,))
    for bounds in (
        (0.0, 1.0, 0.1),
        (0.1, 7.7, 0.3),
        (5.0, -1.1, -0.7),
        (16777217.0, 16777227.0, 1.0),
        (1e300, 3e300, 1e299),
    ):
        yield Call("arange", bounds, {"dtype": "float64"})
    yield Call("arange", (2**53 + 1, 2**53 + 9, 3), {"dtype": "int64"})
    yield Call("arange", (2**63 + 5, 2**63 + 9), {"dtype": "uint64"})
    yield Call("arange", (-(2**62) - 9, -(2**62)), {"dtype": "int64"})
    for bounds in (
        (0.0, 0.3, 4),
        (0.1, 7.7, 50),
        (16777217.0, 16777219.0, 3),
        (-1e300, 1e300, 5),
        (0.0, 5e-324, 3),
        (1 / 3, 2, 1),
    ):
        for endpoint in (True, False):
            yield Call("linspace", bounds, {"dtype": "float64", "endpoint": endpoint})
    yield Call("linspace", (0.0, 3.4e38, 1), {"dtype": "float64", "endpoint": False})
    yield Call("linspace", (0.1 + 0.7j, -1 / 3, 7), {"dtype": "complex128"})
    yield Call("linspace", (0, 2**40 + 1, 4), {"dtype": "int64"})


def _arranging() -> Iterator[Call]:
    for x in EVERY:
        table = x.reshape(2, 3)
        yield Call("broadcast_to", (x, (2, 6)))
        yield Call("broadcast_to", (np.asarray(x[0]), (3,)))
        yield Call("broadcast_arrays", (table, x[:3]))
        yield Call("concat", ([x, x[::-1]],))
        yield Call("stack", ([x, x[::-1]],), {"axis": 1})
        yield Call("unstack", (table,))
        yield Call("expand_dims", (x,), {"axis": 0})
        yield Call("flip", (x,))
        yield Call("moveaxis", (table, 0, 1))
        yield Call("permute_dims", (table, (1, 0)))
        yield Call("matrix_transpose", (table,))
        yield Call("repeat", (x, 2))
        yield Call("reshape", (x, (3, 2)))
        yield Call("roll", (x, 2))
        yield Call("squeeze", (x[None], 0))
        yield Call("tile", (x, (2,)))
        yield Call("take", (x, np.array([3, 0, 1])), {"axis": 0})
        yield Call("take_along_axis", (x, np.array([3, 0, 1])), {"axis": 0})
        yield Call("nonzero", (x,))
        yield Call("count_nonzero", (x,))
        yield Call("diff", (x if x.dtype.kind != "i" else x[3:],))
        for name in ("unique_all", "unique_counts", "unique_inverse"):
            if x is not C:
                yield Call(name, (np.concatenate([x, x]),))
        yield Call("any", (x,))
        yield Call("all", (x,))
    yield Call("diff", (F,), {"prepend": np.array([0.1]), "append": F[:1]})
    yield Call("any", (OVER[-1:],))
    for x in REAL:
        for name in ("sort", "argsort", "argmax", "argmin"):
            yield Call(name, (x,))
        yield Call("searchsorted", (np.sort(x), x))
        yield Call("searchsorted", (np.sort(x), x[::-1]), {"side": "right"})


def _reducing() -> Iterator[Call]:
    for x in EVERY:
        dtype = x.dtype.name
        few = x if x.dtype.kind in "fc" else x[3:5]
        for name in ("sum", "cumulative_sum"):
            yield Call(name, (few,))
            yield Call(name, (few,), {"dtype": dtype})
        for name in ("prod", "cumulative_prod"):
            yield Call(name, (few[:2] if x.dtype.kind in "fc" else few[:1],), {"dtype": dtype})
        if x is not C:
            yield Call("max", (x,))
            yield Call("min", (x,))
    yield Call("cumulative_sum", (F,), {"include_initial": True})
    for name in ("mean", "std", "var"):
        yield Call(name, (F,))
        yield Call(name, (F.reshape(2, 3),), {"axis": 1})
    yield Call("std", (F,), {"correction": 0.1})
    yield Call("mean", (C,))


def _matrices() -> Iterator[Call]:
    a = np.array([[3.1, 0.1, 1 / 3], [0.1 + 2.0**-40, 2.7, -0.3], [1 / 7, -0.9, 4.4]])
    for x in (a, a + 0.7j * a.T @ a):
        definite = x @ x.conj().T
        for name in ("cholesky", "eigvalsh"):
            yield Call(f"linalg.{name}", (definite,))
        yield Call("linalg.eigh", (definite,))
        for name in (
            "det",
            "inv",
            "pinv",
            "qr",
            "slogdet",
            "svdvals",
            "diagonal",
            "matrix_transpose",
            "matrix_rank",
            "trace",
        ):
            yield Call(f"linalg.{name}", (x,))
        yield Call("linalg.svd", (x,))
        yield Call("linalg.trace", (x,), {"dtype": "complex128"})
        yield Call("linalg.solve", (x, x[0]))
        for ord in ("fro", "nuc", 1, 2, -1):
            yield Call("linalg.matrix_norm", (x,), {"ord": ord})
        for ord in (1, 2, 2.5):
            yield Call("linalg.vector_norm", (x[0],), {"ord": ord})
        for power in (3, -1):
            yield Call("linalg.matrix_power", (x, power))
        for name in ("linalg.cross", "linalg.outer", "linalg.vecdot", "vecdot"):
            yield Call(name, (x[0], x[1]))
        for name in ("linalg.matmul", "matmul", "linalg.tensordot", "tensordot"):
            yield Call(name, (x, x))
    yield Call("linalg.pinv", (a,), {"rtol": 0.1})
    yield Call("linalg.matrix_rank", (np.diag([1.0, 0.1 + 2.0**-40]),), {"rtol": 0.1})
    whole = np.array([[2**40 + 1, 3], [5, 2**33 + 1]])
    for x in (whole, whole.astype(np.uint64)):
        yield Call("matmul", (x, np.array([[1, 2], [3, 4]], x.dtype)))
        yield Call("linalg.trace", (x,))


def _transforms() -> Iterator[Call]:
    for name in ("fft", "ifft", "hfft", "irfft"):
        yield Call(f"fft.{name}", (C,))
    for name in ("fftn", "ifftn", "irfftn"):
        yield Call(f"fft.{name}", (C.reshape(2, 3),), {"axes": (0, 1)})
    for name in ("rfft", "ihfft"):
        yield Call(f"fft.{name}", (F,), {"norm": "ortho"})
    yield Call("fft.rfftn", (F.reshape(2, 3),), {"axes": (0, 1)})
    for name in ("fftshift", "ifftshift"):
        yield Call(f"fft.{name}", (F,))
    for name in ("fftfreq", "rfftfreq"):
        yield Call(f"fft.{name}", (7,), {"d": 0.1, "dtype": "float64"})


CASES = tuple(_calls())
