"""Every public call: functions of the namespaces, and the methods of one cheap instance of each class of theirs.

A new function is found by itself; a new class with methods needs a row in `instances`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mesh
from mesh import Mesh, MeshError, collectives, nn, optim, random, training, tree
from mesh import numpy as mnp
from mesh.numpy import fft, linalg

Calls = dict[str, Callable[..., Any]]

NAMESPACES = (mesh, mnp, linalg, fft, random, nn, nn.initialisers, optim, collectives, tree, training)
X = np.ones((4, 2), np.float32)
KEY = np.zeros(2, np.uint32)
NOT_CALLED = {
    "mesh.init": "it makes the mesh of the whole process",
    "mesh.shutdown": "it ends that",
    "mesh.barrier": "it waits for ranks",
    "mesh.AsyncMesh": "it is made by the builder",
}


def callables(alone: Mesh) -> Calls:
    """All of them, by name, with a mesh that has no workers."""
    found: Calls = {}
    for space in NAMESPACES:
        found |= {
            f"{space.__name__}.{name}": getattr(space, name) for name in space.__all__ if callable(getattr(space, name))
        }
    for name, (of, but) in instances(alone).items():
        found |= methods(name, of, *but)
    for transform in (
        mesh.grad,
        mesh.value_and_grad,
        mesh.jacobian,
        mesh.hessian,
        mesh.vmap,
        mesh.remat,
        mesh.function,
    ):
        found[f"{transform.__name__}(f)"] = transform(lambda x: mnp.sum(x))
    return {name: fn for name, fn in found.items() if name not in NOT_CALLED}


def instances(alone: Mesh) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """One object of each class, by its name, and which of its methods are not called: those that wait, or end it."""
    return {
        "Mesh": (alone, ("close", "wait")),
        "Builder": (Mesh.builder(), ("build", "build_async")),
        "Array": (mnp.asarray(X), ()),
        "Grid": (mesh.Grid((2,), ("a",)), ()),
        "PartitionSpec": (mesh.PartitionSpec("a"), ()),
        "DeviceMap": (mesh.DeviceMap(), ()),
        "WireGraph": (mesh.trace(lambda x: x, X), ()),
        "Optimiser": (optim.adam(1e-3), ("index", "count")),
    }


def methods(name: str, of: object, *but: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Those that are public, and the call of what can be called."""
    if inspect.isfunction(of) or hasattr(type(of), "__call__"):  # noqa: B004  # of its class, not of itself
        yield name, of  # type: ignore[misc]
    for attribute in dir(of):
        if attribute.startswith("_") or attribute in but:
            continue
        try:
            found = getattr(of, attribute)
        except MeshError:
            continue
        if callable(found) and not inspect.isclass(found):
            yield f"{name}.{attribute}", found
