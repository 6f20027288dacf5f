"""Job service: a coordinator daemon's answers to its clients: jobs, previews, nodes.

The shell around `job_table.py`: it performs what the table decides, runs jobs on a Coordinator, moves their tensors,
and has a JobStore keep them across restarts.  There may be any number of clients.  A job that is not detached ends with
its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
import json
import platform
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.bounds import JOBS_IN_MEMORY, RESULTS_READY
from wire.errors import Cancelled, InputError, LimitExceeded, MeshError, NotDurable, StorageError
from wire.ir.codec import hash_array, hash_bytes, tensor_bytes, tensor_from
from wire.ir.dtypes import dtype_named, dtype_of
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.limits import PLAN_CHARS_MAX
from wire.link.websocket_carrier import Link
from wire.policy.redundancy import OF_CALLS, copies_of
from wire.protocol.messages import (
    AskJobs,
    AskNodes,
    AwaitJob,
    CancelJob,
    Done,
    Explained,
    ExplainGraph,
    JobAccepted,
    JobResult,
    Jobs,
    Message,
    NamedValue,
    NodeReport,
    Nodes,
    PauseNode,
    PlanGraph,
    Planned,
    SubmitJob,
)
from wire.protocol.reports import Event
from wire.roles import ADMIN, OPERATOR, may, member_id
from wire.system.loop_lag import recent_lag_s
from wire.system.malloc import DelayedReturn, give_back
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, unheard
from wire.transfer.content_exchange import OFF_LOOP_BYTES, BlobExchange, graph_from, off_loop, sent_separately
from wire.units import counted

from ..coordinator import Coordinator
from ..planning.model.program import Program
from ..workers import worker_names
from ..workers.call_report import CallReport, report_json
from ..workers.paged_reports import page
from .client_contents import ClientContents
from .job_store import Content, JobStore, StoredEntry, addresses_in, in_files
from .job_table import FINAL, Action, Free, Job, JobTable, Key, Notify, Save, SaveLater, Start, Stop
from .program_upload import ProgramUpload, consts_of, upload_to_disk
from .stored_program import ProgramContent, load_program

log = steady_logger("graph_mesh.service")

PUBLISHED_MAX = RESULTS_READY.most
RECENT_MAX = JOBS_IN_MEMORY.most
GIVE_BACK_EVERY = 64  # jobs, after which memory goes back to the system at once
WORKERS = "@workers"  # the entry that names the workers of before; no job has such an id
WORKERS_CHANGED = frozenset({"joined", "healthy", "dead", "leaving", "paused", "resumed", "quarantined"})


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """What a job computes, all of it in this process."""

    content: ProgramContent
    strategy: str
    inputs: dict[str, NDArray[Any]]
    copies: str = "checkpoint"
    forced: int = 0
    addresses: Mapping[str, bytes] = dataclasses.field(default_factory=dict)  # of inputs that did not ride along

    @property
    def program(self) -> Program:
        return Program(self.content.graph, self.content.bindings, self.strategy, self.copies, self.forced)


Answer = Callable[[Link, Any], Awaitable[Message]]
Acted = Callable[[Link, str, str], None]  # what a client did (submit, read, ...), and to what
_ABOUT = {"waiting": " for a worker"}  # what an event of no worker is about, by its kind


class JobService:
    """Registers itself as the answer to every client message of `coordinator`.  Call `resume` before `listen`.

    `acted` is called with who did what.
    """

    _give_back_every = GIVE_BACK_EVERY  # jobs; tests have it sooner

    def __init__(
        self,
        coordinator: Coordinator,
        table: JobTable,
        store: JobStore,
        unix: Callable[[], float] = time.time,
        acted: Acted = lambda link, what, to: None,
    ) -> None:
        self.contents = ClientContents(coordinator)
        self._acted = acted
        self._coordinator = coordinator
        self._table = table
        self._store = store
        self._unix = unix  # what people call the time, which may be set
        self._loop = asyncio.get_running_loop()
        self._running: dict[Key, tuple[Job, asyncio.Task[None]]] = {}
        self._reports: dict[Key, CallReport] = {}  # of the calls of those that run
        self._saving, self._tasks = Tasks(), Tasks()
        self._waiting: dict[Key, list[asyncio.Future[None]]] = {}
        self._published: dict[Key, tuple[NamedValue, ...]] = {}  # results as clients get them, by job
        self._publishing = asyncio.Lock()
        self._held: dict[Key, list[tuple[str, bytes]]] = {}  # those that clients fetch by address, and for whom
        self._recent: dict[Key, Job] = {}
        self._ended, self._freed = itertools.count(1), DelayedReturn()
        self._forced = itertools.count(1)
        self._workers_before: frozenset[str] = frozenset()
        self._workers_kept: list[dict[str, Any]] = []
        self._keeping: asyncio.Task[None] | None = None
        self._closing = False
        self._wake = asyncio.Event()
        self._performers: dict[type, Callable[[Any], None]] = {
            Save: self._start_saving,
            SaveLater: self._save_later,
            Start: self._start_running,
            Stop: self._stop,
            Notify: self._tell,
            Free: self._free,
        }
        answers: dict[type, Answer] = {
            SubmitJob: self._submit,
            PlanGraph: self._plan,
            ExplainGraph: self._explain,
            AskJobs: self._ask,
            AwaitJob: self._await,
            CancelJob: self._cancel,
            AskNodes: self._nodes,
            PauseNode: self._pause_node,
        }
        coordinator.requests.update(answers)
        coordinator.unlinked.append(self._client_gone)
        coordinator.watchers.append(self._happened)
        self._timer = self._tasks.keep("watching the time", self._watch_time)

    def resume(self, entries: Iterable[StoredEntry]) -> dict[str, list[str]]:
        """Restore jobs and workers from the journal; return the workers' addresses, by node id."""
        now = self._now()
        for entry in entries:
            if entry.job == WORKERS:
                self._workers_kept = entry.fields["workers"]
            else:
                self._table.restore(entry.job, entry.kind, entry.fields, now)
                self.contents.sent(member_id(entry.fields.get("client", "")), addresses_in(entry.fields))
        self._table.wait_for_workers(now)
        jobs = self._table.all()
        if jobs:
            going_on = sum(job.state not in FINAL for job in jobs)
            log.info("%s of before; %d continue", counted(len(jobs), "job"), going_on)
        self._wake.set()
        addresses = {worker["node_id"]: worker["addresses"] for worker in self._workers_kept}
        self._workers_before = frozenset(addresses)
        return addresses

    async def close(self) -> None:
        """End every job's work; the next start goes on with it."""
        self._closing = True
        self._freed.close()
        tasks = [*(task for _, task in self._running.values()), self._timer]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._saving, return_exceptions=True)
        await self._store.close()

    # -- answers

    async def _submit(self, link: Link, body: SubmitJob) -> JobAccepted:
        graph, client = await graph_from(body.graph), link.peer.node_id
        self._table.client_linked(client)
        name = body.job or secrets.token_hex(6)
        content = await asyncio.to_thread(_digest, body) if len(body.graph) > OFF_LOOP_BYTES else _digest(body)
        while True:
            created_s = self._now() + self._table.unix_s
            size_bytes = sum(kind.size_bytes for kind in _values_of(graph))
            job = Job(name, sys.intern(body.name), client, body.detach, created_s, content, size_bytes)
            known = self._table.submit(job)
            if known is job:
                self._acted(link, "submit", name)
                await self._take_in(link, job, graph, body)
            else:
                await self._until(known, lambda job: job.state != "arriving")
            if known.accepted:
                return JobAccepted(name)
            if known is job:
                assert job.error is not None
                raise job.error.copy()

    async def _take_in(self, link: Link, job: Job, graph: WireGraph, body: SubmitJob) -> None:
        """Receive and save everything that a job needs; from then on it does not need its client."""
        with upload_to_disk(self._coordinator.blobs, self._store, self._saving) as upload:
            try:
                work = await self._receive(link, graph, body, upload)
            except BaseException as error:
                known = error if isinstance(error, MeshError) else Cancelled("the client went away")
                self._feed(self._table.refused(job, self._now(), known))
                raise
            self._feed(self._table.arrived(job, self._now(), work))
            del work  # the job has it, until it waits for its turn
            await self._until(job, lambda job: job.state != "arriving")

    async def _plan(self, link: Link, body: PlanGraph) -> Planned:
        graph, copies = await graph_from(body.graph), copies_of(body.copies, OF_CALLS).text
        strategy = self._coordinator.config.strategy_of(body.strategy)
        text = await asyncio.to_thread(json.dumps, await self._coordinator.preview(graph, strategy, copies, body.dies))
        if len(text) > PLAN_CHARS_MAX:
            raise LimitExceeded(f"the plan is {len(text)} characters of text, the limit is {PLAN_CHARS_MAX}")
        return Planned(text)

    async def _explain(self, link: Link, body: ExplainGraph) -> Explained:
        graph = await graph_from(body.graph)
        with upload_to_disk(self._coordinator.blobs, self._store, self._saving) as upload:
            blobs = await upload.consts(link, graph)
            return await self._coordinator.explain(dataclasses.replace(graph, blobs=blobs), body)

    async def _ask(self, link: Link, body: AskJobs) -> Jobs:
        self._table.client_linked(link.peer.node_id)
        now = self._now()
        if not body.job:
            owner = None if may(link.peer.role, OPERATOR) else member_id(link.peer.node_id)
            return Jobs(tuple(self._table.report(job, now, details=False) for job in self._table.all(owner)))
        job = self._job(link, body.job, OPERATOR)
        await self._recall(job)
        return Jobs((self._table.report(job, now, details=True),))

    async def _await(self, link: Link, body: AwaitJob) -> JobResult:
        self._table.client_linked(link.peer.node_id)
        job = self._job(link, body.job, ADMIN)
        self._acted(link, "read", job.job)
        await self._until(job, lambda job: job.state in FINAL)
        if job.error is not None:
            await self._recall(job)
            raise job.error.copy()  # a copy for each caller: raised itself, it would gather the stacks of them all
        async with self._publishing:
            await self._recall(job)
            if job.key not in self._published:
                self._published[job.key] = await self._publish(job)
                if not self._table.has(job):  # it was forgotten meanwhile, and another one may have its id
                    self._unpublish(job.key)
                    self._job(link, body.job, ADMIN)
                    raise InputError(f"job {body.job} was forgotten, and there is a newer one of that id")
                for other in list(self._published)[:-PUBLISHED_MAX]:
                    self._unpublish(other)  # a later request publishes it again
            return JobResult(self._published[job.key], job.report)

    def _job(self, link: Link, job: str, everybodys: str) -> Job:
        """A job that a client names: one of its own, or with the role `everybodys` anybody's.  InputError for others as
        for those that there are not."""
        return self._table.get(job, member_id(link.peer.node_id), may(link.peer.role, everybodys))

    async def _recall(self, job: Job) -> None:
        """Have a job's details in memory."""
        if job.shrunk:
            fields = await self._store.read(job.entry)
            if job.shrunk:  # still
                self._table.recall(job, fields)
                self._remember(job)

    def _remember(self, job: Job) -> None:
        """Keep the details of the most recent jobs in memory, and unload those of others."""
        self._recent[job.key] = job
        while len(self._recent) > RECENT_MAX:
            self._table.shrink(self._recent.pop(next(iter(self._recent))))

    async def _cancel(self, link: Link, body: CancelJob) -> Done:
        job = self._job(link, body.job, OPERATOR)
        if job.state not in FINAL:
            self._acted(link, "cancel", job.job)
            self._feed(self._table.cancel(job, self._now()))
            await self._until(job, lambda job: job.state in FINAL)
        elif job.state != "cancelled":
            raise InputError(f"job {body.job} is over already: {job.state}")
        return Done()

    async def _nodes(self, link: Link, body: AskNodes) -> Nodes:
        pairs = self._coordinator.pairs() if body.pairs else []
        nodes, ways, more = page(self._coordinator.nodes(), pairs, body.after)
        timeout_s = self._coordinator.config.health.node_timeout_s
        return Nodes(nodes, timeout_s, ways, self._unix(), platform.system(), more, recent_lag_s(self._loop))

    async def _pause_node(self, link: Link, body: PauseNode) -> Done:
        await self._coordinator.pause(body.node, body.on)
        self._acted(link, "pause" if body.on else "resume", body.node)
        return Done()

    async def _until(self, job: Job, holds: Callable[[Job], bool]) -> None:
        while not holds(job):
            changed: asyncio.Future[None] = self._loop.create_future()
            waiting = self._waiting.setdefault(job.key, [])
            waiting.append(changed)
            try:
                await changed
            finally:
                waiting.remove(changed)
                if not waiting and self._waiting.get(job.key) is waiting:
                    del self._waiting[job.key]

    # -- performing what the table decided

    def _feed(self, actions: Sequence[Action]) -> None:
        self._perform(actions)
        self._wake.set()  # the table may have something else due now

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._performers[type(action)](action)

    def _start_saving(self, save: Save) -> None:
        self._saving.run("keeping a job", self._save(save), lambda error: self._not_saved(save, error))

    def _save_later(self, note: SaveLater) -> None:
        self._store.save_later(note.job.entry, note.kind)

    async def _save(self, save: Save) -> None:
        job = save.job
        kept = await self._store.save(job.entry, save.kind, save.fields, _values(save))
        self._feed(self._table.saved(save, self._now()))
        if save.kind == "accepted":
            self.contents.sent(job.owner, addresses_in(kept))
            if job.state == "queued" and in_files(kept):
                job.kept, job.work = kept, None  # read from the disk when its turn comes
        if save.kind == "ended":
            if kept:
                job.kept, job.outputs = kept, None  # read from the disk when asked for; memory is free again
            self._remember(job)
            self._freed.soon()
            if next(self._ended) % self._give_back_every == 0:  # by itself: it may fail, and the job is kept
                self._tasks.run("giving memory back", asyncio.to_thread(give_back), unheard)

    def _not_saved(self, save: Save, error: MeshError) -> None:
        log.error("job %s: %s", save.job.job, error)
        known = (
            error
            if isinstance(error, StorageError | LimitExceeded)
            else NotDurable("the job could not be kept", cause=str(error))
        )
        self._feed(self._table.save_failed(save, self._now(), known))

    def _start_running(self, start: Start) -> None:
        if self._closing:
            return
        job = start.job
        task = self._tasks.run("running a job", self._run(job), unheard)  # `_stopped` hears
        self._running[job.key] = job, task
        task.add_done_callback(partial(self._stopped, job))

    def _stopped(self, job: Job, task: asyncio.Task[None]) -> None:
        del self._running[job.key]
        if task.cancelled():  # before it began, and so it could not say so itself
            self._ran(job, {}, "", Cancelled("the job was cancelled"))
        elif (error := task.exception()) is not None:  # a fault of ours must end the waits for the job
            self._ran(job, {}, "", MeshError("the job could not be run", cause=str(error)))

    async def _run(self, job: Job) -> None:
        error: MeshError | None = None
        outputs: dict[str, NDArray[Any]] = {}
        report = ""
        held: list[bytes] = []
        try:
            work: _Work = job.work or await self._kept_work(job)
            for address, array in work.content.held:
                self._coordinator.hold(address, array)
                held.append(address)
            arrays, call_report = await self._called(job, work)
            report = report_json(call_report)
            for relayed in call_report.relayed:
                self._table.tell(job, self._now(), f"relayed {relayed}")
            outputs = dict(zip(work.content.graph.output_names, arrays, strict=True))
        except asyncio.CancelledError:
            error = Cancelled("the job was cancelled")
        except MeshError as failure:
            error = failure
        finally:
            for address in held:
                self._coordinator.release(address)
        self._ran(job, outputs, report, error)

    async def _called(self, job: Job, work: _Work) -> tuple[list[NDArray[Any]], CallReport]:
        """The outputs of a job's call; cancelling the awaiting task cancels the call on the workers."""
        submitted = self._coordinator.submit(work.program, work.inputs, patient=job.detached, owner=job.owner)
        number, future, report = submitted
        self._reports[job.key] = report
        try:
            return await future, report
        except asyncio.CancelledError:
            self._coordinator.cancel(number)
            raise
        finally:
            del self._reports[job.key]

    def _ran(self, job: Job, outputs: Mapping[str, NDArray[Any]], report: str, error: MeshError | None) -> None:
        if error is not None and self._closing:
            return  # the next start runs it again
        self._feed(self._table.ran(job, self._now(), outputs, report, error))

    def _stop(self, stop: Stop) -> None:
        self._running[stop.job.key][1].cancel()

    def _tell(self, tell: Notify) -> None:
        for waiting in self._waiting.pop(tell.job.key, ()):
            if not waiting.done():
                waiting.set_result(None)

    def _free(self, free: Free) -> None:
        self._recent.pop(free.job.key, None)
        self._unpublish(free.job.key)

    def _unpublish(self, job: Key) -> None:
        for owner, address in self._held.pop(job, ()):
            self.contents.release(owner, [address])
        self._published.pop(job, None)

    # -- values on their way in

    async def _receive(self, link: Link, graph: WireGraph, body: SubmitJob, upload: ProgramUpload) -> _Work:
        """The program and inputs of a job, everything fetched from the client and checked against the graph."""
        strategy = self._coordinator.config.strategy_of(body.strategy)
        inputs = await upload.values(link, body.inputs, graph.input_types)
        params = await upload.params(link, body.params, graph)
        consts = await upload.consts(link, graph)
        forced = next(self._forced) if body.force else 0
        content = ProgramContent(graph, params, consts)
        named = {value.name: value.blob for value in body.inputs if value.blob is not None and value.data is None}
        return _Work(content, strategy, inputs, copies_of(body.copies, OF_CALLS).text, forced, named)

    # -- values on their way out

    async def _publish(self, job: Job) -> tuple[NamedValue, ...]:
        """A job's outputs for clients; large ones stay here to be fetched by address, as long as the job is kept."""
        arrays = await self._kept_outputs(job) if job.outputs is None else job.outputs
        outputs = []
        for (name, array), far in zip(arrays.items(), sent_separately(arrays.values()), strict=True):
            address = None
            if far:
                address = await off_loop(array.nbytes, hash_array, array)
                self.contents.hold(job.owner, address, array)
                self._held.setdefault(job.key, []).append((job.owner, address))
            outputs.append(BlobExchange.named(name, array, far, address))
        return tuple(outputs)

    # -- values of before

    async def _kept_work(self, job: Job) -> _Work:
        kept, load = job.kept, self._store.load
        content = await load_program(kept, load)
        kinds = content.graph.input_types
        inputs = {name: tensor_from(await load(leaf), kinds[name]) for name, leaf in kept["inputs"].items()}
        forced = next(self._forced) if kept.get("force") else 0
        return _Work(content, kept["strategy"], inputs, kept.get("copies", "checkpoint"), forced)

    async def _kept_outputs(self, job: Job) -> dict[str, NDArray[Any]]:
        outputs = {}
        for output in job.kept["outputs"]:
            kind = TensorType(tuple(output["shape"]), dtype_named(output["dtype"]))
            outputs[output["name"]] = tensor_from(await self._store.load(output["content"]), kind)
        return outputs

    # -- clients, workers, time

    def _now(self) -> float:
        """The time of the table's clock; the table learns what the date is."""
        now = self._loop.time()
        self._table.unix_s = self._unix() - now
        return now

    def _client_gone(self, link: Link, error: MeshError | None) -> None:
        client = link.peer.node_id
        newer = self._coordinator.endpoint.links.get(client)
        if newer is None or newer is link or newer.closed:
            self._feed(self._table.left(client, self._now(), for_good=error is None))

    def _happened(self, event: Event) -> None:
        """Add what happens to a worker to the log of every job that runs, and what happens to a plan to those of the
        jobs that run by it: plans of others are not shown to all clients."""
        self._freed.soon()  # plans, and graphs and weights on their way, take memory for a moment
        about = f" {event.node}" if event.node else _ABOUT.get(event.kind, "")
        text = f"{event.kind}{about}: {event.text}"
        for job, _ in self._running.values():
            report = self._reports.get(job.key)
            if event.generation and (report is None or event.generation not in report.generations):
                continue
            self._table.tell(job, self._now(), text)
        if event.kind in WORKERS_CHANGED:
            self._wake.set()

    async def _watch_time(self) -> None:
        """Wake when the table has something due, or when workers came or went."""
        while True:
            due_s = self._table.next_deadline()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due_s is None else max(due_s - self._now(), 0.0)):
                    await self._wake.wait()
            now, workers = self._now(), self._workers()
            missing = self._workers_before - {worker.node_id for worker in workers}
            reason = self._coordinator.no_worker_reason
            self._perform([*self._table.tick(now), *self._table.workers(now, reason, missing)])
            if self._keeping is None:  # time goes on while the disk is waited for, or a standby
                self._keeping = self._tasks.run("keeping the workers", self._keep_workers(workers), unheard)

    def _workers(self) -> list[NodeReport]:
        return [node for node in self._coordinator.nodes() if node.state not in worker_names.GONE]

    async def _keep_workers(self, workers: Sequence[NodeReport]) -> None:
        """Save which workers are connected, for the next start."""
        rows = [{"node_id": worker.node_id, "addresses": list(worker.addresses)} for worker in workers]
        try:
            if rows and rows != self._workers_kept:  # when all are gone it is more likely that the network is
                await self._store.save(WORKERS, "workers", {"workers": rows})
                self._workers_kept = rows
                self._wake.set()  # others may have come meanwhile
        except StorageError as error:
            log.debug("the workers of now are not kept: %s", error)
        finally:
            self._keeping = None


def _values(save: Save) -> Any:
    """The values of an entry, for JobStore.save."""
    if save.kind == "accepted":
        work: _Work = save.job.work
        return {
            **work.content.values(),
            "strategy": work.strategy,
            "copies": work.copies,
            "force": bool(work.forced),
            "inputs": {
                name: Content(tensor_bytes(array), work.addresses.get(name), again=False)
                for name, array in work.inputs.items()
            },
        }
    if save.kind == "ended" and save.job.outputs:
        return {
            "outputs": [
                {
                    "name": name,
                    "dtype": dtype_of(array).name,
                    "shape": array.shape,
                    "content": Content(tensor_bytes(array)),
                }
                for name, array in save.job.outputs.items()
            ]
        }
    return None


def _digest(body: SubmitJob) -> str:
    """A digest of what a job computes."""
    values = [
        (value.name, value.dtype, value.shape, (value.blob or hash_bytes(value.data or b"")).hex())
        for value in (*body.inputs, *body.params)
    ]
    text = json.dumps([hash_bytes(body.graph).hex(), body.strategy, body.copies, len(body.inputs), values])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _values_of(graph: WireGraph) -> list[TensorType]:
    """The types of all that comes with a graph."""
    return [*graph.input_types.values(), *graph.param_types.values(), *consts_of(graph).values()]
