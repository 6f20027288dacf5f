"""Mesh: the mesh for ordinary programs and notebooks.

    with Mesh.builder().local(3).build() as mesh:
        y = mesh.run(fn, x)

It runs an AsyncMesh on a loop in a thread of its own, so it works whether or not the caller has a loop.  Inside a
`with` block, mesh.numpy arrays are computed on the mesh too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import Token
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from wire.errors import Cancelled, ConfigError, DeadlineExceeded, InputError
from wire.ir.graph import WireGraph
from wire.policy.batch_shares import Portions
from wire.policy.strategies import Strategy

from ..backends.config import MeshConfig
from ..core.backend import Running, Started, Work
from ..core.call_arguments import taken
from ..core.loop_thread import LoopThread
from ..core.node import Node
from ..core.realise import Evaluator, reset_evaluator, set_evaluator
from ..functions.build_options import Building
from ..functions.compiled import Callee, Compiled
from ..functions.step_trace import Stepping
from ..util.annotation_checks import checked
from ..util.argument_checks import items, said
from .async_mesh import OWN, OWN_OF_COMPILE, OWN_OF_SESSIONS, AsyncMesh
from .builder import MeshBuilder
from .elastic_session import Elastic
from .plan_preview import PlanPreview
from .report import Report
from .session import AsyncSession

if TYPE_CHECKING:
    from ..simulation.backend import Simulation

T = TypeVar("T")


class Mesh:
    """A mesh of machines as one computer.  Made by `Mesh.builder()`; close it, or use it as a context manager."""

    @checked
    def __init__(self, config: MeshConfig) -> None:
        self._loop = LoopThread(_loop_for(config))
        self._token: Token[Evaluator | None] | None = None
        try:
            self._async = self._loop.wait(AsyncMesh.connect(config))
        except BaseException:
            self._loop.stop()
            raise

    def __repr__(self) -> str:
        return f"<{self._async.told('Mesh')}>"

    @staticmethod
    def builder() -> MeshBuilder:
        return MeshBuilder()

    @property
    def simulation(self) -> Simulation:
        """What befalls the workers of a mesh built with `.simulate(n)`; ConfigError for any other mesh."""
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

    def put(self, value: Any) -> Any:
        """Hold the arrays of a pytree on the mesh; the same tree with a Handle for each.

        A handle given as an argument is never hashed or sent again: its bytes go to a worker once, when first needed.
        """
        return self._loop.wait(self._async.put(value))

    def plan(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: Any,
        strategy: str | Strategy = "auto",
        copies: str | None = None,
        what_if_dies: str = "",
        **named: Any,
    ) -> PlanPreview:
        """What would go where and why, before a byte moves; and what would follow from the death of the worker of that
        name: the plan then, the weights that move, from where, and in what time (`PlanPreview.what_if_dies`)."""
        planned = self._async.plan(fn, *args, strategy=strategy, copies=copies, what_if_dies=what_if_dies, **named)
        return self._loop.wait(planned)

    def run(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: Any,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        **named: Any,
    ) -> Any:
        """`fn(*args, **named)` on the mesh.

        The results are numpy arrays of the caller's own: they may be written to, and nothing else changes with them.
        `strategy` says how to place it: "single" (the best one worker), "pipeline" (cut across every worker), "auto"
        (what the cost model finds fastest) or a DeviceMap, which says itself what is where.  `mode` says where: "on"
        needs a mesh, "off" computes in this process, "auto" takes the mesh if it has workers, and "local" is "off" for
        graphs that are this process's alone: a collective inside, or another device, is a GraphError.  `copies` says
        what workers keep of each other's params (docs/redundancy.md): "replica", "buddy", "coded", "coded K of N" or
        "checkpoint", which leaves them to this process; None is what the mesh was built with.  An argument of `fn` that
        has one of these names is given by its place.
        """
        args = taken(fn, args, named, OWN)
        return self._call(self._async.form(fn, args, strategy, mode, copies), args)

    def compile(
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
        """A callable for arguments of the examples' shapes and dtypes; others are traced when they come.

        `strategy`, `mode` and `copies` as for `run`, also of a graph or a model.  `name` is what plans and jobs call
        the graphs.  What was traced is kept; with `cache=False` it is not, and every call is traced anew, as `run` is.
        In `build_dir` each graph is written as NAME-HASH.wire, which `mesh-coord plan` and `submit` take, and as text.
        With `force` the first call compiles its graph anew wherever it runs, whatever is in the caches in memory and on
        disk, and puts what comes of it there in one step.
        """
        function = self._async.function(fn, strategy, mode, copies, name, cache, build_dir, force)
        function.form_for(taken(fn, examples, named, OWN_OF_COMPILE))

        def compiled(*args: Any, **named: Any) -> Any:
            return self._wait(*function.bind(taken(fn, args, named)))

        return Callee(fn, name, self, compiled)

    def submit(
        self,
        fn: Callable[..., Any] | WireGraph,
        /,
        *args: Any,
        strategy: str | Strategy = "auto",
        mode: str = "auto",
        copies: str | None = None,
        **named: Any,
    ) -> Job:
        """Begin `run` and return at once; the arguments are copied, so they may be overwritten."""
        args = taken(fn, args, named, OWN)
        form = self._async.form(fn, args, strategy, mode, copies)
        return Job(form, self._started(form, *form.bind_copies(args)))

    def as_completed(self, jobs: Sequence[Job | Step]) -> Iterator[int]:
        """The places in `jobs` of those that are done, in the order in which they end, well or not."""
        for job in items(jobs, "of jobs"):
            if not isinstance(job, Job | Step):
                raise InputError(
                    f"{said(job)} is no job", next_step="submit() gives jobs, and a session's step() steps"
                )
        waiting = {job._waiter.arrived: place for place, job in enumerate(jobs)}
        while waiting:
            if not any(arrived.done() for arrived in waiting):
                self._loop.check_may_wait()
                self._loop.soon(self._attend_any, [jobs[place]._waiter for place in waiting.values()])
                concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for arrived in [each for each in waiting if each.done()]:
                yield waiting.pop(arrived)

    def session(
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
    ) -> Session:
        """Call `step_fn(state, *args) -> (state, outputs)` again and again, with a state that stays on the workers.

        `copies` of the state are made after `every` so many steps: "buddy" on a second worker, "coded" ("coded K of N")
        as checks on others of what several have, "checkpoint" in this process, or "none" (docs/redundancy.md).  Left
        out they are "buddy" where workers have room, else "checkpoint".  At most `ahead` steps are under way, each with
        a value of the state of its own (None: 2 of a large state, up to 8 of a small one).  `strategy` and
        `mode` as for `run`.
        """
        examples = taken(step_fn, (state, *examples), named, OWN_OF_SESSIONS)[1:]
        stepping = self._async.stepping(step_fn, state, examples, strategy, mode)
        return self.open_session(stepping, copies, every, ahead, mode)

    def open_session(
        self, stepping: Stepping, copies: str, every: int, ahead: int | None = None, mode: str = "auto"
    ) -> Session:
        """As `session`, of a step that is traced already."""

        async def begin() -> AsyncSession:
            return self._async.open_session(stepping, copies, every, ahead, mode)

        return Session(self, self._loop.wait(begin()))

    @property
    def elastic(self) -> bool:
        """Whether `elastic_session` is possible: the coordinator is in this process, and has workers."""
        return self._async.elastic

    @checked
    def elastic_session(self, elastic: Elastic, copies: str, every: int) -> ElasticSession:
        """A session that goes on with whoever is there, by a step for so many."""

        async def begin() -> AsyncSession:
            return self._async.open_session(elastic.first, copies, every, None, "on", others=elastic)

        return ElasticSession(self, self._loop.wait(begin()), elastic)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs on the mesh's loop, with what is `on_loop`."""

        def start() -> Started:
            task = asyncio.get_running_loop().create_task(work)
            return Started(task, dict, task.cancel)

        try:
            waiter = _Waiter(self, start)
        except ConfigError:
            work.close()
            raise
        found: T = waiter.value(None)
        return found

    @property
    def on_loop(self) -> AsyncMesh:
        """The mesh as coroutines on its loop use it."""
        return self._async

    def report(self) -> Report:
        """What the last call that was started on this mesh did where; complete once it has ended."""
        return self._async.report()

    def watch(self, watcher: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `watcher`, on the mesh's thread, with every event (joined, suspect, dead, planned, ...) from now on.

        What it raises is logged, once per kind of error, and changes nothing: it hears of the next event all the same.
        ConfigError if the workers belong to a coordinator elsewhere.
        """

        async def watch() -> None:
            self._async.watch(watcher)

        self._loop.wait(watch())

    def close(self) -> None:
        """End local workers and links; calls under way are cancelled."""
        if not self._loop.stopped:
            self._loop.wait(self._async.close())
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
            Compiled(work.graph, work.strategy, Building()), inputs, work
        ).value(None)
        return outputs

    def _attend_any(self, waiters: Sequence[_Waiter]) -> None:
        """On the loop: somebody waits for one of these, which lets simulated time flow until there is one."""
        one: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def ended() -> None:
            if not one.done():
                one.set_result(None)

        for waiter in waiters:
            waiter.on_end(ended)
        self._async.attend(Started(one, dict, one.cancel))

    def _call(self, form: Compiled, args: tuple[Any, ...]) -> Any:
        return self._wait(form, *form.bind(args))

    def _wait(self, form: Compiled, inputs: Mapping[str, NDArray[Any]], work: Work) -> Any:
        self._loop.check_may_wait()
        return form.unbind(self._started(form, inputs, work).value(None))

    def _started(self, form: Compiled, inputs: Mapping[str, NDArray[Any]], work: Work) -> _Waiter:
        return _Waiter(self, lambda: self._async.start(form, inputs, work))


class Job:
    """A call under way."""

    def __init__(self, form: Compiled, waiter: _Waiter) -> None:
        self._form = form
        self._waiter = waiter

    def result(self, timeout_s: float | None = None) -> Any:
        """The value; DeadlineExceeded after `timeout_s` (the job goes on), Cancelled, or the job's own error."""
        return self._form.unbind(self._waiter.value(timeout_s))

    def __repr__(self) -> str:
        return f"<Job: {self._form.graph.name or 'unnamed'}, {self._waiter.told}>"

    def done(self) -> bool:
        return self._waiter.arrived.done()

    def cancel(self) -> None:
        """Stop the job on the workers and free its buffers; nothing happens if it is over."""
        self._waiter.cancel()

    def report(self) -> Report:
        """What this job did where; complete once it has ended."""
        return self._waiter.report()


class Session:
    """A function called again and again whose state stays on the workers.  Made by `Mesh.session`; close it, or use it
    as a context manager."""

    def __init__(self, mesh: Mesh, session: AsyncSession) -> None:
        self._mesh = mesh
        self._async = session

    def __repr__(self) -> str:
        return f"<{self._async.told('Session')}>"

    @property
    def running(self) -> Running:
        """What its mesh has of it."""
        return self._async.running

    def step(self, *args: Any, **named: Any) -> Step:
        """Begin one step.  Several may be under way: they are done in the order of these calls.

        The arguments are copied.  A step that fails for good leaves the state as it was, and those that were asked for
        after it are Cancelled; NodeLost if the state is lost.
        """
        inputs = self._async.stepping.bind(self._async.stepping.taken(args, named))
        return Step(_Waiter(self._mesh, lambda: self._async.begin(inputs)))

    def state(self) -> Any:
        """The state after all steps asked for until now, with numpy arrays as its leaves."""
        return self.begin_state().result()

    def begin_state(self) -> Step:
        """As `state`, without waiting for it."""
        return Step(_Waiter(self._mesh, self._async.begin_state))

    def close(self) -> None:
        """End the session and free what it has on the workers; steps under way are Cancelled."""
        if not self._mesh._loop.stopped:
            _Waiter(self._mesh, self._async.begin_close).value(None)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ElasticSession(Session):
    """A session whose arguments differ with who shares them out.  Made by `Mesh.elastic_session`."""

    def __init__(self, mesh: Mesh, session: AsyncSession, elastic: Elastic) -> None:
        super().__init__(mesh, session)
        self._elastic = elastic

    def begin(self, args: Callable[[Portions], Sequence[Any]], nbytes: int) -> Step:
        """Begin one step of what `args` gives for portions of its batch: about so much, which must not change."""
        feeds = self._elastic.feeds(args, nbytes)
        return Step(_Waiter(self._mesh, lambda: self._async.begin(feeds)))


class Step:
    """A step under way."""

    def __init__(self, waiter: _Waiter) -> None:
        self._waiter = waiter

    def result(self, timeout_s: float | None = None) -> Any:
        """What the step tells; DeadlineExceeded after `timeout_s` (it goes on), Cancelled, or its own error."""
        return self._waiter.value(timeout_s)

    def __repr__(self) -> str:
        return f"<Step: {self._waiter.told}>"

    def done(self) -> bool:
        return self._waiter.arrived.done()


class _Waiter:
    """Something started from a thread that is not the loop's: one hop there, one hop back."""

    def __init__(self, mesh: Mesh, start: Callable[[], Started]) -> None:
        self.arrived: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._mesh = mesh
        self._started: Started | None = None
        mesh._loop.soon(self._start, start)

    def value(self, timeout_s: float | None) -> Any:
        if not self.arrived.done():
            self._mesh._loop.check_may_wait()
            self._mesh._loop.soon(self._attend)
        try:
            return self.arrived.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise Cancelled("the job was cancelled") from None
        except TimeoutError:
            raise DeadlineExceeded(
                f"the job has no result after {timeout_s:g} s", next_step="Ask again, or cancel() it"
            ) from None
        except KeyboardInterrupt:
            self.cancel()
            raise

    @property
    def told(self) -> str:
        """How it is, in a few words."""
        if not self.arrived.done():
            return "under way"
        if self.arrived.cancelled():
            return "cancelled"
        error = self.arrived.exception()
        return "done" if error is None else f"failed: {type(error).__name__}"

    def on_end(self, call: Callable[[], object]) -> None:
        """On the loop: call this once there is a result, which may be now."""
        if self._started is None:
            call()
        else:
            self._started.outputs.add_done_callback(lambda _: call())

    def cancel(self) -> None:
        with contextlib.suppress(ConfigError):  # the mesh is closed, and its calls with it
            self._mesh._loop.soon(lambda: self._started.cancel() if self._started else None)

    def report(self) -> Report:
        return Report.of(self._started.report() if self._started else {})

    def _attend(self) -> None:
        """On the loop: somebody waits, which lets simulated time flow."""
        if self._started is not None:
            self._mesh._async.attend(self._started)

    def _start(self, start: Callable[[], Started]) -> None:
        try:
            self._started = start()
        except Exception as error:  # whatever went wrong belongs to the caller's thread
            self.arrived.set_exception(error)
            return
        self._started.outputs.add_done_callback(self._copy)

    def _copy(self, outputs: asyncio.Future[Any]) -> None:
        if outputs.cancelled():
            self.arrived.cancel()
            self.arrived.set_running_or_notify_cancel()
        elif (error := outputs.exception()) is not None:
            self.arrived.set_exception(error)
        else:
            self.arrived.set_result(outputs.result())


def _loop_for(config: MeshConfig) -> asyncio.AbstractEventLoop:
    if config.simulate is None:
        return asyncio.new_event_loop()
    from ..simulation.loop import VirtualLoop

    return VirtualLoop(on_demand=True)
