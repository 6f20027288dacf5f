"""Devices as the Array API standard has them: there is one, the mesh.

Which machine and which of its devices compute what is decided by the planner when a graph is run, never by an array; so
an array's device says only that, and values that are asked for come to this process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from wire.errors import InputError


@dataclass(frozen=True, slots=True)
class Device:
    """The device of an array, which is always the mesh; equal names are equal devices.

    Parameters
    ----------
    name : str
        "mesh".

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> print(mnp.zeros(3).device)
    mesh
    """

    name: str

    def __str__(self) -> str:
        return self.name


DeviceLike: TypeAlias = Device | str | None
"""What functions take for a device: None is wherever arrays are by default, which is the mesh, too."""

MESH = Device("mesh")
DLPACK_CPU = (1, 0)  # kDLCPU, the first: where values are once they are asked for


def check_device(device: DeviceLike) -> None:
    """Raise InputError unless `device` is the mesh, or None for the default."""
    if device is not None and not (isinstance(device, Device | str) and device in (MESH, MESH.name)):
        raise InputError(
            f"there is no device {device!r} for an array to be on",
            next_step="Arrays are on 'mesh'; mesh.Mesh and its plans decide which devices compute",
        )
