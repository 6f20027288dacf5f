"""Shape classes, and which configuration of its kernel was chosen for each by measuring.  Pure.

A class is a kind of kernel, a dtype, and sizes rounded to powers of two: what is fast for one shape is fast for those
about as large.  A family of kernels has a table of configurations (`kernels/*_forms.py`), each with a name.  A class
that nobody measured has the first guess of its family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from wire.errors import InputError

SIDE_MAX = 1 << 12  # of a class: what is larger has more workgroups, and each of them does the same


class Named(Protocol):
    """A configuration."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """`kind` is a row of `problems.PROBLEMS`, which says what the sizes are."""

    kind: str
    dtype: str
    sizes: tuple[int, ...]

    @staticmethod
    def of(kind: str, dtype: str, sizes: Sequence[int]) -> ShapeClass:
        """The class of these sizes: each is the power of two that is nearest by ratio, of at most `SIDE_MAX`."""
        return ShapeClass(kind, dtype, tuple(min(1 << (size * size).bit_length() // 2, SIDE_MAX) for size in sizes))

    @staticmethod
    def parse(text: str) -> ShapeClass:
        """The inverse of `str`; InputError."""
        kind, dtype, sizes = ["", "", *text.rsplit(" ", 2)][-3:]
        if not re.fullmatch(r"[1-9]\d{0,9}(x[1-9]\d{0,9})*", sizes):
            raise InputError(f"{text!r} is no shape class", next_step="Write its kind, dtype and sizes: sum f32 64x64")
        return ShapeClass.of(kind, dtype, [int(size) for size in sizes.split("x")])

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype} {'x'.join(map(str, self.sizes))}"


@dataclass(frozen=True)
class Choices:
    """The names of configurations by class, as texts."""

    names: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Equal choices have one text, which is part of the keys of programs."""
        return f"Choices({sorted(self.names.items())})"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided about one kernel: the `form` it has, by name, of those that the device's limits allow."""

    shape_class: ShapeClass
    form: str
    forms: tuple[str, ...]


def chosen(choices: Choices, shape_class: ShapeClass | None, guess: T, others: Sequence[T]) -> tuple[T, Choice | None]:
    """What was chosen for a class among these, else the first guess; and what there was to choose.  A kernel without a
    class has the guess."""
    if shape_class is None:
        return guess, None
    table = {form.name: form for form in (guess, *others)}
    form = table.get(choices.names.get(str(shape_class), ""), guess)
    return form, Choice(shape_class, form.name, tuple(table))
