"""Tensor names: what the tensors in nested arguments and results of a module are called.

A Model's inputs and outputs are flat.  An output is called by its path: "hidden" of {"hidden": x}, "past.0" of
{"past": (x, y)}, "output_1" of the second in a tuple, "output" of one alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any


def paths(result: Any, name: str = "") -> Iterator[tuple[int, str]]:
    """The leaves, which are ints, of a nested structure with their paths."""
    if isinstance(result, int):
        yield result, name or "output"
    elif isinstance(result, Mapping):
        for key, item in result.items():
            yield from paths(item, f"{name}.{key}" if name else str(key))
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        for key, item in zip(result._fields, result, strict=True):
            yield from paths(item, f"{name}.{key}" if name else key)
    elif isinstance(result, (list, tuple)):
        for place, item in enumerate(result):
            yield from paths(item, f"{name}.{place}" if name else f"output_{place}")


def output_names(torch: ModuleType, program: Any) -> list[str]:
    """A name for each output, in their order; one that no path gives, or that is given twice, is "output_" and its
    place."""
    count = len(program.graph_signature.output_specs)
    named: dict[int, str] = {}
    if program.call_spec.out_spec is not None:
        result = torch.utils._pytree.tree_unflatten(list(range(count)), program.call_spec.out_spec)
        for place, name in paths(result):
            if name not in named.values():
                named[place] = name
    return [named.get(place, "output" if count == 1 else f"output_{place}") for place in range(count)]


def origins(torch: ModuleType, program: Any, module: Any) -> list[str]:
    """The place of each input within the arguments of `forward` ("d['k']"), "" for one that is an argument itself."""
    spec = program.call_spec.in_spec
    count = spec.num_leaves
    arguments: tuple[Any, dict[str, Any]] = torch.utils._pytree.tree_unflatten(list(range(count)), spec)
    args, named = arguments
    forward = getattr(module, "forward", None)
    known = list(inspect.signature(forward).parameters) if callable(forward) else []
    by_path = {**{known[place] if place < len(known) else f"args[{place}]": arg for place, arg in enumerate(args)},
            **named}  # fmt: skip
    places = [""] * count
    for name, argument in by_path.items():
        for place, path in _keys(argument, name):
            places[place] = "" if path == name else path
    return places


def _keys(value: Any, path: str) -> Iterator[tuple[int, str]]:
    if isinstance(value, int):
        yield value, path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _keys(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _keys(item, f"{path}[{place}]")
