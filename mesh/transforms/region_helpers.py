"""Region helpers: what the rules of ops with graphs inside share, be they branches, loops or what ranks compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wire.ir.graph import WireGraph
from wire.ir.types import TensorType

from .. import numpy as mnp
from ..core.array import Array, apply
from .step_list import Function, call_graph, captured_by, run

Maybe = Sequence[Array | None]
"""Derivatives, None where they are zero."""


def function_of(graph: WireGraph) -> Function:
    return lambda *arrays: call_graph(graph, *arrays)


def function_of_some(graph: WireGraph, arrays: list[Array], chosen: Sequence[int]) -> Function:
    """The graph as a function of some of its arguments."""

    def fn(*some: Array) -> list[Array]:
        every = list(arrays)
        for place, array in zip(chosen, some, strict=True):
            every[place] = array
        return call_graph(graph, *every)

    return fn


def graphs_of(fns: dict[str, Function], types: Sequence[TensorType]) -> tuple[dict[str, WireGraph], list[Array]]:
    """The functions as graphs of the same arguments, which follow what any of them refers to besides."""
    inners = {name: run(fn, types) for name, fn in fns.items()}
    captured = captured_by(*inners.values())
    return {name: inner.taking(captured).graph() for name, inner in inners.items()}, list(map(Array, captured))


def types_of(graph: WireGraph) -> list[TensorType]:
    return [graph.types[index] for index in graph.outputs]


def row_of(kind: TensorType) -> TensorType:
    return TensorType(kind.shape[1:], kind.dtype)


def is_smooth(kind: TensorType) -> bool:
    return kind.dtype.kind in "fc"


def are_known(values: Maybe) -> list[bool]:
    return [value is not None for value in values]


def zeros_unless(array: Array | None, like: Array) -> Array:
    return mnp.zeros_like(like) if array is None else array


def filled(derivatives: Maybe, like: Sequence[Array]) -> list[Array]:
    return [zeros_unless(derivative, other) for derivative, other in zip(derivatives, like, strict=True)]


def picked(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [value for value, flag in zip(values, flags, strict=False) if flag]


def put_back(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """The values at the places that have a flag, None at others."""
    rest = iter(values)
    return [next(rest) if flag else None for flag in flags]


def split(values: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    parts, at = [], 0
    for count in counts:
        parts.append(list(values[at : at + count]))
        at += count
    return parts


def spread_all(size: int, arrays: Sequence[Array], batched: Sequence[bool]) -> list[Array]:
    return spread_some(size, arrays, batched, [True] * len(arrays))


def spread_some(size: int, arrays: Sequence[Array], batched: Sequence[bool], wanted: Sequence[bool]) -> list[Array]:
    """Repeat those that are wanted as batches and are none."""
    return [
        mnp.broadcast_to(array, (size, *array.shape)) if want and not flag else array
        for array, flag, want in zip(arrays, batched, wanted, strict=True)
    ]


def either(predicate: Array, left: Array, right: Array) -> Array:
    """Choose between two results by a predicate for each element of a batch."""
    shape = (predicate.shape[0], *[1] * (left.ndim - 1))
    return apply("select", mnp.reshape(predicate, shape), left, right)
