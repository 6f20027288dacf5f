"""Mesh: the mesh for ordinary programs and notebooks.

    with Mesh.builder().local(3).build() as mesh:
        y = mesh.run(fn, x)

It runs an AsyncMesh on a loop in a thread of its own, so it works whether or not the caller has a loop.  Inside a
`with` block, mesh.numpy arrays are computed on the mesh too.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from wire.errors import Cancelled, ConfigError, DeadlineExceeded, InputError, MeshError
from wire.ir.graph import WireGraph
from wire.policy.batch_shares import Portions
from wire.policy.strategies import Strategy
from wire.system.outcome import call_when_done

from ..backends.config import MeshConfig
from ..core.answer import Answer
from ..core.argument_room import ArgumentRoom, bytes_of, copied
from ..core.backend import Feeds, Running, Started, Work
from ..core.call_arguments import check_examples, merge_arguments
from ..core.loop_thread import LOOK_S, LoopElsewhere, LoopThread
from ..core.node import Node
from ..core.realise import Installed, reset_evaluator, set_evaluator
from ..functions.call_options import CallOptions, forced
from ..functions.compiled import Callee, Compiled
from ..functions.step_trace import Stepping
from ..tree import PyTree
from ..util.annotation_checks import checked
from ..util.argument_checks import items, seconds_to_wait, value_text
from .async_mesh import OWN, OWN_OF_COMPILE, OWN_OF_SESSIONS, AsyncMesh
from .builder import MeshBuilder
from .elastic_session import Elastic
from .explanation import Explanation
from .plan_preview import PlanPreview
from .report import Report
from .session import AsyncSession

if TYPE_CHECKING:
    from ..simulation.backend import Simulation

T = TypeVar("T")


class Mesh:
    """A mesh of machines, used as one computer.

    `Mesh.builder()` says which machines.  Close a mesh when done, or use it as a context manager: within its block the
    values of `mesh.numpy` arrays are computed on the mesh, too.

    Parameters
    ----------
    config : MeshConfig
        What a builder has collected.

    Raises
    ------
    ConnectFailed
        If nodes do not answer; the error names each of them.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     names = [node.name for node in m.nodes]
    ...     m.watch(lambda event: None)
    ...     double = m.run(lambda x: 2 * x, np.ones(2))
    ...     report = m.report()
    >>> names, double, len(report.workers)
    (['sim-0', 'sim-1'], array([2., 2.]), 1)
    """

    @checked
    def __init__(self, config: MeshConfig | None = None) -> None:
        if config is None:
            raise InputError("a Mesh is built of nodes", next_step="Write mesh.Mesh.builder().local(2).build()")
        self._loop: LoopThread = LoopThread(partial(_loop_for, config))
        self._token: Installed | None = None
        try:
            self._async = self._loop.wait(AsyncMesh.connect(config))
        except BaseException:
            self._loop.stop()
            raise

    def __repr__(self) -> str:
        return f"<{self._async.describe('Mesh')}>"

    @staticmethod
    def builder() -> MeshBuilder:
        """Begin to say which machines a mesh is made of.

        Returns
        -------
        MeshBuilder
            A builder that names no machine yet.
        """
        return MeshBuilder()

    @property
    def simulation(self) -> Simulation:
        """The controls of a mesh that was built with `.simulate(n)`; any other mesh raises ConfigError."""
        from ..simulation.backend import Simulation

        return Simulation(self._async.simulation, self._loop)

    @property
    def reproducible(self) -> bool:
        """Whether every plan has the same bits (`MeshBuilder.reproducible`)."""
        return self._async.reproducible

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every worker, by name, with its present state."""
        return self._loop.wait(self._async.nodes())

    def put(self, value: PyTree, *, on: str | Node = "") -> PyTree:
        """Hold the arrays of a pytree on the mesh.

        A handle that is an argument of a call is never hashed or sent again.  Its bytes go to a worker once, when they
        are first needed.

        Parameters
        ----------
        value : pytree of arrays
            What to hold, such as the params of a model.
        on : str or Node, optional
            The only worker that may have it: its name, its id, or a Node of `nodes`. A call that reads such a handle is
            placed by that: what reads it is computed there, and no copy of it goes to another worker. That worker sees
            the value, and others see what is computed from it and sent to them (docs/trust.md).

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

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(1).build() as m:
        ...     params = m.put({"w": np.ones((3, 2), np.float32)})
        ...     m.run(lambda p, x: x @ p["w"], params, np.ones(3, np.float32))
        array([3., 3.], dtype=float32)
        """
        return self._loop.wait(self._async.put(value, on=on))

    def plan(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: PyTree,
        strategy: str | Strategy = "auto",
        copies: str | None = None,
        what_if_dies: str = "",
        **named: PyTree,
    ) -> PlanPreview:
        """Plan a call without running it.

        Parameters
        ----------
        fn : callable or WireGraph
            What would be run.
        *args : pytree
            Its arguments.
        strategy : str or Strategy, optional
            How to place it, as for `run`.
        copies : str, optional
            Which copies of the params workers keep, as for `run`.
        what_if_dies : str, optional
            The name of a worker whose death is planned for, too (`PlanPreview.what_if_dies`).
        **named : pytree
            Arguments of `fn` by name.

        Returns
        -------
        PlanPreview
            Which worker would compute what, and why.  Printing it shows a table.

        Raises
        ------
        InputError
            If `fn` cannot be called with these arguments, or a strategy or policy is not known.
        PlacementError
            If no plan fits the workers; it says what each needs and has.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     preview = m.plan(lambda x: x @ x, np.ones((8, 8)), strategy="single", what_if_dies="sim-0")
        >>> preview.workers, preview.what_if_dies["plan"]["parts"][0]["worker"]
        (('sim-0',), 'sim-1')
        """
        planned = self._async.plan(fn, *args, strategy=strategy, copies=copies, what_if_dies=what_if_dies, **named)
        return self._loop.wait(planned)

    def explain(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: PyTree,
        worker: str = "",
        text: bool | int = False,
        **named: PyTree,
    ) -> Explanation:
        """Tell which kernels a worker compiles a call to, and what each of them takes there.

        The worker compiles the graph, and runs it a few times with random inputs of its own; nothing but constants is
        sent.  The runs take up to 8 s, and the device does nothing else meanwhile.

        Parameters
        ----------
        fn : callable or WireGraph
            What would be run.
        *args : pytree
            Its arguments.  A graph needs none.
        worker : str, optional
            The worker's name, or "NAME:INDEX" for one of its devices.  By default it is the worker that `plan` takes
            for one, and its first device that has every op.
        text : bool or int, optional
            Whether to tell the generated text of the kernels, too; a number is one kernel's.
        **named : pytree
            Arguments of `fn` by name.

        Returns
        -------
        Explanation
            The kernels, with the nodes, bytes and operations of each, and its predicted and measured time.  Printing it
            shows a table.

        Raises
        ------
        InputError
            If `fn` cannot be called with these arguments, there is no such worker or device, or a large constant of a
            graph is not in this process.
        OutOfMemory
            If the worker's memory has no room for the inputs.
        PlacementError
            If the worker has no device that computes all of it.
        VersionMismatch
            If the worker is too old to tell.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     explanation = m.explain(lambda x: mesh.nn.softmax(x @ x), np.ones((8, 8), np.float32), worker="sim-1")
        >>> [kernel.ops for kernel in explanation.kernels][:1], explanation.kernels[0].flops, explanation.worker
        ([('dot',)], 1024, 'sim-1')
        >>> str(explanation).splitlines()[0].split()[:4]
        ['kernel', 'name', 'nodes', 'ops']
        """
        return self.wait(self._async.explain(fn, *args, worker=worker, text=text, **named))

    def run(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: PyTree,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        **named: PyTree,
    ) -> PyTree:
        """Compute `fn(*args, **named)` on the mesh.

        Parameters
        ----------
        fn : callable or WireGraph
            A function of arrays, which is traced for these arguments; or a graph.
        *args : pytree of arrays
            Its arguments: numpy arrays, Python numbers, handles, or Arrays.
        strategy : str or Strategy, optional
            How to place it: "single" (the one best worker), "pipeline" (cut across all workers), "auto" (what the cost
            model predicts to be fastest), or a Strategy such as a DeviceMap.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute: "on" needs a mesh with workers, "off" is this process, and "auto" is the mesh if it has
            workers.  "local" is "off" for graphs without collectives and other devices; those raise GraphError.
        copies : str, optional
            Which copies of each other's params workers keep (docs/redundancy.md): "replica", "buddy", "coded", "coded K
            of N", or "checkpoint", which leaves them to this process.  The default is what the mesh was built with.
        **named : pytree of arrays
            Arguments of `fn` by name.  Give an argument that is called `strategy`, `mode` or `copies` by its place.

        Returns
        -------
        pytree of numpy.ndarray
            The result of `fn`.  The arrays are the caller's own and may be written to.

        Raises
        ------
        InputError
            If `fn` cannot be called or traced with these arguments.
        PlacementError
            If no plan fits the workers.
        NodeLost
            If workers died until too few were left.
        EngineError
            If a device could not do its part.
        Cancelled
            If the mesh was closed meanwhile.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> import mesh.numpy as mnp
        >>> with mesh.Mesh.builder().simulate(3).build() as m:
        ...     m.run(lambda x, b: mnp.sum(x) + b, np.arange(4.0), b=1.0)
        array(7.)
        """
        args = merge_arguments(fn, args, named, OWN)
        return self._call(self._async.form(fn, args, self._async.options(strategy, mode, copies)), args)

    def compile(
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
        """Trace `fn` once, for arguments of the examples' shapes and dtypes.

        The result can be called with other shapes and dtypes, too: it is traced for them when they come.

        Parameters
        ----------
        fn : callable or WireGraph
            A function of arrays, a model, or a graph.
        *examples : pytree
            Arguments like those of the calls that follow.
        strategy : str or Strategy, optional
            How to place it, as for `run`.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute, as for `run`.
        copies : str, optional
            Which copies of the params workers keep, as for `run`.
        name : str, optional
            What plans and jobs call the graphs.
        cache : bool, optional
            Whether to keep what was traced.  If not, each call is traced anew, as `run` does.
        build_dir : str or Path, optional
            Where to write each graph as NAME-HASH.wire, which `mesh-coord plan` and `submit` take, and as text.  A
            rank of several writes to `build_dir/rank_N`.
        force : bool, optional
            Whether the first call compiles its graph anew, whatever the caches in memory and on disk have, and replaces
            that.
        use_cached_if_exists : bool, optional
            The opposite of `force`, by another name.
        **named : pytree
            Example arguments of `fn` by name.

        Returns
        -------
        callable
            `fn` on the mesh; its results are as those of `run`.

        Raises
        ------
        InputError
            If `fn` cannot be called or traced with these arguments.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     double = m.compile(lambda x: 2 * x, np.zeros(3))
        ...     double(np.arange(3.0))
        array([0., 2., 4.])
        """
        force = forced(force, use_cached_if_exists)
        options = self._async.options(strategy, mode, copies, name, cache, build_dir, force)
        function = self._async.function(fn, options)
        check_examples(fn, examples, named)
        function.form_for(merge_arguments(fn, examples, named, OWN_OF_COMPILE))

        def compiled(*args: PyTree, **named: PyTree) -> PyTree:
            return self._wait(*function.bind(merge_arguments(fn, args, named)))

        return Callee(fn, name, self, compiled)

    def submit(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: PyTree,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        **named: PyTree,
    ) -> Job:
        """Begin what `run` does, and return at once.

        The arguments are copied, so they may be overwritten meanwhile.

        Parameters
        ----------
        fn : callable or WireGraph
            A function of arrays, or a graph.
        *args : pytree
            Its arguments.
        strategy : str or Strategy, optional
            How to place it, as for `run`.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute, as for `run`.
        copies : str, optional
            Which copies of the params workers keep, as for `run`.
        **named : pytree
            Arguments of `fn` by name.

        Returns
        -------
        Job
            The call in flight.

        Raises
        ------
        InputError
            If `fn` cannot be called or traced with these arguments.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     jobs = [m.submit(lambda x: x * x, np.float32(number)) for number in range(3)]
        ...     {place: float(jobs[place].result()) for place in sorted(m.as_completed(jobs))}
        {0: 0.0, 1: 1.0, 2: 4.0}
        """
        args = merge_arguments(fn, args, named, OWN)
        form = self._async.form(fn, args, self._async.options(strategy, mode, copies))
        inputs, work = form.bind(args)
        held_bytes = bytes_of(inputs)
        self._take_room(self._async._room, held_bytes)
        try:
            copies_of_them = copied(inputs)
        except BaseException:  # of memory that there is not, or Ctrl-C
            self._async._room.give(held_bytes)
            raise
        return Job(form, _Waiter(self, lambda: self._async.start(form, copies_of_them, work, held_bytes)))

    def as_completed(self, jobs: Sequence[Job | Step]) -> Iterator[int]:
        """Iterate over jobs in the order in which they end.

        Parameters
        ----------
        jobs : sequence of Job or Step
            What to wait for.

        Yields
        ------
        int
            The index in `jobs` of the next one that has ended, well or not.

        Raises
        ------
        InputError
            If something in `jobs` is neither a job nor a step.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     jobs = [m.submit(lambda x: x + 1, np.zeros(2)), m.submit(lambda x: x + 2, np.zeros(2))]
        ...     sorted(m.as_completed(jobs))
        [0, 1]
        """
        for job in items(jobs, "of jobs"):
            if not isinstance(job, Job | Step):
                raise InputError(
                    f"{value_text(job)} is no job", next_step="submit() gives jobs, and a session's step() steps"
                )
        ends = _Ends(self._async)
        for place, job in enumerate(jobs):
            job._waiter.arrived.then(partial(ends.add, place))
        for _ in jobs:
            if ends.places.empty():
                self._loop.check_may_wait()
                if self._async._backend.simulates:
                    self._loop.call_soon(ends.attend)
            yield self._next_of(ends)

    def session(
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
    ) -> Session:
        """Begin a session: a step function whose state stays on the workers (docs/sessions.md).

        Parameters
        ----------
        step_fn : callable
            `step_fn(state, *args) -> (state, outputs)`.  The next state has the structure, shapes and dtypes of the
            state.
        state : pytree of arrays
            The first state.
        *examples : pytree
            Arguments like those of the steps that follow.
        copies : str, optional
            Where copies of the state are: "buddy" (on a second worker), "coded" or "coded K of N" (as parity on other
            workers), "checkpoint" (in this process) or "none".  The default is "buddy" if workers have room, else
            "checkpoint".
        every : int, optional
            The number of steps between two copies.
        ahead : int, optional
            The most steps in flight, each with a value of the state of its own.  The default is 2 for a large state,
            and up to 8 for a small one.
        strategy : str or Strategy, optional
            How to place it, as for `run`.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute, as for `run`.
        name : str, optional
            A name of your own, with which the session outlasts this program (`attach`).  It takes a mesh of
            `mesh-coord serve`.
        **named : pytree
            Example arguments by name.

        Returns
        -------
        Session
            The session; close it, or use it as a context manager.

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
        >>> import numpy as np
        >>> import mesh
        >>> def count(state, x):
        ...     return state + x, state
        >>> one = np.float32(1)
        >>> with mesh.Mesh.builder().simulate(2).build() as m, m.session(count, np.float32(0), one) as session:
        ...     steps = [session.step(one) for _ in range(3)]
        ...     [float(step.result()) for step in steps], float(session.state())
        ([0.0, 1.0, 2.0], 3.0)
        """
        examples = merge_arguments(step_fn, (state, *examples), named, OWN_OF_SESSIONS)[1:]
        stepping = self._async.stepping(step_fn, state, examples, self._async.options(strategy, mode))
        return self.open_session(stepping, copies, every, ahead, mode, name)

    def attach(self, name: str, /, step_fn: Callable[..., Any] | None = None, *, take: bool = False) -> Session:
        """Go on with a session that was opened with a name, by this program or another one (docs/sessions.md).

        It returns once the steps are done that the other program had asked for, and their state is stored.
        `steps_done` says how many there were.

        Parameters
        ----------
        name : str
            The name that the session was opened with.
        step_fn : callable, optional
            Its step function.  It need not be given; one that is given is traced, and has to give the same graph.
        take : bool, optional
            Whether to take the session from another program that drives it.  That one gets a SessionTaken at its next
            step.

        Returns
        -------
        Session
            The session; close it to end it, or `detach` to leave it.

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
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(1).build() as m:
        ...     try:
        ...         m.attach("run7")
        ...     except mesh.errors.ConfigError as error:
        ...         print(error.next_step)
        Start mesh-coord serve and its workers, and use it: Mesh.builder().node(ADDRESS)
        """
        return Session(self, self._loop.wait(self._async.attach(name, step_fn, take=take)))

    def open_session(
        self,
        stepping: Stepping,
        copies: str,
        every: int,
        ahead: int | None = None,
        mode: str = "auto",
        name: str = "",
    ) -> Session:
        """Begin a session of a step that is traced already.

        Parameters
        ----------
        stepping : Stepping
            The traced step, with the first state.
        copies : str
            Where copies of the state are, as for `session`; "" for the default.
        every : int
            The number of steps between two copies.
        ahead : int, optional
            The most steps in flight.
        mode : {"auto", "on", "off", "local"}, optional
            Where to compute.
        name : str, optional
            The name with which it outlasts this program.

        Returns
        -------
        Session
            The session.
        """

        async def begin() -> AsyncSession:
            return self._async.open_session(stepping, copies, every, ahead, mode, name=name)

        return Session(self, self._loop.wait(begin()))

    @property
    def elastic(self) -> bool:
        """Whether `elastic_session` is possible: the coordinator is in this process, and has workers."""
        return self._async.elastic

    @checked
    def elastic_session(self, elastic: Elastic, copies: str, every: int) -> ElasticSession:
        """Begin a session that continues with another step when workers join or leave.

        Parameters
        ----------
        elastic : Elastic
            A step for each number of workers.
        copies : str
            Where copies of the state are, as for `session`.
        every : int
            The number of steps between two copies.

        Returns
        -------
        ElasticSession
            The session.
        """

        async def begin() -> AsyncSession:
            return self._async.open_session(elastic.first, copies, every, None, "on", others=elastic)

        return ElasticSession(self, self._loop.wait(begin()), elastic)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the mesh's event loop and wait for its result.

        Parameters
        ----------
        work : coroutine
            What to run; it may use `on_loop`.

        Returns
        -------
        object
            What the coroutine returns.

        Raises
        ------
        ConfigError
            If the mesh is closed.
        """

        def start() -> Started:
            task = asyncio.get_running_loop().create_task(work)
            return Started(task, dict, task.cancel)

        try:
            waiter = _Waiter(self, start)
        except ConfigError:
            work.close()
            raise
        result: T = waiter.value(None)
        return result

    @property
    def on_loop(self) -> AsyncMesh:
        """The AsyncMesh that coroutines on the mesh's own event loop use."""
        return self._async

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
        return self._async.report()

    def watch(self, watcher: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `watcher` with every event from now on.

        Parameters
        ----------
        watcher : callable
            It is called on the mesh's thread with a mapping: "event" is the kind (joined, suspect, dead, planned, ...).
            What it raises is logged once per kind of error, and it is called with the next event all the same.

        Raises
        ------
        ConfigError
            If the workers belong to a coordinator elsewhere.
        """

        async def watch() -> None:
            self._async.watch(watcher)

        self._loop.wait(watch())

    def close(self) -> None:
        """End the links and the local workers; calls in flight are Cancelled."""
        try:
            if not self._loop.stopped:
                self._loop.wait(self._async.close())
        except Exception:  # closed as far as it can be; Ctrl-C may be followed by another call
            self._loop.stop()
            raise
        self._loop.stop()

    def __enter__(self) -> Mesh:
        self._loop.check_running()
        if self._token is not None:
            raise ConfigError("this mesh has a with block already, whose end will close it")
        self._token = set_evaluator(self._evaluate)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            reset_evaluator(self._token)
            self._token = None
        self.close()

    def _evaluate(self, work: Work, inputs: Mapping[str, NDArray[Any]]) -> Sequence[NDArray[Any]]:
        self._loop.check_may_wait()
        outputs: Sequence[NDArray[Any]] = self._started(
            Compiled(work.graph, CallOptions(work.strategy)), inputs, work
        ).value(None)
        return outputs

    def _next_of(self, ends: _Ends) -> int:
        """Wait for the place of the next call that ends; ConfigError if the loop ends before that."""
        while True:
            try:
                return ends.places.get(timeout=LOOK_S)
            except queue.Empty:
                self._loop.check_goes_on()

    def _take_room(self, room: ArgumentRoom, size_bytes: int) -> None:
        """Return once there is room for arguments."""
        taken = room.take(size_bytes)
        if taken.done():
            return taken.result()
        try:
            self._loop.check_may_wait()
            self._loop.call_soon(self._attend_room, taken)
            self._loop.wait_for(taken)
            taken.result()
        except BaseException:
            room.leave(taken, size_bytes)
            raise

    def _attend_room(self, taken: Answer[None]) -> None:
        """Let simulated time flow until there is room.  It runs on the loop."""
        ended = taken.future(asyncio.get_running_loop())
        ended.add_done_callback(lambda _: ended.cancelled() or ended.exception())
        self._async.attend(Started(ended, dict, ended.cancel))

    def _call(self, form: Compiled, args: tuple[Any, ...]) -> Any:
        return self._wait(form, *form.bind(args))

    def _wait(self, form: Compiled, inputs: Mapping[str, NDArray[Any]], work: Work) -> Any:
        self._loop.check_may_wait()
        outputs = self._async.at_once(form, inputs, work)
        return form.unbind(self._started(form, inputs, work).value(None) if outputs is None else outputs)

    def _started(self, form: Compiled, inputs: Mapping[str, NDArray[Any]], work: Work) -> _Waiter:
        return _Waiter(self, lambda: self._async.start(form, inputs, work))


def for_threads(mesh: AsyncMesh) -> Mesh:
    """Return an AsyncMesh as other threads than its loop's use it."""
    view = Mesh.__new__(Mesh)
    view._loop, view._token, view._async = LoopElsewhere(mesh.loop), None, mesh
    return view


class Job:
    """A call in flight; `Mesh.submit` returns it.

    Parameters
    ----------
    form : Compiled
        The traced function.
    waiter : _Waiter
        What waits for its result.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(1).build() as m:
    ...     job = m.submit(lambda x: x + 1, np.zeros(2))
    ...     result = job.result(timeout_s=60)
    ...     job.cancel()  # it is over, so nothing happens
    >>> job.done(), result, list(job.report().workers)
    (True, array([1., 1.]), ['sim-0'])
    """

    def __init__(self, form: Compiled, waiter: _Waiter) -> None:
        self._form = form
        self._waiter = waiter

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the result.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait; the default waits until the job has ended.

        Returns
        -------
        pytree of numpy.ndarray
            The result, as `Mesh.run` returns it.

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
        return self._form.unbind(self._waiter.value(timeout_s))

    def __repr__(self) -> str:
        return f"<Job: {self._form.graph.name or 'unnamed'}, {self._waiter.status}>"

    def done(self) -> bool:
        """Return whether the job has ended: well, with an error, or cancelled.

        Returns
        -------
        bool
            True once `result` returns or raises at once.
        """
        return self._waiter.arrived.done()

    def cancel(self) -> None:
        """Stop the job on the workers and free its buffers; nothing happens if it has ended."""
        self._waiter.cancel()

    def report(self) -> Report:
        """Report what this job did, and where.

        Returns
        -------
        Report
            The report, which is complete once the job has ended.
        """
        return self._waiter.report()


class Session:
    """A step function that is called again and again, with a state that stays on the workers.

    `Mesh.session` returns it.  Close it, or use it as a context manager.

    Parameters
    ----------
    mesh : Mesh
        The mesh that it runs on.
    session : AsyncSession
        The session on the mesh's event loop.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> def fall(state, dt):
    ...     return {"at": state["at"] + dt * state["speed"], "speed": state["speed"]}, state["at"]
    >>> state = {"at": np.zeros(2, np.float32), "speed": np.ones(2, np.float32)}
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     with m.session(fall, state, np.float32(0.5)) as session:
    ...         at = session.step(np.float32(0.5)).result()
    ...         session.state()["at"]
    array([0.5, 0.5], dtype=float32)
    """

    def __init__(self, mesh: Mesh, session: AsyncSession) -> None:
        self._mesh = mesh
        self._async = session

    def __repr__(self) -> str:
        return f"<{self._async.describe('Session')}>"

    @property
    def running(self) -> Running:
        """The session of the mesh's backend."""
        return self._async.running

    def step(self, *args: PyTree, **named: PyTree) -> Step:
        """Begin one step.  Several may be in flight; they are done in the order of these calls.

        A step that fails for good leaves the state as it was.  Steps that were begun after it are Cancelled.  While the
        arguments of all that is not over on this mesh take 512 MiB, this waits for something to end.

        Parameters
        ----------
        *args : pytree of arrays
            The arguments of the step function after the state.  They are copied.
        **named : pytree of arrays
            Arguments by name.

        Returns
        -------
        Step
            The step in flight.

        Raises
        ------
        InputError
            If shapes or dtypes differ from those of the examples.
        NodeLost
            If the state was lost.
        """
        inputs = self._async.stepping.bind(self._async.stepping.merge_arguments(args, named))
        return self._begin(inputs, bytes_of(inputs))

    def _begin(self, inputs: Mapping[str, NDArray[Any]] | Feeds, held_bytes: int) -> Step:
        self._mesh._take_room(self._async._room, held_bytes)
        return Step(_Waiter(self._mesh, lambda: self._async.begin(inputs, held_bytes)))

    def state(self) -> Any:
        """Wait for the state after all steps that were begun.

        Returns
        -------
        pytree of numpy.ndarray
            The state.

        Raises
        ------
        NodeLost
            If no copy of the state is left.
        """
        return self.begin_state().result()

    def begin_state(self) -> Step:
        """Begin to read the state, without waiting for it.

        Returns
        -------
        Step
            Its result is what `state` returns.
        """
        return Step(_Waiter(self._mesh, self._async.begin_state))

    def close(self) -> None:
        """End the session and free what it holds on the workers; steps in flight are Cancelled."""
        if not self._mesh._loop.stopped:
            _Waiter(self._mesh, self._async.begin_close).value(None)

    def detach(self) -> None:
        """Leave a session that has a name to whoever attaches to it next; steps in flight are done.

        Raises
        ------
        InputError
            If the session has no name.
        SessionTaken
            If another program drives it by now.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> one = np.float32(1)
        >>> with mesh.Mesh.builder().simulate(1).build() as m, m.session(lambda s, x: (s + x, s), one, one) as session:
        ...     try:
        ...         session.detach()
        ...     except mesh.errors.InputError as error:
        ...         print(error.next_step)
        Open it with a name: session(..., name="run7")
        """
        _Waiter(self._mesh, self._async.begin_detach).value(None)

    @property
    def name(self) -> str:
        """The name under which it outlasts this program; "" if it ends with it."""
        return self._async.name

    @property
    def steps_done(self) -> int:
        """How many steps this session has done, as far as their outputs have come to this program.

        Of a session that was attached to, those that another program had it do count, too: this is the number of the
        next batch.
        """
        return self._async.steps_done

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.name and error is not None:
            with contextlib.suppress(MeshError):
                self.detach()
        else:
            self.close()


class ElasticSession(Session):
    """A session whose arguments depend on how workers split the batch.

    `Mesh.elastic_session` returns it.

    Parameters
    ----------
    mesh : Mesh
        The mesh that it runs on.
    session : AsyncSession
        The session on the mesh's event loop.
    elastic : Elastic
        A step for each number of workers.
    """

    def __init__(self, mesh: Mesh, session: AsyncSession, elastic: Elastic) -> None:
        super().__init__(mesh, session)
        self._elastic = elastic

    def begin(self, args: Callable[[Portions], Sequence[Any]], nbytes: int) -> Step:
        """Begin one step.

        Parameters
        ----------
        args : callable
            From the portions of a batch to the arguments of the step for them.
        nbytes : int
            About how many bytes the arguments take while they are held.  They must not change.

        Returns
        -------
        Step
            The step in flight.
        """
        return self._begin(self._elastic.feeds(args, nbytes), nbytes)


class Step:
    """A step in flight; `Session.step` returns it.

    Parameters
    ----------
    waiter : _Waiter
        What waits for its result.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(1).build() as m:
    ...     with m.session(lambda s, x: (s + x, s * x), np.ones(2), np.ones(2)) as session:
    ...         step = session.step(np.full(2, 3.0))
    ...         step.result(timeout_s=60), step.done()
    (array([3., 3.]), True)
    """

    def __init__(self, waiter: _Waiter) -> None:
        self._waiter = waiter

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the outputs of the step.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait; the default waits until the step has ended.

        Returns
        -------
        pytree of numpy.ndarray
            The outputs of the step function.

        Raises
        ------
        InputError
            If `timeout_s` is no number.
        DeadlineExceeded
            If there is no result after `timeout_s`; the step continues.
        Cancelled
            If a step before it failed, or the session was closed.
        NodeLost
            If the state was lost.
        """
        return self._waiter.value(timeout_s)

    def __repr__(self) -> str:
        return f"<Step: {self._waiter.status}>"

    def done(self) -> bool:
        """Return whether the step has ended.

        Returns
        -------
        bool
            True once `result` returns or raises at once.
        """
        return self._waiter.arrived.done()


class _Waiter:
    """A call that was started from another thread than the loop's: one hop there, one hop back."""

    def __init__(self, mesh: Mesh, start: Callable[[], Started]) -> None:
        self.arrived: Answer[Any] = Answer()
        self._mesh = mesh
        self._started: Started | None = None
        mesh._loop.call_soon(self._start, start)

    def value(self, timeout_s: float | None) -> Any:
        within_s = seconds_to_wait(timeout_s)
        if not self.arrived.done():
            self._mesh._loop.check_may_wait()
            if self._mesh._async._backend.simulates:
                self._mesh._loop.call_soon(self._attend)
        try:
            if within_s is None:
                self._mesh._loop.wait_for(self.arrived)
            elif not self.arrived.wait(within_s):
                raise DeadlineExceeded(
                    f"the job has no result after {within_s:g} s", next_step="Ask again, or cancel() it"
                )
        except KeyboardInterrupt:
            self.cancel()
            raise
        if self.arrived.cancelled:
            raise Cancelled("the job was cancelled")
        return self.arrived.result()

    @property
    def status(self) -> str:
        """The state of the call in a few words."""
        if not self.arrived.done():
            return "running"
        if self.arrived.cancelled:
            return "cancelled"
        error = self.arrived.error()
        return "done" if error is None else f"failed: {type(error).__name__}"

    def cancel(self) -> None:
        with contextlib.suppress(ConfigError):  # the mesh is closed, and its calls with it
            self._mesh._loop.call_soon(lambda: self._started.cancel() if self._started else None)

    def report(self) -> Report:
        return Report.of(self._started.report() if self._started else {})

    def _attend(self) -> None:
        """Let simulated time flow, since a thread waits.  It runs on the loop."""
        if self._started is not None:
            self._mesh._async.attend(self._started)

    def _start(self, start: Callable[[], Started]) -> None:
        try:
            self._started = start()
        except Exception as error:  # whatever went wrong belongs to the caller's thread
            self.arrived.fail(error)
            return
        call_when_done(self._started.outputs, self.arrived.copy)


class _Ends:
    """The places of calls in a sequence, in the order in which they end."""

    def __init__(self, mesh: AsyncMesh) -> None:
        self.places: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._mesh = mesh
        self._next: asyncio.Future[None] | None = None

    def add(self, place: int) -> None:
        """One has ended.  It runs on the loop, or before anybody waits."""
        self.places.put(place)
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def attend(self) -> None:
        """Let simulated time flow until the next one ends, since a thread waits for it.  It runs on the loop."""
        if self.places.empty():
            self._next = asyncio.get_running_loop().create_future()
            self._mesh.attend(Started(self._next, dict, self._next.cancel))


def _loop_for(config: MeshConfig) -> asyncio.AbstractEventLoop:
    if config.simulate is None:
        return asyncio.new_event_loop()
    from ..simulation.loop import VirtualLoop

    return VirtualLoop(on_demand=True)
