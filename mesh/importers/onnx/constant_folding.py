"""Known values: what of a model is fixed before any of it runs on a mesh.

An Array is known if it does not depend on a traced argument: constants, shapes, and arithmetic on these.  Rows ask for
values with `value_of` where a shape, an axis or a count depends on them.  Where the value does depend on an argument,
`Needed` names it, and whoever traces makes it a static input: read at call time, and part of the key of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from wire.errors import InputError

from ...core.array import Array
from ...core.expression import Tensor, pending, traced_argument
from ...core.realise import realise, using

FOLDED_ELEMENTS_MAX = 4096  # a known array larger than this is computed where it is used


class Needed(InputError):
    """A value is asked for that depends on the traced arguments `names`."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(
            f"the model's shapes depend on the values of {', '.join(sorted(names))}",
            next_step="Call the model outside of traced functions, or pass these as numpy arrays",
        )
        self.names = names


def value_of(array: Array) -> NDArray[Any]:
    """The value of a known array, computed in this process; Needed if it depends on traced arguments."""
    if array.value is None:
        names = [traced_argument(node) for node in pending([array.tensor])]
        needed = frozenset([name for name in names if name is not None])
        if needed:
            raise Needed(needed)
        with using(None):
            realise([array])
    assert array.value is not None
    return array.value


def ints_of(array: Array) -> tuple[int, ...]:
    """The elements of a known integer array, flat."""
    return tuple([int(number) for number in value_of(array).reshape(-1)])


def int_of(array: Array) -> int:
    """The element of a known integer array that has one."""
    (number,) = ints_of(array)
    return number


def is_known(array: Array) -> bool:
    """Whether `value_of` has an answer without the mesh: no traced argument and no tensor on the mesh is in it."""
    return all(not _outside(node) for node in pending([array.tensor]))


def fold(arrays: Sequence[Array]) -> None:
    """Compute now what of `arrays` is known and small, so that no worker computes indices and shapes again."""
    order = pending([array.tensor for array in arrays])
    known: set[int] = set()
    for node in order:
        expression = node.expression
        operands = () if expression is None else expression.inputs
        if not _outside(node) and all(one.value is not None or id(one) in known for one in operands):
            known.add(id(node))
    wanted = [
        operand
        for node in order
        if id(node) not in known
        for operand in _operands(node)
        if id(operand) in known and operand.type.size <= FOLDED_ELEMENTS_MAX
    ]
    wanted.extend([array.tensor for array in arrays if id(array.tensor) in known])
    distinct = list({id(tensor): tensor for tensor in wanted}.values())
    if distinct:
        with using(None):
            realise([Array(tensor) for tensor in distinct])


def _outside(node: Tensor) -> bool:
    expression = node.expression
    return expression is not None and expression.op in ("input", "param")


def _operands(node: Tensor) -> tuple[Tensor, ...]:
    return () if node.expression is None else node.expression.inputs
