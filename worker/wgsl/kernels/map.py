"""Elementwise chains and views: one invocation per four neighbours, everything else is expressions.

Software devices pay for each workgroup and each invocation, and not for registers.  So large results have eight
neighbours an invocation there, and workgroups as large as the device allows.
"""

from __future__ import annotations

from ..kernel_ir import Kernel, Statement, Store, expressions, walk
from .fours import together
from .frame import Frame

QUADS_FROM = 64  # smaller results gain nothing from vec4
LARGE_FROM = 1 << 20  # elements: work for all cores also in large workgroups
EXPRESSIONS_MAX = 800  # of an invocation with two quads: the code of more does not stay decoded


def lower_map(frame: Frame) -> list[Kernel]:
    """One kernel; any shape with at least one element."""
    if frame.profile.software and frame.size >= LARGE_FROM and frame.size % 8 == 0:
        kernel = _kernel(frame, 4, 2, frame.profile.limits.invocations)
        if len(list(walk([each for statement in kernel.body for each in expressions(statement)]))) <= EXPRESSIONS_MAX:
            return [kernel]
    return [_kernel(frame, 4 if frame.size % 4 == 0 and frame.size >= QUADS_FROM else 1, 1)]


def _kernel(frame: Frame, lanes: int, stores: int, invocations: int = 0) -> Kernel:
    """An invocation makes `stores` stores of `lanes` neighbours."""
    build, shape, elements = frame.build, frame.shape(frame.root), frame.elements()
    item, groups, invocations, head = frame.threads(frame.size // (lanes * stores), "i", invocations)
    body: list[Statement] = [*head]
    for nth in range(stores):
        at = build.sum(build.scaled(item, stores), build.number(nth))
        places = [build.sum(build.scaled(at, lanes), build.number(lane)) for lane in range(lanes)]
        values = tuple(elements.at(frame.root, build.unravel(place, shape)) for place in places)
        body.append(Store(frame.root, at, together(build, values) if lanes == 4 else values))
    return Kernel("map", groups, invocations, tuple(body), frame.dtypes)
