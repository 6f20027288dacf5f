"""What a row is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wire.ir.types import TensorType

from ...core.array import Array

Row = Callable[..., Array | Sequence[Array]]
"""(equation, *operands) to the result, or to all results."""


@dataclass(frozen=True, slots=True)
class Equation:
    """One equation: its primitive, parameters and result types, how to call a jaxpr among the parameters, and which
    operands are keys of jax.random."""

    primitive: str
    params: Mapping[str, Any]
    types: Sequence[TensorType]
    call: Callable[[Any, Sequence[Array], Sequence[Array]], list[Array]]
    keys: frozenset[int] = frozenset()

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def ints(self, name: str) -> tuple[int, ...]:
        """A parameter that is a sequence of integers, of Python's or of numpy's."""
        return tuple(int(number) for number in self.params[name])

    @property
    def type(self) -> TensorType:
        return self.types[0]

    def closed(self, program: Any, arguments: Sequence[Array]) -> list[Array]:
        """The results of a closed jaxpr, or of an open one without constants."""
        inner = getattr(program, "jaxpr", program)
        constants = [as_constant(value) for value in getattr(program, "consts", ())]
        return self.call(inner, constants, arguments)


def as_constant(value: Any) -> Array:
    import numpy as np

    from ...numpy.promotion import asarray

    return asarray(np.asarray(value))
