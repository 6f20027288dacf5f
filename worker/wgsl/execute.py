"""Program -> an executable on a device: pipelines, constants and bind groups made once, replayed in one pass.

It looks into no graph, and knows no WGSL.  Intermediate buffers come from the device's pool at every run and go back
after it.  Outputs that are to stay on the device come from there, too, and go back when nobody holds them.  A run takes
the buffers of an earlier one where they are free, so bind groups are reused.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BOOL
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType

from ..engine.kernel_rows import executable_number
from ..engine.protocol import Stopped, never
from .choices import Choices
from .device import Device, Memory, Step
from .program import Dispatch, Program, padded, stored_size
from .slices import Costs, Pass
from .values import Value

_SETS_MAX = 16  # of buffers that take turns, and of bind groups: a session has a value per step in flight, up to 8
_PIPELINE_BYTES, _BYTES_PER_CHARACTER = 400 << 10, 170  # of WGSL: measured with lavapipe, from 400 to 27,000 of them


Given = Value | NDArray[Any] | None  # None: a tensor without elements


@dataclass(frozen=True, slots=True)
class _Bound:
    """The buffers of a run by their numbers: `values` has those that may outlive it, `scratch` is taken for it only."""

    memories: tuple[Memory, ...]
    values: Mapping[int, Value]
    scratch: tuple[Memory, ...]


class WgslExecutable:
    """A compiled part.  `inputs` are in the order of `run`'s; `from_cache` says that nothing was generated.  Its
    kernels have the forms of `choices`.

    Its constants go back to the device's pool when nobody holds it any more, or an output that is one of them.
    """

    def __init__(
        self,
        device: Device,
        source: WireGraph,
        program: Program,
        inputs: Mapping[str, TensorType],
        outputs: Sequence[TensorType],
        consts: Mapping[str, NDArray[Any]],
        from_cache: bool,
        choices: Choices,
    ) -> None:
        self.source = source
        self.choices = choices
        self.number = executable_number()
        self.program = program
        self.inputs = dict(inputs)
        self.outputs = tuple(outputs)
        self.from_cache = from_cache
        self._device = device
        self._pipelines = [device.pipeline(module.text) for module in program.modules]
        places = {name: place for place, name in enumerate(self.inputs)}
        self._inputs = [(number, places[b.name]) for number, b in enumerate(program.buffers) if b.kind == "input"]
        self._consts = {
            number: resident(device, consts[b.name]) for number, b in enumerate(program.buffers) if b.kind == "const"
        }
        self._sets: dict[tuple[int, ...], list[tuple[Memory, ...]]] = {}  # taken together for the buffers so numbered
        self._costs = Costs(len(program.dispatches))
        self._passes: OrderedDict[tuple[Memory, ...], Pass] = OrderedDict()  # by all buffers; the latest last

    @property
    def memory_bytes(self) -> int:
        """Device memory of a run beyond inputs and params."""
        return self.program.memory_bytes

    @property
    def kept_bytes(self) -> int:
        """The bytes of its constants, and of what drivers keep of its kernels."""
        code = sum(_PIPELINE_BYTES + _BYTES_PER_CHARACTER * len(module.text) for module in self.program.modules)
        return code + sum(value.size_bytes for value in self._consts.values())

    @property
    def dispatches(self) -> int:
        """Kernel launches of one run."""
        return len(self.program.dispatches)

    def run(self, inputs: Sequence[Given], stopped: Stopped = never, keep: Collection[int] = ()) -> list[Given]:
        """The outputs in order: values at the places in `keep`, arrays elsewhere; Cancelled once `stopped()`.

        Inputs that are arrays are uploaded; values are used where they lie, and may be outputs.
        """
        numbers = self.program.outputs
        read = [place for place, number in enumerate(numbers) if number >= 0 and place not in keep]
        bound = self._bind(inputs, {numbers[place] for place in keep})
        try:
            for number, place in self._inputs:
                if isinstance(given := inputs[place], np.ndarray):
                    self._device.write(bound.memories[number], to_stored(given))
            wanted = [(bound.memories[numbers[place]], stored_size(self.outputs[place])) for place in read]
            raw = self._device.run([self._pass(bound.memories)], wanted, stopped)
        finally:
            self._give(bound.scratch)
        arrays = {place: from_stored(data, self.outputs[place]) for place, data in zip(read, raw, strict=True)}
        return [arrays[place] if place in arrays else bound.values.get(n) for place, n in enumerate(numbers)]

    def record(self, inputs: Sequence[Value | None]) -> list[Value | None]:
        """Let a run follow what the device has recorded.  Outputs may be inputs, and constants."""
        bound = self._bind(inputs, self.program.outputs)
        try:
            self._device.record([self._pass(bound.memories)])
        finally:
            self._give(bound.scratch)  # what uses it next is recorded after this
        return [bound.values.get(number) for number in self.program.outputs]

    def record_over(self, memory: Memory, inputs: Sequence[Value | None]) -> None:
        """Let a run follow whose only output is an update of the tensor in this memory (updates.py)."""
        (output,) = self.program.outputs
        given = {number: value.memory for number, place in self._inputs if (value := inputs[place]) is not None}
        bound = {output: memory, **given}
        self._device.record([self._pass(tuple(bound[number] for number in range(len(bound))))])

    def _bind(self, inputs: Sequence[Given], kept: Collection[int]) -> _Bound:
        """The buffers of a run; those with the numbers `kept` may outlive it."""
        values = dict(self._consts)
        for number, place in self._inputs:
            if isinstance(given := inputs[place], Value):
                values[number] = given
        taken = [number for number in range(len(self.program.buffers)) if number not in values]
        scratch = tuple([number for number in taken if number not in kept])
        own = tuple([number for number in taken if number in kept])
        memories = self._take(scratch)
        try:
            values.update(zip(own, [Value(memory, self._device) for memory in self._take(own)], strict=True))
            by_number = {number: value.memory for number, value in values.items()}  # which may take some, too
        except BaseException:
            self._give(memories)
            raise
        by_number.update(zip(scratch, memories, strict=True))
        return _Bound(tuple([by_number[number] for number in range(len(by_number))]), values, memories)

    def _take(self, numbers: tuple[int, ...]) -> tuple[Memory, ...]:
        """Buffers from the pool: where all of them are there, those of an earlier run.

        So there are few sets of buffers, which take turns, and few bind groups.
        """
        sets = self._sets.setdefault(numbers, [])
        for memories in sets:
            if self._device.claim(memories):
                return memories
        taken: list[Memory] = []
        try:
            for number in numbers:
                buffer = self.program.buffers[number]
                take = self._device.take_texture if buffer.kind == "texture" else self._device.take
                taken.append(take(buffer.size_bytes))
        except BaseException:
            self._give(taken)
            raise
        sets.append(tuple(taken))
        del sets[:-_SETS_MAX]
        return sets[-1]

    def _give(self, memories: Iterable[Memory]) -> None:
        for memory in memories:
            self._device.give(memory)

    def _pass(self, bound: tuple[Memory, ...]) -> Pass:
        known = self._passes.pop(bound, None)
        if known is None:
            while len(self._passes) >= _SETS_MAX:  # inputs keep moving: do not collect bind groups
                self._passes.popitem(last=False)
            steps = [self._step(place, dispatch, bound) for place, dispatch in enumerate(self.program.dispatches)]
            known = self._device.prepared(steps, self._costs)
        self._passes[bound] = known
        return known

    def _step(self, place: int, dispatch: Dispatch, bound: tuple[Memory, ...]) -> Step:
        pipeline = self._pipelines[dispatch.shader]
        most, taken, pieces = self._device.profile.limits.piece_bytes, Counter[int](), list[tuple[Memory, int, int]]()
        for number in dispatch.buffers:
            at = taken[number] * most
            pieces.append((bound[number], at, min(self.program.buffers[number].size_bytes - at, most)))
            taken[number] += 1
        return Step(pipeline, self._device.bind_group(pipeline, pieces), dispatch.grid, (self.number, place))


def resident(device: Device, value: NDArray[Any]) -> Value:
    """An array on the device; OutOfMemory before anything is copied."""
    made = Value(device.take(padded(value.size * (4 if value.dtype == np.bool_ else value.itemsize))), device)
    device.write(made.memory, to_stored(value))
    return made


def to_stored(value: NDArray[Any]) -> NDArray[Any]:
    """An array as it lies on the device: bool as u32."""
    return value.astype(np.uint32) if value.dtype == np.bool_ else np.ascontiguousarray(value)


def from_stored(raw: NDArray[np.uint8], type_: TensorType) -> NDArray[Any]:
    """The inverse of `to_stored`."""
    if type_.dtype is BOOL:
        return np.asarray(raw.view(np.uint32) != 0).reshape(type_.shape)
    return np.asarray(raw.view(type_.dtype.numpy)).reshape(type_.shape)
