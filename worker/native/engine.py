"""NativeEngine: a part of a graph as machine code of this processor, and numpy for what has no kernel here."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import Cancelled, ConfigError
from wire.ir.arithmetic import NATIVE_ARITHMETIC
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, Node, WireGraph
from wire.ir.types import TensorType

from ..compiler.cut import Cut
from ..cpu.engine import NO_KEY, CpuEngine, CpuExecutable, Fusion, fastest, rows_of, trivial_graph
from ..engine import line_aligned
from ..engine.kernel_rows import KernelRow, KernelRows, Key, Span, Spans
from ..engine.protocol import Measured, Stopped, never
from .kernels import FAMILIES
from .kernels.frame import NAME, Description, Frame
from .library import Library
from .llvm import Loaded, Processor, ir, missing
from .objects import Objects
from .outline import outlined
from .program import Sequenced
from .runner import Runner
from .steps import Step
from .threads import Program, Stop, Threads
from .weights import Weights

KERNELS_MAX = 256  # remembered beside those that compiled parts have; each is some 60 KiB, most of it LLVM's
NAMES = {"matmul": "product"}  # of families, for people
MEASURED = 1024  # rows and columns
TASKS_MIN, TASKS_EACH = 8, 2  # that a large product is cut into for several threads, and for each of many
PACKED_SHARE = 0.25  # of the budget, for packed weights where no host says what else needs it
NON_TEMPORAL_BYTES = 8 << 20  # of a thread's part of a result: about twice what common caches have for a core
NON_TEMPORAL = frozenset({"map", "row"})  # families that store past the caches
WATCHED_S = 0.01  # between two looks whether a run is to be stopped
WATCHED_FLOPS = 1 << 28  # of a program: shorter ones end before a caller could wait for them


class NativeEngine(CpuEngine):
    """The engine (worker/engine/protocol.py) over machine code that is made here.  Any thread may use it."""

    def __init__(
        self, memory_bytes: int | None = None, threads: int = 1, folder: Path | None = None,
        vector_bytes: int | None = None, processor: Processor | None = None,
        non_temporal_bytes: int = NON_TEMPORAL_BYTES,
    ) -> None:  # fmt: skip
        """Compiled kernels are kept in `folder`.  They are for `processor`: this one, unless a test has another.
        Results of at least `non_temporal_bytes` for each thread are stored past the caches, if they begin at a line.
        ConfigError where no machine code can be made or run."""
        why = missing()
        if why:
            raise ConfigError(
                f"there is no native engine here: {why}", next_step="Take the device `cpu`, which is numpy"
            )
        super().__init__(memory_bytes)
        self.info = replace(
            self.info, engine="native", driver=f"{NATIVE_ARITHMETIC}, {self.info.driver}", limits={"threads": threads}
        )
        self._objects = Objects(folder, processor=processor)
        self._library = Library(self._objects)
        self._vector_bytes = vector_bytes or self._library.processor.vector_bytes
        self._non_temporal_bytes = max(non_temporal_bytes * threads, line_aligned.SMALL_BYTES)
        self._tasks_min = 1 if threads == 1 else max(TASKS_MIN, 1 << (TASKS_EACH * threads - 1).bit_length())
        self._threads = Threads(self._library.runner(), threads, self._runner_with_clock)
        self._weights = Weights(self._library, self._run_alone, int(self.info.memory_bytes * PACKED_SHARE))
        self._kernels: OrderedDict[tuple[object, ...], _Kernel] = OrderedDict()
        self._fusion = Fusion(outlined, self._joined)
        self._compiling = threading.Lock()

    def compile(self, graph: WireGraph, force: bool = False) -> CpuExecutable:
        with self._compiling:
            return super().compile(graph, force)

    def load(self, array: NDArray[Any]) -> NDArray[Any]:
        return self._weights.add(array)

    def unload(self, handle: NDArray[Any]) -> None:
        self._weights.drop(handle)

    @property
    def spare_bytes(self) -> int:
        """What packed weights take (`protocol.lend_room`)."""
        return self._weights.packed_bytes

    def lend_room(self, has_room: Callable[[int], bool]) -> None:
        self._weights.has_room = has_room

    def free_spare(self) -> None:
        with self._threads.turn:  # no run reads them
            self._weights.free()

    def explain(self, executable: CpuExecutable, texts: bool = False) -> KernelRows:
        """The texts are LLVM's intermediate language, before it optimises."""
        rows = rows_of(executable, self._fusion, texts)
        return KernelRows(rows, "clocks in the threads, around each kernel")

    def measure(self) -> Measured:
        """GFLOP/s of f32 at 1024^3, GB/s of a scaled copy of 16 MiB, seconds per call of a trivial graph."""
        square, line = np.ones((MEASURED, MEASURED), np.float32), np.ones(1 << 22, np.float32)
        count = self._threads.count
        of_one = 1 if count == 1 else 0  # several threads share the memory: what one of them took says little
        product_s, copy_s, call_s = (
            fastest(partial(self.run, self.compile(graph), operands), threads)
            for graph, operands, threads in (
                (_product(), [square, square], count), (_scaled(), [line], of_one),
                (trivial_graph(), [np.ones(1, np.float32)], 0),
            )
        )  # fmt: skip
        return Measured(2 * MEASURED**3 / product_s / 1e9, 2 * line.nbytes / copy_s / 1e9, call_s)

    def close(self) -> None:
        self._threads.close()

    def _joined(
        self, nodes: Sequence[tuple[Node, int]], types: Mapping[int, TensorType], needed: Sequence[int]
    ) -> _Joined:
        # Others may lie in a region's memory, which is the caches'.
        large = {value for value in needed if types[value].size_bytes >= self._non_temporal_bytes}
        steps, kernels = [], []
        for node, index in nodes:
            kernel = self._kernel(node.attrs["cut"], index in large)
            kernels.append(kernel)
            said = kernel.said
            steps.append(
                Step(
                    kernel.address, kernel.words, node.inputs, index, said.tasks, kernel.scratch_bytes,
                    said.matrix, said.place, said.slices, frozenset(node.inputs[at] for at in said.sliced),
                )
            )  # fmt: skip
        flops = sum(kernel.flops for kernel in kernels)
        runner = self._threads.runner
        sequenced = Sequenced(steps, types, needed, runner, self._threads.count, in_regions=True)
        apart = partial(Sequenced, steps, types, needed, runner)
        return _Joined(nodes, sequenced, apart, kernels, self._threads, self._weights, flops >= WATCHED_FLOPS)

    def _kernel(self, part: Cut, large: bool) -> _Kernel:
        non_temporal = large and part.kind in NON_TEMPORAL
        key = (non_temporal, *part.key)
        known = self._kernels.pop(key, None) or self._made(part, non_temporal)
        self._kernels[key] = known
        if len(self._kernels) > KERNELS_MAX:
            self._kernels.popitem(last=False)  # those in use live on with what uses them
        return known

    def _run_alone(self, program: Program) -> None:
        """Run a program that is short, and no part of a run that can be stopped."""
        self._threads.run(program, Stop())

    def _runner_with_clock(self) -> Runner:
        with self._compiling:
            return self._library.runner(clock=True)

    def _module(self, part: Cut, non_temporal: bool) -> ir.Module:
        scalef = self._library.processor.has_scalef
        frame = Frame.of(part, self._vector_bytes, scalef, self._tasks_min, non_temporal)
        return FAMILIES[part.kind](frame).described()

    def _made(self, part: Cut, non_temporal: bool) -> _Kernel:
        module = partial(self._module, part, non_temporal)
        loaded = self._objects.loaded(repr((self._vector_bytes, self._tasks_min, non_temporal, part.key)), module)
        said = Description.of(loaded)
        cores = [self._library.core(name) for name in said.cores]
        scratch_bytes = said.scratch_bytes + max((core.scratch_bytes for core in cores), default=0)
        words = [core.address for core in cores]
        if said.matrix is not None:
            words += [0, said.matrix.row, said.matrix.column]  # the second is its address, which a run gives
        flops = Frame.of(part).graph.flops
        return _Kernel(loaded, loaded.address(NAME), tuple(words), said, scratch_bytes, flops, module)


def _product() -> WireGraph:
    builder = GraphBuilder()
    sides = [builder.input(name, (MEASURED, MEASURED), F32) for name in "ab"]
    axes = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
    return builder.build([builder.add("dot", *sides, **axes)])


def _scaled() -> WireGraph:
    builder = GraphBuilder()
    line = builder.input("x", (1 << 22,), F32)
    return builder.build([builder.add("mul", line, builder.const(np.float32(2)))])


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A group's machine code, and what a program needs of it."""

    loaded: Loaded
    address: int
    words: tuple[int, ...]
    said: Description
    scratch_bytes: int
    flops: int
    module: Callable[[], ir.Module]


class _Joined:
    """Kernels that follow each other, run by the engine's threads.  `apart` makes the program without regions, whose
    rows are the kernels: it is run where each is timed."""

    def __init__(
        self, nodes: Sequence[tuple[Node, int]], sequenced: Sequenced, apart: Callable[[], Sequenced],
        kernels: Sequence[_Kernel], threads: Threads, weights: Weights, watched: bool,
    ) -> None:  # fmt: skip
        self.inputs, self.outputs, self.count = sequenced.inputs, sequenced.outputs, len(kernels)
        self._nodes, self._apart = nodes, cache(apart)
        self._sequenced, self._kernels, self._threads, self._watched = sequenced, kernels, threads, watched
        self.native_bytes = sum(kernel.loaded.size_bytes for kernel in kernels)
        self._weights = weights
        self._threads_max = 1 if sequenced.program.in_line else threads.count

    def __call__(
        self, inputs: list[NDArray[Any]], stopped: Stopped, spans: Spans | None = None, first: Key = NO_KEY
    ) -> list[NDArray[Any]]:
        with self._threads.turn:  # from here on the program's arguments are this run's
            self._threads.announce(self._threads_max)
            try:
                return self._computed(inputs, stopped, spans, first)
            finally:
                self._threads.dismiss()

    def _computed(
        self, inputs: list[NDArray[Any]], stopped: Stopped, spans: Spans | None, first: Key
    ) -> list[NDArray[Any]]:
        sequenced = self._sequenced if spans is None else self._apart()
        (outputs, held), stop = sequenced.bind(inputs, self._weights), Stop()
        run = self._run if spans is None else partial(self._timed, spans, first)
        if stopped is never or not self._watched:
            run(sequenced.program, stop)
            del held
            return outputs
        with _Watch(stopped, stop):
            if not run(sequenced.program, stop):
                raise Cancelled("the run was stopped")
        return outputs

    def _run(self, program: Program, stop: Stop) -> bool:
        return self._threads.run(program, stop, self._threads_max)

    def _timed(self, spans: Spans, first: Key, program: Program, stop: Stop) -> bool:
        ended, times = self._threads.timed(program, stop)
        for kernel, shares in enumerate(times.swapaxes(0, 1).tolist()):
            key, joins = (first[0], first[1] + kernel), False
            for thread, (began_s, ended_s) in enumerate(shares):
                if ended_s:
                    spans(Span(key, f"thread {thread}", began_s, ended_s, joins))
                    joins = True
        return ended

    def rows(self, texts: bool) -> list[KernelRow]:
        return [
            self._row(node, index, kernel, texts)
            for (node, index), kernel in zip(self._nodes, self._kernels, strict=True)
        ]

    def _row(self, node: Node, index: int, kernel: _Kernel, texts: bool) -> KernelRow:
        part: Cut = node.attrs["cut"]
        read = sum(type_.size_bytes for inner, type_ in zip(part.nodes, part.types, strict=True) if inner.op == "input")
        text = str(kernel.module()) if texts else ""
        return KernelRow(
            NAMES.get(part.kind, part.kind), (index,), read, part.types[-1].size_bytes, kernel.flops, (), text
        )


class _Watch:
    """A look now and then, while a program runs, whether it is to stop: `stop` is set once `stopped()`."""

    def __init__(self, stopped: Stopped, stop: Stop) -> None:
        self._stopped, self._stop, self._over = stopped, stop, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(WATCHED_S):
            if self._stopped():
                self._stop.set()
