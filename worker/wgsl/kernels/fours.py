"""Ops on four elements at once, where that is cheaper than four times one.

A function's operations wait for each other; those of four elements side by side do not, and a processor that executes
WGSL looks only so far ahead.  On its vectors, all sides of a branch are done for every element.  Sine and cosine of
large arguments are such a side, and a long one: of four elements it is done one at a time, as long as there is one that
needs it.
"""

from __future__ import annotations

from ...compiler.expressions import Builder, Expr
from ..kernel_ir import walk
from ..legalise import FOURS

Four = tuple[Expr, ...]


def together(build: Builder, values: Four) -> Four:
    """The four values, with an op on four elements wherever all of them take the same one of `FOURS`."""
    above: set[int] = set()  # those with one of them below
    for expr in walk(values):
        if expr.op in FOURS or any(arg.uid in above for arg in expr.args):
            above.add(expr.uid)
    made: dict[Four, Four] = {}
    pending = [(values, False)]
    while pending:
        four, ready = pending.pop()
        if four in made:
            continue
        if not _alike(four) or four[0].uid not in above:
            made[four] = four
            continue
        operands = list(zip(*(value.args for value in four), strict=True))
        if not ready:
            pending += [(four, True), *((operand, False) for operand in operands)]
            continue
        made[four] = _rebuilt(build, four, [made[operand] for operand in operands])
    return made[values]


def _alike(four: Four) -> bool:
    """Whether these are different elements of the same op."""
    first = four[0]
    same = all((each.op, each.attr, len(each.args)) == (first.op, first.attr, len(first.args)) for each in four)
    return same and len(set(four)) > 1


def _rebuilt(build: Builder, four: Four, operands: list[Four]) -> Four:
    op, dtype = four[0].op, four[0].dtype
    if op in FOURS and dtype == "f32":
        quad = build.make(op, [build.make("quad", operands[0], "f32x4")], "f32x4")
        return tuple(build.make("lane", [quad], "f32", lane) for lane in range(4))
    return tuple(
        build.make(op, args, each.dtype, each.attr)
        for each, args in zip(four, zip(*operands, strict=True), strict=True)
    )
