"""Elementwise chains and views: one invocation per four neighbours, everything else is expressions."""

from __future__ import annotations

from ..kernel_ir import Kernel, Store
from .fours import together
from .frame import Frame

QUADS_FROM = 64  # smaller results gain nothing from vec4


def lower_map(frame: Frame) -> list[Kernel]:
    """One kernel; any shape with at least one element."""
    build, shape = frame.build, frame.shape(frame.root)
    lanes = 4 if frame.size % 4 == 0 and frame.size >= QUADS_FROM else 1
    item, groups, invocations, head = frame.threads(frame.size // lanes, "i")
    elements = frame.elements()
    places = [build.sum(build.scaled(item, lanes), build.number(lane)) for lane in range(lanes)]
    values = tuple(elements.at(frame.root, build.unravel(place, shape)) for place in places)
    if lanes == 4:
        values = together(build, values)
    body = (*head, Store(frame.root, item, values))
    return [Kernel("map", groups, invocations, body, frame.dtypes)]
