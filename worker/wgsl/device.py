"""The only file that knows wgpu: adapters, one open device, its buffers, pipelines and passes.

It does not know graphs or programs.  An invalid submit, a binding of size zero or a destroyed buffer in use aborts the
whole process (wgpu-native cannot unwind through C), so everything is checked here in Python first.  Foreign errors
become EngineErrors here and nowhere else.  Used from one thread.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import wgpu
from numpy.typing import NDArray
from wgpu.backends.wgpu_native import ffi, lib
from wgpu.backends.wgpu_native.extras import set_instance_extras

from wire.errors import Cancelled, CompileFailed, ConfigError, DeviceLost, EngineError, ExecuteFailed, OutOfMemory
from wire.system.malloc import give_back
from wire.system.memory import default_budget
from wire.units import size_text

from ..engine.kernel_rows import Key, Span, Spans
from ..engine.protocol import Stopped, never
from .profile import OFFSETS, SUBGROUPS, DeviceLimits, Profile
from .program import extent
from .slices import SLICE_S, Costs, Pass, Piece, learn, sliced

_TYPES = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "CPU")  # best first
_BACKENDS = ("Metal", "Vulkan", "D3D12")  # best first; OpenGL lacks too much
_FEATURES = ("shader-f16", "subgroup", "timestamp-query")
_DEFAULT_BYTES = 4 << 30  # budget where the memory of the device cannot be asked
_STAGING_ALIGN = 16
_APART_BYTES_MIN = 8 << 20  # which take much longer to read than another wait for the device
_POOL_STEP = 8  # a pooled buffer is at most 1/8 larger than asked
_WATCHED_MAX = 1024  # dispatches of one submission that is watched: a query set has two readings for each
_STAMP_BYTES = 8  # of a reading
LANE = "device"  # the name of kernels' times
_TEXTURE = 0  # instead of a buffer's usage
_POOL_RUNS = 64  # runs, after which a pooled buffer that none of them used is freed
_PIECE_BYTES = 1 << 20  # of a tensor that leaves a device without room: staging for it may exceed the budget


def _read_few_typedefs(parser: Any) -> None:
    """cffi parses the 500 typedefs of wgpu's header again for each type that it is asked for by name, which took half
    of the second in which a device opens.  Only those that its text names decide how it is read.  Another cffi, which
    keeps them elsewhere, parses them all."""
    if not (hasattr(parser, "_parse") and isinstance(getattr(parser, "_declarations", None), dict)):
        return
    whole = parser._parse

    def parse(text: str) -> Any:
        declared, words = parser._declarations, set(re.findall(r"\w+", text))
        parser._declarations = {name: declared[name] for name in declared if name.removeprefix("typedef ") in words}
        try:
            return whole(text)
        finally:
            parser._declarations = declared

    parser._parse = parse


_read_few_typedefs(getattr(ffi, "_parser", None))


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """One adapter; `index` is its place in `list_adapters()`, `type` is Discrete-, Integrated-, VirtualGPU or CPU."""

    index: int
    name: str
    backend: str
    type: str
    driver: str
    software: bool
    limits: Mapping[str, int]
    features: tuple[str, ...]


def list_adapters() -> list[AdapterInfo]:
    """The adapters worth using, best first: one backend per GPU, discrete before integrated before software."""
    return [_info(index, adapter) for index, adapter in enumerate(_ranked())]


class Memory:
    """A device buffer, or a texture; `size_bytes` may exceed what was asked for.  Identity is equality."""

    __slots__ = ("given", "raw", "size_bytes", "usage")

    def __init__(self, raw: Any, size_bytes: int, usage: int) -> None:
        self.given = 0  # back into the pool, before this run
        self.raw = raw
        self.size_bytes = size_bytes
        self.usage = usage


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch."""

    pipeline: Any
    bind_group: Any
    grid: tuple[int, int, int]
    key: Key = (0, 0)  # of its times

    @property
    def call(self) -> tuple[Any, Any, int, int, int]:
        """Pipeline, bind group and grid, for the C library."""
        return (self.pipeline._internal, self.bind_group._internal, *self.grid)


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes from one buffer to another, ready to encode; all in words of four."""

    source: Memory
    source_at: int
    target: Memory
    target_at: int
    size_bytes: int


@dataclass(eq=False, slots=True)
class Mark:
    """A place among what is recorded; `dropped` says that what stood before it may never have been submitted."""

    dropped: bool = False


class Device:
    """An open device with a byte budget.  `adapter` describes it, `profile` is what the lowering obeys.

    `limits_override` lowers limits by the names of DeviceLimits, for instance `profile.WEBGPU_MINIMUM`.  Without
    `stamps` its own clock is not used.
    """

    def __init__(
        self,
        adapter_index: int = 0,
        memory_bytes: int | None = None,
        limits_override: Mapping[str, int] | None = None,
        stamps: bool = True,
    ) -> None:
        ranked = _ranked()
        if not 0 <= adapter_index < len(ranked):
            raise ConfigError(
                f"there is no adapter {adapter_index}; found {len(ranked)}",
                next_step="Install a Vulkan driver (Mesa's lavapipe runs on any CPU), or use the cpu engine",
            )
        adapter = ranked[adapter_index]
        self.adapter = _info(adapter_index, adapter)
        wanted = [feature for feature in _FEATURES if feature in adapter.features]
        with translated("opening the device"):
            self._device = adapter.request_device_sync(required_features=wanted)
        own = _device_limits(dict(self._device.limits))
        self.profile = Profile(
            limits=own.lowered_to(limits_override or {}),
            software=self.adapter.software,
            f16="shader-f16" in wanted,
            subgroup=_subgroup(self._device) if self.adapter.software and "subgroup" in wanted else 0,
        )
        self.memory_bytes = memory_bytes if memory_bytes is not None else _default_budget(self.adapter.software)
        self.allocated_bytes = 0
        self.readback_s = 0.0  # what `run` took to bring outputs to the host, once they were computed
        self.uploaded_bytes, self.readback_bytes = 0, 0  # between the host's memory and the device's, so far
        self.make_room: Callable[[], bool] = lambda: False  # whether an owner gave back what could be spared
        self._free: dict[tuple[int, int], dict[Memory, None]] = {}  # the longest unused first
        self._runs = 0
        self._pipelines: WeakValueDictionary[str, Any] = WeakValueDictionary()  # by text; executables hold them
        self._fresh: WeakSet[Any] = WeakSet()  # pipelines that never ran
        self._compiled = False  # something by the driver, which leaves much memory behind
        self._storage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self._staging = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self._closed = False
        self._recorded: list[Pass | Copy | Mark] = []  # in order, not yet submitted
        self.recorded = 0  # how many dispatches and copies these are
        self.spans: Spans | None = None  # hears when each kernel ran, which slows all of them
        self._stamp_s = _stamp_s(self._device) if stamps and "timestamp-query" in wanted else 0.0

    # -- memory -------------------------------------------------------------------------------------------

    def take(self, size_bytes: int) -> Memory:
        """A storage buffer of at least `size_bytes`, from the pool if one fits; its content is arbitrary."""
        return self._take(size_bytes, self._storage)

    def take_texture(self, size_bytes: int) -> Memory:
        """A texture of `size_bytes` bytes (`program.extent`), from the pool if it has one; its content is arbitrary."""
        return self._take(size_bytes, _TEXTURE)

    def give(self, memory: Memory) -> None:
        """Back into the pool."""
        if self._closed:
            return
        memory.given = self._runs
        self._free.setdefault((memory.size_bytes, memory.usage), {})[memory] = None

    def claim(self, memories: Sequence[Memory]) -> bool:
        """Take just these out of the pool, and whether all of them were there; if not, none is taken."""
        pools = [self._free.get((memory.size_bytes, memory.usage), {}) for memory in memories]
        if not all(memory in pool for pool, memory in zip(pools, memories, strict=True)):
            return False
        for pool, memory in zip(pools, memories, strict=True):
            del pool[memory]
        return True

    def write(self, memory: Memory, data: NDArray[Any]) -> None:
        """Copy an array's bytes to the start of a buffer."""
        flat = data.reshape(-1).view(np.uint8) if data.size else np.zeros(0, np.uint8)
        rest = -flat.size % 4
        if rest:
            flat = np.concatenate([flat, np.zeros(rest, np.uint8)])
        if flat.size > memory.size_bytes:
            raise ExecuteFailed(f"{size_text(flat.size)} do not fit into a buffer of {size_text(memory.size_bytes)}")
        if flat.size:
            self.flush()  # a write would overtake what is recorded
            with translated("writing a buffer"):
                self._device.queue.write_buffer(memory.raw, 0, flat)
            self.uploaded_bytes += data.nbytes

    def read_in_pieces(self, memory: Memory, size_bytes: int) -> NDArray[np.uint8]:
        """The first bytes of a buffer as a new array, also where there is no room for another buffer of that size."""
        whole = np.empty(size_bytes, np.uint8)
        for at in range(0, size_bytes, _PIECE_BYTES):
            piece = whole[at : at + _PIECE_BYTES]
            (piece[:],) = self._submit([(memory, at, piece.size)])
        return whole

    def trim(self) -> None:
        """Free every pooled buffer."""
        freed, self._free = self._free, {}
        for pooled in freed.values():
            for memory in list(pooled):
                self._destroy(memory)

    def _take(self, size_bytes: int, usage: int) -> Memory:
        self._check_open()
        size = size_bytes
        if usage != _TEXTURE:  # the size says how long a texture's rows are
            size = max(size_bytes, min(_pool_size(size_bytes), self.profile.limits.buffer_bytes))
        pooled = self._free.get((size, usage))
        if pooled:
            return pooled.popitem()[0]
        if size_bytes > self.profile.limits.buffer_bytes:
            most = self.profile.limits.buffer_bytes
            raise OutOfMemory(f"a buffer of {size_text(size_bytes)} exceeds the adapter's {size_text(most)}")
        while True:
            try:
                return self._allocate(size, usage)
            except OutOfMemory:
                if not any(self._free.values()) and not self.make_room():
                    raise
                self.trim()

    def _allocate(self, size: int, usage: int) -> Memory:
        any_case = usage == self._staging and size <= _PIECE_BYTES
        if self.allocated_bytes + size > self.memory_bytes and not any_case:
            raise OutOfMemory(
                f"needs {size_text(size)} more, {size_text(max(self.memory_bytes - self.allocated_bytes, 0))} of "
                f"{size_text(self.memory_bytes)} are left",
                next_step="Unload weights, lower the batch, or raise --max-memory",
            )
        with translated("allocating a buffer"):
            texture = usage == _TEXTURE
            raw = self._create_texture(size) if texture else self._device.create_buffer(size=size, usage=usage)
        self.allocated_bytes += size
        return Memory(raw, size, usage)

    def _create_texture(self, size_bytes: int) -> Any:
        width, height = extent(size_bytes)
        most = self.profile.limits.texture_side
        if max(width, height) > most:
            raise OutOfMemory(f"a texture of {width} x {height} texels exceeds the adapter's {most} along a side")
        usage = wgpu.TextureUsage.STORAGE_BINDING | wgpu.TextureUsage.TEXTURE_BINDING
        return self._device.create_texture(size=(width, height, 1), format="rgba32float", usage=usage)

    def _free_unused(self) -> None:
        """Destroy pooled buffers that no run has used of late."""
        for pooled in list(self._free.values()):
            for memory in [memory for memory in list(pooled) if memory.given <= self._runs - _POOL_RUNS]:
                del pooled[memory]
                self._destroy(memory)

    def _destroy(self, memory: Memory) -> None:
        self.flush()  # which may use it: to submit a destroyed buffer ends the process
        memory.raw.destroy()
        self.allocated_bytes -= memory.size_bytes

    # -- pipelines and passes -----------------------------------------------------------------------------

    def pipeline(self, text: str) -> Any:
        """The compute pipeline of a shader's `main`; equal text is one pipeline."""
        self._check_open()
        pipeline = self._pipelines.get(text)
        if pipeline is None:
            with translated("compiling a kernel", CompileFailed):
                module = self._device.create_shader_module(code=_as_naga_reads(text))
                pipeline = self._device.create_compute_pipeline(
                    layout="auto", compute={"module": module, "entry_point": "main"}
                )
            self._pipelines[text] = pipeline
            self._fresh.add(pipeline)
        return pipeline

    def forget(self, text: str) -> None:
        """Drop a shader's pipeline, so that it is compiled anew."""
        self._pipelines.pop(text, None)

    def bind_group(self, pipeline: Any, buffers: Sequence[tuple[Memory, int, int]]) -> Any:
        """Bind each (buffer, from which byte on, how many bytes of it) in order; a texture as a whole."""
        limits = self.profile.limits
        if len(buffers) > limits.storage_buffers:
            raise ExecuteFailed(f"{len(buffers)} buffers in one kernel, the adapter has {limits.storage_buffers}")
        entries: list[dict[str, Any]] = []
        for place, (memory, at, size) in enumerate(buffers):
            if memory.usage == _TEXTURE:
                entries.append({"binding": place, "resource": memory.raw.create_view()})
                continue
            if not 0 < size <= min(memory.size_bytes - at, limits.binding_bytes) or size % 4 or at < 0 or at % OFFSETS:
                raise ExecuteFailed(f"binding {place} of {size} bytes from byte {at} on is not possible")
            entries.append({"binding": place, "resource": {"buffer": memory.raw, "offset": at, "size": size}})
        with translated("binding buffers"):
            return self._device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def prepared(self, steps: Sequence[Step], costs: Costs | None = None) -> Pass:
        """Dispatches that are encoded together, again and again; passes of one program share what `costs` learns."""
        most = self.profile.limits.groups_per_dimension
        for step in steps:
            if not all(0 < count <= most for count in step.grid):
                raise ExecuteFailed(f"a grid of {step.grid} workgroups, the adapter allows {most} per dimension")
        return Pass(steps, [step.call for step in steps], costs or Costs(len(steps)))

    def record(self, commands: Iterable[Pass | Copy | Mark]) -> None:
        """Let these follow what is recorded; the next `run` submits all of it."""
        self._check_open()
        for command in commands:
            if isinstance(command, Copy):
                _check_copy(command)
            self._recorded.append(command)
            self.recorded += len(command.calls) if isinstance(command, Pass) else 1

    def forget_recorded(self) -> None:
        """Drop what was recorded and not submitted."""
        for mark in self._recorded:
            if isinstance(mark, Mark):
                mark.dropped = True
        self._recorded, self.recorded = [], 0

    @property
    def has_stamps(self) -> bool:
        """Whether the device itself measures when a kernel ran."""
        return self._stamp_s > 0

    def flush(self) -> None:
        """Submit what is recorded.  What fits into one slice is not waited for, if nobody watches."""
        if self._recorded:
            with translated("running a part"):
                self._perform([], None, never)

    def run(
        self, commands: Sequence[Pass | Copy], outputs: Sequence[tuple[Memory, int]], stopped: Stopped = never
    ) -> list[NDArray[np.uint8]]:
        """Do what is recorded, then `commands`; return the first bytes of each output as new arrays.

        What takes long is submitted in slices, and is Cancelled between two of them once `stopped()`.  Outputs that
        together exceed the adapter's largest buffer are read in several goes.
        """
        self.record(commands)
        results: list[NDArray[np.uint8]] = []
        for batch in _batches(outputs, self.profile.limits.buffer_bytes):
            results += self._submit([(memory, 0, size) for memory, size in batch], stopped)
        self._tidy_up()
        return results

    def _tidy_up(self) -> None:
        """Clean up after a run.  Now and then that returns freed memory to the system, which takes 0.2 ms."""
        self._runs += 1
        now_and_then = not self._runs % _POOL_RUNS
        if now_and_then:
            self._free_unused()
        if now_and_then or self._compiled:
            self._compiled = False
            give_back()

    def _submit(self, outputs: Sequence[tuple[Memory, int, int]], stopped: Stopped = never) -> list[NDArray[np.uint8]]:
        """Submit what is recorded, wait, and read bytes of buffers, from a place on.

        Computing and reading are one submission, and then only the copy out of the staging buffer counts as reading;
        where that is much, the computing is waited for first.
        """
        sizes = [_staged(size) for _, _, size in outputs]
        apart = sum(sizes) >= _APART_BYTES_MIN
        if apart:
            self._submit([], stopped)
        if not outputs:
            with translated("running a part"):
                last, since_s = self._perform([], None, stopped)
                self._wait(ffi.NULL)
            last.learn(since_s)
            return []
        began_s = time.perf_counter() if apart else None
        staging = self._take(sum(sizes), self._staging)
        try:
            with translated("running a part"):
                places = [(memory, at, size) for (memory, at, _), size in zip(outputs, sizes, strict=True)]
                last, since_s = self._perform(places, staging, stopped)
                results = self._read(staging, [size for _, _, size in outputs], sizes, began_s)
        except BaseException:
            self._destroy(staging)
            raise
        last.learn(since_s)
        self.give(staging)
        return results

    def _perform(
        self, read: Sequence[tuple[Memory, int, int]], staging: Memory | None, stopped: Stopped
    ) -> tuple[_Submission, float]:
        """Submit what is recorded, in slices, and a copy of the bytes to be `read`; return the last slice and when it
        began.

        The device has the next slice while it does one, and no further ones: so it never rests, and stops soon.
        """
        slices: Sequence[Sequence[Piece | Copy | Mark]] = sliced(self._recorded)
        self.forget_recorded()
        if self.spans is not None:
            self._perform_watched(slices, self.spans, stopped)
            slices = [[]]
        last: _Submission | None = None
        since_s = time.perf_counter()
        for place, recorded in enumerate(slices):
            if last is not None and stopped():
                raise Cancelled("the run was stopped")
            commands = [one for one in recorded if not isinstance(one, Mark)]
            encoder = self._device.create_command_encoder()
            fresh = self._encode(encoder, commands)
            if staging is not None and place == len(slices) - 1:
                _encode_reading(encoder, read, staging)
            self._device.queue.submit([encoder.finish()])
            _reached(recorded)
            if last is not None:
                self._wait(last.index)
                since_s = last.learn(since_s)
            index = ffi.new("WGPUSubmissionIndex *", self._submission()) if len(slices) > 1 else None
            last = _Submission(commands, fresh, index)
        assert last is not None, "there is at least one slice"
        return last, since_s

    def _submission(self) -> int:
        """The index of what was submitted last, or of nothing that follows it."""
        return int(lib.wgpuQueueSubmitForIndex(self._device.queue._internal, 0, ffi.NULL))

    def _wait(self, index: Any) -> None:
        """Wait until a submission is done, or all are where there is no index."""
        lib.wgpuDevicePoll(self._device._internal, True, index)

    def _encode(self, encoder: Any, commands: Iterable[Piece | Copy]) -> bool:
        """Pieces that follow each other are one pass.  Returns whether the driver has something to compile."""
        compute, fresh = None, False
        for command in commands:
            if isinstance(command, Copy):
                if compute is not None:
                    compute.end()
                    compute = None
                _encode_copy(encoder, command)
            else:
                compute = compute or encoder.begin_compute_pass()
                fresh = (command.whole.fresh and self._is_fresh(command)) or fresh
                _encode_calls(compute._internal, command.whole.calls[command.start : command.stop])
        if compute is not None:
            compute.end()
        return fresh

    def _is_fresh(self, piece: Piece) -> bool:
        """Whether a pipeline of a piece never ran: drivers compile at the first dispatch."""
        pipelines = [step.pipeline for step in piece.whole.steps[piece.start : piece.stop]]
        fresh = [pipeline for pipeline in pipelines if pipeline in self._fresh]
        self._fresh.difference_update(fresh)
        self._compiled = self._compiled or bool(fresh)
        piece.whole.fresh = piece.stop < len(piece.whole.calls)
        return bool(fresh)

    # -- kernels that are watched

    def _perform_watched(self, slices: Iterable[Sequence[Piece | Copy | Mark]], spans: Spans, stopped: Stopped) -> None:
        """Submit each slice, wait for it, and return when each kernel ran."""
        most = _WATCHED_MAX if self.has_stamps else 1
        for recorded in slices:
            each = [one for command in recorded for one in _one_by_one(command)]
            for first in range(0, len(each), most):
                if stopped():
                    raise Cancelled("the run was stopped")
                now = each[first : first + most]
                self._submit_watched([one for one in now if not isinstance(one, Mark)], spans)
                _reached(now)

    def _submit_watched(self, commands: Sequence[Step | Copy], spans: Spans) -> None:
        """A pass for each dispatch.  Without the device's own clock there is one, whose submission is timed."""
        steps = [command for command in commands if isinstance(command, Step)]
        self._fresh.difference_update([step.pipeline for step in steps])
        self._compiled = True  # perhaps
        stamps = _Stamps(self._device, len(steps)) if self.has_stamps and steps else None
        try:
            began_s = time.perf_counter()
            encoder = self._device.create_command_encoder()
            for command in commands:
                if isinstance(command, Copy):
                    _encode_copy(encoder, command)
                else:
                    compute = encoder.begin_compute_pass(timestamp_writes=stamps and stamps.of_next())
                    _encode_calls(compute._internal, [command.call])
                    compute.end()
            if stamps:
                stamps.encode_reading(encoder)
            self._device.queue.submit([encoder.finish()])
            self._wait(ffi.NULL)
            times = stamps.read(self._stamp_s) if stamps else [(began_s, time.perf_counter())]
        finally:
            if stamps:
                stamps.destroy()
        for step, (start_s, end_s) in zip(steps, times, strict=False):  # a copy that is alone has no step
            spans(Span(step.key, LANE, start_s, end_s))

    def _read(
        self, staging: Memory, wanted: Sequence[int], sizes: Sequence[int], began_s: float | None
    ) -> list[NDArray[np.uint8]]:
        """Wait for what was submitted; mapping is the wait.  Reading began then, or after it."""
        total = max(sum(sizes), _STAGING_ALIGN)
        staging.raw.map_sync(wgpu.MapMode.READ, 0, total)
        began_s = began_s or time.perf_counter()
        mapped = np.frombuffer(staging.raw.read_mapped(0, total, copy=False), np.uint8)
        results, offset = [], 0
        for want, size in zip(wanted, sizes, strict=True):
            results.append(mapped[offset : offset + want].copy())
            offset += size
        del mapped
        staging.raw.unmap()
        self.readback_s += time.perf_counter() - began_s
        self.readback_bytes += sum(wanted)
        return results

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceLost("the device is closed")

    def close(self) -> None:
        """Free everything; later calls raise DeviceLost."""
        if not self._closed:
            self.forget_recorded()
            self.trim()
            self._pipelines.clear()
            self._device.destroy()
            self._closed = True


@dataclass(frozen=True, slots=True)
class _Submission:
    """A slice that was submitted; `index` is for waiting, where it is one of several."""

    commands: Sequence[Piece | Copy]
    fresh: bool
    index: Any

    def learn(self, since_s: float) -> float:
        """Learn from a slice that began then and is done now.  Returns the time; one that is alone and short teaches
        nothing."""
        now_s = time.perf_counter()
        if not self.fresh and (self.index is not None or now_s - since_s > SLICE_S):
            learn(self.commands, now_s - since_s)
        return now_s


def _reached(submitted: Iterable[object]) -> None:
    """What stands before the marks among these was submitted."""
    for one in submitted:
        if isinstance(one, Mark):
            one.dropped = False


def _encode_calls(compute: Any, calls: Iterable[tuple[Any, Any, int, int, int]]) -> None:
    """Encode dispatches, without a look for errors after each: errors come when the encoder finishes."""
    set_pipeline, dispatch = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderDispatchWorkgroups
    set_bind_group, none, bound = lib.wgpuComputePassEncoderSetBindGroup, ffi.NULL, None
    for pipeline, bind_group, x, y, z in calls:
        if pipeline is not bound:
            set_pipeline(compute, pipeline)
            bound = pipeline
        set_bind_group(compute, 0, bind_group, 0, none)
        dispatch(compute, x, y, z)


def _encode_reading(encoder: Any, read: Iterable[tuple[Memory, int, int]], staging: Memory) -> None:
    offset = 0
    for memory, at, size in read:
        encoder.copy_buffer_to_buffer(memory.raw, at, staging.raw, offset, size)
        offset += size


def _check_copy(command: Copy) -> None:
    size, starts = command.size_bytes, (command.source_at, command.target_at)
    room = min(command.source.size_bytes - starts[0], command.target.size_bytes - starts[1])
    if (
        command.source is command.target
        or not 0 < size <= room
        or min(starts) < 0
        or any(at % 4 for at in (size, *starts))
    ):
        raise ExecuteFailed(f"a copy of {size} bytes is not possible")


class _Stamps:
    """The device's readings of its clock around each of `count` dispatches, and the buffers that they are read by."""

    def __init__(self, device: Any, count: int) -> None:
        self._next, self._size = 0, 2 * count * _STAMP_BYTES
        usage = wgpu.BufferUsage
        self._queries = device.create_query_set(type="timestamp", count=2 * count)
        self._resolved = device.create_buffer(size=self._size, usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
        self._readings = device.create_buffer(size=self._size, usage=usage.MAP_READ | usage.COPY_DST)

    def of_next(self) -> Mapping[str, Any]:
        """What the pass of the next dispatch is begun with."""
        first, self._next = self._next, self._next + 2
        indices = {"beginning_of_pass_write_index": first, "end_of_pass_write_index": first + 1}
        return {"query_set": self._queries, **indices}

    def encode_reading(self, encoder: Any) -> None:
        encoder.resolve_query_set(self._queries, 0, self._next, self._resolved, 0)
        encoder.copy_buffer_to_buffer(self._resolved, 0, self._readings, 0, self._size)

    def read(self, stamp_s: float) -> list[tuple[float, float]]:
        """The times at which each dispatch began and ended, in seconds of `time.perf_counter`.

        The device's clock has another zero: the last dispatch counts as over when its readings are here.
        """
        self._readings.map_sync(wgpu.MapMode.READ, 0, self._size)
        stamps = np.frombuffer(self._readings.read_mapped(0, self._size), np.uint64).astype(np.int64)
        self._readings.unmap()
        seconds = (stamps - stamps.max()) * stamp_s + time.perf_counter()
        return [(began_s, max(began_s, ended_s)) for began_s, ended_s in seconds.reshape(-1, 2).tolist()]

    def destroy(self) -> None:
        for owned in (self._queries, self._resolved, self._readings):
            owned.destroy()


def _one_by_one(command: Piece | Copy | Mark) -> Sequence[Step | Copy | Mark]:
    return command.whole.steps[command.start : command.stop] if isinstance(command, Piece) else [command]


def _stamp_s(device: Any) -> float:
    """The seconds of a unit of the device's readings; 0.0 where this version of wgpu does not report it."""
    try:
        return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal)) * 1e-9
    except AttributeError:
        return 0.0


def _encode_copy(encoder: Any, copy: Copy) -> None:
    encoder.copy_buffer_to_buffer(copy.source.raw, copy.source_at, copy.target.raw, copy.target_at, copy.size_bytes)


@contextmanager
def translated(doing: str, otherwise: type[EngineError] = ExecuteFailed) -> Iterator[None]:
    """Turns wgpu's errors into EngineErrors."""
    try:
        yield
    except wgpu.GPUError as error:
        raise _translate(doing, error, otherwise) from error
    except RuntimeError as error:
        raise _translate(doing, error, otherwise) from error


def _translate(doing: str, error: Exception, otherwise: type[EngineError]) -> EngineError:
    text = str(error)
    lowered = text.lower()
    if "not enough memory" in lowered or "out of memory" in lowered or isinstance(error, wgpu.GPUOutOfMemoryError):
        return OutOfMemory(f"{doing}: the device is out of memory", cause=text)
    if "lost" in lowered:
        return DeviceLost(f"{doing}: the device is lost", cause=text, next_step="The engine host is restarted")
    return otherwise(f"{doing} failed", cause=text)


# -- adapters ---------------------------------------------------------------------------------------------


def _ranked() -> list[Any]:
    """Adapters, best first; per GPU only its best backend (equal GPUs stay apart)."""
    _leave_out_opengl()
    _take_all_of_the_vectors()
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] in _BACKENDS]
    best: dict[tuple[Any, ...], int] = {}
    for adapter in adapters:
        key = _same_gpu(adapter)
        place = _BACKENDS.index(adapter.info["backend_type"])
        best[key] = min(best.get(key, place), place)
    kept = [a for a in adapters if _BACKENDS.index(a.info["backend_type"]) == best[_same_gpu(a)]]
    return sorted(kept, key=lambda adapter: _TYPES.index(_type(adapter)))


@cache
def _leave_out_opengl() -> None:
    """Do not load OpenGL drivers where Vulkan is what counts: they cost 0.1 s."""
    if sys.platform == "linux":
        try:
            set_instance_extras(backends=["Vulkan"])
        except RuntimeError:
            return  # this process has used wgpu before, with backends of its own choice


@cache
def _take_all_of_the_vectors() -> None:
    """Let Mesa compute with vectors of 512 bits where the processor has them, unless the user has set their width: it
    takes 256 everywhere.  The driver reads this when it is loaded."""
    try:
        features = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return  # no Linux
    if re.search(r"^flags\s*:.*\bavx512dq\b", features, re.MULTILINE):
        os.environ.setdefault("LP_NATIVE_VECTOR_WIDTH", "512")


def _same_gpu(adapter: Any) -> tuple[Any, ...]:
    return tuple(adapter.info[name] for name in ("vendor_id", "device_id", "device"))


def _type(adapter: Any) -> str:
    kind = str(adapter.info["adapter_type"])
    return kind if kind in _TYPES else "VirtualGPU"


def _info(index: int, adapter: Any) -> AdapterInfo:
    info = adapter.info
    return AdapterInfo(
        index=index,
        name=str(info["device"]),
        backend=str(info["backend_type"]),
        type=_type(adapter),
        driver=str(info["description"]),
        software=_type(adapter) == "CPU",
        limits=asdict(_device_limits(dict(adapter.limits))),
        features=tuple(sorted(adapter.features)),
    )


def _device_limits(raw: Mapping[str, int]) -> DeviceLimits:
    invocations = min(raw["max-compute-invocations-per-workgroup"], raw["max-compute-workgroup-size-x"])
    return DeviceLimits(
        storage_buffers=raw["max-storage-buffers-per-shader-stage"],
        binding_bytes=min(raw["max-storage-buffer-binding-size"], (1 << 31) - 16) & ~15,
        buffer_bytes=raw["max-buffer-size"] & ~15,
        invocations=invocations,
        workgroup_bytes=raw["max-compute-workgroup-storage-size"],
        groups_per_dimension=raw["max-compute-workgroups-per-dimension"],
        texture_side=raw["max-texture-dimension-2d"],
    )


_LANES = 64  # invocations that are asked for their place in a subgroup
PROBE = f"""enable subgroups;
@group(0) @binding(0) var<storage, read_write> found: array<vec2<u32>>;
@compute @workgroup_size({_LANES})
fn main(@builtin(local_invocation_index) at: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) lane: u32) {{ found[at] = vec2<u32>(size, lane); }}
"""


def _as_naga_reads(text: str) -> str:
    """WGSL as wgpu 0.32 takes it: it has subgroups, but refuses the standard's line that asks for them."""
    return text.replace("enable subgroups;\n", "")


def _subgroup(device: Any) -> int:
    """How many neighbouring invocations are one subgroup, as they say themselves (what adapters report is wrong); 0 if
    that is no small power of two, their order is another one, or the driver cannot compile the question."""
    try:
        module = device.create_shader_module(code=_as_naga_reads(PROBE))
    except wgpu.GPUError:
        return 0
    with translated("asking for the size of subgroups"):
        pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
        found = device.create_buffer(size=8 * _LANES, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)
        entry = {"binding": 0, "resource": {"buffer": found, "offset": 0, "size": found.size}}
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=[entry])
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        device.queue.submit([encoder.finish()])
        sizes, lanes = np.frombuffer(device.queue.read_buffer(found), np.uint32).reshape(_LANES, 2).T
        found.destroy()
    size = int(sizes[0])
    known = size in SUBGROUPS and (sizes == size).all() and (lanes == np.arange(_LANES) % size).all()
    return size if known else 0


def _default_budget(software: bool) -> int:
    """Half the host's memory on a software adapter; elsewhere unknown to WebGPU, so a cautious figure."""
    return default_budget() if software else _DEFAULT_BYTES


def _staged(size_bytes: int) -> int:
    return size_bytes + -size_bytes % _STAGING_ALIGN


def _batches(outputs: Sequence[tuple[Memory, int]], most: int) -> list[list[tuple[Memory, int]]]:
    """The outputs in order, cut so that each batch fits into one staging buffer; at least one batch."""
    batches: list[list[tuple[Memory, int]]] = [[]]
    room = most
    for output in outputs:
        size = _staged(output[1])
        if size > room:
            batches.append([])
            room = most
        batches[-1].append(output)
        room -= size
    return batches


def _pool_size(size_bytes: int) -> int:
    """Sizes are rounded up a little so that pooled buffers fit more than one tensor."""
    if size_bytes <= 4096:
        return max(256, 1 << (size_bytes - 1).bit_length())
    step = 1 << ((size_bytes - 1).bit_length() - _POOL_STEP.bit_length() + 1)
    return size_bytes + -size_bytes % max(step // 2, 256)
