"""What a traced function refers to besides its arguments: large arrays that it bakes in, traced arrays that it leaves.

A function is traced once and run many times, so an array it closes over becomes part of the program, and whatever it
keeps of its traced arguments means nothing afterwards.  Both are told by the names that the user gave.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from wire.codec import hash_array
from wire.errors import InputError
from wire.graph import WireGraph

from . import tree
from .array import Array
from .expression import Tensor, pending


def check_kept(fn: Callable[..., Any], arguments: Sequence[Tensor]) -> None:
    """InputError if `fn`, which was just traced, left a traced array in a variable that outlives the trace."""
    mine = {id(tensor) for tensor in arguments}
    for name, value in _referred(fn):
        if isinstance(value, Array) and any(id(node) in mine for node in pending([value.tensor])):
            raise InputError(
                f"the function keeps a traced array in {name!r}, which has no value outside of it",
                next_step="Return it from the function instead",
            )


def warn_of_constants(fn: Callable[..., Any], graph: WireGraph) -> None:
    """One warning that names the large arrays which `fn` refers to, and which are part of its graph now."""
    if not graph.blobs:
        return
    names: dict[bytes, str] = {}
    for name, value in _referred(fn):
        found = value.value if isinstance(value, Array) else value
        if isinstance(found, np.ndarray) and any(_alike(found, blob) for blob in graph.blobs.values()):
            names.setdefault(hash_array(found), name)
    told = [
        f"{names.get(address, 'an array')}: {blob.dtype}{list(blob.shape)}, {blob.nbytes / 2**20:.1f} MiB"
        for address, blob in graph.blobs.items()
    ]
    warnings.warn(
        f"{getattr(fn, '__name__', 'the function')} has large constants ({'; '.join(sorted(told))}); "
        "pass them as arguments, and mesh.put what stays the same",
        stacklevel=2,
    )


def _alike(array: np.ndarray[Any, Any], blob: np.ndarray[Any, Any]) -> bool:
    return (array.shape, array.dtype) == (blob.shape, blob.dtype)


def _referred(fn: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The leaves of the variables that `fn` refers to, with names that say where they are."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    try:
        found = inspect.getclosurevars(fn)
    except TypeError:  # a callable that is no Python function
        return
    for root, value in {**found.globals, **found.nonlocals}.items():
        if not inspect.ismodule(value) and not callable(value):
            for path, leaf in tree.flatten_with_paths(value)[0]:
                yield tree.join(root, path), leaf
