"""Tensor: a node of an expression, typed at once, whose value is made when someone looks.

A Tensor is an op of the table, the Tensors it takes and its attributes; the op table's own rules gave its type when it
was made, so a wrong shape raises where it was written.  It never means anything else later: once computed, its value
stands in place of the expression.

Leaves are literals (Python scalars and other small constants), values (realised results, numpy arrays), handles on the
mesh, and, while a function is traced, its arguments: these have no value, and asking for one is an error that says what
to write instead.  This file knows neither operators (`array.py`) nor how a value is computed (`realise.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple

from numpy.typing import NDArray

from wire.ir.types import Attrs, TensorType

from .handle import Handle


class Expression(NamedTuple):
    """How a Tensor comes about: a node of the graph, with Tensors in place of indices.

    A mark (`mesh/transforms/step_list.py`) says to the transforms that its operands are `inputs` and that it has a rule
    of its own; for everyone else it is the Tensor `stands_for`.
    """

    op: str
    inputs: tuple[Tensor, ...]
    attrs: Attrs
    handle: Handle | None = None
    stands_for: Tensor | None = None

    @property
    def needs(self) -> tuple[Tensor, ...]:
        """What has to be computed first."""
        return self.inputs if self.stands_for is None else (self.stands_for,)


_BIRTHS = count()


class Tensor:
    """Exactly one of `expression` and `value` is there, or both for a literal.

    Tensors are numbered as they are made (`born`), so what was made earlier cannot depend on what was made later.
    What is made of Python's floats alone is f32 as long as it stands alone, but a Python float has 64 bits: `wide` is
    the same in f64 (complex: c128), for a dtype that holds more than f32.
    """

    __slots__ = ("__weakref__", "born", "expression", "type", "value", "weak", "wide")

    def __init__(
        self,
        expression: Expression | None,
        type: TensorType,
        weak: bool = False,
        value: NDArray[Any] | None = None,
        wide: Tensor | None = None,
    ) -> None:
        self.expression = expression
        self.type = type
        self.weak = weak  # made of Python scalars only: adapts to the dtype it meets
        self.value = value
        self.wide = wide
        self.born = next(_BIRTHS)


_TRACED_SINCE: ContextVar[int] = ContextVar("mesh_traced_since", default=0)


@contextmanager
def tracing() -> Iterator[None]:
    """What is made within the block belongs to a function that is run for its expressions only."""
    token = _TRACED_SINCE.set(next(_BIRTHS))
    try:
        yield
    finally:
        _TRACED_SINCE.reset(token)


def made_outside(tensor: Tensor) -> bool:
    """True if `tensor` is older than the function that is being traced here: changing what it is called would last."""
    return tensor.born < _TRACED_SINCE.get()


def traced_argument(tensor: Tensor) -> str | None:
    """The name of a traced argument, or None for any other Tensor."""
    expression = tensor.expression
    if expression is None or expression.op not in ("input", "param") or expression.handle is not None:
        return None
    name: str = expression.attrs["name"]
    return name


def pending(wanted: Sequence[Tensor]) -> list[Tensor]:
    """Every Tensor without a value that `wanted` needs, operands first.  Iterative: chains may be very long."""
    order: list[Tensor] = []
    seen: set[int] = set()
    alive: list[Tensor] = []  # another thread may realise and drop parts meanwhile; ids must stay taken
    stack = [(tensor, False) for tensor in reversed(wanted)]
    while stack:
        tensor, ready = stack.pop()
        if ready:
            order.append(tensor)
        elif id(tensor) not in seen and tensor.value is None:
            seen.add(id(tensor))
            alive.append(tensor)
            expression = tensor.expression
            if expression is not None:
                stack.append((tensor, True))
                stack.extend([(operand, False) for operand in reversed(expression.needs)])
    return order


def computable(tensor: Tensor) -> bool:
    """False if the value depends on an argument of a function that is being traced."""
    return all(traced_argument(node) is None for node in pending([tensor]))
