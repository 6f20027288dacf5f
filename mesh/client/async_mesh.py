"""AsyncMesh: the mesh for programs that run an event loop.  `Mesh` (mesh.py) is the same for everybody else.

    async with await Mesh.builder().local(3).build_async() as mesh:
        y = await mesh.run(fn, x)

Numpy arrays in, numpy arrays out, in any pytree.  Every method says which errors it raises; all are in `mesh.errors`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from wire.errors import Cancelled, ConfigError, DeadlineExceeded, InputError
from wire.ir.graph import WireGraph
from wire.policy.redundancy import OF_CALLS, copies_of
from wire.policy.strategies import Strategy, text_of

from .. import tree
from ..backends.config import MeshConfig
from ..core.backend import Backend, Started, Stateful, Work
from ..core.call_arguments import taken
from ..core.handle import Handle
from ..core.node import Node
from ..functions.build_options import HERE, building
from ..functions.compiled import Callee, Compiled, CompiledFunction, handle_of
from ..functions.step_trace import Stepping
from ..util.annotation_checks import instance
from ..util.argument_checks import check_function
from .builder import MeshBuilder
from .elastic_session import Elastic
from .plan_preview import PlanPreview
from .report import Report
from .session import AsyncSession, Here, check_choices

if TYPE_CHECKING:
    from ..simulation.cluster import Cluster

REPLAY_BYTES = 64 << 20  # of feeds, held for a state that nobody copies
OWN = ("strategy", "mode", "copies")  # what calls take for themselves
OWN_OF_COMPILE = (*OWN, "name", "cache", "build_dir", "force")
OWN_OF_SESSIONS = (*OWN, "every", "ahead")


class AsyncMesh:
    """A mesh used from the event loop it was made on.  Close it, or use it as an async context manager."""

    def __init__(self, backend: Backend, copies: str = "checkpoint", reproducible: bool = False) -> None:
        self._backend = backend
        self._reproducible = reproducible
        self._copies = copies  # of params, where a call does not say
        self._loop = asyncio.get_running_loop()
        self._last: Started | None = None
        self._here: set[asyncio.Future[Any]] = set()  # calls computed in this process
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.told('AsyncMesh')}>"

    def told(self, what: str) -> str:
        """This mesh in a few words, as a `what`."""
        return f"{what}: closed" if self._closing is not None else f"{what}: {self._backend.told()}"

    @staticmethod
    def builder() -> MeshBuilder:
        return MeshBuilder()

    @staticmethod
    async def connect(config: MeshConfig) -> AsyncMesh:
        """Connect to everything in `config`; ConnectFailed names every node that failed."""
        instance(config, "config of AsyncMesh.connect", MeshConfig)
        return AsyncMesh(await _backend_of(config), config.copies, config.reproducible)

    @property
    def simulation(self) -> Cluster:
        """The cluster of a mesh built with `.simulate(n)`; ConfigError for any other mesh."""
        from ..simulation.backend import Simulated

        if not isinstance(self._backend, Simulated):
            raise ConfigError("this mesh is real", next_step="Build it with .simulate(n)")
        return self._backend.cluster

    @property
    def reproducible(self) -> bool:
        """Whether every plan has the same bits (`MeshBuilder.reproducible`)."""
        return self._reproducible

    async def nodes(self) -> tuple[Node, ...]:
        """Every worker, by name, with its present state."""
        return await self._backend.nodes()

    def live(self) -> bool:
        """Whether any worker can take work now."""
        return self._backend.live()

    async def put(self, value: Any) -> Any:
        """Hold the arrays of a pytree on the mesh; the same tree with a Handle for each.

        A handle given as an argument is never hashed or sent again: its bytes go to a worker once, when first needed.
        """
        self._check_open()
        paths, structure = tree.flatten_with_paths(value)
        return tree.unflatten(structure, [await self._put_one(path, leaf) for path, leaf in paths])

    async def plan(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: Any,
        strategy: str | Strategy = "auto",
        copies: str | None = None,
        what_if_dies: str = "",
        **named: Any,
    ) -> PlanPreview:
        """What would go where and why, before a byte moves; and what would follow from the death of a worker."""
        self._check_open()
        args = taken(fn, args, named, (*OWN, "what_if_dies"))
        graph = self.form(fn, args, strategy, "on", copies).graph
        text, kept = text_of(strategy, self._reproducible), self._copies_of(copies)
        return PlanPreview(await self._backend.plan(graph, text, kept, what_if_dies))

    async def run(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: Any,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        **named: Any,
    ) -> Any:
        """`fn(*args, **named)` on the mesh; the arguments are those of `Mesh.run`."""
        args = taken(fn, args, named, OWN)
        return await self._call(self.form(fn, args, strategy, mode, copies), args)

    async def compile(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *examples: Any,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        name: str = "",
        cache: bool = True,
        build_dir: str | Path | None = None,
        force: bool = False,
        **named: Any,
    ) -> Callable[..., Any]:
        """`Mesh.compile`, with an async callable for arguments of the examples' shapes and dtypes."""
        function = self.function(fn, strategy, mode, copies, name, cache, build_dir, force)
        function.form_for(taken(fn, examples, named, OWN_OF_COMPILE))

        async def compiled(*args: Any, **named: Any) -> Any:
            return await self._await(*function.bind(taken(fn, args, named)))

        return Callee(fn, name, self, compiled)

    async def submit(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: Any,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        **named: Any,
    ) -> AsyncJob:
        """Begin `run` and return at once; the arguments are copied, so they may be overwritten."""
        args = taken(fn, args, named, OWN)
        form = self.form(fn, args, strategy, mode, copies)
        return AsyncJob(form, self.start(form, *form.bind_copies(args)))

    async def session(
        self,
        step_fn: Callable[..., Any],
        state: Any,
        /,
        *examples: Any,
        copies: str = "",
        every: int = 10,
        ahead: int | None = None,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        **named: Any,
    ) -> AsyncSession:
        """Call `step_fn(state, *args) -> (state, outputs)` again and again; arguments are those of `Mesh.session`."""
        examples = taken(step_fn, (state, *examples), named, OWN_OF_SESSIONS)[1:]
        return self.open_session(self.stepping(step_fn, state, examples, strategy, mode), copies, every, ahead, mode)

    def report(self) -> Report:
        """What the last call that was started on this mesh did where; complete once it has ended."""
        if self._last is None:
            raise InputError("nothing has run on this mesh yet, so there is no report")
        return Report.of(self._last.report())

    def watch(self, watcher: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `watcher` with every event (joined, suspect, dead, planned, ...) from now on, as plain data.

        What it raises is logged, once per kind of error, and changes nothing: it hears of the next event all the same.
        """
        check_function(watcher, "what watches a mesh")
        self._backend.watch(watcher)

    async def close(self) -> None:
        """End local workers and links; calls under way are cancelled."""
        if self._closing is None:
            for outputs in self._here:
                outputs.cancel()
            self._closing = asyncio.ensure_future(self._backend.close())
        await asyncio.shield(self._closing)  # whoever asks, and gives up asking, it is done to the end

    async def __aenter__(self) -> AsyncMesh:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- what Mesh shares

    def form(
        self,
        fn: Callable[..., Any] | WireGraph,
        args: tuple[Any, ...],
        strategy: str | Strategy,
        mode: str,
        copies: str | None = None,
    ) -> Compiled:
        """`fn` traced for these arguments.  Done anew each time: what `fn` refers to may have changed."""
        return Compiled.of(fn, args, text_of(strategy, self._reproducible), building(mode), self._copies_of(copies))

    def function(
        self,
        fn: Callable[..., Any] | WireGraph,
        strategy: str | Strategy,
        mode: str,
        copies: str | None = None,
        name: str = "",
        cache: bool = True,
        build_dir: str | Path | None = None,
        force: bool = False,
    ) -> CompiledFunction:
        """`fn` traced once per shapes and dtypes."""
        how = building(mode, name, cache, build_dir, force)
        return CompiledFunction(fn, text_of(strategy, self._reproducible), how, self._copies_of(copies))

    def _copies_of(self, copies: str | None) -> str:
        return self._copies if copies is None else copies_of(copies, OF_CALLS).text

    def stepping(
        self,
        fn: Callable[..., Any],
        state: Any,
        examples: tuple[Any, ...],
        strategy: str | Strategy,
        mode: str,
        copies: str | None = None,
    ) -> Stepping:
        """A step function traced for this state and these arguments; `copies` are those of what no step changes."""
        how, asked = building(mode), text_of(strategy, self._reproducible)
        made = Stepping(fn, state, examples, asked, self._copies_of(copies))
        how.built(made.work.graph)
        return made

    def open_session(
        self,
        stepping: Stepping,
        copies: str,
        every: int,
        ahead: int | None,
        mode: str,
        replay_bytes: int = REPLAY_BYTES,
        others: Elastic | None = None,
    ) -> AsyncSession:
        """Begin a session, on the loop; with `others` it has other steps for other numbers of workers."""
        check_choices(copies, every, ahead)
        self._check_open()
        if self._is_here(mode):
            return AsyncSession(stepping, Here(stepping))
        state = Stateful(stepping.carries, stepping.told, stepping.state_bytes, copies, every, ahead, replay_bytes)
        return AsyncSession(stepping, self._backend.session(stepping.work, state, others))

    @property
    def elastic(self) -> bool:
        """Whether a session here may go on with another number of workers than its step was traced for."""
        return self._backend.elastic and self._backend.live()

    def forget(self, work: Work) -> None:
        """No more calls of a work will come: free what the workers keep of it; of a session once it is closed."""
        if self._closing is None:
            self._backend.forget(work)

    def start(self, form: Compiled, inputs: Mapping[str, NDArray[Any]], work: Work) -> Started:
        """Begin a call, on the loop."""
        self._check_open()
        if self._is_here(form.mode):
            started = _start_here(self._loop, work, inputs)
            self._here.add(started.outputs)
            started.outputs.add_done_callback(self._here.discard)
        else:
            started = self._backend.start(work, inputs)
        self._last = started
        return started

    def attend(self, started: Started) -> None:
        """Somebody in another thread waits for a call."""
        self._backend.attend(started)

    async def _call(self, form: Compiled, args: tuple[Any, ...]) -> Any:
        return await self._await(form, *form.bind(args))

    async def _await(self, form: Compiled, inputs: Mapping[str, NDArray[Any]], work: Work) -> Any:
        started = self.start(form, inputs, work)
        try:
            return form.unbind(await started.outputs)
        except asyncio.CancelledError:
            if started.outputs.cancelled() and not _cancelling():
                raise Cancelled("the mesh was closed") from None
            started.cancel()
            raise

    def _is_here(self, mode: str) -> bool:
        """Whether this process computes: it may round otherwise than workers that are to come."""
        return mode in HERE or (mode == "auto" and not self._reproducible and not self._backend.live())

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ConfigError("this mesh is closed")

    async def _put_one(self, path: str, leaf: Any) -> Handle:
        handle = leaf if isinstance(leaf, Handle) else await asyncio.to_thread(handle_of, leaf, path)
        self._backend.hold(handle)
        return handle


class AsyncJob:
    """A call under way."""

    def __init__(self, form: Compiled, started: Started) -> None:
        self._form = form
        self._started = started

    async def result(self, timeout_s: float | None = None) -> Any:
        """The value; DeadlineExceeded after `timeout_s` (the job goes on), Cancelled, or the job's own error."""
        outputs = asyncio.shield(self._started.outputs)
        try:
            async with asyncio.timeout(timeout_s):
                return self._form.unbind(await outputs)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the job has no result after {timeout_s:g} s", next_step="Ask again, or cancel() it"
            ) from None
        except asyncio.CancelledError:
            if self._started.outputs.cancelled():
                raise Cancelled("the job was cancelled") from None
            raise

    def __repr__(self) -> str:
        outputs = self._started.outputs
        how = "under way" if not outputs.done() else "cancelled" if outputs.cancelled() else "over"
        return f"<AsyncJob: {self._form.graph.name or 'unnamed'}, {how}>"

    def done(self) -> bool:
        return self._started.outputs.done()

    def cancel(self) -> None:
        """Stop the job on the workers and free its buffers; nothing happens if it is over."""
        self._started.cancel()

    def report(self) -> Report:
        """What this job did where; complete once it has ended."""
        return Report.of(self._started.report())


def _cancelling() -> bool:
    """Whether somebody cancelled the task that runs now."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _start_here(loop: asyncio.AbstractEventLoop, work: Work, inputs: Mapping[str, NDArray[Any]]) -> Started:
    """Evaluate in this process, in a thread, which stops soon after its future was cancelled."""
    from ..core.inprocess import evaluate

    started_s = loop.time()
    seconds: list[float] = []
    over = threading.Event()

    def compute() -> Sequence[NDArray[Any]]:
        outputs = evaluate(work, inputs, over.is_set)
        seconds.append(loop.time() - started_s)
        return outputs

    outputs = loop.run_in_executor(None, compute)
    outputs.add_done_callback(lambda _: over.set())
    return Started(outputs, lambda: {"seconds": sum(seconds), "reasons": ("computed in this process",)}, outputs.cancel)


async def _backend_of(config: MeshConfig) -> Backend:
    """Real workers or simulated ones, as `config` says; each kind is imported where it is asked for."""
    if config.simulate is not None:
        from ..simulation.backend import connect_simulated

        return await connect_simulated(config, config.simulate)
    from ..backends.connect import connect

    return await connect(config)
