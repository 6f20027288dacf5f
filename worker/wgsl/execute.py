"""Program -> an executable on a device: pipelines, constants and bind groups made once, replayed in one pass.

It knows neither graphs nor WGSL.  Intermediate buffers come from the device's pool at every run and go back after it;
the pool hands out the same buffers again, so bind groups are reused as long as inputs stay where they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BOOL
from wire.ir.types import TensorType

from .device import Device, Memory, Step
from .program import Buffer, Program, padded

_PIPELINE_BYTES, _BYTES_PER_CHARACTER = 400 << 10, 170  # of WGSL: measured with lavapipe, from 400 to 27,000 of them


class Value:
    """A tensor on the device between two steps; its buffer goes back to the pool when nobody holds the value."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self, memory: Memory, owner: Device | None = None) -> None:
        self.memory = memory
        if owner is not None:
            weakref.finalize(self, owner.give, memory).atexit = False


class WgslExecutable:
    """A compiled part.  `inputs` are in the order of `run`'s; `from_cache` says that nothing was generated.

    Its constants go back to the device's pool when nobody holds it any more.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        inputs: Mapping[str, TensorType],
        outputs: Sequence[TensorType],
        consts: Mapping[str, NDArray[Any]],
        from_cache: bool,
    ) -> None:
        self.program = program
        self.inputs = dict(inputs)
        self.outputs = tuple(outputs)
        self.from_cache = from_cache
        self._device = device
        self._pipelines = [device.pipeline(module.text) for module in program.modules]
        self._consts: dict[str, Memory] = {}
        weakref.finalize(self, _give_all, device, self._consts).atexit = False
        for key, value in consts.items():
            self._consts[key] = resident(device, value)
        self._steps: dict[tuple[Memory, ...], list[Step]] = {}

    @property
    def memory_bytes(self) -> int:
        """Device memory of a run beyond inputs and params."""
        return self.program.memory_bytes

    @property
    def kept_bytes(self) -> int:
        """The bytes of its constants, and of what drivers keep of its kernels."""
        code = sum(_PIPELINE_BYTES + _BYTES_PER_CHARACTER * len(module.text) for module in self.program.modules)
        return code + sum(memory.size_bytes for memory in self._consts.values())

    @property
    def dispatches(self) -> int:
        """Kernel launches of one run."""
        return len(self.program.dispatches)

    def run(self, inputs: Mapping[str, Memory | NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs in order; arrays are uploaded, buffers used where they lie."""
        taken: list[Memory] = []
        try:
            bound = [self._bound(buffer, inputs, taken) for buffer in self.program.buffers]
            wanted = [
                (bound[number], stored_size(type_))
                for number, type_ in zip(self.program.outputs, self.outputs, strict=True)
                if number >= 0
            ]
            raw = iter(self._device.run(self._plan(tuple(bound)), wanted))
        finally:
            for memory in taken:
                self._device.give(memory)
        return [
            from_stored(next(raw), type_) if number >= 0 else np.zeros(type_.shape, type_.dtype.numpy)
            for number, type_ in zip(self.program.outputs, self.outputs, strict=True)
        ]

    def record(self, inputs: Sequence[Value | None]) -> list[Value | None]:
        """Let a run follow what the device has recorded; a tensor without elements is None.

        Outputs may be inputs, and constants, which live as long as this executable.
        """
        given = dict(zip(self.inputs, inputs, strict=True))
        values = [self._value(buffer, given) for buffer in self.program.buffers]
        self._device.record(self._plan(tuple([value.memory for value in values])))
        return [values[number] if number >= 0 else None for number in self.program.outputs]

    def _value(self, buffer: Buffer, given: Mapping[str, Value | None]) -> Value:
        if buffer.kind == "const":
            return Value(self._consts[buffer.name])
        value = given[buffer.name] if buffer.kind == "input" else None
        return value or Value(self._device.take(buffer.size_bytes), self._device)

    def _bound(self, buffer: Buffer, inputs: Mapping[str, Memory | NDArray[Any]], taken: list[Memory]) -> Memory:
        if buffer.kind == "const":
            return self._consts[buffer.name]
        value = inputs[buffer.name] if buffer.kind == "input" else None
        if isinstance(value, Memory):
            return value
        memory = self._device.take(buffer.size_bytes)
        taken.append(memory)
        if value is not None:
            self._device.write(memory, to_stored(value))
        return memory

    def _plan(self, bound: tuple[Memory, ...]) -> list[Step]:
        steps = self._steps.get(bound)
        if steps is None:
            if len(self._steps) >= 8:  # inputs keep moving: do not collect bind groups
                self._steps.clear()
            steps = self._steps[bound] = [
                Step(
                    self._pipelines[dispatch.shader],
                    self._device.bind_group(
                        self._pipelines[dispatch.shader],
                        [(bound[number], self.program.buffers[number].size_bytes) for number in dispatch.buffers],
                    ),
                    dispatch.grid,
                )
                for dispatch in self.program.dispatches
            ]
        return steps


def _give_all(device: Device, memories: Mapping[str, Memory]) -> None:
    for memory in memories.values():
        device.give(memory)


def resident(device: Device, value: NDArray[Any]) -> Memory:
    """A buffer holding an array; OutOfMemory before anything is copied."""
    memory = device.take(padded(value.size * (4 if value.dtype == np.bool_ else value.itemsize)))
    try:
        device.write(memory, to_stored(value))
    except BaseException:
        device.give(memory)
        raise
    return memory


def to_stored(value: NDArray[Any]) -> NDArray[Any]:
    """An array as it lies on the device: bool as u32."""
    return value.astype(np.uint32) if value.dtype == np.bool_ else np.ascontiguousarray(value)


def stored_size(type_: TensorType) -> int:
    return type_.size * (4 if type_.dtype is BOOL else type_.dtype.itemsize)


def from_stored(raw: NDArray[np.uint8], type_: TensorType) -> NDArray[Any]:
    """The inverse of `to_stored`."""
    if type_.dtype is BOOL:
        return np.asarray(raw.view(np.uint32) != 0).reshape(type_.shape)
    return np.asarray(raw.view(type_.dtype.numpy)).reshape(type_.shape)
