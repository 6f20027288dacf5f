"""AsyncMesh: the mesh for programs that run an event loop.  `Mesh` (mesh.py) is the same for everybody else.

    async with await Mesh.builder().local(3).build_async() as mesh:
        y = await mesh.run(fn, x)

Numpy arrays in, numpy arrays out, in any pytree.  Every method says which errors it raises; all are in `mesh.errors`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from numpy.typing import NDArray

from wire.bounds import ARGUMENTS, REPLAYED_FEEDS
from wire.errors import Cancelled, ConfigError, DeadlineExceeded, InputError, MeshError, NoSuchDevice
from wire.ir.graph import WireGraph
from wire.policy.redundancy import OF_CALLS, copies_of
from wire.policy.strategies import Strategy, strategy_of, text_of

from .. import tree
from ..backends.config import MeshConfig
from ..core.argument_room import ArgumentRoom, bytes_of, copied
from ..core.backend import Answered, Backend, Started, Stateful, Work, ends_with_this_program
from ..core.call_arguments import check_examples, merge_arguments
from ..core.handle import Handle
from ..core.node import Node
from ..functions.call_options import HERE, CallOptions, checked_options, forced
from ..functions.compiled import Callee, Compiled, CompiledFunction, handle_of
from ..functions.step_trace import Stepping
from ..scripts.world import rank, world_size
from ..tree import PyTree
from ..util.annotation_checks import instance
from ..util.argument_checks import check_function, seconds_to_wait, value_text
from ..util.user_code import called_in_thread
from .builder import MeshBuilder
from .elastic_session import Elastic
from .explanation import Explanation, explanation_of, texts_of, worker_and_device
from .plan_preview import PlanPreview
from .report import Report
from .session import AsyncSession, Here, check_choices, check_name

if TYPE_CHECKING:
    from ..simulation.cluster import Cluster

REPLAY_BYTES = REPLAYED_FEEDS.most
HERE_BYTES_MAX = 1 << 20  # of arguments that are copied on the loop, and not in a thread
OWN = ("strategy", "mode", "copies")  # what calls take for themselves
OWN_OF_COMPILE = (*OWN, "name", "cache", "build_dir", "force", "use_cached_if_exists")
OWN_OF_SESSIONS = (*OWN, "every", "ahead", "name")


class AsyncMesh:
    """A mesh for programs that have an event loop; it is used on the loop that it was made on.

    `MeshBuilder.build_async` makes one.  Close it, or use it as an async context manager.  `Mesh` has the same methods
    for other programs, and describes their arguments and errors in more words.

    Parameters
    ----------
    backend : Backend
        What computes.
    copies : str, optional
        Which copies of the params workers keep where a call does not say.

    Examples
    --------
    >>> import asyncio
    >>> import numpy as np
    >>> import mesh
    >>> async def main():
    ...     async with await mesh.AsyncMesh.builder().build_async() as m:
    ...         handle = await m.put(np.ones(2))
    ...         m.watch(lambda event: None)
    ...         job = await m.submit(lambda x: x + 1, handle)
    ...         double = await m.compile(lambda x: 2 * x, handle)
    ...         return len(await m.nodes()), await job.result(), await double(handle), m.report().reasons
    >>> asyncio.run(main())  # without workers, this process computes
    (0, array([2., 2.]), array([2., 2.]), ('computed in this process',))
    """

    def __init__(self, backend: Backend, copies: str = "checkpoint") -> None:
        self._backend = backend
        self._copies = copies  # of params, where a call does not say
        self._loop = asyncio.get_running_loop()
        self._last: Started | Answered | None = None
        self._here: set[asyncio.Future[Any]] = set()  # calls computed in this process
        self._sessions_here: WeakSet[Here] = WeakSet()  # likewise
        self._closing: asyncio.Future[None] | None = None
        self._room = ArgumentRoom(ARGUMENTS.most)  # of calls that were submitted, and of steps

    def __repr__(self) -> str:
        return f"<{self.describe('AsyncMesh')}>"

    def describe(self, what: str) -> str:
        """Describe this mesh in a few words.

        Parameters
        ----------
        what : str
            What to call it.

        Returns
        -------
        str
            Such as "AsyncMesh: 2 workers: anna, berta".
        """
        return f"{what}: closed" if self._closing is not None else f"{what}: {self._backend.describe()}"

    @staticmethod
    def builder() -> MeshBuilder:
        """Begin to say which machines a mesh is made of.

        Returns
        -------
        MeshBuilder
            A builder that names no machine yet.
        """
        return MeshBuilder()

    @staticmethod
    async def connect(config: MeshConfig) -> AsyncMesh:
        """Connect to everything that a builder has collected.

        Parameters
        ----------
        config : MeshConfig
            What the mesh is made of.

        Returns
        -------
        AsyncMesh
            The mesh.

        Raises
        ------
        ConnectFailed
            If nodes do not answer; the error names each of them.
        """
        instance(config, "config of AsyncMesh.connect", MeshConfig)
        return AsyncMesh(await _backend_of(config), config.copies)

    @property
    def simulation(self) -> Cluster:
        """The cluster of a mesh that was built with `.simulate(n)`; any other mesh raises ConfigError."""
        from ..simulation.backend import Simulated

        if not isinstance(self._backend, Simulated):
            raise ConfigError("this mesh is real", next_step="Build it with .simulate(n)")
        return self._backend.cluster

    @property
    def reproducible(self) -> bool:
        """Whether every plan gives the same bits: `MeshBuilder.reproducible`, or a coordinator that makes no others."""
        return self._backend.reproducible

    async def nodes(self) -> tuple[Node, ...]:
        """Return every worker, by name, with its present state.

        Returns
        -------
        tuple of Node
            The workers.
        """
        return await self._backend.nodes()

    def live(self) -> bool:
        """Return whether any worker can take work now.

        Returns
        -------
        bool
            False if calls with mode "auto" are computed in this process.
        """
        return self._backend.live()

    def stays_here(self, strategy: str | Strategy = "auto") -> bool:
        """Return whether what lasts, as a session, is in this process if its mode is "auto".

        Parameters
        ----------
        strategy : str or Strategy, optional
            Its strategy. One that is reproducible has workers compute, since this process may round otherwise.

        Returns
        -------
        bool
            True if no worker can take work now, and none is waited for. A coordinator daemon whose link broke for a
            moment is: what began in this process meanwhile would stay there.

        Examples
        --------
        >>> import asyncio
        >>> import mesh
        >>> async def main():
        ...     async with await mesh.Mesh.builder().build_async() as m:
        ...         print(m.stays_here())
        >>> asyncio.run(main())
        True
        """
        return not (self._backend.live() or self._backend.comes_back() or self._asks_reproducible(strategy))

    async def put(self, value: PyTree, *, on: str | Node = "") -> PyTree:
        """Hold the arrays of a pytree on the mesh, as `Mesh.put` does.

        Parameters
        ----------
        value : pytree of arrays
            What to hold.
        on : str or Node, optional
            The only worker that may have it, as for `Mesh.put`.

        Returns
        -------
        pytree of Handle
            The same tree, with a handle in place of each array.

        Raises
        ------
        ConfigError
            If the mesh is closed.
        InputError
            If a leaf is not an array, or a handle that is private to another worker, or `on` is neither a text nor a
            Node.
        NoSuchDevice
            If there is no such worker, or more than one.
        """
        self._check_open()
        paths, structure = tree.flatten_with_paths(value)
        worker = await self._worker_called(on)
        return tree.unflatten(structure, [await self._put_one(path, leaf, worker) for path, leaf in paths])

    async def plan(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: PyTree,
        strategy: str | Strategy = "auto",
        copies: str | None = None,
        what_if_dies: str = "",
        **named: PyTree,
    ) -> PlanPreview:
        """Plan a call without running it, as `Mesh.plan` does.

        Parameters
        ----------
        fn : callable or WireGraph
            What would be run.
        *args : pytree
            Its arguments.
        strategy : str or Strategy, optional
            How to place it, as for `Mesh.run`.
        copies : str, optional
            Which copies of the params workers keep, as for `Mesh.run`.
        what_if_dies : str, optional
            The name of a worker whose death is planned for, too.
        **named : pytree
            Arguments of `fn` by name.

        Returns
        -------
        PlanPreview
            Which worker would compute what, and why.

        Raises
        ------
        InputError
            If `fn` cannot be called with these arguments.
        PlacementError
            If no plan fits the workers.

        Examples
        --------
        >>> import asyncio
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.simulation.loop import VirtualLoop
        >>> async def main():
        ...     async with await mesh.AsyncMesh.builder().simulate(2).build_async() as m:
        ...         return await m.plan(lambda x: x @ x, np.ones((4, 4)), strategy="single")
        >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ...     runner.run(main()).workers
        ('sim-0',)
        """
        self._check_open()
        args = merge_arguments(fn, args, named, (*OWN, "what_if_dies"))
        options = self.options(strategy, "on", copies)
        graph = self.form(fn, args, options).graph
        return PlanPreview(await self._backend.plan(graph, options.strategy, options.copies, what_if_dies))

    async def explain(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: PyTree,
        worker: str = "",
        text: bool | int = False,
        **named: PyTree,
    ) -> Explanation:
        """Tell which kernels a worker compiles a call to, as `Mesh.explain` does.

        Parameters
        ----------
        fn : callable or WireGraph
            What would be run.
        *args : pytree
            Its arguments.  A graph needs none.
        worker : str, optional
            The worker, and perhaps its device, as in "anna:1".
        text : bool or int, optional
            Whether to tell the generated text of the kernels, too; a number is one kernel's.
        **named : pytree
            Arguments of `fn` by name.

        Returns
        -------
        Explanation
            The kernels, with what each takes.

        Raises
        ------
        InputError
            If `fn` cannot be called with these arguments, or there is no such worker or device.
        PlacementError
            If the worker has no device for all of it.

        Examples
        --------
        >>> import asyncio
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.simulation.loop import VirtualLoop
        >>> async def main():
        ...     async with await mesh.AsyncMesh.builder().simulate(2).build_async() as m:
        ...         return await m.explain(lambda x: x @ x, np.ones((4, 4)), worker="sim-1")
        >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ...     explanation = runner.run(main())
        >>> explanation.worker, explanation.kernels[0].name, explanation.kernels[0].flops
        ('sim-1', 'numpy dot', 128)
        """
        self._check_open()
        chosen, texts = worker_and_device(worker), texts_of(text)
        if isinstance(fn, WireGraph) and not args and not named:
            graph = fn
        else:
            graph = self.form(
                fn, merge_arguments(fn, args, named, (*OWN, "worker", "text")), self.options("auto", "on")
            ).graph
        return explanation_of(await self._backend.explain(graph, *chosen, *texts), graph)

    async def run(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: PyTree,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        **named: PyTree,
    ) -> PyTree:
        """Compute `fn(*args, **named)` on the mesh, as `Mesh.run` does.

        Parameters
        ----------
        fn : callable or WireGraph
            A function of arrays, or a graph.
        *args : pytree of arrays
            Its arguments.
        strategy : str or Strategy, optional
            How to place it, as for `Mesh.run`.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute, as for `Mesh.run`.
        copies : str, optional
            Which copies of the params workers keep, as for `Mesh.run`.
        **named : pytree of arrays
            Arguments of `fn` by name.

        Returns
        -------
        pytree of numpy.ndarray
            The result of `fn`.

        Raises
        ------
        InputError
            If `fn` cannot be called or traced with these arguments.
        PlacementError
            If no plan fits the workers.
        NodeLost
            If workers died until too few were left.
        Cancelled
            If the mesh was closed meanwhile.

        Examples
        --------
        >>> import asyncio
        >>> import numpy as np
        >>> import mesh
        >>> async def main():
        ...     async with await mesh.AsyncMesh.builder().build_async() as m:
        ...         return await asyncio.gather(*(m.run(lambda x: x * x, np.float32(number)) for number in range(3)))
        >>> [float(square) for square in asyncio.run(main())]
        [0.0, 1.0, 4.0]
        """
        args = merge_arguments(fn, args, named, OWN)
        return await self._call(self.form(fn, args, self.options(strategy, mode, copies)), args)

    async def compile(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *examples: PyTree,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        name: str = "",
        cache: bool = True,
        build_dir: str | Path | None = None,
        force: bool = False,
        use_cached_if_exists: bool = True,
        **named: PyTree,
    ) -> Callable[..., Any]:
        """Trace `fn` once, for arguments of the examples' shapes and dtypes, as `Mesh.compile` does.

        Parameters
        ----------
        fn : callable or WireGraph
            A function of arrays, a model, or a graph.
        *examples : pytree
            Arguments like those of the calls that follow.
        strategy : str or Strategy, optional
            How to place it, as for `Mesh.run`.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute, as for `Mesh.run`.
        copies : str, optional
            Which copies of the params workers keep, as for `Mesh.run`.
        name : str, optional
            What plans and jobs call the graphs.
        cache : bool, optional
            Whether to keep what was traced.
        build_dir : str or Path, optional
            Where to write each graph, as NAME-HASH.wire and as text.
        force : bool, optional
            Whether the first call compiles its graph anew, whatever the caches have.
        use_cached_if_exists : bool, optional
            The opposite of `force`, by another name.
        **named : pytree
            Example arguments of `fn` by name.

        Returns
        -------
        callable
            `fn` on the mesh, to be awaited.

        Raises
        ------
        InputError
            If `fn` cannot be called or traced with these arguments.
        """
        force = forced(force, use_cached_if_exists)
        function = self.function(fn, self.options(strategy, mode, copies, name, cache, build_dir, force))
        check_examples(fn, examples, named)
        function.form_for(merge_arguments(fn, examples, named, OWN_OF_COMPILE))

        async def compiled(*args: PyTree, **named: PyTree) -> PyTree:
            return await self._await(*function.bind(merge_arguments(fn, args, named)))

        return Callee(fn, name, self, compiled)

    async def submit(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: PyTree,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        **named: PyTree,
    ) -> AsyncJob:
        """Begin what `run` does, and return at once, as `Mesh.submit` does.

        Parameters
        ----------
        fn : callable or WireGraph
            A function of arrays, or a graph.
        *args : pytree
            Its arguments.  They are copied.
        strategy : str or Strategy, optional
            How to place it, as for `Mesh.run`.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute, as for `Mesh.run`.
        copies : str, optional
            Which copies of the params workers keep, as for `Mesh.run`.
        **named : pytree
            Arguments of `fn` by name.

        Returns
        -------
        AsyncJob
            The call in flight.

        Raises
        ------
        InputError
            If `fn` cannot be called or traced with these arguments.
        """
        args = merge_arguments(fn, args, named, OWN)
        form = self.form(fn, args, self.options(strategy, mode, copies))
        inputs, work = form.bind(args)
        held_bytes = bytes_of(inputs)
        await self._room.wait_for(held_bytes)
        try:
            copies_of_them = copied(inputs) if held_bytes <= HERE_BYTES_MAX else await asyncio.to_thread(copied, inputs)
        except BaseException:  # as where the caller gives up meanwhile
            self._room.give(held_bytes)
            raise
        return AsyncJob(form, self.start(form, copies_of_them, work, held_bytes))

    async def session(
        self,
        step_fn: Callable[..., Any],
        state: PyTree,
        /,
        *examples: PyTree,
        copies: str = "",
        every: int = 10,
        ahead: int | None = None,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        name: str = "",
        **named: PyTree,
    ) -> AsyncSession:
        """Begin a session, as `Mesh.session` does.

        Parameters
        ----------
        step_fn : callable
            `step_fn(state, *args) -> (state, outputs)`.
        state : pytree of arrays
            The first state.
        *examples : pytree
            Arguments like those of the steps that follow.
        copies : str, optional
            Where copies of the state are: "buddy", "coded", "coded K of N", "checkpoint" or "none".
        every : int, optional
            The number of steps between two copies.
        ahead : int, optional
            The most steps in flight.
        strategy : str or Strategy, optional
            How to place it, as for `Mesh.run`.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute, as for `Mesh.run`.
        name : str, optional
            A name of your own, with which the session outlasts this program (`attach`).  It takes a mesh of
            `mesh-coord serve`.
        **named : pytree
            Example arguments by name.

        Returns
        -------
        AsyncSession
            The session; close it, or use it as an async context manager.

        Raises
        ------
        InputError
            If the next state differs from the state in structure, shapes or dtypes, or an argument is not possible.
        ConfigError
            If it has a name, and the coordinator is in this program.
        PlacementError
            If no plan fits the workers.

        Examples
        --------
        >>> import asyncio
        >>> import numpy as np
        >>> import mesh
        >>> async def main():
        ...     async with await mesh.AsyncMesh.builder().build_async() as m:
        ...         async with await m.session(lambda s, x: (s + x, s), np.float32(0), np.float32(1)) as session:
        ...             steps = [session.step(np.float32(1)) for _ in range(3)]
        ...             return [float(await step) for step in steps], float(await session.state())
        >>> asyncio.run(main())
        ([0.0, 1.0, 2.0], 3.0)
        """
        examples = merge_arguments(step_fn, (state, *examples), named, OWN_OF_SESSIONS)[1:]
        return self.open_session(
            self.stepping(step_fn, state, examples, self.options(strategy, mode)), copies, every, ahead, mode, name=name
        )

    async def attach(
        self, name: str, /, step_fn: Callable[..., Any] | None = None, *, take: bool = False
    ) -> AsyncSession:
        """Go on with a session that has a name, as `Mesh.attach` does.

        Parameters
        ----------
        name : str
            The name that the session was opened with.
        step_fn : callable, optional
            Its step function, to be checked.
        take : bool, optional
            Whether to take it from another program that drives it.

        Returns
        -------
        AsyncSession
            The session.

        Raises
        ------
        InputError
            If there is no such session of yours, `step_fn` is another function, or this program lacks a class that
            the state or the arguments have.
        SessionTaken
            If another program drives it.
        NodeLost
            If its state was lost.
        ConfigError
            If the coordinator is in this program.

        Examples
        --------
        >>> import asyncio
        >>> import mesh
        >>> async def main():
        ...     async with await mesh.AsyncMesh.builder().build_async() as m:
        ...         try:
        ...             await m.attach("run7")
        ...         except mesh.errors.ConfigError as error:
        ...             return error.next_step
        >>> asyncio.run(main())
        'Start mesh-coord serve and its workers, and use it: Mesh.builder().node(ADDRESS)'
        """
        check_name(name)
        if step_fn is not None:
            check_function(step_fn, "what a session calls")
        self._check_open()
        attached = await self._backend.attach(name, bool(take))
        try:
            stepping = await asyncio.to_thread(Stepping.of_form, attached.form, attached.graph, "auto")
            if step_fn is not None:
                await called_in_thread(stepping.check_same, step_fn)
            stepping.fix(await attached.fixed(stepping.fixed))
        except BaseException:
            with contextlib.suppress(MeshError):
                await attached.running.leave()
            raise
        return AsyncSession(stepping, attached.running, self._room, name, attached.steps)

    def report(self) -> Report:
        """Report what the last call did, and where.

        Returns
        -------
        Report
            The report, which is complete once the call has ended.

        Raises
        ------
        InputError
            If no call was started on this mesh.
        """
        if self._last is None:
            raise InputError("nothing has run on this mesh yet, so there is no report")
        return Report.of(self._last.report())

    def watch(self, watcher: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `watcher` with every event from now on.

        Parameters
        ----------
        watcher : callable
            It is called with a mapping: "event" is the kind (joined, suspect, dead, planned, ...).  What it raises is
            logged once per kind of error, and it is called with the next event all the same.

        Raises
        ------
        ConfigError
            If the workers belong to a coordinator elsewhere.
        """
        check_function(watcher, "what watches a mesh")
        self._backend.watch(watcher)

    async def close(self) -> None:
        """End the links and the local workers; calls in flight are Cancelled."""
        if self._closing is None:
            self._room.close(ConfigError("this mesh is closed"))
            for outputs in self._here:
                outputs.cancel()
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)  # whoever asks, and gives up asking, it is done to the end

    async def _end(self) -> None:
        try:
            await asyncio.gather(*(session.close() for session in self._sessions_here))
        finally:
            await self._backend.close()

    async def __aenter__(self) -> AsyncMesh:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- what Mesh shares

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop it was made on."""
        return self._loop

    def options(
        self,
        strategy: str | Strategy,
        mode: str,
        copies: str | None = None,
        name: str = "",
        cache: bool = True,
        build_dir: str | Path | None = None,
        force: bool = False,
    ) -> CallOptions:
        """Check what a caller said of its calls, and fill in what this mesh says.

        Parameters
        ----------
        strategy : str or Strategy
            How to place them.
        mode : {"auto", "on", "off", "local"}
            Where to compute.
        copies : str, optional
            Which copies of the params workers keep.
        name : str, optional
            The name of the graphs.
        cache : bool, optional
            Whether graphs are kept from one call to the next.
        build_dir : str or Path, optional
            A folder to write graphs to.
        force : bool, optional
            Whether to compile anew.

        Returns
        -------
        CallOptions
            What was said.

        Raises
        ------
        InputError
            If anything of it is not known.
        """
        text, kept = text_of(strategy, self.reproducible), self._copies_of(copies)
        return checked_options(text, mode, kept, name, cache, build_dir, force)

    def form(self, fn: Callable[..., Any] | WireGraph, args: tuple[Any, ...], options: CallOptions) -> Compiled:
        """Trace a function for these arguments, anew each time: what it refers to may have changed.

        Parameters
        ----------
        fn : callable or WireGraph
            What to trace.
        args : tuple
            Its arguments.
        options : CallOptions
            How to build and place it, and where to compute.

        Returns
        -------
        Compiled
            The traced function.
        """
        return Compiled.of(fn, args, options)

    def function(self, fn: Callable[..., Any] | WireGraph, options: CallOptions) -> CompiledFunction:
        """Make a function that is traced once for each combination of shapes and dtypes.

        Parameters
        ----------
        fn : callable or WireGraph
            What to trace.
        options : CallOptions
            How to build and place its graphs, and where to compute.

        Returns
        -------
        CompiledFunction
            The function.
        """
        if options.folder is not None and world_size() > 1:
            options = replace(options, folder=options.folder / f"rank_{rank()}")
        return CompiledFunction(fn, options)

    def _copies_of(self, copies: str | None) -> str:
        return self._copies if copies is None else copies_of(copies, OF_CALLS).text

    def stepping(
        self, fn: Callable[..., Any], state: PyTree, examples: tuple[Any, ...], options: CallOptions
    ) -> Stepping:
        """Trace a step function for a state and arguments.

        Parameters
        ----------
        fn : callable
            The step function.
        state : pytree of arrays
            The first state.
        examples : tuple
            Arguments like those of the steps.
        options : CallOptions
            How to place it, where to compute, and which copies workers keep of the params that no step changes.

        Returns
        -------
        Stepping
            The traced step, with its first state.
        """
        traced = Stepping(fn, state, examples, options.strategy, options.copies)
        options.built(traced.work.graph)
        return traced

    def open_session(
        self,
        stepping: Stepping,
        copies: str,
        every: int,
        ahead: int | None,
        mode: str,
        replay_bytes: int = REPLAY_BYTES,
        others: Elastic | None = None,
        name: str = "",
    ) -> AsyncSession:
        """Begin a session of a step that is traced already.

        Parameters
        ----------
        stepping : Stepping
            The traced step, with the first state.
        copies : str
            Where copies of the state are, as for `session`; "" for the default.
        every : int
            The number of steps between two copies.
        ahead : int or None
            The most steps in flight.
        mode : {"auto", "on", "off", "local"}
            Where to compute.
        replay_bytes : int, optional
            How many bytes of arguments to hold, so that a state without copies can be computed again.
        others : Elastic, optional
            Steps for other numbers of workers.
        name : str, optional
            The name with which it outlasts this program.

        Returns
        -------
        AsyncSession
            The session.
        """
        check_choices(copies, every, ahead)
        self._check_open()
        if name:
            check_name(name)
        if mode in HERE or (mode == "auto" and self.stays_here(stepping.work.strategy)):
            if name:
                raise ends_with_this_program()
            here = Here(stepping)
            self._sessions_here.add(here)
            return AsyncSession(stepping, here, self._room)
        named = (name, stepping.form) if name else ("", b"")
        state = Stateful(
            stepping.carries, stepping.returned_count, stepping.state_bytes, copies, every, ahead, replay_bytes, *named
        )
        return AsyncSession(stepping, self._backend.session(stepping.work, state, others), self._room, name)

    @property
    def elastic(self) -> bool:
        """Whether a session may continue with another number of workers than its step was traced for."""
        return self._backend.elastic and self._backend.live()

    def forget(self, work: Work) -> None:
        """Free what the workers keep of a work, since no more calls of it will come; of a session, once it is closed.

        Parameters
        ----------
        work : Work
            What is not needed any more.
        """
        if self._closing is None:
            self._backend.forget(work)

    def start(
        self, form: Compiled, inputs: Mapping[str, NDArray[Any]], work: Work, held_bytes: int | None = None
    ) -> Started:
        """Begin a call, on the loop.

        Parameters
        ----------
        form : Compiled
            The traced function.
        inputs : mapping of str to numpy.ndarray
            The graph's inputs by name.
        work : Work
            What to compute.
        held_bytes : int, optional
            The bytes of inputs that are copies, for which room was taken: it is given back when the call is over.

        Returns
        -------
        Started
            The call in flight.
        """
        try:
            self._check_open()
            if self._is_here(form.options):
                started = _start_here(self._loop, work, inputs)
                self._here.add(started.outputs)
                started.outputs.add_done_callback(self._here.discard)
            else:
                started = self._backend.start(work, inputs)
        except BaseException:
            if held_bytes is not None:
                self._room.give(held_bytes)
            raise
        if held_bytes is not None:
            self._room.give_after(started.outputs, held_bytes)
        self._last = started
        return started

    def at_once(self, form: Compiled, inputs: Mapping[str, NDArray[Any]], work: Work) -> Sequence[NDArray[Any]] | None:
        """Compute a call in the calling thread, which may be any.

        Parameters
        ----------
        form : Compiled
            The traced function.
        inputs : mapping of str to numpy.ndarray
            The graph's inputs by name.
        work : Work
            What to compute.

        Returns
        -------
        sequence of numpy.ndarray or None
            The outputs in graph order; None if the call has to be started.
        """
        if self._closing is not None or self._is_here(form.options):
            return None
        answered = self._backend.at_once(work, inputs)
        if answered is None:
            return None
        self._last = answered
        return answered.outputs

    def attend(self, started: Started) -> None:
        """Let simulated time flow, since another thread waits for a call.

        Parameters
        ----------
        started : Started
            The call.
        """
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

    def _is_here(self, options: CallOptions) -> bool:
        """Whether this process computes: it may round otherwise than workers that are to come."""
        if options.mode != "auto":
            return options.mode in HERE
        return not (self._backend.live() or self._asks_reproducible(options.strategy))

    def _asks_reproducible(self, strategy: str | Strategy) -> bool:
        return bool(strategy_of(text_of(strategy, self.reproducible)).reproducible)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ConfigError("this mesh is closed")

    async def _put_one(self, path: str, leaf: Any, on: str = "") -> Handle:
        handle = leaf if isinstance(leaf, Handle) else await called_in_thread(handle_of, leaf, path)
        if on and handle.on not in ("", on):
            raise InputError(f"the tensor {handle.name or path!r} is private to another worker already")
        if on and not handle.on:
            handle = Handle(handle.address, handle.type, handle.name, handle.local, on)
        self._backend.hold(handle)
        return handle

    async def _worker_called(self, on: str | Node) -> str:
        """The id of a worker: names may be given anew, ids are not; "" for none."""
        if not isinstance(on, (str, Node)):
            raise InputError(
                f"on is the name or the id of a worker, or a Node, not {value_text(on)}",
                next_step="See the nodes of the mesh",
            )
        if on == "":
            return ""
        nodes = await self.nodes()
        wanted = on.id if isinstance(on, Node) else on
        found = [node.id for node in nodes if wanted == node.id] or [node.id for node in nodes if wanted == node.name]
        if len(found) != 1:
            known = ", ".join(node.name for node in nodes) or "none"
            raise NoSuchDevice(f"there is no worker {wanted!r}", next_step=f"The workers are: {known}")
        return found[0]


class AsyncJob:
    """A call in flight; `AsyncMesh.submit` returns it.

    Parameters
    ----------
    form : Compiled
        The traced function.
    started : Started
        The call on the mesh's backend.

    Examples
    --------
    >>> import asyncio
    >>> import numpy as np
    >>> import mesh
    >>> async def main():
    ...     async with await mesh.AsyncMesh.builder().build_async() as m:
    ...         job = await m.submit(lambda x: x + 1, np.zeros(2))
    ...         result = await job.result(timeout_s=60)
    ...         job.cancel()  # it is over, so nothing happens
    ...         return job.done(), result, job.report().reasons
    >>> asyncio.run(main())
    (True, array([1., 1.]), ('computed in this process',))
    """

    def __init__(self, form: Compiled, started: Started) -> None:
        self._form = form
        self._started = started

    async def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the result.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait; the default waits until the job has ended.

        Returns
        -------
        pytree of numpy.ndarray
            The result, as `AsyncMesh.run` returns it.

        Raises
        ------
        InputError
            If `timeout_s` is no number.
        DeadlineExceeded
            If there is no result after `timeout_s`; the job continues.
        Cancelled
            If the job was cancelled.
        MeshError
            If the job failed: its own error.
        """
        within_s = seconds_to_wait(timeout_s)
        outputs = asyncio.shield(self._started.outputs)
        try:
            async with asyncio.timeout(within_s) as waiting:
                return self._form.unbind(await outputs)
        except TimeoutError:
            if not waiting.expired():  # it is the job's own
                raise
            raise DeadlineExceeded(
                f"the job has no result after {within_s:g} s", next_step="Ask again, or cancel() it"
            ) from None
        except asyncio.CancelledError:
            if self._started.outputs.cancelled():
                raise Cancelled("the job was cancelled") from None
            raise

    def __repr__(self) -> str:
        outputs = self._started.outputs
        how = "running" if not outputs.done() else "cancelled" if outputs.cancelled() else "over"
        return f"<AsyncJob: {self._form.graph.name or 'unnamed'}, {how}>"

    def done(self) -> bool:
        """Return whether the job has ended: well, with an error, or cancelled.

        Returns
        -------
        bool
            True once `result` returns or raises at once.
        """
        return self._started.outputs.done()

    def cancel(self) -> None:
        """Stop the job on the workers and free its buffers; nothing happens if it has ended."""
        self._started.cancel()

    def report(self) -> Report:
        """Report what this job did, and where.

        Returns
        -------
        Report
            The report, which is complete once the job has ended.
        """
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
