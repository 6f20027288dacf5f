"""Branches and loops on numpy arrays, one row each.

A row takes `(attrs, operands, run)` and returns every result of the op.  `run(name, operands)` gives the outputs of the
graph in the attribute `name`, compiled once, or raises Cancelled: so a loop of any length is stopped within one turn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wire.ir.graph import WireGraph
from wire.ir.types import Attrs, HostArray

Run = Callable[[str, list[HostArray]], list[HostArray]]
Several = Callable[[Attrs, list[HostArray], Run], list[HostArray]]
"""What gives every result of a node."""


def _cond(attrs: Attrs, operands: list[HostArray], run: Run) -> list[HostArray]:
    predicate, *given = operands
    return run("then" if predicate else "otherwise", given)


def _while(attrs: Attrs, operands: list[HostArray], run: Run) -> list[HostArray]:
    count = len(attrs["body"].outputs)
    carry, constants = operands[:count], operands[count:]
    while run("test", [*carry, *constants])[0]:
        carry = run("body", [*carry, *constants])
    return carry


def _scan(attrs: Attrs, operands: list[HostArray], run: Run) -> list[HostArray]:
    body: WireGraph = attrs["body"]
    count, length = attrs["carry"], attrs["length"]
    carry, constants = operands[:count], operands[count : count + attrs["consts"]]
    rows = operands[count + attrs["consts"] :]
    kinds = [body.types[index] for index in body.outputs[count:]]
    stacked = [np.empty((length, *kind.shape), kind.dtype.numpy) for kind in kinds]
    for at in reversed(range(length)) if attrs["reverse"] else range(length):
        results = run("body", [*carry, *constants, *(array[at] for array in rows)])
        carry = results[:count]
        for array, row in zip(stacked, results[count:], strict=True):
            array[at] = row
    return [*carry, *stacked]


CONTROL: dict[str, Several] = {"cond": _cond, "while": _while, "scan": _scan}
