"""Matrices whose factors are well determined, and examples of the ops that solve and factor them.

Singular values and eigenvalues are well apart, so every engine must find the same vectors but for their signs, or
angles.  To cover a new op, add a row to EXAMPLES: examples are a label, operands and attributes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import DType

Matrices = NDArray[Any]
Examples = Iterator[tuple[str, tuple[Matrices, ...], dict[str, int]]]

SIGNED = frozenset({("qr", 0), ("qr", 1), ("eigh", 1), ("svd", 0), ("svd", 2)})  # results with signs that are open
SHAPES = ((1, 1), (3, 3), (4, 2), (2, 4), (2, 3, 3), (2, 1, 4, 3), (13, 11), (5, 20), (0, 0), (2, 0), (0, 3), (0, 2, 2))
SQUARE = tuple(shape for shape in SHAPES if shape[-1] == shape[-2])


def apart(*shape: int, seed: int = 0, kind: str = "f") -> Matrices:
    """Matrices with singular values between 1 and 2.5; complex if `kind` is c."""
    rng = np.random.default_rng(zlib.crc32(repr((shape, seed)).encode()))
    rows, cols = shape[-2:]
    few = min(rows, cols)
    middle = np.zeros(shape)
    middle[..., range(few), range(few)] = np.linspace(1.0, 2.5, few)
    return np.asarray(_unitary(rng, kind, rows, *shape[:-2]) @ middle @ _unitary(rng, kind, cols, *shape[:-2]))


def definite(*shape: int, seed: int = 0, kind: str = "f") -> Matrices:
    """Hermitian matrices with eigenvalues between 0.5 and 3."""
    rng = np.random.default_rng(zlib.crc32(repr((shape, seed)).encode()))
    vectors = _unitary(rng, kind, shape[-1], *shape[:-2])
    return np.asarray((vectors * np.linspace(0.5, 3, shape[-1])) @ vectors.swapaxes(-1, -2).conj())


def _unitary(rng: np.random.Generator, kind: str, size: int, *ahead: int) -> Matrices:
    x = rng.standard_normal((*ahead, size, size))
    return np.asarray(np.linalg.qr(x + 1j * rng.standard_normal(x.shape) if kind == "c" else x)[0])


def _with_upper(x: Matrices) -> Matrices:
    """Something else above the diagonal, which is not read."""
    return np.asarray(np.tril(x) + np.triu(np.full(x.shape, 9.0), 1))


def _cholesky(dtype: DType) -> Examples:
    for shape in SQUARE:
        yield str(shape), (definite(*shape, kind=dtype.kind).astype(dtype.numpy),), {}
    yield "lower only", (_with_upper(definite(4, 4, kind=dtype.kind)).astype(dtype.numpy),), {}
    some = np.stack([definite(3, 3, kind=dtype.kind), -definite(3, 3), np.zeros((3, 3)), definite(3, 3, seed=1)])
    yield "not all definite", (some.astype(dtype.numpy),), {}


def _solve(dtype: DType) -> Examples:
    for shape, count in zip((*SQUARE, (3, 3)), (2, 1, 3, 2, 2, 4, 0), strict=False):
        operands = apart(*shape, kind=dtype.kind), apart(*shape[:-1], count, seed=1, kind=dtype.kind)
        yield f"{shape}-{count}", tuple(each.astype(dtype.numpy) for each in operands), {}
    singular = np.stack([apart(2, 2), np.array([[1.0, 2.0], [2.0, 4.0]]), np.zeros((2, 2)), apart(2, 2, seed=1)])
    yield "not all regular", (singular.astype(dtype.numpy), np.ones((4, 2, 3), dtype.numpy)), {}


def _lu(dtype: DType) -> Examples:
    for output in range(3):
        for shape in (*SHAPES, (37, 70)):  # more than a panel of columns
            yield f"{shape}-{output}", (apart(*shape, kind=dtype.kind).astype(dtype.numpy),), {"output": output}
        singular = np.array([[[0.0, 0, 1], [0, 0, 2], [0, 4, 3]], [[1, 2, 3], [2, 4, 8], [0, 1, 1]]])
        yield f"singular-{output}", (singular.astype(dtype.numpy),), {"output": output}


def _qr(dtype: DType) -> Examples:
    for full in (0, 1):
        for output in range(2):
            for shape in SHAPES if not full else ((3, 3), (2, 4, 3), (2, 4), (1, 0)):
                yield (
                    f"{shape}-{full}-{output}",
                    (apart(*shape, kind=dtype.kind).astype(dtype.numpy),),
                    {"full": full, "output": output},
                )


def _eigh(dtype: DType) -> Examples:
    for output in range(2):
        for shape in SQUARE:
            yield f"{shape}-{output}", (definite(*shape, kind=dtype.kind).astype(dtype.numpy),), {"output": output}
        yield (
            f"lower only-{output}",
            (_with_upper(definite(4, 4, kind=dtype.kind)).astype(dtype.numpy),),
            {"output": output},
        )


def _svd(dtype: DType) -> Examples:
    for full in (0, 1):
        for output in range(3):
            for shape in SHAPES if not full else ((3, 3), (2, 4, 3), (3, 4), (1, 0)):
                yield (
                    f"{shape}-{full}-{output}",
                    (apart(*shape, kind=dtype.kind).astype(dtype.numpy),),
                    {"full": full, "output": output},
                )


EXAMPLES: dict[str, Callable[[DType], Examples]] = {
    "cholesky": _cholesky,
    "solve": _solve,
    "lu": _lu,
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
}
