"""WgslEngine: the Engine protocol over wgpu.

Compile is: look in memory, then on disk, else lower; then pipelines.  Handles of `load` are bound where they lie.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from wire.errors import ExecuteFailed, InputError, OutOfMemory
from wire.ir.dtypes import F32, dtype_of
from wire.ir.graph import GraphBuilder, Node, WireGraph, const_value
from wire.ir.ops import OPS
from wire.ir.types import HostArray, TensorType
from wire.passes.unroll_spmd import unroll
from wire.units import counted, need_text, room_text

from ..compiler.sources import sources_version
from ..engine.kernel_rows import KernelRows, Spans
from ..engine.protocol import Collectives, EngineInfo, Executable, Measured, Stopped, Tuned, never
from .cache import ProgramCache, cache_key
from .choices import ShapeClass
from .control_runtime import ControlExecutable
from .control_schedule import schedule
from .device import AdapterInfo, Device, list_adapters
from .execute import Given, WgslExecutable, from_stored, resident
from .explain import rows_of
from .lower import assemble, const_key, lower, prepared
from .problems import measurable
from .profile import CPU_ONLY
from .program import Program, stored_size
from .shaders import Shaders
from .tuned_file import TunedFile
from .tuner import Tuner
from .updates import UPDATED_BYTES_MIN, in_place, put_graph
from .values import Value

_SIDE, _STREAM = 512, 2_048  # of the measured matmul; of the matrix read
_RUNS_MAX, _TIMED_S = 5, 0.05


@dataclass(eq=False, slots=True, weakref_slot=True)
class Resident:
    """A tensor on the device: what `load` returns, and `run` for outputs to be kept.

    One that was moved to the host's memory for want of room is an `array`; one without elements is neither.
    """

    type: TensorType
    value: Value | None
    array: HostArray | None = None


class WgslEngine:
    """One WebGPU device.  `limits_override` lowers limits by the names of profile.DeviceLimits; kernels are kept by
    the `version` of the sources that make them, unless another is given."""

    def __init__(
        self,
        adapter_index: int = 0,
        cache_dir: Path | None = None,
        memory_bytes: int | None = None,
        limits_override: Mapping[str, int] | None = None,
        version: str = "",
        stamps: bool = True,
        updated_bytes_min: int = UPDATED_BYTES_MIN,
    ) -> None:
        self._updated_bytes_min = updated_bytes_min
        self._version = version or sources_version(Path(__file__).parent)
        self._device = Device(adapter_index, memory_bytes, limits_override, stamps)
        self._cache = ProgramCache(cache_dir)
        adapter, profile = self._device.adapter, self._device.profile
        identity = cache_key(self._version, adapter.name, adapter.backend, adapter.driver, repr(profile))
        self._tuned = TunedFile(cache_dir, identity, adapter.name, adapter.driver)
        self._tuner = Tuner(self._device, profile, self._tuned, cache_dir)
        self._shaders = Shaders(replace(profile, choices=self._tuned.choices))
        self._executables: WeakValueDictionary[bytes, WgslExecutable | ControlExecutable] = WeakValueDictionary()
        self._outputs: WeakValueDictionary[int, Resident] = WeakValueDictionary()  # kept ones, the oldest first
        self._outputs_made = 0
        self._reading: list[list[Given]] = []  # the inputs of each run that has not ended: some are suspended
        self._device.make_room = self._spare
        self.spill: Callable[[], bool] = lambda: (
            False
        )  # the owner of loaded tensors may unload one (engine/protocol.py)
        self.info = EngineInfo(
            engine="wgsl",
            adapter=adapter.name,
            backend=adapter.backend,
            driver=adapter.driver,
            software=adapter.software,
            memory_bytes=self._device.memory_bytes,
            limits={**asdict(profile.limits), "tensor_bytes": profile.limits.tensor_bytes},
            dtypes_by_op=dict.fromkeys(OPS.keys() - CPU_ONLY, profile.dtypes),
        )

    def compile(self, graph: WireGraph, force: bool = False) -> Executable:
        return self._compile(graph, force)

    def _compile(self, graph: WireGraph, force: bool) -> WgslExecutable | ControlExecutable:
        executable = None if force else self._executables.get(graph.hash)
        if executable is not None:
            executable.from_cache = True
            return executable
        self._look_for_choices()
        plain = unroll(graph)
        turns = plain.has_control or plain.free_axes or in_place(plain, self._updated_bytes_min)
        made = self._in_steps(graph, plain, force) if turns else self._straight(graph, plain, force)
        self._executables[graph.hash] = made
        return made

    def _look_for_choices(self) -> None:
        """Take what was measured since, here or by another process: what is compiled from now on has those forms."""
        profile = self._shaders.profile
        if self._tuned.choices is not profile.choices:
            self._shaders = Shaders(replace(profile, choices=self._tuned.choices))

    def _in_steps(self, source: WireGraph, graph: WireGraph, force: bool) -> ControlExecutable:
        """A part that branches, loops or has collectives: its straight pieces are programs of their own."""
        inputs = {**graph.input_types, **graph.param_types}
        outputs = list(graph.output_types.values())
        steps = schedule(graph, updated_bytes_min=self._updated_bytes_min)
        made = ControlExecutable(
            self._device, source, steps, inputs, outputs, lambda inner: self._compile(inner, force), self._put
        )
        self._check_memory(made.memory_bytes + sum(type_.size_bytes for type_ in inputs.values()))
        return made

    def _put(self, node: Node, types: tuple[TensorType, ...]) -> WgslExecutable:
        """An update alone, whose result's memory is that of the tensor (updates.py)."""
        graph, group = put_graph(node, types)
        prepared(graph, self._shaders.profile)  # Unsupported for what there are no kernels for
        key = self._key(graph, "wgsl put")
        program = known = self._cache.read(key)
        if program is None:
            program = assemble(graph, self._shaders.of(graph, group))
            self._cache.write(key, program)
        outputs = list(graph.output_types.values())
        cached, choices = known is not None, self._shaders.profile.choices
        return WgslExecutable(self._device, graph, program, graph.input_types, outputs, {}, cached, choices)

    def _straight(self, source: WireGraph, graph: WireGraph, force: bool) -> WgslExecutable:
        key = self._key(graph)
        if not force:
            program = self._cache.read(key)
            if program is not None:
                return self._checked(source, graph, program, True)
        with self._cache.turn(key):
            program = None if force else self._cache.read(key)  # by the thread that had the turn before
            cached = program is not None
            if program is None:
                program = lower(graph, Shaders(self._shaders.profile) if force else self._shaders)
            if force:
                for module in program.modules:
                    self._device.forget(module.text)
            executable = self._checked(source, graph, program, cached)
            if not cached:
                self._cache.write(key, program)
        return executable

    def _checked(self, source: WireGraph, graph: WireGraph, program: Program, cached: bool) -> WgslExecutable:
        self._check_memory(sum(buffer.size_bytes for buffer in program.buffers))
        return self._build(source, graph, program, cached)

    def load(self, array: HostArray) -> Resident:
        type_ = TensorType(tuple(array.shape), dtype_of(array))
        return Resident(type_, resident(self._device, array) if array.size else None)

    def unload(self, handle: Resident) -> None:
        handle.value = handle.array = None

    def read(self, handle: Resident | HostArray) -> HostArray:
        if isinstance(handle, np.ndarray):
            return handle
        if handle.value is None:
            return _without_value("the tensor", handle)
        memory, size_bytes = handle.value.memory, stored_size(handle.type)
        try:
            (raw,) = self._device.run((), [(memory, size_bytes)])
        except OutOfMemory:
            raw = self._device.read_in_pieces(memory, size_bytes)
        return from_stored(raw, handle.type)

    def run(
        self,
        executable: Executable,
        inputs: Sequence[Any],
        stopped: Stopped = never,
        collectives: Collectives | None = None,
        keep: Collection[int] = (),
    ) -> list[Any]:
        """Implement Engine.run.  What is submitted cannot be taken back: two slices, or some turns of a loop."""
        assert isinstance(executable, (WgslExecutable, ControlExecutable)), "an executable of this engine"
        if len(inputs) != len(executable.inputs):
            raise InputError(f"expected {counted(len(executable.inputs), 'input')}, got {len(inputs)}")
        given = [
            _checked(name, type_, value) for (name, type_), value in zip(executable.inputs.items(), inputs, strict=True)
        ]
        self._reading.append(given)
        try:
            if isinstance(executable, ControlExecutable):
                made = executable.run(given, stopped, collectives, keep)
            else:
                made = executable.run(given, stopped, keep)
        except BaseException:
            self._device.forget_recorded()
            raise
        finally:
            self._reading = [each for each in self._reading if each is not given]
        return [self._output(type_, value) for type_, value in zip(executable.outputs, made, strict=True)]

    def _output(self, type_: TensorType, made: Given) -> Resident | HostArray:
        if not isinstance(made, Value):
            return _empty(type_) if made is None else made
        self._outputs_made += 1
        handle = self._outputs[self._outputs_made] = Resident(type_, made)
        return handle

    def _spare(self) -> bool:
        """Spill a resident tensor, or else move the oldest output that is kept on the device, and that no run reads, to
        the host's memory."""
        if self.spill():
            return True
        read = {id(given) for inputs in self._reading for given in inputs}
        for handle in list(self._outputs.values()):
            value = handle.value
            if value is not None and value.size_bytes and id(value) not in read:
                raw = self._device.read_in_pieces(value.memory, stored_size(handle.type))
                handle.value, handle.array = None, from_stored(raw, handle.type)
                return True
        return False

    def explain(self, executable: Executable, texts: bool = False) -> KernelRows:
        """The texts are WGSL."""
        assert isinstance(executable, (WgslExecutable, ControlExecutable)), "an executable of this engine"
        clock = "the device's timestamps" if self._device.has_stamps else "a clock around the submission of each kernel"
        return KernelRows(rows_of(executable, self._shaders, texts), clock)

    def watch(self, spans: Spans | None) -> None:
        self._device.spans = spans

    @property
    def readback_s(self) -> float:
        """The seconds so far for bringing tensors from the device's memory to the host's."""
        return self._device.readback_s

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """The bytes so far that went to the device's memory, and that came from there."""
        return self._device.uploaded_bytes, self._device.readback_bytes

    @property
    def held_bytes(self) -> int:
        """The device memory of all outputs that are kept there."""
        return sum(handle.value.size_bytes for handle in self._outputs.values() if handle.value is not None)

    def measure(self) -> Measured:
        """f32 GFLOP/s at 512^3, GB/s of reading 16 MiB, seconds per call of a one-element graph, all by own kernels; of
        less where the budget is small."""
        side, stream = self._fitting(_SIDE, 4), self._fitting(_STREAM, 2)
        return Measured(
            gflops=2 * side**3 / self._timed(_matmul_graph(side)) / 1e9,
            gbytes_per_s=4 * stream**2 / self._timed(_stream_graph(stream)) / 1e9,
            dispatch_s=self._timed(_stream_graph(1)),
        )

    def tune(self, shape_class: str, seconds: float, stopped: Stopped = never) -> Tuned:
        """Measure the forms of a kernel for a class of shapes, as protocol.tune has it."""
        return self._tuner.tune(ShapeClass.parse(shape_class), seconds, stopped)

    def untuned(self, executable: Executable) -> list[str]:
        """The classes of a compiled part that could be measured, and were not."""
        assert isinstance(executable, (WgslExecutable, ControlExecutable)), "an executable of this engine"
        classes = {module.shape_class for program in _programs(executable) for module in program.modules} - {""}
        unknown = sorted(text for text in classes if self._tuned.row(text).form is None)
        return [text for text in unknown if measurable(ShapeClass.parse(text))]

    def close(self) -> None:
        self._executables.clear()
        self._device.close()

    def _fitting(self, side: int, matrices: int) -> int:
        """The side, halved until `matrices` matrices of f32 are within the budget."""
        while side > 1 and 4 * matrices * side**2 > self._device.memory_bytes:
            side //= 2
        return side

    def _timed(self, graph: WireGraph) -> float:
        """Least seconds of a few runs with resident inputs and one element read back; drivers compile in the first."""
        executable = self.compile(graph)
        inputs = [self.load(np.ones(type_.shape, type_.dtype.numpy)) for type_ in graph.input_types.values()]
        self.run(executable, inputs)
        times: list[float] = []
        while len(times) < _RUNS_MAX and sum(times) < _TIMED_S:
            start = time.perf_counter()
            self.run(executable, inputs)
            times.append(time.perf_counter() - start)
        for handle in inputs:
            self.unload(handle)
        return min(times)

    def _key(self, graph: WireGraph, kind: str = "wgsl") -> str:
        adapter, profile = self._device.adapter, self._shaders.profile
        return cache_key(graph.hash, self._version, kind, adapter.name, adapter.backend, adapter.driver, repr(profile))

    def _check_memory(self, need: int) -> None:
        """OutOfMemory, before anything is allocated, for a part that can never run within the budget."""
        if need > self._device.memory_bytes:
            raise OutOfMemory(
                f"the part needs {need_text(need)} on the device, its budget is {room_text(self._device.memory_bytes)}",
                next_step="Cut the part, lower the batch, or raise --max-memory",
            )

    def _build(self, source: WireGraph, graph: WireGraph, program: Program, cached: bool) -> WgslExecutable:
        inputs = {**graph.input_types, **graph.param_types}
        wanted = {buffer.name for buffer in program.buffers if buffer.kind == "const"}
        consts = {key: value for key, value in _consts(graph) if key in wanted}
        missing = wanted - set(consts)
        if missing or any(b.name not in inputs for b in program.buffers if b.kind == "input"):
            raise ExecuteFailed("the cached program does not belong to this graph", next_step="Compile with force")
        outputs = list(graph.output_types.values())
        choices = self._shaders.profile.choices
        return WgslExecutable(self._device, source, program, inputs, outputs, consts, cached, choices)


def _programs(executable: WgslExecutable | ControlExecutable) -> Iterator[Program]:
    """The programs of a compiled part, and of what it branches to and repeats."""
    if isinstance(executable, WgslExecutable):
        yield executable.program
    else:
        for work in executable.work:
            for inner in work.made.values():
                yield from _programs(inner)


def _checked(name: str, type_: TensorType, value: Any) -> Given:
    """What an executable takes for one input; InputError unless it has exactly the declared type."""
    if isinstance(value, Resident):
        if value.type != type_:
            raise InputError(f"input {name!r} must be {type_}, got a resident {value.type}")
        return value.value or _without_value(f"input {name!r}", value)
    array = np.asarray(value)
    if array.shape != type_.shape or array.dtype != type_.dtype.numpy:
        raise InputError(f"input {name!r} must be {type_}, got {array.dtype}{list(array.shape)}")
    return array


def _without_value(what: str, handle: Resident) -> HostArray:
    """A tensor that is not on the device: it was moved to the host's memory, or has no elements."""
    if handle.array is None and handle.type.size:
        raise InputError(f"{what} was unloaded")
    return _empty(handle.type) if handle.array is None else handle.array


def _empty(type_: TensorType) -> HostArray:
    return np.zeros(type_.shape, type_.dtype.numpy)


def _consts(graph: WireGraph) -> Iterator[tuple[str, HostArray]]:
    """Every constant of a graph and of the bodies in it, by key."""
    pending = [graph]
    while pending:
        current = pending.pop()
        for node in current.nodes:
            if node.op == "const":
                blobs = current.blobs if node.attrs.get("blob") in current.blobs else graph.blobs
                yield const_key(node), const_value(node, blobs)
            elif node.op == "composite":
                pending.append(node.attrs["body"])


def _matmul_graph(side: int) -> WireGraph:
    builder = GraphBuilder()
    left, right = (builder.input(name, (side, side), F32) for name in ("left", "right"))
    total = builder.add("dot", left, right, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return builder.build([builder.add("slice", total, start=(0, 0), stop=(1, 1), step=(1, 1))])


def _stream_graph(side: int) -> WireGraph:
    builder = GraphBuilder()
    totals = builder.add("reduce_sum", builder.input("x", (side, side), F32), axes=(1,))
    return builder.build([builder.add("slice", totals, start=(0,), stop=(1,), step=(1,))])


__all__ = ["AdapterInfo", "WgslEngine", "list_adapters"]
