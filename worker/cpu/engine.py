"""CpuEngine: a part compiled to a list of numpy calls with every tensor freed after its last use.

Any cut of a graph gives the same bits on one type of processor: every kernel computes from operands of one layout
(`_canonical`), so that numpy's choice of inner loop and order of summation follows from shapes alone, and BLAS runs on
one thread.  What splits a tensor changes shapes, and may change last bits.
"""

from __future__ import annotations

import itertools
import operator
import platform
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wire.errors import Cancelled, ExecuteFailed, InputError, MeshError, OutOfMemory, Unsupported
from wire.ir.dtypes import DTYPES, F32, F64
from wire.ir.graph import GraphBuilder, Node, WireGraph, const_value
from wire.ir.ops import COLLECTIVES, GRAPH_ATTRS, LEAVES, MULTIPLE, OPS
from wire.ir.types import Attrs, HostArray, TensorType
from wire.ir.workspace import scratch_bytes
from wire.passes.collective_order import meets, stages
from wire.passes.provenance import Provenance
from wire.passes.unroll_spmd import unroll
from wire.system.cores import core_count
from wire.system.memory import default_budget

from ..compiler.inline_composites import inline_composites
from ..engine.donation import Lent
from ..engine.kernel_rows import KernelRow, KernelRows, Key, Span, Spans, computed, executable_number, read_bytes
from ..engine.protocol import Collectives, EngineInfo, Measured, Pending, Stopped, interrupted, never
from .control import CONTROL, Several
from .elementwise import ELEMENTWISE, IN_PLACE, Kernel
from .inplace_analysis import FUSED, UPDATED_BYTES_MIN, Branches, spare
from .inplace_updates import Writing
from .matrices import FACTORISATIONS, MATRICES
from .process import arithmetic, one_thread
from .shared_outputs import INTO, in_rooms
from .structural import STRUCTURAL

KERNELS: dict[str, Kernel] = {**ELEMENTWISE, **STRUCTURAL, **MATRICES}
SEVERAL: dict[str, Several] = {**CONTROL, **FACTORISATIONS}
# In these every rank needs what every other one sends, so none is held up alone by one that sends when it needs the
# result.  Where ranks oversubscribe the cores that is sooner: a thread that sends meanwhile takes a core from one that
# computes.
MUTUAL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
OVER_BYTES_MIN = 1 << 14  # of a result that is written over an operand
LANE, EXCHANGES = "numpy", "exchanges"  # the names of times: calls, and collectives, which overlap with them
FREE = frozenset({"reshape", "after"})  # what numpy does without touching an element
NO_KEY: Key = (0, 0)
CLOCK_RESOLUTION_S = 1e-5  # of a clock that may time a kernel; that of processor time has 16 ms on Windows
IOTA_BYTES_MAX = 1 << 15  # of numbers that are kept instead of counted in every run


@dataclass(frozen=True, slots=True)
class Fusion:
    """How groups of nodes become kernels of their own: `outline` puts a node FUSED in place of each group, for which
    `kernel` gives what computes it."""

    outline: Callable[[WireGraph, Provenance | None], WireGraph]
    joined: Callable[[Sequence[tuple[Node, int]], Mapping[int, TensorType], Sequence[int]], Joined]


class Joined(Protocol):
    """Fused nodes that follow each other: `inputs` and `outputs` are the values that they need and that others need."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    count: int  # of kernels
    native_bytes: int  # of them all, as `protocol.native_bytes` counts

    def __call__(
        self, inputs: list[HostArray], stopped: Stopped, spans: Spans | None = None, first: Key = NO_KEY
    ) -> list[HostArray]:
        """The outputs; Cancelled soon after `stopped()`.  `spans` hears when each kernel ran, the first under the key
        `first`."""
        ...

    def rows(self, texts: bool) -> Sequence[KernelRow]:
        """The kernels in order; the node of each is the one that stands for it, and keys are the caller's."""
        ...


@dataclass(frozen=True, slots=True)
class _Call:
    """One numpy call: `frees` are the values no later call needs, and `over` the place of an operand among them that
    the result may be written over; -1: there is none.  `into`: an update that may be written into its first operand, if
    that memory is this run's.  `room`: other ranks read the result, where there is memory for that."""

    kernel: Kernel
    node: Node
    result: TensorType
    index: int
    frees: tuple[int, ...]
    strides: tuple[int, ...]  # of a canonical result
    over: int = -1
    into: bool = False
    room: bool = False


@dataclass(frozen=True, slots=True)
class _Turn:
    """A node with several results: `outputs` are the values that are needed and their places among the results.

    `graphs` are those of a branch or a loop.
    """

    kernel: Several
    node: Node
    graphs: Mapping[str, CpuExecutable]
    outputs: tuple[tuple[int, int], ...]
    frees: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A collective: started here, and waited for where a call needs it; `meanwhile` if there are calls before that."""

    node: Node
    index: int
    meanwhile: bool
    frees: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Fused:
    """Fused nodes that follow each other."""

    kernel: Joined
    frees: tuple[int, ...]


Step = _Call | _Turn | _Meeting | _Fused


@dataclass(frozen=True, slots=True)
class CpuExecutable:
    """A compiled part.  `arguments` are in the order of a run's inputs, None for one that no call reads."""

    arguments: tuple[int | None, ...]
    constants: tuple[tuple[int, HostArray], ...]
    calls: tuple[Step, ...]
    outputs: tuple[int, ...]
    memory_bytes: int
    from_cache: bool = True  # there are no kernels to generate
    number: int = field(default_factory=executable_number)
    source: WireGraph | None = None  # what it was compiled from, where an engine did
    only_fused: bool = False  # numpy computes nothing, and each output is an array that a call of this run makes

    @property
    def kept_bytes(self) -> int:
        """The bytes of its constants; calls are names and numbers."""
        return sum(graph.kept_bytes for graph in self._inner) + sum(array.nbytes for _, array in self.constants)

    @property
    def native_bytes(self) -> int:
        """See `protocol.native_bytes`."""
        own = sum(call.kernel.native_bytes for call in self.calls if isinstance(call, _Fused))
        return own + sum(graph.native_bytes for graph in self._inner)

    @property
    def _inner(self) -> Iterator[CpuExecutable]:
        """What the branches and loops in it compute."""
        return (graph for call in self.calls if isinstance(call, _Turn) for graph in call.graphs.values())

    @property
    def kernels(self) -> list[int]:
        """The number of each call's first kernel: fused nodes that follow each other have several."""
        counts = [call.kernel.count if isinstance(call, _Fused) else 1 for call in self.calls]
        return list(itertools.accumulate(counts[:-1], initial=0)) if counts else []


class CpuEngine:
    """The engine (worker/engine/protocol.py) over numpy."""

    takes_lent = True
    _fusion: Fusion | None = None
    _spans: Spans | None = None

    def __init__(self, memory_bytes: int | None = None) -> None:
        one_thread()
        names = tuple(dtype.name for dtype in DTYPES)
        self.info = EngineInfo(
            engine="cpu",
            adapter=cpu_model(),
            backend="cpu",
            driver=arithmetic(),
            software=True,
            memory_bytes=memory_bytes or default_budget(),
            limits={},
            dtypes_by_op=dict.fromkeys(OPS, names),
        )

    def measure(self) -> Measured:
        """Single-thread f32 GFLOP/s at 512^3, GB/s of a scaled copy of 16 MiB, seconds per call of a trivial graph."""
        square = np.ones((512, 512), np.float32)
        line = np.ones(1 << 22, np.float32)
        into = np.empty_like(line)
        gflops = 2 * 512**3 / fastest(lambda: np.matmul(square, square), threads=1) / 1e9
        gbytes_per_s = 2 * line.nbytes / fastest(lambda: np.multiply(line, 2.0, out=into), threads=1) / 1e9
        executable, given = compile_graph(trivial_graph()), [np.ones(1, np.float32)]
        return Measured(gflops, gbytes_per_s, fastest(lambda: run(executable, given)))

    def compile(self, graph: WireGraph, force: bool = False) -> CpuExecutable:
        return replace(compile_graph(graph, fusion=self._fusion), source=graph)

    def load(self, array: HostArray) -> HostArray:
        return array

    def unload(self, handle: Any) -> None:
        return

    def read(self, handle: HostArray) -> HostArray:
        return handle

    def run(
        self,
        executable: CpuExecutable,
        inputs: Sequence[Any],
        stopped: Stopped = never,
        collectives: Collectives | None = None,
        keep: Collection[int] = (),
    ) -> list[HostArray]:
        return run(executable, inputs, stopped, collectives, self._spans)

    def explain(self, executable: CpuExecutable, texts: bool = False) -> KernelRows:
        return KernelRows(rows_of(executable, self._fusion, texts), "a clock around each numpy call")

    def watch(self, spans: Spans | None) -> None:
        self._spans = spans

    def close(self) -> None:
        return


def evaluate(
    graph: WireGraph, inputs: Mapping[str, HostArray], params: Mapping[str, HostArray] | None = None,
    stopped: Stopped = never,
) -> list[HostArray]:  # fmt: skip
    """The outputs of `graph` in this process; InputError names a missing or ill-typed value, Cancelled if `stopped`."""
    one_thread()
    values = ordered(graph, {**inputs, **(params or {})})
    return run(compile_graph(graph), values, stopped)


def ordered(graph: WireGraph, given: Mapping[str, HostArray]) -> list[HostArray]:
    """Values by name as a run takes them; InputError names a missing or ill-typed one."""
    values = []
    for index in (*graph.inputs, *graph.params):
        name, kind = graph.nodes[index].attrs["name"], graph.types[index]
        if name not in given:
            raise InputError(f"the input {name!r} ({kind}) is missing")
        array = np.asarray(given[name])
        if array.shape != kind.shape or array.dtype != kind.dtype.numpy:
            raise InputError(f"the input {name!r} is {array.dtype}{list(array.shape)}, expected {kind}")
        values.append(array)
    return values


def compile_graph(
    graph: WireGraph, updated_bytes_min: int = UPDATED_BYTES_MIN, fusion: Fusion | None = None
) -> CpuExecutable:
    """The schedule of a graph; BlobMissing if a large constant is not here.  What is smaller than `updated_bytes_min`
    is copied and not written over.  Without `fusion` every node is a numpy call."""
    return _compiled(graph, None, _Compiling(updated_bytes_min, fusion))


@dataclass(frozen=True, slots=True)
class _Compiling:
    """What is the same for a graph and those inside of it."""

    updated_bytes_min: int
    fusion: Fusion | None
    branches: Branches = field(default_factory=Branches)
    # By the id of the inner graph, which layers that are alike share.  The outer graph keeps it alive.
    known: dict[tuple[int, frozenset[int]], CpuExecutable] = field(default_factory=dict)

    def inner(self, graph: WireGraph, mine: Collection[int]) -> CpuExecutable:
        """The schedule of a graph that is inside."""
        key = id(graph), frozenset(mine)
        if key not in self.known:
            self.known[key] = _compiled(graph, mine, self)
            return self.known[key]
        return _renumbered(self.known[key])


def _renumbered(executable: CpuExecutable) -> CpuExecutable:
    """The same schedule with numbers of its own, by which its kernels are measured apart."""
    calls = tuple(
        replace(call, graphs={name: _renumbered(inner) for name, inner in call.graphs.items()})
        if isinstance(call, _Turn)
        else call
        for call in executable.calls
    )
    return replace(executable, calls=calls, number=executable_number())


def _compiled(graph: WireGraph, mine: Collection[int] | None, compiling: _Compiling) -> CpuExecutable:
    """`mine` are the places of inputs that it may write over if their memory is the run's; None: all."""
    fusion = compiling.fusion
    flat = _flat(graph, fusion)
    arguments = _arguments(graph, flat)
    later = {index for first, group in flat.siblings.items() for index in group if index != first}
    computed = [(index, node) for index, node in _in_order(flat) if index not in later]
    same = _same_memory(flat)
    last_use = {held: index for index, node in computed for source in node.inputs for held in (source, same[source])}
    kept = {*flat.outputs, *(index for index, node in computed if node.op in LEAVES)}
    own = {index for place, index in enumerate(arguments) if index is not None and (mine is None or place in mine)}
    spared = spare(flat, [index for index, _ in computed], own, compiling.updated_bytes_min, compiling.branches)
    in_room = in_rooms(flat)
    calls: list[_Call | _Turn | _Meeting] = []
    constants = []
    for place, (index, node) in enumerate(computed):
        held = {operand for source in node.inputs for operand in (source, same[source])}
        frees = tuple({operand for operand in held if last_use[operand] == index and operand not in kept})
        if node.op == "const":
            constants.append((index, _canonical(const_value(node, flat.blobs))))
        elif node.op == "iota" and flat.types[index].size_bytes <= IOTA_BYTES_MAX:
            constants.append((index, _canonical(np.array(KERNELS["iota"](node.attrs, [], flat.types[index])))))
        elif node.op in MULTIPLE:
            calls.append(_turn(flat, index, frees, spared.of(index), compiling))
        elif node.op in COLLECTIVES:
            following = computed[place + 1][1].inputs if place + 1 < len(computed) else (index,)
            calls.append(_Meeting(node, index, index not in following, frees))
        elif node.op not in LEAVES:
            kernel = _fused if node.op == FUSED else KERNELS.get(node.op)
            if kernel is None:
                raise Unsupported(f"the cpu engine has no op {node.op!r}", op=node.op)
            over, into = _over(flat, index, frees), index in spared.updates
            kind = flat.types[index]
            calls.append(_Call(kernel, node, kind, index, frees, _strides(kind), over, into, index in in_room))
    steps, outputs = _joined(flat, calls, fusion) if fusion else calls, flat.outputs
    new = {index for step in steps if isinstance(step, _Fused) for index in step.kernel.outputs}
    only_fused = all(isinstance(step, _Fused) for step in steps) and len(new.intersection(outputs)) == len(outputs)
    return CpuExecutable(
        arguments, tuple(constants), tuple(steps), outputs, _peak_bytes(flat, calls), only_fused=only_fused
    )


def _flat(graph: WireGraph, fusion: Fusion | None, provenance: Provenance | None = None) -> WireGraph:
    """`graph` with only what calls compute, a node FUSED for each kernel."""
    flat = inline_composites(unroll(graph, provenance), provenance)
    return fusion.outline(flat, provenance) if fusion else flat


def rows_of(executable: CpuExecutable, fusion: Fusion | None, texts: bool) -> list[KernelRow]:
    """A row for each call of an executable that an engine compiled, and for each kernel among them."""
    source = executable.source
    assert source is not None, "an engine compiled it"
    provenance = Provenance(source)
    flat = _flat(source, fusion, provenance)
    rows: list[KernelRow] = []
    for call in executable.calls:
        for row in call.kernel.rows(texts) if isinstance(call, _Fused) else (_row(flat, call, texts),):
            nodes = computed(source, [provenance.of[node] for node in row.nodes])
            rows.append(replace(row, nodes=nodes, keys=((executable.number, len(rows)),)))
    return rows


def _row(graph: WireGraph, call: _Call | _Turn | _Meeting, texts: bool) -> KernelRow:
    """A call that is no kernel; its nodes are those of `graph`."""
    op, graphs = call.node.op, call.graphs if isinstance(call, _Turn) else {}
    nodes = tuple(index for index, _ in call.outputs) if isinstance(call, _Turn) else (call.index,)
    name = "collective" if isinstance(call, _Meeting) else "control" if graphs else "numpy"
    inside = tuple((part, replace(inner, source=call.node.attrs[part])) for part, inner in graphs.items())
    written_bytes = sum(graph.types[index].size_bytes for index in nodes)
    text = f"{op}({', '.join(str(graph.types[index]) for index in call.node.inputs)})" if texts else ""
    read = read_bytes(graph, nodes[0])
    if op in FREE:
        read = written_bytes = 0
    return KernelRow(f"{name} {op}", nodes, read, written_bytes, graph.flops_of(nodes[0]), (), text, inside)


def _joined(graph: WireGraph, calls: Sequence[_Call | _Turn | _Meeting], fusion: Fusion) -> list[Step]:
    """The calls, those of fused nodes that follow each other as one."""
    steps: list[Step] = []
    for fused, group in itertools.groupby(calls, lambda call: isinstance(call, _Call) and call.node.op == FUSED):
        members = list(group)
        if not fused:
            steps += members
            continue
        nodes = [(call.node, call.index) for call in members if isinstance(call, _Call)]
        freed = {value for call in members for value in call.frees}
        made = {index for _, index in nodes}
        kernel = fusion.joined(nodes, {index: graph.types[index] for index in made}, sorted(made - freed))
        steps.append(_Fused(kernel, tuple(freed - made)))
    return steps


def _fused(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    raise ExecuteFailed("a fused node is computed with those that follow it", op=FUSED)


def _over(graph: WireGraph, index: int, frees: Sequence[int]) -> int:
    """Memory that is in the cache is faster than new memory."""
    node, kind = graph.nodes[index], graph.types[index]
    if node.op in IN_PLACE and kind.dtype in (F32, F64) and kind.size_bytes >= OVER_BYTES_MIN:
        for place, source in enumerate(node.inputs):
            if source in frees and graph.types[source] == kind:
                return place
    return -1


def _in_order(graph: WireGraph) -> list[tuple[int, Node]]:
    """The nodes as they are computed: as they stand, but where ranks meet by stages."""
    order = list(enumerate(graph.nodes))
    if any(meets(node.op, node.attrs) for node in graph.nodes):
        stage = stages(graph.nodes)
        order.sort(key=lambda call: stage[call[0]])
    return order


def _same_memory(graph: WireGraph) -> list[int]:
    """The node whose result each node's is: its own, but for `after`."""
    same: list[int] = []
    for index, node in enumerate(graph.nodes):
        same.append(same[node.inputs[0]] if node.op == "after" else index)
    return same


def _turn(graph: WireGraph, index: int, frees: tuple[int, ...], mine: Collection[int], compiling: _Compiling) -> _Turn:
    """What is computed where the first of some siblings stands, for all of them; `mine` are operands that it may write
    over."""
    node = graph.nodes[index]
    graphs = {name: compiling.inner(node.attrs[name], mine) for name in GRAPH_ATTRS.get(node.op, ())}
    outputs = tuple((sibling, graph.nodes[sibling].attrs["output"]) for sibling in graph.siblings[index])
    return _Turn(SEVERAL[node.op], node, graphs, outputs, frees)


def _arguments(graph: WireGraph, flat: WireGraph) -> tuple[int | None, ...]:
    """The positions of the inputs and params of `graph` in `flat`; None for those that the body does not read."""
    places = {flat.nodes[index].attrs["name"]: index for index in (*flat.inputs, *flat.params)}
    return tuple(places.get(graph.nodes[index].attrs["name"]) for index in (*graph.inputs, *graph.params))


def run(
    executable: CpuExecutable,
    inputs: Sequence[HostArray | Lent],
    stopped: Stopped = never,
    collectives: Collectives | None = None,
    spans: Spans | None = None,
) -> list[HostArray]:
    """Perform a schedule; Cancelled between two calls once `stopped()`, also inside loops."""
    given = [_canonical(value.array if isinstance(value, Lent) else value) for value in inputs]
    if executable.only_fused and spans is None:
        return _Run(_NO_WRITING, stopped, collectives).outputs(executable, given)
    writing = Writing(inputs, given, [value for _, value in executable.constants])
    with np.errstate(all="ignore"):
        try:
            same = writing, stopped, collectives
            started = _Run(*same) if spans is None else _WatchedRun(*same, spans)
            return writing.owned(started.outputs(executable, given))
        except BaseException:
            writing.failed()
            raise


_NO_WRITING = Writing((), (), ())


@dataclass(frozen=True, slots=True)
class _Run:
    """What is the same in all graphs of a run."""

    writing: Writing
    stopped: Stopped
    collectives: Collectives | None

    def outputs(self, executable: CpuExecutable, inputs: Sequence[HostArray]) -> list[HostArray]:
        """The outputs, which may be inputs, constants or views of each other."""
        values: dict[int, HostArray] = dict(executable.constants)
        in_flight: dict[int, Pending] = {}
        for index, array in zip(executable.arguments, inputs, strict=True):
            if index is not None:
                values[index] = array
        for call in executable.calls:
            if interrupted(self.stopped):
                raise Cancelled("the run was stopped")
            if isinstance(call, _Fused):
                self._run_fused(call, in_flight, values)
                continue
            if in_flight:
                _settle(call.node.inputs, in_flight, values)
            operands = [values[source] for source in call.node.inputs]
            if isinstance(call, _Call):
                if call.over >= 0:
                    del values[call.node.inputs[call.over]]
                values[call.index] = self._perform(call, operands)
            elif isinstance(call, _Meeting):
                in_flight[call.index] = self._met(call, operands)
            else:
                results = self._turned(call, operands)
                made = results if call.graphs else [_canonical(result) for result in results]
                values.update({index: made[output] for index, output in call.outputs})
            for source in call.frees:
                values.pop(source, None)
        _settle(executable.outputs, in_flight, values)
        return [values[index] for index in executable.outputs]

    def _run_fused(self, call: _Fused, in_flight: dict[int, Pending], values: dict[int, HostArray]) -> None:
        kernel = call.kernel
        if in_flight:
            _settle(kernel.inputs, in_flight, values)
        try:
            results = self._fused(call, [values[index] for index in kernel.inputs])
        except MemoryError as error:
            raise OutOfMemory("no memory for the results of kernels", cause=str(error)) from None
        values.update(zip(kernel.outputs, results, strict=True))
        for source in call.frees:
            values.pop(source, None)

    def _fused(self, call: _Fused, operands: list[HostArray]) -> list[HostArray]:
        return call.kernel(operands, self.stopped)

    def _met(self, call: _Meeting, operands: list[HostArray]) -> Pending:
        if self.collectives is None:
            raise ExecuteFailed("a collective outside of a gang", op=call.node.op)
        node, collectives = call.node, self.collectives
        meanwhile = call.meanwhile and not (collectives.oversubscribed and node.op in MUTUAL)
        return collectives.start(node.op, node.attrs, operands[0] if operands else None, meanwhile)

    def _turned(self, call: _Turn, operands: list[HostArray]) -> list[HostArray]:
        def perform(name: str, given: list[HostArray]) -> list[HostArray]:
            if interrupted(self.stopped):
                raise Cancelled("the run was stopped")
            return self.outputs(call.graphs[name], given)  # rows of canonical arrays are canonical

        try:
            return call.kernel(call.node.attrs, operands, perform)
        except MeshError:
            raise
        except MemoryError as error:
            raise OutOfMemory("no memory for what a loop collects", op=call.node.op, cause=str(error)) from None
        except Exception as error:
            raise _failed(call, error) from error

    def _perform(self, call: _Call, operands: list[HostArray]) -> HostArray:
        try:
            if call.room and self.collectives and (room := self.collectives.allocate(call.result)) is not None:
                return _canonical(INTO[call.node.op](call.node.attrs, operands, call.result, room))
            if call.over >= 0 and _is_alone(operands, call.over):
                return np.asarray(IN_PLACE[call.node.op](*operands, out=operands[call.over]))
            if call.into and (result := self.writing.updated(call.node.op, call.node.attrs, operands)) is not None:
                return result
            result = call.kernel(call.node.attrs, operands, call.result)
            return result if result.strides == call.strides and result.flags.aligned else _canonical(result)
        except MeshError:
            raise
        except MemoryError as error:
            raise OutOfMemory(f"no memory for {call.result}", op=call.node.op, cause=str(error)) from None
        except Exception as error:
            raise _failed(call, error) from error


@dataclass(frozen=True)
class _WatchedRun(_Run):
    """A run of whose kernels `spans` hears."""

    spans: Spans
    keys: dict[int, Key] = field(default_factory=dict)  # by the identity of a call, that of its first kernel

    def outputs(self, executable: CpuExecutable, inputs: Sequence[HostArray]) -> list[HostArray]:
        for call, kernel in zip(executable.calls, executable.kernels, strict=True):
            self.keys[id(call)] = executable.number, kernel
        return super().outputs(executable, inputs)

    def _fused(self, call: _Fused, operands: list[HostArray]) -> list[HostArray]:
        return call.kernel(operands, self.stopped, self.spans, self.keys[id(call)])

    def _met(self, call: _Meeting, operands: list[HostArray]) -> Pending:
        began_s = time.perf_counter()
        return _Timed(super()._met(call, operands), lambda: self._ended(call, EXCHANGES, began_s))

    def _turned(self, call: _Turn, operands: list[HostArray]) -> list[HostArray]:
        began_s = time.perf_counter()
        results = super()._turned(call, operands)
        self._ended(call, LANE, began_s)
        return results

    def _perform(self, call: _Call, operands: list[HostArray]) -> HostArray:
        began_s = time.perf_counter()
        result = super()._perform(call, operands)
        self._ended(call, LANE, began_s)
        return result

    def _ended(self, call: _Call | _Turn | _Meeting, lane: str, began_s: float) -> None:
        self.spans(Span(self.keys[id(call)], lane, began_s, time.perf_counter()))


@dataclass(frozen=True, slots=True)
class _Timed:
    """A collective in flight that calls back when it is over."""

    pending: Pending
    ended: Callable[[], None]

    def result(self) -> HostArray:
        result = self.pending.result()
        self.ended()
        return result


def _settle(needed: Sequence[int], in_flight: dict[int, Pending], values: dict[int, HostArray]) -> None:
    """Wait for those of the collectives in flight that are needed."""
    for index in needed:
        if index in in_flight:
            values[index] = _canonical(in_flight.pop(index).result())


def _is_alone(operands: list[HostArray], place: int) -> bool:
    """Whether nobody but `operands` has this array or its memory: no input, output, constant, view or collective."""
    array = operands[place]
    owner = array if array.base is None else array.base
    if not (isinstance(owner, np.ndarray) and owner.flags.owndata and array.flags.writeable):
        return False
    del array, owner
    return _holders(operands, place) in _ALONE


def _holders(operands: list[HostArray], place: int) -> tuple[bool, int, int]:
    """Whether an array owns its memory, and the references to it and to the owner, those from here included."""
    array = operands[place]
    owner = array if array.base is None else array.base
    return owner is array, sys.getrefcount(array), sys.getrefcount(owner)


# As counted for arrays that nobody else has: what a reference from here counts differs between versions of Python.
_ALONE = (_holders([np.empty(1)], 0), _holders([np.empty(1).reshape(1, 1)], 0))


def _failed(call: _Call | _Turn, error: Exception) -> ExecuteFailed:
    return ExecuteFailed("a numpy kernel failed", op=call.node.op, cause=f"{type(error).__name__}: {error}")


def _strides(kind: TensorType) -> tuple[int, ...]:
    """The bytes of a canonical array that is not empty."""
    return _strides_of(kind.shape, kind.dtype.itemsize)


def _strides_of(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    sizes = itertools.accumulate(reversed(shape[1:]), operator.mul, initial=itemsize)
    return tuple(reversed(list(sizes))) if shape else ()


def _canonical(array: HostArray) -> HostArray:
    """The array in C order, aligned and with the strides that follow from its shape: numpy sums other layouts, and even
    unaligned memory, in another order, and has other loops for other strides, be it along an axis of one element."""
    if not (array.flags.c_contiguous and array.flags.aligned):
        return array.copy()
    if 1 not in array.shape or array.strides == _strides_of(array.shape, array.itemsize):
        return array
    return array.reshape(-1).reshape(array.shape)


def _peak_bytes(graph: WireGraph, calls: Sequence[_Call | _Turn | _Meeting]) -> int:
    """The most bytes of results that are alive at once, inside branches and loops as well, and of what kernels copy."""
    alive = peak = 0
    for call in calls:
        if isinstance(call, _Turn):
            made = graph.siblings[call.outputs[0][0]]
            inside = [inner_graph.memory_bytes for inner_graph in call.graphs.values()]
            inner = max(inside, default=scratch_bytes(graph, made[0], by_numpy=True))
        else:
            made, inner = (call.index,), scratch_bytes(graph, call.index, by_numpy=True)
        alive += sum(graph.types[index].size_bytes for index in made if graph.nodes[index].op != "after")
        peak = max(peak, alive + inner)
        alive -= sum(graph.types[index].size_bytes for index in call.frees if graph.nodes[index].op != "after")
    return peak


def trivial_graph() -> WireGraph:
    """A graph whose calls take what a call takes."""
    builder = GraphBuilder()
    x = builder.input("x", (1,), F32)
    return builder.build([builder.add("add", x, x)])


def fastest(work: Callable[[], object], threads: int = 0) -> float:
    """The seconds of the fastest of five calls, after one that warms up.

    Of work that keeps `threads` threads busy, and no other thread of this process computes meanwhile, it is their share
    of processor time: figures are kept, and other programs that run while they are taken should have no part in them.
    More threads than cores keep the cores busy, and no more.
    """
    fine = time.get_clock_info("process_time").resolution <= CLOCK_RESOLUTION_S
    clock, share = (time.process_time, min(threads, core_count())) if threads and fine else (time.perf_counter, 1)
    work()
    times = []
    for _ in range(5):
        began_s = clock()
        work()
        times.append((clock() - began_s) / share)
    return min(times)


def cpu_model() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
