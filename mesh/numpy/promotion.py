"""From operands of many kinds to Arrays of one dtype.

A Python scalar is weak: it takes the dtype of the Arrays it meets, unless its kind is higher (a float met by integers
makes float32, an integer met by bools makes int32).  numpy scalars and arrays keep their dtype.  Two Arrays promote by
`wire.dtypes.promote`.  Alone, Python scalars are complex64, float32, int32 (int64 where the number needs it) and bool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np

from wire.dtypes import BOOL, BY_NAME, C64, F32, I32, I64, U64, DType, dtype_of, promote
from wire.errors import DTypeError, InputError

from ..array import Array, Operand, apply, handle_array, literal, strong, value_array
from ..handle import Handle

_RANK = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
_WEAK_DEFAULT = {"b": BOOL, "i": I32, "u": I32, "f": F32, "c": C64}
PYTHON_DTYPES: dict[Any, DType] = {bool: BOOL, int: I32, float: F32, complex: C64}
INT_BOUNDS = {
    d.name: (int(np.iinfo(d.numpy).min), int(np.iinfo(d.numpy).max)) for d in BY_NAME.values() if d.kind in "iu"
}


def extreme(dtype: DType, high: bool) -> float:
    """The highest value of a dtype, or the lowest: infinities of floats."""
    if dtype.kind == "f":
        return math.inf if high else -math.inf
    return high if dtype.kind == "b" else INT_BOUNDS[dtype.name][high]


def index_dtype(dim: int) -> DType:
    """The dtype of positions in an axis of `dim`: 32 bits wherever they do, which every device has."""
    return I32 if dim < 1 << 31 else I64


def to_dtype(spec: Any) -> DType:
    """The dtype meant by a numpy dtype or scalar type, a name ("float32" or "f32"), a DType, or bool, int, float,
    complex."""
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in BY_NAME:
        return BY_NAME[spec]
    found = PYTHON_DTYPES.get(spec) if isinstance(spec, type) else None
    if found is not None:
        return found
    try:
        return dtype_of(np.dtype(spec))
    except TypeError as error:
        raise DTypeError(f"{spec!r} is not a dtype", next_step=f"Known: {', '.join(BY_NAME)}") from error


def is_python_scalar(value: object) -> bool:
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def asarray(value: Operand, dtype: Any = None) -> Array:
    """`value` as an Array: lists and Python scalars take the default dtypes, numpy arrays keep theirs.

    InputError for Python integers that `dtype` cannot hold.
    """
    array = _as_array(value)
    if dtype is None:
        return array
    wanted = to_dtype(dtype)
    if wanted.kind in "iu" and isinstance(value, (int, list, tuple, range)):
        _check_bounds(value, array, wanted)
    return strong(cast(array, wanted))


def cast(array: Array, dtype: DType) -> Array:
    """`array` in `dtype`, by the op table's `cast`."""
    if array.type.dtype is dtype:
        return array
    return apply("cast", array, dtype=dtype.name)


def operands(*values: Operand) -> list[Array]:
    """Arrays of one common dtype; shapes stay as they are."""
    first, *rest = arrays = [
        value if is_python_scalar(value) or isinstance(value, Array) else _as_array(value) for value in values
    ]
    if (
        isinstance(first, Array)
        and not first.weak
        and all(isinstance(x, Array) and x.type.dtype is first.type.dtype for x in rest)
    ):
        return arrays  # type: ignore[return-value]  # the common case: nothing to do
    dtype, weak = common_dtype(arrays)
    return [_convert(value, dtype, weak) for value in arrays]


def floats(*values: Operand) -> list[Array]:
    """Arrays of one common float dtype; integers and bools become float32, complex numbers are refused."""
    arrays = inexact(*values)
    if arrays[0].type.dtype.kind == "c":
        raise DTypeError(
            f"this is a function of real numbers, got {arrays[0].type}", next_step="Take real(x), imag(x) or abs(x)"
        )
    return arrays


def inexact(*values: Operand) -> list[Array]:
    """Arrays of one common float or complex dtype; integers and bools become float32."""
    arrays = operands(*values)
    if arrays[0].type.dtype.kind not in "fc":
        return [cast(array, F32) for array in arrays]
    return arrays


def common_dtype(values: Iterable[Any]) -> tuple[DType, bool]:
    """The dtype that `values` (Arrays and Python scalars) promote to, and whether all of them are weak."""
    strong = [value.type.dtype for value in values if isinstance(value, Array) and not value.weak]
    weak = [_weak_dtype(value) for value in values if not isinstance(value, Array) or value.weak]
    highest = max(weak, key=lambda dtype: (_RANK[dtype.kind], dtype.itemsize), default=None)
    if not strong:
        assert highest is not None
        return highest, True
    dtype = reduce(promote, strong)
    if highest is not None and _RANK[highest.kind] > _RANK[dtype.kind]:
        return promote(dtype, highest) if highest.kind == "c" else _WEAK_DEFAULT[highest.kind], False
    return dtype, False


def scalar(value: complex, dtype: DType, weak: bool = False) -> Array:
    """A Python scalar as a literal of `dtype`; InputError if an integer dtype cannot hold it, or it is complex and the
    dtype is not."""
    if isinstance(value, complex):
        if dtype.kind != "c":
            raise InputError(f"{value} does not fit {dtype.name}", next_step="Cast the array to a complex dtype first")
        return literal(value, dtype, weak)
    if dtype.kind in "iu":
        low, high = INT_BOUNDS[dtype.name]
        if not low <= value <= high:  # NaN is not either
            raise InputError(f"{value} does not fit {dtype.name}", next_step="Cast the array to a wider dtype first")
    return literal(value, dtype, weak)


def like(value: Operand, other: Array) -> Array:
    """`value` in the dtype of `other`."""
    return scalar(value, other.type.dtype) if is_python_scalar(value) else cast(_as_array(value), other.type.dtype)  # type: ignore[arg-type]


def concrete(array: Array, asker: str) -> np.ndarray[Any, np.dtype[Any]]:
    """The value of `array`, computed if need be; the error for a traced one names `asker`."""
    return array._value_for(asker)


def _check_bounds(value: Any, array: Array, dtype: DType) -> None:
    if array.type.dtype.kind in "iu" and array.value is not None and _all_scalars(value):
        for number in (array.value.min(), array.value.max()) if array.size else ():
            scalar(int(number), dtype)


def _all_scalars(value: Any) -> bool:
    return isinstance(value, range) or all(map(is_python_scalar, _leaves(value)))


def as_numpy(value: Any, what: str) -> np.ndarray[Any, np.dtype[Any]]:
    """The memory of any library's array, in this machine's byte order; InputError if it does not give it away."""
    try:
        array = np.asarray(np.from_dlpack(value) if _by_dlpack_alone(value) else value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:  # on a device, sparse, of a dtype of its own
        raise InputError(
            f"{what} is a {type(value).__name__} that does not become a numpy array",
            cause=str(error),
            next_step="Make it a plain array in this computer's memory first",
        ) from error
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_array_like(value: Any) -> bool:
    """Whether it is an array of some library: one that numpy can have by any of its protocols."""
    return any(hasattr(value, name) for name in ("__array__", "__array_interface__", "__dlpack__"))


def _by_dlpack_alone(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and not any(
        hasattr(value, name) for name in ("__array__", "__array_interface__")
    )


def _convert(value: Any, dtype: DType, weak: bool) -> Array:
    return cast(value, dtype) if isinstance(value, Array) else scalar(value, dtype, weak)


def _weak_dtype(value: Any) -> DType:
    if isinstance(value, Array):
        return value.type.dtype
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, complex):
        return C64
    return F32 if isinstance(value, float) else _integer_dtype(int(value), int(value))


def _integer_dtype(low: int, high: int) -> DType:
    for dtype in (I32, I64, U64):
        if INT_BOUNDS[dtype.name][0] <= low and high <= INT_BOUNDS[dtype.name][1]:
            return dtype
    raise InputError(f"the integer {high if high > 0 else low} does not fit any dtype")


def _as_array(value: Any) -> Array:
    if isinstance(value, Array):
        return value
    if isinstance(value, Handle):
        return handle_array(value)
    if is_python_scalar(value):
        return literal(value, _weak_dtype(value))
    if isinstance(value, (list, tuple)):
        return _from_sequence(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value_array(np.asarray(value))
    if isinstance(value, range):
        bounds = (value[0], value[-1]) if value else (0, 0)
        return value_array(np.array(value, _integer_dtype(min(bounds), max(bounds)).numpy))
    if is_array_like(value):
        return value_array(as_numpy(value, "it"))
    if _is_buffer(value):
        return value_array(np.asarray(memoryview(value)))
    raise InputError(
        f"{type(value).__name__} is not array-like", next_step="Pass an array, a number or nested lists of numbers"
    )


def _is_buffer(value: Any) -> bool:
    """Whether it gives its memory away: bytes, bytearray, memoryview, array.array, mmap, ..."""
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


def _from_sequence(value: list[Any] | tuple[Any, ...]) -> Array:
    found = list(_leaves(value))
    if any(isinstance(leaf, (Array, Handle)) for leaf in found):
        from .manipulation import stack

        return stack([_as_array(item) for item in value])
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"nested lists of unequal lengths are not an array ({error})") from error
    if array.dtype == object:
        raise InputError("a list of things that are not numbers is not an array")
    if all(is_python_scalar(leaf) for leaf in found):
        array = array.astype(_sequence_dtype(array).numpy)
    return value_array(array)


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _sequence_dtype(array: np.ndarray[Any, np.dtype[Any]]) -> DType:
    if array.dtype.kind in "iu" and array.size:
        return _integer_dtype(int(array.min()), int(array.max()))
    return _WEAK_DEFAULT[array.dtype.kind]
