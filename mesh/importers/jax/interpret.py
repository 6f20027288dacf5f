"""Interpretation of jaxprs on Arrays: equations in order, each by the row of its primitive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from wire.errors import DTypeError, Unsupported
from wire.ir.dtypes import U32, dtype_of
from wire.ir.types import TensorType

from ... import numpy as mnp
from ...core.array import Array, literal
from ...util.units import counted
from . import complexes, control, elementwise, indexing, matrices, randomness, structure, windows
from .rows import Equation, Row

PRIMITIVES: dict[str, Row] = {
    **elementwise.ROWS,
    **structure.ROWS,
    **indexing.ROWS,
    **windows.ROWS,
    **randomness.ROWS,
    **control.ROWS,
    **complexes.ROWS,
    **matrices.ROWS,
}


ARRANGING = {*structure.ROWS, *indexing.ROWS, "copy", "select_n"}


def call(jaxpr: Any, constants: Sequence[Array], arguments: Sequence[Array]) -> list[Array]:
    """The results of a jaxpr."""
    values: dict[Any, Array] = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(var: Any) -> Array:
        return literal(var.val, type_of(var.aval).dtype) if hasattr(var, "val") else values[var]

    for eqn in jaxpr.eqns:
        name, types = eqn.primitive.name, [type_of(var.aval) for var in eqn.outvars]
        keys = frozenset(place for place, var in enumerate(eqn.invars) if _is_key(var.aval))
        equation = Equation(name, eqn.params, types, call, keys)
        row = _on_keys(PRIMITIVES[name]) if keys and name in ARRANGING else PRIMITIVES[name]
        results = row(equation, *[read(var) for var in eqn.invars])
        for var, result in zip(eqn.outvars, [results] if isinstance(results, Array) else results, strict=True):
            values[var] = result
    return [read(var) for var in jaxpr.outvars]


def type_of(aval: Any) -> TensorType:
    """The type of a JAX value: a key of jax.random is u32 (..., 2)."""
    shape = tuple(int(dim) for dim in aval.shape)
    return TensorType((*shape, 2), U32) if _is_key(aval) else TensorType(shape, dtype_of(aval.dtype))


def _is_key(aval: Any) -> bool:
    """Whether it is a key of threefry; keys of other generators are of no dtype that graphs have."""
    return str(aval.dtype) == "key<fry>"


def _on_keys(row: Row) -> Row:
    """A primitive that arranges arrays, on keys: on each of the two words."""

    def words(equation: Equation, *operands: Array) -> Sequence[Array]:
        types = [TensorType(kind.shape[:-1], kind.dtype) for kind in equation.types]
        alone = replace(equation, types=types)
        keys = {place for place, array in enumerate(operands) if place in equation.keys}
        halves = []
        for word in (0, 1):
            given = [array[..., word] if place in keys else array for place, array in enumerate(operands)]
            drawn = row(alone, *given)
            halves.append([drawn] if isinstance(drawn, Array) else drawn)
        return [mnp.stack(pair, axis=-1) for pair in zip(*halves, strict=True)]

    return words


def check_supported(jaxpr: Any, name: str) -> None:
    """Unsupported listing every primitive and dtype of the program, and of those inside it, that is not known."""
    missing: dict[str, int] = {}
    for eqn in _equations(jaxpr):
        reasons = [] if eqn.primitive.name in PRIMITIVES else [f"the primitive {eqn.primitive.name}"]
        if eqn.primitive.name == "scatter" and not _replaces(eqn.params.get("update_jaxpr")):
            reasons.append("scatter with a function (x.at[...].apply)")
        if eqn.primitive.name in ("random_bits", "random_split") and not control.counts_as_now():
            reasons.append(f"{eqn.primitive.name} with jax_threefry_partitionable=False")
        for var in eqn.outvars:
            try:
                type_of(var.aval)
            except (DTypeError, TypeError, AttributeError):
                reasons.append(f"{eqn.primitive.name} of {getattr(var.aval, 'dtype', var.aval)}")
        for reason in reasons:
            missing[reason] = missing.get(reason, 0) + 1
    if missing:
        listed = ", ".join(f"{reason} ({counted(count, 'time')})" for reason, count in sorted(missing.items()))
        raise Unsupported(f"{name} uses {listed}", next_step="Write these parts with mesh.numpy, or leave them outside")


def _replaces(update: Any) -> bool:
    """Whether a scatter's function of the old and the new element is the new one."""
    inner = getattr(update, "jaxpr", update)
    return inner is None or (not inner.eqns and inner.outvars[0] is inner.invars[1])


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, and of every jaxpr among their parameters."""
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name in NO_PROGRAM:
            continue
        if eqn.primitive.name == "call_hi_primitive":
            yield from _equations(control.expanded(eqn.params["_prim"]).jaxpr)
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


NO_PROGRAM = frozenset(
    {"scatter", "scatter-add", "scatter_add", "scatter_min", "scatter_max", "scatter-min", "scatter-max",
     "custom_lin", "select_and_scatter_add"}
)  # fmt: skip
"""Primitives whose inner jaxpr only says which function combines two numbers."""
