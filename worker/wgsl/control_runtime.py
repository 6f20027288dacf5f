"""The runner of graphs with branches, loops and collectives: it does the steps of `control_schedule.py` in turn.  All
tensors stay on the device.

Nothing is read back but what decides how to go on, the four bytes of a cond's or a while's test, and what other ranks
are to have: the operands of collectives.  The turns of a scan
are recorded and submitted many at a time, so many that a submission takes some milliseconds: soon enough to be stopped
between two of them.  A turn's rows are copied out of and into the arrays that hold all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import Cancelled, ExecuteFailed
from wire.ir.graph import Node, WireGraph
from wire.ir.ops import COLLECTIVES, GRAPH_ATTRS
from wire.ir.types import TensorType

from ..engine.protocol import Collectives, Pending, Stopped, interrupted
from .control_schedule import Schedule, Segment, Turn
from .device import Copy, Device, Mark
from .emit import check_size
from .execute import Given, WgslExecutable, from_stored, resident
from .program import padded, stored_size
from .updates import UPDATES, save_graph
from .values import Undo, Value

Values = list[Value | None]  # None: a tensor without elements
_SUBMITTED_S = 0.01  # a submission of several turns should take about so long
_TURNS_MAX = 1024  # of one submission
_COMMANDS_MAX = 16_384  # likewise


class Pace:
    """How many turns are submitted at once, whether the run was stopped, and how it reaches other ranks."""

    def __init__(self, device: Device, stopped: Stopped, collectives: Collectives | None = None) -> None:
        self.collectives = collectives
        self._device = device
        self.stopped = stopped
        self._turns, self._most = 0, 1
        self._began_s = time.perf_counter()

    def turn(self) -> None:
        """Come here between two turns; Cancelled if the run was stopped."""
        if interrupted(self.stopped, self._settle):
            raise Cancelled("the run was stopped")
        if self._began_s == math.inf:
            self._again()
        self._turns += 1
        if self._turns < self._most and self._device.recorded < _COMMANDS_MAX:
            return
        self._device.run((), (), self.stopped)
        took_s = time.perf_counter() - self._began_s
        if took_s < _SUBMITTED_S:
            self._most = min(2 * self._most, _TURNS_MAX)
        elif took_s > 2 * _SUBMITTED_S:
            self._most = max(self._most // 2, 1)
        self._again()

    def truth(self, value: Value | None) -> bool:
        """A bool on the device; waits for it."""
        if interrupted(self.stopped, self._settle):
            raise Cancelled("the run was stopped")
        assert value is not None
        (raw,) = self._device.run((), [(value.memory, 4)], self.stopped)
        self._again()
        return bool(raw.view(np.uint32)[0])

    def _settle(self) -> None:
        """Have the device do what is recorded; then the run is suspended, and its time does not count."""
        self._device.run((), (), self.stopped)
        self._began_s = math.inf

    def _again(self) -> None:
        self._turns, self._began_s = 0, time.perf_counter()


@dataclass(frozen=True, slots=True)
class Work:
    """A step made ready."""

    step: Segment | Turn
    made: Mapping[str, WgslExecutable | ControlExecutable]  # "" is a segment's own, else by attribute


class ControlExecutable:
    """A compiled part with branches, loops or collectives.  As WgslExecutable, but it runs in several submissions."""

    def __init__(
        self,
        device: Device,
        source: WireGraph,
        schedule: Schedule,
        inputs: Mapping[str, TensorType],
        outputs: Sequence[TensorType],
        make: Callable[[WireGraph], WgslExecutable | ControlExecutable],
        make_put: Callable[[Node, tuple[TensorType, ...]], WgslExecutable],
    ) -> None:
        """`make` compiles graphs, and `make_put` updates."""
        self.source = source
        self.inputs = dict(inputs)
        self.outputs = tuple(outputs)
        self._device = device
        self._schedule, self.updated_bytes_min = schedule, schedule.updated_bytes_min
        graph = schedule.graph
        self.work = [Work(step, _compiled(graph, step, make, make_put)) for step in schedule.steps]
        names = {graph.nodes[index].attrs["name"]: index for index in (*graph.inputs, *graph.params)}
        self._places = [names.get(name) for name in self.inputs]
        self._check_sizes()
        self.from_cache: bool = all(made.from_cache for made in self._parts)

    @property
    def _parts(self) -> list[WgslExecutable | ControlExecutable]:
        return [made for work in self.work for made in work.made.values()]

    @property
    def memory_bytes(self) -> int:
        """Device memory of a run beyond inputs and params, at the most."""
        graph = self._schedule.graph
        total = 0
        for work in self.work:
            step = work.step
            if isinstance(step, Turn) and step.node.op in UPDATES:
                inner = work.made["save"].memory_bytes  # and a copy of the tensor, where a holder needs it as it was
            else:
                inner = max((made.memory_bytes for made in work.made.values()), default=0)
                inner *= 2 if isinstance(step, Turn) else 1  # what a turn makes of the carry while that is still held
            total += inner
            if isinstance(step, Turn):
                total += sum(_stored(graph.types[index]) for index, _ in step.outputs)
        return total

    @property
    def kept_bytes(self) -> int:
        """Constants and kernels, all graphs together."""
        return sum(made.kept_bytes for made in self._parts)

    @property
    def dispatches(self) -> int:
        """Kernel launches of one run in which every graph runs once."""
        return sum(made.dispatches for made in self._parts)

    def run(
        self,
        inputs: Sequence[Given],
        stopped: Stopped,
        collectives: Collectives | None = None,
        keep: Collection[int] = (),
    ) -> list[Given]:
        """The outputs in order, as of WgslExecutable; Cancelled between two turns once `stopped()`."""
        given = [self._given(value) if used is not None else None
                 for value, used in zip(inputs, self._places, strict=True)]  # fmt: skip
        values = self.record(given, Pace(self._device, stopped, collectives))
        read = [(place, value) for place, value in enumerate(values) if value is not None and place not in keep]
        wanted = [(value.memory, stored_size(self.outputs[place])) for place, value in read]
        raw = self._device.run((), wanted, stopped)
        arrays = {place: from_stored(data, self.outputs[place]) for (place, _), data in zip(read, raw, strict=True)}
        return [arrays.get(place, value) for place, value in enumerate(values)]

    def record(self, inputs: Sequence[Value | None], pace: Pace) -> Values:
        """Let a run follow what the device has recorded; some of it is run at once."""
        values: dict[int, Value | None] = {}
        in_flight: dict[int, Pending] = {}
        for place, value in zip(self._places, inputs, strict=True):
            if place is not None:
                values[place] = value
        for at, work in enumerate(self.work):
            step = work.step
            self._settle(step.inputs, in_flight, values)
            operands = [values[index] for index in step.inputs]
            if isinstance(step, Segment):
                values.update(zip(step.outputs, _perform(work.made[""], operands, pace), strict=True))
            elif step.node.op in COLLECTIVES:
                in_flight[step.outputs[0][0]] = self._meet(step, operands, pace)
            else:
                results = _TURNS[step.node.op](self._device, work, operands, pace)
                values.update({index: results[output] for index, output in step.outputs})
            for index in step.inputs:
                if self._schedule.last[index] == at:
                    values.pop(index, None)
            del operands
        self._settle(self._schedule.graph.outputs, in_flight, values)
        return [values[index] for index in self._schedule.graph.outputs]

    def _meet(self, step: Turn, operands: Values, pace: Pace) -> Pending:
        """Start a collective; those of one level are all in flight before the first of them is waited for."""
        if pace.collectives is None:
            raise ExecuteFailed("a collective outside of a gang", op=step.node.op)
        given = [self._read(index, value, pace) for index, value in zip(step.inputs, operands, strict=True)]
        return pace.collectives.start(step.node.op, step.node.attrs, given[0] if given else None)

    def _read(self, index: int, value: Value | None, pace: Pace) -> NDArray[Any]:
        kind = self._schedule.graph.types[index]
        if value is None:
            return np.zeros(kind.shape, kind.dtype.numpy)
        (raw,) = self._device.run((), [(value.memory, stored_size(kind))], pace.stopped)
        return from_stored(raw, kind)

    def _settle(self, needed: Sequence[int], in_flight: dict[int, Pending], values: dict[int, Value | None]) -> None:
        """Wait for those of the collectives in flight that are needed."""
        for index in needed:
            if index in in_flight:
                values[index] = self._given(np.ascontiguousarray(in_flight.pop(index).result()))

    def _given(self, value: Given) -> Value | None:
        if isinstance(value, np.ndarray):
            return resident(self._device, value) if value.size else None
        return value

    def _check_sizes(self) -> None:
        """Everything between two steps must fit into a buffer, and be bound by the kernels of others."""
        limits, graph = self._device.profile.limits, self._schedule.graph
        for work in self.work:
            for index in (*work.step.inputs, *_outputs(work.step)):
                check_size(graph.types[index], graph.nodes[index].op, limits)


def _outputs(step: Segment | Turn) -> tuple[int, ...]:
    return step.outputs if isinstance(step, Segment) else tuple(index for index, _ in step.outputs)


def _compiled(
    graph: WireGraph, step: Segment | Turn, make: Callable[[WireGraph], WgslExecutable | ControlExecutable],
    make_put: Callable[[Node, tuple[TensorType, ...]], WgslExecutable],
) -> dict[str, WgslExecutable | ControlExecutable]:  # fmt: skip
    if isinstance(step, Segment):
        return {"": make(step.graph)}
    if step.node.op in UPDATES:
        types = tuple(graph.types[index] for index in step.inputs)
        return {"save": make(save_graph(step.node, types)), "put": make_put(step.node, types)}
    return {name: make(step.node.attrs[name]) for name in GRAPH_ATTRS.get(step.node.op, ())}


def _perform(made: WgslExecutable | ControlExecutable, operands: Sequence[Value | None], pace: Pace) -> Values:
    return made.record(operands) if isinstance(made, WgslExecutable) else made.record(operands, pace)


# -- branches, loops and updates --------------------------------------------------------------------------


def _cond(device: Device, work: Work, operands: Values, pace: Pace) -> Values:
    name = "then" if pace.truth(operands[0]) else "otherwise"
    return _perform(work.made[name], operands[1:], pace)


def _while(device: Device, work: Work, operands: Values, pace: Pace) -> Values:
    assert isinstance(work.step, Turn)
    count = len(work.step.node.attrs["body"].outputs)
    carry, constants = operands[:count], operands[count:]
    while pace.truth(_perform(work.made["test"], [*carry, *constants], pace)[0]):
        carry = _perform(work.made["body"], [*carry, *constants], pace)
    return carry


def _scan(device: Device, work: Work, operands: Values, pace: Pace) -> Values:
    assert isinstance(work.step, Turn)
    attrs = work.step.node.attrs
    body: WireGraph = attrs["body"]
    count, length = attrs["carry"], attrs["length"]
    first = count + attrs["consts"]
    carry, constants, arrays = operands[:count], operands[count:first], operands[first:]
    taken = [body.types[index] for index in body.inputs[first:]]
    given = [body.types[index] for index in body.outputs[count:]]
    stacked = [_room(device, length * stored_size(kind)) for kind in given]
    for at in reversed(range(length)) if attrs["reverse"] else range(length):
        rows = [_row(device, array, at, kind) for array, kind in zip(arrays, taken, strict=True)]
        results = _perform(work.made["body"], [*carry, *constants, *rows], pace)
        carry = results[:count]
        for whole, row, kind in zip(stacked, results[count:], given, strict=True):
            if whole is not None and row is not None:
                size = stored_size(kind)
                device.record([Copy(row.memory, 0, whole.memory, at * size, size)])
        pace.turn()
    return [*carry, *stacked]


def _update(device: Device, work: Work, operands: Values, pace: Pace) -> Values:
    """Write over the tensor that is updated, once what is there is saved."""
    assert isinstance(work.step, Turn)
    place, save, put = UPDATES[work.step.node.op], work.made["save"], work.made["put"]
    tensor, where, rows = (operands[at] for at in (0, place.where, place.rows))
    assert tensor is not None and where is not None and rows is not None, "none of them is without elements"
    assert isinstance(save, WgslExecutable) and isinstance(put, WgslExecutable)
    (before,) = save.record([tensor, where])
    assert before is not None
    old, mark = list(operands), Mark()
    old[0], old[place.rows] = None, before
    device.record([mark])
    made = tensor.updated(Undo(partial(put.record_over, inputs=old), mark, before.size_bytes))
    put.record_over(made.memory, operands)
    return [made]


def _room(device: Device, size_bytes: int) -> Value | None:
    return Value(device.take(padded(size_bytes)), device) if size_bytes else None


def _row(device: Device, array: Value | None, at: int, kind: TensorType) -> Value | None:
    size = stored_size(kind)
    if array is None or not size:
        return None
    row = Value(device.take(padded(size)), device)
    device.record([Copy(array.memory, at * size, row.memory, 0, size)])
    return row


def _stored(kind: TensorType) -> int:
    return padded(stored_size(kind)) if math.prod(kind.shape) else 0


_TURNS: dict[str, Callable[[Device, Work, Values, Pace], Values]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    **dict.fromkeys(UPDATES, _update),
}
