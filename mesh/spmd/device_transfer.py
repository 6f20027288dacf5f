"""Device transfer: on which device a value is to be, said within a program.

    y = mesh.gpu(x) @ mesh.gpu(w)            # on some device of the wgsl engine
    y = mesh.to_device(y, "anna")            # on a worker, by its name, or mesh.nodes[0]; "anna:1" is its second device

What is computed of a value that was placed, and of nothing placed elsewhere, is computed there, too.  A derivative goes
back to where the value it is of was computed, or where nobody said, to wherever the planner likes.  A device that is
not there raises NoSuchDevice when the program is placed; with no mesh there is a cpu and nothing else.  This file only
builds nodes; coordinator/planning/model/device_constraints.py has the rest.
"""

from __future__ import annotations

from typing import Any

from wire.errors import InputError
from wire.ir.device_names import DeviceName

from .. import tree
from ..core.array import apply
from ..transforms.pytree_functions import as_array
from .annotations import shard
from .grid import Grid, PartitionSpec


def transfer_to(x: Any, device: Any = None, sharding: Any = None, grid: Grid | None = None) -> Any:
    """x (any pytree) on a device, or split as a PartitionSpec says (`grid` as for `shard`): one of the two.

    `device` is "cpu", "gpu", a Node or the name of a worker, or "NAME:INDEX" for one of its devices.  InputError for
    both or neither, and for what is no device.
    """
    if (device is None) == (sharding is None):
        raise InputError("transfer_to takes a device or a sharding, and one of them")
    if sharding is not None:
        if not isinstance(sharding, PartitionSpec):
            raise InputError(f"a {type(sharding).__name__} is no PartitionSpec")
        return shard(x, sharding, grid)
    return _on(x, _device(device))


to_device = transfer_to


def cpu(x: Any) -> Any:
    """x (any pytree) on some device of the cpu engine."""
    return _on(x, DeviceName("cpu"))


def gpu(x: Any) -> Any:
    """x (any pytree) on some device of the wgsl engine."""
    return _on(x, DeviceName("gpu"))


def accelerator(x: Any, id: int = 0) -> Any:  # what others call it
    """x (any pytree) on device number `id` of all that are no cpu, in the order of workers' names."""
    if type(id) is not int or not 0 <= id < 1_000_000:
        raise InputError(f"accelerators are numbered from 0, got {id!r}")
    return _on(x, DeviceName("accelerator", id))


def _on(x: Any, device: DeviceName) -> Any:
    found, structure = tree.flatten_with_paths(x)
    leaves = [apply("transfer", as_array(leaf, path or "x"), device=str(device)) for path, leaf in found]
    return tree.unflatten(structure, leaves)


def _device(device: Any) -> DeviceName:
    name = device if isinstance(device, str) else getattr(device, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{device!r} is no device", next_step='Give "cpu", "gpu", a worker\'s name or a Node')
    if name in ("cpu", "gpu"):
        return DeviceName(name)
    worker, _, index = name.rpartition(":")
    return DeviceName("worker", int(index), worker) if worker and index.isdigit() else DeviceName("worker", -1, name)
