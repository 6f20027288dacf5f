"""Tensor names: what the tensors in nested arguments and results of a module are called.

A Model's inputs and outputs are flat.  An output is called by its path: "hidden" of {"hidden": x}, "past.0" of
{"past": (x, y)}, "output_1" of the second in a tuple, "output" of one alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any


def paths(made: Any, name: str = "") -> Iterator[tuple[int, str]]:
    """The leaves, which are ints, of a nested structure with their paths."""
    if isinstance(made, int):
        yield made, name or "output"
    elif isinstance(made, Mapping):
        for key, item in made.items():
            yield from paths(item, f"{name}.{key}" if name else str(key))
    elif isinstance(made, tuple) and hasattr(made, "_fields"):
        for key, item in zip(made._fields, made, strict=True):
            yield from paths(item, f"{name}.{key}" if name else key)
    elif isinstance(made, (list, tuple)):
        for place, item in enumerate(made):
            yield from paths(item, f"{name}.{place}" if name else f"output_{place}")


def output_names(torch: ModuleType, program: Any) -> list[str]:
    """A name for each output, in their order; one that no path gives, or that is given twice, is "output_" and its
    place."""
    count = len(program.graph_signature.output_specs)
    named: dict[int, str] = {}
    if program.call_spec.out_spec is not None:
        made = torch.utils._pytree.tree_unflatten(list(range(count)), program.call_spec.out_spec)
        for place, name in paths(made):
            if name not in named.values():
                named[place] = name
    return [named.get(place, "output" if count == 1 else f"output_{place}") for place in range(count)]


def origins(torch: ModuleType, program: Any, module: Any) -> list[str]:
    """The place of each input within the arguments of `forward` ("d['k']"), "" for one that is an argument itself."""
    spec = program.call_spec.in_spec
    count = spec.num_leaves
    made: tuple[Any, dict[str, Any]] = torch.utils._pytree.tree_unflatten(list(range(count)), spec)
    args, named = made
    forward = getattr(module, "forward", None)
    known = list(inspect.signature(forward).parameters) if callable(forward) else []
    told = {**{known[place] if place < len(known) else f"args[{place}]": arg for place, arg in enumerate(args)},
            **named}  # fmt: skip
    places = [""] * count
    for name, argument in told.items():
        for place, path in _keys(argument, name):
            places[place] = "" if path == name else path
    return places


def _keys(made: Any, path: str) -> Iterator[tuple[int, str]]:
    if isinstance(made, int):
        yield made, path
    elif isinstance(made, Mapping):
        for key, item in made.items():
            yield from _keys(item, f"{path}[{key!r}]")
    elif isinstance(made, (list, tuple)):
        for place, item in enumerate(made):
            yield from _keys(item, f"{path}[{place}]")
