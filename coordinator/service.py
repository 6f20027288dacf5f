"""What a coordinator daemon answers its clients: jobs, previews, nodes.

The shell around `jobs.py`; it runs jobs on a Coordinator and moves their tensors.  Any number of clients; a client's
jobs are its own unless detached, and end with its link.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.codec import decode_graph, hash_array, tensor_from
from wire.dtypes import dtype_named
from wire.errors import Cancelled, InputError, MeshError
from wire.exchange import BlobExchange, off_loop
from wire.graph import WireGraph
from wire.link import Link
from wire.messages import (
    INLINE_BYTES_MAX,
    AskJobs,
    AskNodes,
    AwaitJob,
    CancelJob,
    Done,
    JobAccepted,
    JobResult,
    Jobs,
    NamedValue,
    NodeReport,
    Nodes,
    PlanGraph,
    Planned,
    SubmitJob,
)
from wire.types import TensorType

from .jobs import FINAL, Job, JobTable
from .program import Program
from .report import Event
from .runtime import Coordinator


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """What a job computes, all of it in this process."""

    program: Program
    inputs: dict[str, NDArray[Any]]


class JobService:
    """Registers itself as the answer to every client message of `coordinator`."""

    def __init__(self, coordinator: Coordinator, table: JobTable | None = None) -> None:
        self._coordinator = coordinator
        self._table = table or JobTable()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, asyncio.Event] = {}
        self._held: dict[str, list[bytes]] = {}
        coordinator.requests.update(
            {
                SubmitJob: self._submit,
                PlanGraph: self._plan,
                AskJobs: self._ask,
                AwaitJob: self._await,
                CancelJob: self._cancel,
                AskNodes: self._nodes,
            }
        )
        coordinator.unlinked.append(self._client_gone)
        coordinator.watchers.append(self._log_event)

    async def close(self) -> None:
        """End every job."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _submit(self, link: Link, body: SubmitJob) -> JobAccepted:
        graph = decode_graph(body.graph)
        job = Job(secrets.token_hex(6), body.name, link.peer.node_id, body.detach, time.time())
        self._forget_old()
        self._table.submit(job)
        self._ended[job.job] = asyncio.Event()
        try:  # a job is accepted when it no longer needs its client
            self._table.arrived(job.job, time.time(), await self._receive(job, link, graph, body))
        except BaseException as error:
            known = error if isinstance(error, MeshError) else Cancelled("the client went away")
            self._table.ended(job.job, time.time(), error=known)
            self._ended[job.job].set()
            raise
        self._start_waiting()
        return JobAccepted(job.job)

    async def _plan(self, link: Link, body: PlanGraph) -> Planned:
        plan = await self._coordinator.plan(decode_graph(body.graph), body.strategy)
        return Planned(json.dumps(plan.describe()))

    async def _ask(self, link: Link, body: AskJobs) -> Jobs:
        self._forget_old()
        jobs = [self._table.get(body.job)] if body.job else self._table.all()
        return Jobs(tuple(self._table.report(job, time.time(), with_log=bool(body.job)) for job in jobs))

    async def _await(self, link: Link, body: AwaitJob) -> JobResult:
        job = self._table.get(body.job)
        await self._ended[job.job].wait()
        if job.error is not None:
            raise job.error
        return JobResult(job.outputs, job.report)

    async def _cancel(self, link: Link, body: CancelJob) -> Done:
        job = self._table.get(body.job)
        if job.state in FINAL:
            raise InputError(f"job {body.job} is over already: {job.state}")
        self._stop(job)
        return Done()

    async def _nodes(self, link: Link, body: AskNodes) -> Nodes:
        names = NodeReport.__struct_fields__
        views = self._coordinator.nodes()
        reports = tuple(NodeReport(**{name: getattr(view, name) for name in names}) for view in views)
        return Nodes(reports, self._coordinator.config.health.node_timeout_s)

    # -- running

    def _start_waiting(self) -> None:
        for job in self._table.startable():
            self._table.started(job.job, time.time())
            task = asyncio.get_running_loop().create_task(self._run(job))
            self._running[job.job] = task
            task.add_done_callback(partial(self._over, job.job))

    async def _run(self, job: Job) -> None:
        work: _Work = job.work
        error: MeshError | None = None
        outputs: tuple[NamedValue, ...] = ()
        report = ""
        try:
            arrays, told = await self._coordinator.call(work.program, work.inputs)
            report = json.dumps(dataclasses.asdict(told))
            names = zip(work.program.graph.output_names, arrays, strict=True)
            outputs = tuple([await self._held_value(job.job, name, array) for name, array in names])
        except asyncio.CancelledError:
            error = Cancelled("the job was cancelled")
        except MeshError as failure:
            error = failure
        self._table.ended(job.job, time.time(), outputs, report, error)

    async def _receive(self, job: Job, link: Link, graph: WireGraph, body: SubmitJob) -> _Work:
        """The program and inputs of a job, everything fetched from the client and checked against the graph."""
        inputs = await self._values(link, body.inputs, graph.input_types)
        params = await self._values(link, body.params, graph.param_types)
        bindings = {}
        for name, array in params.items():
            address = await self._hold(job.job, array)
            bindings[name] = (address, graph.param_types[name])
        for node in graph.nodes:
            if node.op == "const" and "blob" in node.attrs:
                kind = TensorType(node.attrs["shape"], dtype_named(node.attrs["dtype"]))
                data = await self._coordinator.blobs.fetch(link, node.attrs["blob"], kind.size_bytes)
                self._coordinator.hold(node.attrs["blob"], tensor_from(data, kind))
                self._held.setdefault(job.job, []).append(node.attrs["blob"])
        return _Work(Program(graph, bindings, body.strategy), inputs)

    async def _values(
        self, link: Link, values: tuple[NamedValue, ...], kinds: Mapping[str, TensorType]
    ) -> dict[str, NDArray[Any]]:
        given = {value.name: value for value in values}
        for name in given.keys() - kinds.keys():
            raise InputError(f"the graph has no input {name!r}", next_step=f"It takes: {', '.join(kinds) or 'none'}")
        for name, kind in kinds.items():
            if name not in given:
                raise InputError(f"the input {name!r} ({kind}) is missing")
            value = given[name]
            if (value.shape, value.dtype) != (kind.shape, kind.dtype.name):
                raise InputError(f"the input {name!r} is {value.dtype}{list(value.shape)}, expected {kind}")
        fetches = [self._coordinator.blobs.fetch_named(link, given[name]) for name in kinds]
        return dict(zip(kinds, await asyncio.gather(*fetches), strict=True))

    async def _hold(self, job: str, array: NDArray[Any]) -> bytes:
        address = await off_loop(array.nbytes, hash_array, array)
        self._coordinator.hold(address, array)
        self._held.setdefault(job, []).append(address)
        return address

    async def _held_value(self, job: str, name: str, array: NDArray[Any]) -> NamedValue:
        """An output for the client; a large one stays here, as long as the job is kept, to be fetched by address."""
        address = await self._hold(job, array) if array.nbytes > INLINE_BYTES_MAX else None
        return BlobExchange.named(name, array, address)

    # -- ending

    def _over(self, job: str, task: asyncio.Task[None]) -> None:
        del self._running[job]
        self._ended[job].set()
        self._start_waiting()

    def _stop(self, job: Job) -> None:
        task = self._running.get(job.job)
        if task is not None:
            task.cancel()
            return
        self._table.ended(job.job, time.time(), error=Cancelled("the job was cancelled"))
        self._ended[job.job].set()

    def _client_gone(self, link: Link, error: MeshError | None) -> None:
        for job in self._table.left_by(link.peer.node_id):
            self._stop(job)

    def _log_event(self, event: Event) -> None:
        """What happens to the workers is part of the log of every job that runs meanwhile."""
        text = f"{event.kind} {event.node}: {event.text}" if event.node else f"{event.kind}: {event.text}"
        for job in self._running:
            self._table.tell(job, time.time(), text)

    def _forget_old(self) -> None:
        for job in self._table.forget_old(time.time()):
            self._ended.pop(job.job, None)
            for address in self._held.pop(job.job, ()):
                self._coordinator.release(address)
