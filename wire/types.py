"""TensorType and Attrs: what a graph node says about itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from .dtypes import DType


class TensorType(NamedTuple):
    """A tensor's shape (C order, row-major) and element type."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


class Attrs(dict[str, Any]):
    """A node's attributes: an immutable, hashable mapping.

    Values are bool, int, float, str, bytes, tuples of ints, or a WireGraph (a composite's body).
    Floats are compared by their bits, so NaN equals itself and -0.0 differs from 0.0.
    """

    __slots__ = ("_hash", "_key")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(sorted((values or {}).items()))
        self._key = tuple((name, type(value), _comparable(value)) for name, value in self.items())
        self._hash = hash(self._key)

    def __hash__(self) -> int:  # type: ignore[override]  # immutable, unlike dict
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attrs) and self._key == other._key

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("Attrs are immutable")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("Attrs travel by the graph codec only")


NO_ATTRS = Attrs()


def _comparable(value: Any) -> Any:
    return value.hex() if isinstance(value, float) else value
