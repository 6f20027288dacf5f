"""Updates of a tensor in its own memory: only what changes is written.

Where several indices of a scatter are the same, the last one counts, as everywhere: an invocation that finds a later
one stores nothing.
"""

from __future__ import annotations

import math

from ...compiler.element_exprs import starts_of
from ...compiler.expressions import Expr
from ..kernel_ir import Assign, Declare, Kernel, Let, Loop, Store, When
from .frame import Frame


def lower_put(frame: Frame) -> list[Kernel]:
    """One kernel; the tensor itself is not among what it reads."""
    return [_PUT[frame.graph.nodes[frame.root].op](frame)]


def _put_rows(frame: Frame) -> Kernel:
    build, elements, node = frame.build, frame.elements(), frame.graph.nodes[frame.root]
    _, indices, updates = node.inputs
    axis, shape, index_shape = node.attrs["axis"], frame.shape(frame.root), frame.shape(indices)
    others = [dim for at, dim in enumerate(shape) if at != axis]
    count, columns = math.prod(index_shape), math.prod(others)
    item, groups, invocations, head = frame.threads(count * columns, "i")
    own, later = build.div(item, columns), build.var("later", count)
    place = build.unravel(build.mod(item, columns), others)

    def target(at: Expr) -> Expr:
        """The index as u32: a negative one becomes huge, so out of range either way."""
        value = elements.at(indices, build.unravel(at, index_shape))
        return value if value.dtype == "u32" else build.make("cast", [value], "u32", value.dtype)

    same = build.make("eq", [target(own), target(later)], "bool")
    again = Loop(later, build.sum(own, build.number(1)), count, 1, (When(same, (Assign("last", build.number(0)),)),))
    chosen = build.var("chosen", shape[axis])
    inside = build.make("inside", [target(own)], "bool", (0, shape[axis]))
    last = build.make("eq", [build.mutable("last", "u32"), build.number(1)], "bool")
    value = elements.at(updates, (*place[:axis], *build.unravel(own, index_shape), *place[axis:]))
    where = build.ravel((*place[:axis], chosen, *place[axis:]), shape)
    store = When(elements.both([inside, last]), (Let(chosen, target(own)), Store(frame.root, where, (value,))))
    body = (*head, Declare("last", build.number(1)), again, store)
    return Kernel("put_rows", groups, invocations, body, frame.dtypes)


def _put_slice(frame: Frame) -> Kernel:
    build, elements, node = frame.build, frame.elements(), frame.graph.nodes[frame.root]
    _, update, starts = node.inputs
    shape, window = frame.shape(frame.root), frame.shape(update)
    item, groups, invocations, head = frame.threads(math.prod(window), "i")
    index = build.unravel(item, window)
    first = starts_of(elements, starts, [dim - size for dim, size in zip(shape, window, strict=True)])
    where = build.ravel([build.sum(own, start) for own, start in zip(index, first, strict=True)], shape)
    body = (*head, Store(frame.root, where, (elements.at(update, index),)))
    return Kernel("put_slice", groups, invocations, body, frame.dtypes)


_PUT = {"scatter": _put_rows, "dynamic_update_slice": _put_slice}
