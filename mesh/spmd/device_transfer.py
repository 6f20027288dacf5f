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
from ..tree import PyTree
from ..util.did_you_mean import names_checked
from .annotations import shard
from .grid import Grid, PartitionSpec


@names_checked
def transfer_to(x: PyTree, device: Any = None, sharding: Any = None, grid: Grid | None = None) -> PyTree:
    """Say on which device x is to be, or how it is to be split.  Its value stays the same.

    Parameters
    ----------
    x : Array or pytree of Array
        The tensor.
    device : str or Node, optional
        "cpu", "gpu", a Node or the name of a worker, or "NAME:INDEX" for one of its devices.  With neither a device nor
        a sharding, x stays where it is.
    sharding : PartitionSpec, optional
        How to split it, in place of a device.
    grid : Grid, optional
        The grid of `sharding`; by default that of `on_grid`.

    Returns
    -------
    Array or pytree of Array
        The same value, with what was said.

    Raises
    ------
    InputError
        If both a device and a sharding are given, or something is no device.
    NoSuchDevice
        If the device is not there when the program is placed.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     preview = m.plan(lambda x: mesh.transfer_to(x, "sim-1") @ x, np.ones((4, 4)))
    >>> "sim-1" in preview.workers
    True
    """
    if device is None and sharding is None:
        return x
    if sharding is not None:
        if device is not None:
            raise InputError("transfer_to takes a device or a sharding, and not both of them")
        if not isinstance(sharding, PartitionSpec):
            raise InputError(f"a {type(sharding).__name__} is no PartitionSpec")
        return shard(x, sharding, grid)
    return _on(x, _device(device))


to_device = transfer_to


@names_checked
def cpu(x: PyTree) -> PyTree:
    """Say that x is to be on a device of the cpu engine.  Its value stays the same.

    Parameters
    ----------
    x : Array or pytree of Array
        The tensor.

    Returns
    -------
    Array or pytree of Array
        The same value, with what was said.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(1).build() as m:
    ...     m.run(lambda x: mesh.cpu(x + 1), np.zeros(2))
    array([1., 1.])
    """
    return _on(x, DeviceName("cpu"))


@names_checked
def gpu(x: PyTree) -> PyTree:
    """Say that x is to be on a device of the wgsl engine.  Its value stays the same.

    Parameters
    ----------
    x : Array or pytree of Array
        The tensor.

    Returns
    -------
    Array or pytree of Array
        The same value, with what was said.

    Raises
    ------
    NoSuchDevice
        If there is no such device when the program is placed.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(1).build() as m:
    ...     m.run(lambda x: mesh.gpu(x + 1), np.zeros(2))
    Traceback (most recent call last):
        ...
    wire.errors.NoSuchDevice: ...
    """
    return _on(x, DeviceName("gpu"))


@names_checked
def accelerator(x: PyTree, id: int | None = None, *, device_id: int | None = None) -> PyTree:  # what others call it
    """Say that x is to be on an accelerator.  Its value stays the same.

    Parameters
    ----------
    x : Array or pytree of Array
        The tensor.
    id : int, optional
        Which of all devices that are no cpu, in the order of workers' names; the first unless said.
    device_id : int, optional
        Another name of `id`.

    Returns
    -------
    Array or pytree of Array
        The same value, with what was said.

    Raises
    ------
    InputError
        If it is not a number from 0, or given by both names.
    NoSuchDevice
        If there is no such device when the program is placed.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> graph = mesh.trace(lambda x: mesh.accelerator(x, 1), np.zeros(2))
    >>> graph.nodes[1].attrs["device"]
    'accelerator 1'
    """
    if id is not None and device_id is not None:
        raise InputError("id and device_id are two names of one argument", next_step="Give one of them")
    number = next((candidate for candidate in (id, device_id) if candidate is not None), 0)
    if type(number) is not int or not 0 <= number < 1_000_000:
        raise InputError(f"accelerators are numbered from 0, got {number!r}")
    return _on(x, DeviceName("accelerator", number))


def _on(x: PyTree, device: DeviceName) -> PyTree:
    pairs, structure = tree.flatten_with_paths(x)
    leaves = [apply("transfer", as_array(leaf, path or "x"), device=str(device)) for path, leaf in pairs]
    return tree.unflatten(structure, leaves)


def _device(device: Any) -> DeviceName:
    name = device if isinstance(device, str) else getattr(device, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{device!r} is no device", next_step='Give "cpu", "gpu", a worker\'s name or a Node')
    if name in ("cpu", "gpu"):
        return DeviceName(name)
    worker, _, index = name.rpartition(":")
    return DeviceName("worker", int(index), worker) if worker and index.isdigit() else DeviceName("worker", -1, name)
