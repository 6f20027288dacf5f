"""Symbolic sizes: the dimensions that an exported program leaves free, and every size that follows from them.

torch.export writes such a dimension, and what is computed of it, as a formula of symbols.  A Model's dimension has a
name instead, "x.0" after the input and the axis where it comes first; when the shapes of a call are known, so are the
symbols, and each size in the program is the number that its formula gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from wire.errors import InputError, Unsupported


@dataclass(frozen=True, slots=True)
class Sized:
    """What an op has to know of its result."""

    shape: tuple[int, ...]
    dtype: Any


class Sizes:
    """The free dimensions of a program, by the formulas of its inputs' shapes."""

    def __init__(self, program: Any, inputs: Mapping[str, Any]) -> None:
        self._names: dict[Any, str] = {}
        self._shapes = {name: [_formula(dim) for dim in value.shape] for name, value in inputs.items()}
        for name, shape in self._shapes.items():
            for axis, dim in enumerate(shape):
                if not isinstance(dim, int):
                    self._names.setdefault(dim, f"{name}.{axis}")
        self._ranges = dict(program.range_constraints)
        symbols = {symbol for formula in self._names for symbol in formula.free_symbols}
        for node in program.graph.nodes:
            if symbols_of(node.meta.get("val")) - symbols:
                raise Unsupported(f"{node.name} has a size that depends on values", next_step="Give it a fixed size")

    @property
    def free(self) -> bool:
        """Whether there are any."""
        return bool(self._names)

    def shape(self, name: str) -> tuple[int | str, ...]:
        """The input's, names for what is free."""
        return tuple([dim if isinstance(dim, int) else self._names[dim] for dim in self._shapes[name]])

    def bound(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[Any, int]:
        """Numbers for the symbols, by the inputs' shapes; InputError where they do not fit the formulas."""
        sympy = import_module("sympy")  # it comes with torch
        sizes: dict[Any, int] = {}
        for name, formulas in self._shapes.items():
            for axis, (formula, size) in enumerate(zip(formulas, shapes[name], strict=True)):
                if isinstance(formula, int):
                    continue
                where = f"the input {name!r} is {size} long along axis {axis}"
                left = sympy.sympify(formula.xreplace(sizes))
                if left.free_symbols:
                    symbol = min(left.free_symbols, key=str)
                    solved = [root for root in sympy.solve(left - size, symbol) if root.is_integer and root >= 0]
                    if len(solved) != 1:
                        raise InputError(f"{where}, and the program was exported for lengths of {formula}")
                    sizes[symbol] = int(solved[0])
                elif int(left) != size:
                    raise InputError(f"{where}, and by the other inputs it is {int(left)}")
                bounds = self._ranges.get(formula)
                if bounds is not None and not bool((bounds.lower <= size) & (size <= bounds.upper)):
                    raise InputError(f"{where}, and the program was exported for {bounds.lower} to {bounds.upper}")
        return sizes


def concrete(value: Any, bound: Mapping[Any, int]) -> Any:
    """What torch says of a node's result, every formula in it a number."""
    if isinstance(value, (list, tuple)):
        return [concrete(item, bound) for item in value]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Sized(tuple([concrete(dim, bound) for dim in value.shape]), value.dtype)
    if is_size(value):
        number = import_module("sympy").sympify(value.node.expr.xreplace(dict(bound)))
        return int(number) if number.is_integer else bool(number) if number.is_Boolean else float(number)
    return value


def is_size(value: Any) -> bool:
    """Whether this is a formula of torch's: a SymInt, SymFloat or SymBool."""
    return hasattr(value, "node") and hasattr(value.node, "expr")


def symbols_of(value: Any) -> set[Any]:
    """The symbols in the sizes of what torch says of a node's result."""
    if isinstance(value, (list, tuple)):
        return {symbol for item in value for symbol in symbols_of(item)}
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return {symbol for dim in value.shape for symbol in symbols_of(dim)}
    return set(value.node.expr.free_symbols) if is_size(value) else set()


def _formula(dim: Any) -> Any:
    return dim.node.expr if is_size(dim) and dim.node.expr.free_symbols else int(dim)
