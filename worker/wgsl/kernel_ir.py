"""What a kernel is made of: bindings, workgroup memory and a body of loops, stores and barriers.

Values are `expressions.Expr`.  A kernel is one grid of workgroups in one dimension (`groups`; `emit` folds it), the
variables `group` and `lane` say which invocation this is.  Nothing here knows WGSL or wgpu; `check` proves what can be
proven before text exists.  It can change any day: it never leaves the worker and is not cached (the text is).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..compiler.expressions import Expr
from .choices import Choice

SUBGROUP_LANE = "subgroup_lane"  # the variable that is this invocation's place in its subgroup


@dataclass(frozen=True, slots=True)
class Let:
    """A named value that never changes."""

    var: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Declare:
    """A variable with its first value; read it as `Builder.mutable(name, dtype)`."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Assign:
    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Store:
    """Element `index` of a buffer; four values store elements 4*index to 4*index + 3."""

    buffer: int
    index: Expr
    values: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class StoreShared:
    name: str
    index: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Loop:
    """for var = start; var < stop; var += step."""

    var: Expr
    start: Expr
    stop: int
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class When:
    condition: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends this invocation if the condition holds; before a barrier it must hold for the whole workgroup."""

    condition: Expr


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier: it waits for the workgroup, and makes its stores to workgroup memory visible."""


Statement = Let | Declare | Assign | Store | StoreShared | Loop | When | Leave | Barrier


@dataclass(frozen=True, slots=True)
class Shared:
    """An array in workgroup memory; dtype f32x4 is a vec4<f32>."""

    name: str
    dtype: str
    count: int

    @property
    def size_bytes(self) -> int:
        return self.count * (16 if self.dtype.endswith("x4") else 4)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One dispatch.  `dtypes` gives the tensor dtype of every buffer the body reads or stores."""

    name: str
    groups: int
    invocations: int
    body: tuple[Statement, ...]
    dtypes: dict[int, str]
    shared: tuple[Shared, ...] = ()
    in_place: frozenset[int] = field(default_factory=frozenset)  # buffers both read and stored
    choice: Choice | None = None  # of its form, where there are several
    from_textures: frozenset[int] = field(default_factory=frozenset)  # buffers that it reads sooner from textures


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, outer ones first."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop | When):
            yield from statements(statement.body)


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """The expressions a statement itself evaluates (not those of its body)."""
    match statement:
        case Let(_, value) | Declare(_, value) | Assign(_, value):
            return (value,)
        case Store(_, index, values):
            return (index, *values)
        case StoreShared(_, index, value):
            return (index, value)
        case Loop(_, start):
            return (start,)
        case When(condition) | Leave(condition):
            return (condition,)
    return ()


def walk(roots: Sequence[Expr]) -> Iterator[Expr]:
    """Every distinct expression below `roots`, operands first."""
    seen: set[int] = set()
    stack = [(root, False) for root in roots]
    while stack:
        expr, ready = stack.pop()
        if ready:
            yield expr
        elif expr.uid not in seen:
            seen.add(expr.uid)
            stack.append((expr, True))
            stack.extend((arg, False) for arg in expr.args)


def trips(body: Sequence[Statement]) -> int:
    """The most loop iterations one invocation makes, summed over all loops as drivers count them."""
    total = 0
    for statement in body:
        if isinstance(statement, Loop):
            count = max(0, -(-(statement.stop - statement.start.lo) // statement.step))
            total += count * (1 + trips(statement.body))
        elif isinstance(statement, When):
            total += trips(statement.body)
    return total
