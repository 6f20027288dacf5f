"""Typed: the questions that everything with a TensorType answers alike (Array, Handle, ShapeDtype)."""

from __future__ import annotations

from typing import Any

import numpy as np

from wire.ir.types import TensorType


class Typed:
    """Shape and element type in numpy's terms."""

    __slots__ = ()
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.type.dtype.numpy

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.type.size

    @property
    def nbytes(self) -> int:
        return self.type.size_bytes

    @property
    def itemsize(self) -> int:
        return self.type.dtype.itemsize
