"""TensorType and Attrs: what a graph node says about itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

from numpy.typing import NDArray

from .dtypes import DType

HostArray: TypeAlias = NDArray[Any]
"""A tensor in this machine's memory, of any dtype of the table."""


class TensorType(NamedTuple):
    """A tensor's shape (C order, row-major) and element type.

    Parameters
    ----------
    shape : tuple of int
        The shape.
    dtype : DType
        The element type.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> type = mnp.zeros((2, 3), "float16").type
    >>> print(type, type.size, type.size_bytes)
    f16[2,3] 6 12
    """

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


class Attrs(dict[str, Any]):
    """A node's attributes: an immutable, hashable mapping.

    Values are bool, int, float, str, bytes, tuples of ints, or a WireGraph (a composite's body, a branch).
    Floats are compared by their bits, so NaN equals itself and -0.0 differs from 0.0.
    """

    __slots__ = ("_hash", "_key")
    _hash: int
    _key: tuple[tuple[str, type, Any], ...]

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        if values:
            order = sorted(values)
            dict.__init__(self, values if order == list(values) else {name: values[name] for name in order})

    def __hash__(self) -> int:  # type: ignore[override]  # dict has none, being mutable
        try:
            return self._hash
        except AttributeError:  # computed when first asked for: most decoded attributes never are
            self._key = tuple((name, type(value), _comparable(value)) for name, value in self.items())
            self._hash = hash(self._key)
            return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Attrs) and hash(self) == hash(other) and self._key == other._key)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("Attrs are immutable")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _refuse

    def __reduce__(self) -> NoReturn:
        raise TypeError("Attrs travel by the graph codec only")


NO_ATTRS = Attrs()


def _comparable(value: Any) -> Any:
    return value.hex() if isinstance(value, float) else value
