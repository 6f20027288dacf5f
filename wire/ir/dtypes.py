"""The element types a tensor can have, one row each.

A DType is a singleton: compare with `is`.  Graphs and messages carry its `name`.  Promotion is the
Array API's, with one addition: an integer met by a float or a complex number takes its width (DESIGN: f32 stays f32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import DTypeError


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type: `kind` is b (bool), i (signed), u (unsigned), f (float) or c (complex: two floats)."""

    name: str
    kind: str
    itemsize: int
    numpy: np.dtype[Any]

    def __repr__(self) -> str:
        return self.name


def _row(name: str, kind: str, scalar: Any) -> DType:
    dtype = np.dtype(scalar)
    return DType(name, kind, dtype.itemsize, dtype)


BOOL = _row("bool", "b", np.bool_)
I8 = _row("i8", "i", np.int8)
I16 = _row("i16", "i", np.int16)
I32 = _row("i32", "i", np.int32)
I64 = _row("i64", "i", np.int64)
U8 = _row("u8", "u", np.uint8)
U16 = _row("u16", "u", np.uint16)
U32 = _row("u32", "u", np.uint32)
U64 = _row("u64", "u", np.uint64)
F16 = _row("f16", "f", np.float16)
BF16 = _row("bf16", "f", ml_dtypes.bfloat16)
F32 = _row("f32", "f", np.float32)
F64 = _row("f64", "f", np.float64)
C64 = _row("c64", "c", np.complex64)
C128 = _row("c128", "c", np.complex128)

DTYPES: tuple[DType, ...] = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, C64, C128)
PARTS: dict[DType, DType] = {C64: F32, C128: F64}  # of what the real and the imaginary part are
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in DTYPES}
_BY_NUMPY: dict[np.dtype[Any], DType] = {dtype.numpy: dtype for dtype in DTYPES}


def dtype_named(name: str) -> DType:
    """The dtype called `name`; DTypeError if there is none."""
    dtype = BY_NAME.get(name)
    if dtype is None:
        raise DTypeError(f"unknown dtype {name!r}", next_step=f"Known: {', '.join(BY_NAME)}")
    return dtype


def dtype_of(value: Any) -> DType:
    """The dtype of a numpy array, numpy dtype or scalar type; byte order is ignored."""
    numpy_dtype = np.dtype(getattr(value, "dtype", value))
    dtype = _BY_NUMPY.get(numpy_dtype)
    if dtype is None:
        numpy_dtype = numpy_dtype.newbyteorder("=")
        dtype = _BY_NUMPY.get(numpy_dtype)
    if dtype is None:
        raise DTypeError(
            f"numpy dtype {numpy_dtype} has no counterpart in a graph", next_step=f"Known: {', '.join(BY_NAME)}"
        )
    return dtype


def promote(left: DType, right: DType) -> DType:
    """The smallest dtype that both convert to; an integer with a float or a complex dtype gives that."""
    if left is right or right.kind == "b":
        return left
    if left.kind == "b":
        return right
    if left.kind == right.kind:
        if {left, right} == {F16, BF16}:
            return F32
        return left if left.itemsize >= right.itemsize else right
    if "c" in (left.kind, right.kind):
        return C128 if F64 in (left, right) or C128 in (left, right) else C64
    if "f" in (left.kind, right.kind):
        return left if left.kind == "f" else right
    signed, unsigned = (left, right) if left.kind == "i" else (right, left)
    if unsigned.itemsize < signed.itemsize:
        return signed
    if unsigned.itemsize == 8:
        raise DTypeError("u64 with a signed integer has no common integer dtype", next_step="Cast one side first")
    return {1: I16, 2: I32, 4: I64}[unsigned.itemsize]
