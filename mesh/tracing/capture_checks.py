"""What a traced function refers to besides its arguments: large arrays that it bakes in, traced arrays that it leaves.

A function is traced once and run many times, so an array it closes over becomes part of the program, and whatever it
keeps of its traced arguments means nothing afterwards.  Errors and warnings call both by the names that the user gave.
"""

from __future__ import annotations

import functools
import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from wire.errors import InputError
from wire.ir.codec import hash_array
from wire.ir.graph import WireGraph

from .. import tree
from ..core.array import Array
from ..core.expression import Tensor, pending

DEPTH = 2  # how far into the attributes of objects


def check_kept(fn: Callable[..., Any], arguments: Sequence[Tensor]) -> None:
    """Raise InputError if `fn`, just traced, left a traced array in a variable that outlives the trace."""
    mine = {id(own) for tensor in arguments for own in (tensor, tensor.wide)}
    for name, value in referred(fn):
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
    for name, value in referred(fn):
        held = value.value if isinstance(value, Array) else value
        if isinstance(held, np.ndarray) and any(_equal_arrays(held, blob) for blob in graph.blobs.values()):
            names.setdefault(hash_array(held), name)
    constants = [
        f"{names.get(address, 'an array')}: {blob.dtype}{list(blob.shape)}, {blob.nbytes / 2**20:.1f} MiB"
        for address, blob in graph.blobs.items()
    ]
    warnings.warn(
        f"{getattr(fn, '__name__', 'the function')} has large constants ({'; '.join(sorted(constants))}); "
        "pass them as arguments, and mesh.put what stays the same",
        stacklevel=2,
    )


def _equal_arrays(array: np.ndarray[Any, Any], blob: np.ndarray[Any, Any]) -> bool:
    return (array.shape, array.dtype) == (blob.shape, blob.dtype)


@contextmanager
def watching_chance(fn: Callable[..., Any]) -> Iterator[None]:
    """Warn if numpy's or Python's random numbers are drawn within: they are drawn once, and part of the graph then."""
    before = _chance()
    yield
    if before != _chance():
        warnings.warn(
            f"{getattr(fn, '__name__', 'the function')} draws random numbers that are no part of the graph: every call "
            "has those of the trace; take mesh.random, with a key as an argument",
            stacklevel=2,
        )


def _chance() -> Any:
    _, words, *rest = np.random.get_state(legacy=True)
    return np.asarray(words).tobytes(), rest, random.getstate()


def referred(fn: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The arrays in the variables that `fn` refers to, with names that say where they are."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    try:
        variables = inspect.getclosurevars(fn)
    except TypeError:  # a callable that is no Python function
        return
    for root, value in {"self": getattr(fn, "__self__", None), **variables.globals, **variables.nonlocals}.items():
        yield from _arrays_in(root, value, DEPTH)


def _arrays_in(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The arrays in pytrees and in the attributes of objects, to some depth: whole programs may hang on one."""
    try:
        leaves = tree.flatten_with_paths(value)[0]
    except InputError:  # a dict that cannot be taken apart
        return
    for path, leaf in leaves:
        if isinstance(leaf, (Array, np.ndarray)):
            yield tree.join(name, path), leaf
        elif depth and hasattr(leaf, "__dict__") and not _is_code(leaf):
            for attribute, inner in list(vars(leaf).items()):
                yield from _arrays_in(f"{tree.join(name, path)}.{attribute}", inner, depth - 1)


def _is_code(value: Any) -> bool:
    return inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)
