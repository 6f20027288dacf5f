"""The arguments of one ATen op, by the names of its schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wire.errors import Unsupported
from wire.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType, dtype_of

from ...core.array import Array
from ...numpy.promotion import asarray, cast

DTYPES: dict[str, DType] = {
    "torch.bool": BOOL, "torch.uint8": U8, "torch.int8": I8, "torch.int16": I16, "torch.int32": I32,
    "torch.int64": I64, "torch.float16": F16, "torch.bfloat16": BF16, "torch.float32": F32, "torch.float64": F64,
}  # fmt: skip


def dtype_from(name: str) -> DType:
    """The dtype that torch calls so; Unsupported if a graph has none like it."""
    if name not in DTYPES:
        raise Unsupported(f"tensors of {name}", next_step=f"Known: {', '.join(DTYPES)}")
    return DTYPES[name]


class Call:
    """One op with its arguments; `result` is what torch says of the result's shape and dtype."""

    __slots__ = ("_given", "name", "overload", "result")

    def __init__(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        schema = getattr(target, "_schema", None)
        self.name = str(schema.name).removeprefix("aten::") if schema else "getitem"
        self.overload = str(schema.overload_name) if schema else ""
        self.result = result
        names = [argument.name for argument in schema.arguments] if schema else ["self", "index"]
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()} if schema else {}
        self._given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}

    def __contains__(self, name: str) -> bool:
        """Whether this overload of the op has the argument."""
        return name in self._given

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def get(self, name: str, default: Any = None) -> Any:
        value = self._given.get(name)
        return default if value is None else value

    @property
    def x(self) -> Array:
        """The argument `self`, or `input`, as an Array."""
        return asarray(self._given["self"] if "self" in self._given else self._given["input"])

    def array(self, name: str) -> Array:
        return asarray(self._given[name])

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's."""
        return tuple(int(dim) for dim in self.result.shape)

    @property
    def dtype(self) -> Any:
        """The result's, as numpy has it."""
        return dtype_from(str(self.result.dtype)).numpy

    def axis(self, name: str = "dim", default: int = 0) -> int:
        """An axis of x, counted from the front."""
        axis = int(self.get(name, default))
        return axis + self.x.ndim if axis < 0 else axis

    def axes(self, name: str = "dim") -> tuple[int, ...] | None:
        """Axes of x; None for all of them, which no axis means too."""
        dims = self.get(name)
        if dims is None or dims == [] or self.x.ndim == 0:
            return None
        return tuple(int(axis) % self.x.ndim for axis in (dims if isinstance(dims, list) else [dims]))


Op = Callable[[Call], Any]


class Absent:
    """A result that is not made; using it is an error that names it."""

    def __init__(self, what: str) -> None:
        self.what = what


def as_result(call: Call, result: Array) -> Array:
    """The result in the dtype that torch says it has."""
    return cast(result, dtype_of(call.dtype))
