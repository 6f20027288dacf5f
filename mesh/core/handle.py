"""Handle: a tensor that was put on the mesh, named by its content.

`mesh.put(tree)` gives a tree of handles.  A handle in the arguments of a traced function becomes a `param` of the
graph, so its bytes travel to a worker once and are never hashed again.  A handle knows nothing of where its tensor
lies: the mesh finds it by address.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from wire.errors import InputError
from wire.ir.types import TensorType

from .typed import Typed


class Handle(Typed):
    """A reference to a tensor that lies on the mesh; `Mesh.put` makes them.

    Handles with the same address are the same tensor, and they are equal if the same workers may have it.  A mesh frees
    a tensor when no handle of it is left.

    Parameters
    ----------
    address : bytes
        BLAKE2b-256 of the tensor's content.
    type : TensorType
        Its shape and dtype.
    name : str, optional
        A name for people.
    local : numpy.ndarray, optional
        The array itself, if this process keeps it.
    on : str, optional
        The id of the only worker that may have it, "" for any.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(1).build() as m:
    ...     handle = m.put({"w": np.ones((2, 3), np.float32)})["w"]
    ...     total = m.run(lambda w: w.sum(), handle)
    >>> handle.shape, handle.name, total
    ((2, 3), 'w', array(6., dtype=float32))
    """

    __slots__ = ("__weakref__", "address", "local", "name", "on", "type")
    __tree_leaf__: ClassVar[bool] = True

    def __init__(
        self, address: bytes, type: TensorType, name: str = "", local: NDArray[Any] | None = None, on: str = ""
    ) -> None:
        self.address = address
        self.type = type
        self.name = name
        self.local = local
        self.on = on

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if self.local is None:
            raise InputError(
                f"the tensor {self.name or self.address.hex()[:16]!r} lies on the mesh only",
                next_step="Return it from a function that the mesh runs",
            )
        return np.array(self.local, dtype=dtype, copy=copy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (self.address, self.type, self.on) == (other.address, other.type, other.on)

    def __hash__(self) -> int:
        return hash(self.address)

    def __repr__(self) -> str:
        return f"Handle({self.name or '-'}: {self.type}, {self.address.hex()[:16]})"
