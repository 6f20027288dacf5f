"""What this namespace can do, in the words of the Array API standard: `mesh.numpy.__array_namespace_info__()`."""

from __future__ import annotations

from typing import Any

import numpy as np

from wire.ir.dtypes import BF16, C64, DTYPES, F16, F32, I32
from wire.limits import DEFAULT

from ..core.array_api_device import MESH, Device, DeviceLike, check_device
from . import dtypes as _dtypes


class Info:
    """Answers of `__array_namespace_info__`; none depends on the device, as there is one."""

    __slots__ = ()

    def capabilities(self) -> dict[str, Any]:
        """Masks and shapes that depend on values work where the values are known: not while tracing."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": DEFAULT.rank_max}

    def default_device(self) -> Device:
        """The mesh."""
        return MESH

    def default_dtypes(self, *, device: DeviceLike = None) -> dict[str, np.dtype[Any]]:
        """The dtypes of Python numbers and of indices."""
        check_device(device)
        return {"real floating": F32.numpy, "complex floating": C64.numpy, "integral": I32.numpy, "indexing": I32.numpy}

    def dtypes(self, *, device: DeviceLike = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """The standard's dtypes of a kind ("bool", "integral", ..., or a tuple of them; all if None), by name."""
        check_device(device)
        every = {dtype.numpy.name: dtype.numpy for dtype in DTYPES if dtype not in (F16, BF16)}
        return {name: dtype for name, dtype in every.items() if kind is None or _dtypes.isdtype(dtype, kind)}

    def devices(self) -> list[Device]:
        """The mesh alone."""
        return [MESH]


def namespace_info() -> Info:
    """What this namespace can do: capabilities, devices and dtypes."""
    return Info()
