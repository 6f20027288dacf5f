"""dtypes: numpy's own scalar types under the standard's names, and questions about them.

A dtype can be given as one of these, as a numpy dtype, by name, or as bool, int, float or complex.  Those of Python
numbers are float32, int32 and complex64.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from wire.errors import DTypeError, InputError
from wire.ir.dtypes import PARTS, DType

from ..core.array import Array, DTypeLike, Operand, renamed
from ..core.array_api_device import DeviceLike, check_device
from ..core.handle import Handle
from .promotion import asarray, common_dtype, is_python_scalar, to_dtype

bool = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128
bfloat16 = ml_dtypes.bfloat16

_KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}


@dataclass(frozen=True, slots=True)
class finfo:
    """The limits of a float dtype, or of the parts of a complex one: bits, eps, max, min, smallest_normal, dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype[Any]

    def __init__(self, type: Any) -> None:
        asked = _dtype_of(type)
        dtype = PARTS.get(asked, asked)
        if dtype.kind != "f":
            raise DTypeError(f"finfo needs a float or complex dtype, got {dtype.name}")
        info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        values = (dtype.itemsize * 8, info.eps, info.max, info.min, info.smallest_normal)
        for name, value in zip(("bits", "eps", "max", "min", "smallest_normal"), values, strict=True):
            object.__setattr__(self, name, value if name == "bits" else float(value))
        object.__setattr__(self, "dtype", dtype.numpy)


def iinfo(type: Any) -> np.iinfo[Any]:
    """The limits of an integer dtype: bits, max, min, dtype."""
    dtype = _dtype_of(type)
    if dtype.kind not in "iu":
        raise DTypeError(f"iinfo needs an integer dtype, got {dtype.name}")
    return np.iinfo(dtype.numpy)


def astype(x: Operand, dtype: DTypeLike, *, copy: builtins.bool = True, device: DeviceLike = None) -> Array:
    """x in another dtype: floats to integers truncate and saturate, NaN becomes 0, to bool is x != 0; complex numbers
    become complex or bool (DTypeError for a real dtype: take `real`, `imag` or `abs`).

    Without `copy`, an array that has the dtype already is given back itself.
    """
    check_device(device)
    result = asarray(x, dtype)
    return renamed(result) if copy and result is x else result


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The dtype that arrays, dtypes and Python scalars promote to."""
    if not arrays_and_dtypes:
        raise InputError("result_type needs one array or dtype or more")
    return common_dtype([_representative(operand) for operand in arrays_and_dtypes])[0].numpy


def promote_types(type1: Any, type2: Any) -> np.dtype[Any]:
    """The dtype that two dtypes promote to."""
    return result_type(to_dtype(type1).numpy, to_dtype(type2).numpy)


def can_cast(from_: Any, to: Any) -> builtins.bool:
    """True if every value of `from_` keeps its kind in `to`: promoting the two gives `to`."""
    try:
        return result_type(_dtype_of(from_).numpy, to_dtype(to).numpy) == to_dtype(to).numpy
    except DTypeError:  # uint64 and signed integers, which have no common dtype
        return False


def isdtype(dtype: DTypeLike, kind: Any) -> builtins.bool:
    """True if dtype is of the kind: a dtype, "bool", "integral", "real floating", "numeric", ... or a tuple of them."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return to_dtype(dtype).kind in [*_KINDS[kind]]
    return to_dtype(dtype) is to_dtype(kind)


def _dtype_of(value: Any) -> DType:
    if isinstance(value, (Array, Handle)):
        return value.type.dtype
    return to_dtype(value.dtype if isinstance(value, (np.ndarray, np.generic)) else value)


def _representative(value: Any) -> Any:
    """What takes part in promotion as `value` does: a Python scalar, an Array, or an Array of a dtype."""
    if isinstance(value, Array) or is_python_scalar(value):
        return value
    return asarray(np.zeros((), _dtype_of(value).numpy))
