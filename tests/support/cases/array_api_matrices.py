"""Calls of the extension `linalg` of the Array API standard, as in array_api_cases.py; matrices have factors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .array_api_cases import COMPLEX, FLOATS, NUMBERS, Call, array

ORDERS = (0, 1, -1, 2, -2, 3, 2.5, math.inf, -math.inf)
MATRIX_ORDERS = ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


def regular(dtype: str, *shape: int) -> NDArray[Any]:
    """Square matrices far from singular ones."""
    return np.asarray(array(dtype, *shape, low=-1, high=1) + 3 * np.eye(shape[-1])).astype(dtype)


def definite(dtype: str, *shape: int) -> NDArray[Any]:
    x = regular(dtype, *shape)
    return np.asarray(x @ x.conj().swapaxes(-1, -2) + np.diag(np.arange(float(shape[-1])))).astype(dtype)


def _calls() -> Iterator[Call]:
    for dtype in NUMBERS:
        x, t = array(dtype, 3, 4, low=-3, high=3), array(dtype, 2, 3, 3, low=-3, high=3)
        yield Call("cross", (x[:, 0], x[:, 1]))
        yield Call("cross", (t, t[:1, ::-1]), {"axis": -2})
        for name, more in (("diagonal", {}), ("diagonal", {"offset": 1}), ("diagonal", {"offset": -2}), ("trace", {}),
                           ("trace", {"offset": -1}), ("matrix_transpose", {})):  # fmt: skip
            yield Call(name, (t,), more)
            yield Call(name, (x,), more)
        yield Call("outer", (x[0], x[:, 1]))
        yield Call("matmul", (t, x))
        yield Call("tensordot", (t, x), {"axes": ((2,), (0,))})
        yield Call("vecdot", (t, t[:1]), {"axis": -2})
    for dtype in (*FLOATS, *COMPLEX):
        yield from _of_floats(dtype)


def _of_floats(dtype: str) -> Iterator[Call]:
    x, t = array(dtype, 3, 4, low=-3, high=3), array(dtype, 2, 5, 3, low=-3, high=3)
    a, many = regular(dtype, 3, 3), regular(dtype, 2, 3, 3)
    for ord in ORDERS:
        yield Call("vector_norm", (t,), {"ord": ord, "axis": 1})
        yield Call("vector_norm", (x,), {"ord": ord, "keepdims": True})
    yield Call("vector_norm", (t,), {"axis": (0, 2)})
    for ord in MATRIX_ORDERS:
        yield Call("matrix_norm", (t,), {"ord": ord, "keepdims": ord == 2})
    for name in ("det", "inv", "slogdet"):
        yield from (Call(name, (each,)) for each in (a, many, many[:0], a[:0, :0]))
    for name in ("eigh", "eigvalsh", "cholesky"):
        yield from (Call(name, (definite(dtype, *shape),)) for shape in ((3, 3), (2, 4, 4), (0, 0)))
    yield Call("cholesky", (definite(dtype, 3, 3),), {"upper": True})
    for name in ("qr", "svd", "svdvals", "pinv", "matrix_rank"):
        yield from (Call(name, (each,)) for each in (a, x, t))
    yield Call("qr", (t,), {"mode": "complete"})
    yield Call("svd", (t,), {"full_matrices": False})
    yield Call("matrix_rank", (np.outer(x[0], x[1]).astype(dtype),))
    yield Call("matrix_rank", (a,), {"rtol": 0.9})
    yield Call("pinv", (a,), {"rtol": 0.9})
    yield from (Call("solve", args) for args in ((a, x), (a, x[:, 0]), (many, x), (a, many), (many, many[:1])))
    yield from (Call("matrix_power", (many, power)) for power in (0, 1, 3, -2))


CASES = tuple(Call(f"linalg.{call.name}", call.args, call.kwargs) for call in _calls())
X, V, A = array("float32", 3, 4), array("float32", 3), regular("float32", 3, 3)
WRONG = (
    *[Call(f"linalg.{name}", (X,)) for name in ("cholesky", "det", "eigh", "eigvalsh", "inv", "slogdet")],
    *[Call(f"linalg.{name}", (V,)) for name in ("cholesky", "det", "eigh", "inv", "qr", "slogdet", "svd", "svdvals",
      "pinv", "matrix_norm", "diagonal", "trace", "matrix_transpose")],
    Call("linalg.matrix_power", (X, 2)), Call("linalg.matrix_power", (A, 1.5)),
    Call("linalg.solve", (X, V)), Call("linalg.solve", (A, X[:2])), Call("linalg.solve", (A, V[:2])),
    Call("linalg.cross", (X, X)), Call("linalg.cross", (V, V), {"axis": 1}), Call("linalg.outer", (X, X)),
    Call("linalg.matrix_norm", (X,), {"ord": "max"}), Call("linalg.qr", (X,), {"mode": "some"}),
    Call("linalg.vecdot", (V, V[:2])), Call("linalg.matmul", (X, X)), Call("linalg.vector_norm", (X,), {"axis": 2}),
)  # fmt: skip
