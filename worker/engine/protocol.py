"""What an engine is: the seam between a part of a graph and the device that computes it.

An engine lives in an engine host (one child process per device), is used from one thread, and never opens a
socket.  It compiles a part once and runs it many times.  All engines pass one conformance suite
(`tests/engines`), within the op table's tolerances; the cpu engine is the oracle.

To add an engine: implement `Engine` and register the class under the entry-point group `graph_mesh.engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from wire.errors import Unsupported
from wire.ir.graph import WireGraph
from wire.ir.types import Attrs, TensorType

from .kernel_rows import KernelRows, Spans

Stopped = Callable[[], bool]


def never() -> bool:
    """A run that nobody will stop."""
    return False


def interrupted(stopped: Stopped, settle: Callable[[], object] | None = None) -> bool:
    """`stopped()`, asked by the thread that computes, between two kernels or turns of a loop.

    Here a run may be suspended, which takes a while: its engine runs others meanwhile.  Before that `settle` is called,
    which has the device do what is recorded.
    """
    suspend = getattr(stopped, "suspend", None)
    if suspend is not None:
        suspend(settle)
    return stopped()


class Pending(Protocol):
    """A collective in flight."""

    def result(self) -> NDArray[Any]:
        """What this rank gets, once it is done; raises what went wrong, on this rank or another.  It may be memory of
        all ranks, which is read only and lasts for this run."""
        ...


class Collectives(Protocol):
    """How a part of a gang reaches the other ranks (worker/collectives/)."""

    @property
    def oversubscribed(self) -> bool:
        """Whether the ranks of this machine leave no cores for threads of their own that move what they exchange."""
        ...

    def allocate(self, kind: TensorType) -> NDArray[Any] | None:
        """Memory where other ranks can read a tensor that is to be a collective's operand; None if there is none.  It
        lasts for this run, so an output that lies there has to be copied."""
        ...

    def start(self, op: str, attrs: Attrs, operand: NDArray[Any] | None, meanwhile: bool = True) -> Pending:
        """Begin a collective of the op table; all ranks start the same ones in the same order.

        The operand must not change until it is done.  `meanwhile` says that the caller computes before it asks for the
        result.
        """
        ...


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine reports about its device at join.

    `dtypes_by_op` says for every op which dtype names (of the result, and of the operands) it can compute; an op that
    is absent is unsupported, and the planner places it elsewhere.  `limits` are the adapter's own.
    """

    engine: str
    adapter: str
    backend: str
    driver: str
    software: bool
    memory_bytes: int
    limits: Mapping[str, int]
    dtypes_by_op: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Short measurements of the device: f32 matmul GFLOP/s, streaming GB/s, seconds per call of a trivial graph."""

    gflops: float
    gbytes_per_s: float
    dispatch_s: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of measuring the forms of a kernel for a class of shapes.  `form` is the fastest, of `tried`, and
    `guess` the one that is taken where nothing was measured.  `refused` has those that failed, with the reason.

    Where it is not `finished`, or there was nothing to measure, `why` says why.
    """

    shape_class: str
    guess: str = ""
    form: str = ""
    guess_s: float = 0.0
    form_s: float = 0.0
    tried: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    why: str = ""


class Executable(Protocol):
    """A compiled part.  `memory_bytes` is what a run needs beyond inputs and params, `kept_bytes` what it holds for as
    long as it is kept, whether it runs or not: code and constants, about."""

    @property
    def memory_bytes(self) -> int: ...

    @property
    def kept_bytes(self) -> int: ...

    @property
    def from_cache(self) -> bool:
        """True where no kernel had to be generated or compiled anew."""
        ...


class Engine(Protocol):
    """One device.  Errors are EngineErrors: Unsupported, CompileFailed, ExecuteFailed, DeviceLost, OutOfMemory."""

    info: EngineInfo

    def measure(self) -> Measured:
        """Measure the device; at most about 0.3 s."""
        ...

    def compile(self, graph: WireGraph, force: bool = False) -> Executable:
        """Compile a part; with `force` rebuild even what the cache holds.  Unsupported names op and dtype."""
        ...

    def load(self, array: NDArray[Any]) -> Any:
        """Make a tensor resident on the device (a weight); the handle can stand for an input of `run`.

        The tensor must not change until it is unloaded: an engine may keep other forms of it.
        """
        ...

    def unload(self, handle: Any) -> None:
        """Free a resident tensor."""
        ...

    def read(self, handle: Any) -> NDArray[Any]:
        """The tensor of a handle, for reading only.  It may be the engine's own memory; an array is its own handle."""
        ...

    def run(
        self,
        executable: Executable,
        inputs: Sequence[Any],
        stopped: Stopped = never,
        collectives: Collectives | None = None,
        keep: Collection[int] = (),
    ) -> list[Any]:
        """The part's outputs, in order; `collectives` for a part of a gang.

        `inputs` are in the order of `graph.inputs` then `graph.params`, each a C-contiguous numpy array of exactly the
        declared type, or a handle.  Outputs are numpy arrays; those at the places in `keep` may be handles, if their
        memory is the device's: so they stay there until a later run reads them.  Such a handle lives for as long as
        somebody holds it.

        Inputs are never written to; outputs that are arrays never alias inputs.  An engine that `takes_lent` may also
        be given arrays as `Lent` (donation.py): it may write over these and give their memory to an output, if it says
        so there; where it raises, they are as before.  Cancelled soon after `stopped()` becomes true, where the device
        can still be held back.
        """
        ...

    def explain(self, executable: Executable, texts: bool = False) -> KernelRows:
        """The kernels of a compiled part; with `texts` what each was generated as."""
        ...

    def watch(self, spans: Spans | None) -> None:
        """Tell `spans` when each kernel of a run began and ended, from now on; with None nobody.  A run that is watched
        may take longer."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


def readback_s(engine: Engine) -> float:
    """The seconds in which an engine so far brought tensors from the device's memory to the host's, for profiles.  An
    engine that computes there has no such attribute."""
    return float(getattr(engine, "readback_s", 0.0))


def moved_bytes(engine: Engine) -> tuple[int, int]:
    """The bytes that an engine so far brought from the host's memory to the device's, and back.  An engine that
    computes in the host's memory has no such attribute."""
    uploaded_bytes, readback_bytes = getattr(engine, "moved_bytes", (0, 0))
    return uploaded_bytes, readback_bytes


def held_bytes(engine: Engine) -> int:
    """The device memory that outputs of earlier runs take, as handles.  An engine that gives none has no such
    attribute."""
    return int(getattr(engine, "held_bytes", 0))


def explained(engine: Engine, executable: Executable, texts: bool = False) -> KernelRows:
    """The kernels of a compiled part; Unsupported by an engine that was written before there was such a method."""
    if not (hasattr(engine, "explain") and hasattr(engine, "watch")):
        raise Unsupported(f"the engine {engine.info.engine} does not report its kernels")
    return engine.explain(executable, texts)


def watch(engine: Engine, spans: Spans | None) -> None:
    """`Engine.watch`, of an engine that has it."""
    if hasattr(engine, "watch"):
        engine.watch(spans)


def lend_spill(engine: Engine, spill: Callable[[], bool]) -> None:
    """Have an engine call `spill` where its device is short of memory: it unloads a resident tensor that the present
    run does not read, and returns whether there was one.  An engine without a budget of its own has no such
    attribute."""
    if hasattr(engine, "spill"):
        engine.spill = spill


def lend_room(engine: Engine, has_room: Callable[[int], bool]) -> None:
    """Have an engine ask `has_room` before it keeps that many more bytes of what it could do without, such as weights
    in a form that kernels read faster.  An engine that keeps nothing of the kind has no such attribute."""
    if hasattr(engine, "lend_room"):
        engine.lend_room(has_room)


def native_bytes(executable: Executable) -> int:
    """The bytes of its kernels for the processor, with what is held beside each of them; 0 where it has none."""
    return int(getattr(executable, "native_bytes", 0))


def spare_bytes(engine: Engine) -> int:
    """What an engine keeps and could do without (`lend_room`), in bytes."""
    return int(getattr(engine, "spare_bytes", 0))


def free_spare(engine: Engine) -> None:
    """Have an engine free what it could do without."""
    if spare_bytes(engine):
        engine.free_spare()  # type: ignore[attr-defined]  # it is optional


def tune(engine: Engine, shape_class: str, seconds: float, stopped: Stopped = never) -> Tuned:
    """Measure the forms of a kernel for a class of shapes, for at most about so long, and use the fastest from now on.
    Unsupported by an engine without forms."""
    if not hasattr(engine, "tune"):
        raise Unsupported(
            f"the engine {engine.info.engine} has nothing to tune", next_step="Name a graphics adapter with --device"
        )
    tuned: Tuned = engine.tune(shape_class, seconds, stopped)
    return tuned


def untuned_classes(engine: Engine, executable: Executable) -> tuple[str, ...]:
    """The classes of shapes of a compiled part that were never measured; none of an engine without forms."""
    return tuple(engine.untuned(executable)) if hasattr(engine, "untuned") else ()


def takes_lent(engine: Engine) -> bool:
    """Whether inputs of a run may be `Lent`.  An engine that knows nothing of it has no such attribute."""
    return bool(getattr(engine, "takes_lent", False))
