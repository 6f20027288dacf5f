"""Promotion: operands of many kinds become Arrays of one dtype.

A Python scalar is weak: it takes the dtype of the Arrays it meets, at full precision, unless its kind is higher (a
float met by integers makes float32, an integer met by bools makes int32).  numpy scalars and arrays keep their dtype.
Two Arrays promote by `wire.ir.dtypes.promote`.  Alone, Python scalars are complex64, float32, int32 (int64 or uint64
where the number needs it) and bool.  Lists of Python scalars promote as Arrays of these default dtypes do; but their
numbers go into the common dtype from Python's own 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from wire.errors import DTypeError, InputError
from wire.ir.dtypes import BOOL, BY_NAME, C64, C128, F32, F64, I32, I64, U64, DType, dtype_of, promote

from ..core.array import WIDER, Array, DTypeLike, Operand, apply, handle_array, literal, strong, value_array
from ..core.expression import traced_argument
from ..core.handle import Handle
from ..util.argument_checks import items, value_text

_RANK = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
_WEAK_DEFAULT = {"b": BOOL, "i": I32, "u": I32, "f": F32, "c": C64}
PYTHON_DTYPES: dict[Any, DType] = {bool: BOOL, int: I32, float: F32, complex: C64}
INT_BOUNDS = {
    d.name: (int(np.iinfo(d.numpy).min), int(np.iinfo(d.numpy).max)) for d in BY_NAME.values() if d.kind in "iu"
}

_TOO_NARROW = {  # for a Python integer that is passed in 64 bits since int32, or int64, does not hold it
    I64: ("i8", "u8", "i16", "u16", "i32"),
    U64: ("i8", "u8", "i16", "u16", "i32", "u32", "i64"),
}
_LEAST, _MOST = INT_BOUNDS["i64"][0], INT_BOUNDS["u64"][1]  # of integers that some dtype holds


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
    known = PYTHON_DTYPES.get(spec) if isinstance(spec, type) else None
    if known is not None:
        return known
    try:
        return dtype_of(np.dtype(spec))
    except TypeError as error:
        raise DTypeError(f"{spec!r} is not a dtype", next_step=f"Known: {', '.join(BY_NAME)}") from error


def is_python_scalar(value: object) -> bool:
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def asarray(value: Operand, dtype: DTypeLike = None) -> Array:
    """`value` as an Array: lists and Python scalars take the default dtypes, numpy arrays keep theirs.

    With `dtype`, Python's numbers go into it at full precision.  InputError for those that it cannot hold.
    """
    if dtype is None:
        return _as_array(value)
    wanted = to_dtype(dtype)
    if isinstance(value, (list, tuple)) and _holds_arrays(set(map(type, _leaves(value)))):
        from .manipulation import stack

        return stack([asarray(item, wanted) for item in value])
    numbers = _numbers(value, wanted)
    return strong(cast(_as_array(value), wanted)) if numbers is None else numbers.in_dtype(wanted)


def cast(array: Array, dtype: DType) -> Array:
    """`array` in `dtype`, by the op table's `cast`; what is made of Python's numbers alone at their full precision."""
    if array.type.dtype is dtype:
        return array
    wide = array.tensor.wide
    if wide is not None and dtype in (F64, C128):
        return cast(Array(wide), dtype)
    return apply("cast", array, dtype=dtype.name)


def operands(*values: Operand) -> list[Array]:
    """Arrays of one common dtype; shapes stay as they are."""
    if not values:
        raise InputError("a function of arrays needs one array or more")
    first, *others = arrays = [
        value if is_python_scalar(value) or isinstance(value, Array) else _numbers(value) or _as_array(value)
        for value in values
    ]
    if (
        isinstance(first, Array)
        and not first.weak
        and all(isinstance(x, Array) and x.type.dtype is first.type.dtype for x in others)
    ):
        return arrays  # type: ignore[return-value]  # the common case: nothing to do
    dtype, weak = common_dtype(arrays)
    return [_convert(value, dtype, weak) for value in arrays]


def parts(values: Sequence[Operand]) -> list[Array]:
    """`operands` for the parts of one array: Python scalars among them make no array that adapts to other dtypes."""
    values = items(values, "of the arrays to join")
    converted = operands(*values)
    return converted if all(isinstance(value, Array) for value in values) else [strong(array) for array in converted]


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
    whole = [is_python_scalar(value) and isinstance(value, int) for value in values]
    if any(whole) and not all(whole):  # an integer array divided by 256: the number need not fit its dtype
        kind = operands(*[0 if number else value for number, value in zip(whole, values, strict=True)])[
            0
        ].type.dtype.kind
        values = tuple([cast(_as_array(x), F32) if kind in "iu" and not is_python_scalar(x) else x for x in values])
    arrays = operands(*values)
    if arrays[0].type.dtype.kind not in "fc":
        return [cast(array, F32) for array in arrays]
    return arrays


def common_dtype(values: Iterable[Any]) -> tuple[DType, bool]:
    """The dtype that `values` (Arrays and Python scalars) promote to, and whether all of them are weak."""
    operands = [*values]
    weak = [_weak_dtype(value) for value in operands if _is_weak(value)]
    strong = [
        value.dtype if isinstance(value, _Numbers) else value.type.dtype for value in operands if not _is_weak(value)
    ]
    highest = max(weak, key=lambda dtype: (_RANK[dtype.kind], dtype.itemsize), default=None)
    if not strong:
        assert highest is not None
        return highest, True
    dtype = reduce(promote, strong)
    if highest is not None and _RANK[highest.kind] > _RANK[dtype.kind]:
        return promote(dtype, highest) if highest.kind == "c" else _WEAK_DEFAULT[highest.kind], False
    return dtype, False


def scalar(value: complex, dtype: DType, weak: bool = False) -> Array:
    """A Python scalar as a literal of `dtype`; InputError if the dtype cannot hold it: an integer or NaN outside of an
    integer dtype, an integer beyond every float, a complex number where the dtype is not complex."""
    if isinstance(value, complex):
        if dtype.kind != "c":
            raise InputError(f"{value} does not fit {dtype.name}", next_step="Cast the array to a complex dtype first")
        return literal(value, dtype, weak)
    if dtype.kind in "iu":
        low, high = INT_BOUNDS[dtype.name]
        if not low <= value <= high:  # NaN is not either
            raise InputError(
                f"{value_text(value)} does not fit {dtype.name}", next_step="Cast the array to a wider dtype first"
            )
    return literal(_as_float(value, dtype) if dtype.kind in "fc" else value, dtype, weak)


def like(value: Operand, other: Array) -> Array:
    """`value` in the dtype of `other`."""
    dtype = other.type.dtype
    if is_python_scalar(value):
        return scalar(value, dtype)  # type: ignore[arg-type]
    numbers = _numbers(value)
    return cast(_as_array(value), dtype) if numbers is None else numbers.in_dtype(dtype)


def concrete(array: Array, asker: str) -> np.ndarray[Any, np.dtype[Any]]:
    """The value of `array`, computed if need be; the error for a traced one names `asker`."""
    return array._value_for(asker)


def as_numpy(value: Any, what: str) -> np.ndarray[Any, np.dtype[Any]]:
    """The memory of any library's array, in this machine's byte order; InputError if it does not give it away."""
    try:
        plain = type(value) is np.ndarray
        array = value if plain else np.asarray(np.from_dlpack(value) if _by_dlpack_alone(value) else value)
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


class _Numbers(NamedTuple):
    """Python's scalars, nested as an array: their default dtype, and the array that holds every one of them."""

    dtype: DType
    full: np.ndarray[Any, np.dtype[Any]]

    def in_dtype(self, dtype: DType) -> Array:
        """A value as an Array.

        InputError for a number that the dtype cannot hold, DTypeError for complex ones where it is real.
        """
        full = self.full
        if full.dtype.kind == "c" and dtype.kind not in "bc":
            return cast(value_array(full), dtype)  # which says so
        if dtype.kind in "iu" and full.size:
            for extreme in (full.min(), full.max()):  # NaN if there is one
                scalar(extreme.item(), dtype)
        with np.errstate(over="ignore"):
            array = full.astype(dtype.numpy)
        return value_array(array) if array.ndim else literal(array, dtype)


def _numbers(value: Any, wanted: DType | None = None) -> _Numbers | None:
    """What lists, ranges and scalars of Python's numbers are, None for all else; `wanted` is what they are going to
    be, which may hold integers that no integer dtype does."""
    if not isinstance(value, (list, tuple, range)) and not is_python_scalar(value):
        return None
    scalars = [value[0], value[-1]] if isinstance(value, range) and value else list(_leaves(value))
    kinds = {_kind(type) for type in set(map(type, scalars))}
    if not scalars or None in kinds:
        return None
    kind = max(filter(None, kinds), key=_RANK.__getitem__)
    if kind == "i" and (wanted is None or wanted.kind not in "fc"):
        dtype = full = _integer_dtype(int(min(scalars)), int(max(scalars)))
    else:
        dtype = _WEAK_DEFAULT[kind]
        full = WIDER.get(dtype, F64 if kind == "i" else dtype)
    try:
        return _Numbers(dtype, np.array(value, full.numpy))
    except ValueError as error:
        raise InputError(f"nested lists of unequal lengths are not an array ({error})") from error
    except OverflowError as error:
        raise InputError(f"an integer does not fit {(wanted or dtype).name} ({error})") from error


_KIND_OF = {bool: "b", int: "i", float: "f", complex: "c"}


def _kind(type: type) -> str | None:
    """The kind of Python's numbers of a class; None for all else, numpy's among it."""
    if issubclass(type, np.generic):
        return None
    return next((kind for python, kind in _KIND_OF.items() if issubclass(type, python)), None)


def _holds_arrays(types: set[type]) -> bool:
    return any(issubclass(type, (Array, Handle)) for type in types)


def _is_weak(value: Any) -> bool:
    return value.weak if isinstance(value, Array) else not isinstance(value, _Numbers)


def _convert(value: Any, dtype: DType, weak: bool) -> Array:
    if isinstance(value, _Numbers):
        return value.in_dtype(dtype)
    if not isinstance(value, Array):
        return scalar(value, dtype, weak)
    own = value.type.dtype
    if value.weak and dtype.name in _TOO_NARROW.get(own, ()) and traced_argument(value.tensor) is not None:
        raise InputError(  # Python's integers are int32 where that holds them
            f"a Python integer among the arguments has {8 * own.itemsize} bits and meets {dtype.name}, which does not "
            "hold it",
            next_step="Cast the array to a wider dtype first",
        )
    return cast(value, dtype)


def _weak_dtype(value: Any) -> DType:
    if isinstance(value, Array):
        return value.type.dtype
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        return U64  # which does not hold it either; but beside a float it becomes one
    return _alone(value)


def _alone(value: complex) -> DType:
    """The dtype of a Python scalar that meets nothing else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _integer_dtype(int(value), int(value))
    return BOOL if isinstance(value, bool) else F32 if isinstance(value, float) else C64


def _integer_dtype(low: int, high: int) -> DType:
    for dtype in (I32, I64, U64):
        if INT_BOUNDS[dtype.name][0] <= low and high <= INT_BOUNDS[dtype.name][1]:
            return dtype
    outside = [value_text(bound) for bound in (low, high) if not _LEAST <= bound <= _MOST]
    what = f"{outside[0]} does not fit any" if outside else f"{low} and {high} do not fit one"
    raise InputError(f"{what} integer dtype", next_step="Say dtype='float64', or write floats")


def _as_float(value: complex, dtype: DType) -> complex:
    try:
        return value if isinstance(value, complex) else float(value)
    except OverflowError as error:
        raise InputError(f"an integer this large does not fit {dtype.name} ({error})") from error


def _as_array(value: Any) -> Array:
    if isinstance(value, Array):
        return value
    if isinstance(value, Handle):
        return handle_array(value)
    if is_python_scalar(value):
        return literal(value, _alone(value))
    if isinstance(value, (list, tuple)):
        return _from_sequence(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value_array(np.asarray(value))
    if isinstance(value, range):
        numbers = _numbers(value)
        return value_array(np.zeros(0, I32.numpy) if numbers is None else numbers.full)
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
    types = set(map(type, _leaves(value)))
    if _holds_arrays(types):
        from .manipulation import stack

        return stack(value)
    numbers = _numbers(value)
    if numbers is not None:
        return numbers.in_dtype(numbers.dtype)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"nested lists of unequal lengths are not an array ({error})") from error
    if array.dtype == object:
        raise InputError("a list of things that are not numbers is not an array")
    return value_array(array if types else array.astype(F32.numpy))


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
