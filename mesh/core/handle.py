"""Handle: a tensor that was put on the mesh, named by its content.

`mesh.put(tree)` gives a tree of handles.  A handle in the arguments of a traced function becomes a `param` of the
graph, so its bytes travel to a worker once and are never hashed again.  A handle knows nothing of where its tensor
lies: the mesh finds it by address.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.types import TensorType

from .typed import Typed


class Handle(Typed):
    """A reference to a tensor: `address` (BLAKE2b-256 of its content), `type`, a readable `name`.

    `local` is the array itself where this process keeps it, else None.  Two handles of one address are the same
    tensor.  Handles can be weakly referenced, so that a mesh may free what nobody refers to.
    """

    __slots__ = ("__weakref__", "address", "local", "name", "type")
    __tree_leaf__: ClassVar[bool] = True

    def __init__(self, address: bytes, type: TensorType, name: str = "", local: NDArray[Any] | None = None) -> None:
        self.address = address
        self.type = type
        self.name = name
        self.local = local

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self.local is None:
            raise InputError(
                f"the tensor {self.name or self.address.hex()[:16]!r} lies on the mesh only",
                next_step="Return it from a function that the mesh runs",
            )
        return np.array(self.local, dtype=dtype, copy=copy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (self.address, self.type) == (other.address, other.type)

    def __hash__(self) -> int:
        return hash(self.address)

    def __repr__(self) -> str:
        return f"Handle({self.name or '-'}: {self.type}, {self.address.hex()[:16]})"
