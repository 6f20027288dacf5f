"""Following: a coordinator that does not serve: it copies the journal of the one that does, and takes over from it.

It has links that it dialled itself, to coordinators and, when it asks for votes, to workers; it listens nowhere, so
a node that looks for a coordinator finds none here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wire.bounds import JOURNAL_COPIES
from wire.errors import Busy, ConnectFailed, MeshError, NotDurable
from wire.link.endpoint import Endpoint
from wire.link.guard import Guard
from wire.link.keepalive import LinkWatch
from wire.link.link import Handler, Link
from wire.link.reconnect import stay_linked
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.messages import (
    AttachStandby,
    AuthorityFiles,
    BlobStream,
    JournalDenied,
    JournalEntries,
    JournalHave,
    Message,
    Vote,
)
from wire.protocol.permissions import Receiver, Relation
from wire.standby.in_messages import ballot_field, ballot_of
from wire.standby.standby_file import PROMOTE_FILE, StandbyFile
from wire.system.atomic_files import Disk
from wire.system.file_lock import FileLock, behind_lock
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, as_error
from wire.transfer.content_exchange import BlobExchange

from ..jobs.job_service import WORKERS
from ..jobs.job_store import JobStore
from ..jobs.journal import Entry
from . import events as ev
from .shell import StandbyShell
from .state import StandbyTimes

log = steady_logger("graph_mesh.standby")
_Told = tuple[int, int, int, bool]  # what tells messages of one link apart whose entries belong together
AUTHORITY_S = 2.0  # until what could not be written is written again
IS_STANDBY = Busy("this coordinator is a standby", next_step="Ask the coordinator that serves")


@dataclass(frozen=True, slots=True)
class _Came:
    """The entries of a message.  `epochs` are those that the coordinator goes on from, where these are all entries."""

    entries: list[Entry]
    epochs: tuple[int, ...]


class Following:
    """The follower whose journal is in `folder`/jobs.  `first` are addresses of coordinators ("host:port") beside those
    that it remembers; `addresses` says where this one can be dialled now, once it serves; `begins` says that it serves
    unless another one does; `wall` is the time of day."""

    def __init__(
        self,
        endpoint: Callable[[Handler], Endpoint],
        folder: Path,
        authority: Path,
        first: Sequence[str],
        addresses: Callable[[Endpoint], tuple[str, ...]],
        begins: bool,
        broken: Callable[[str], None],
        times: StandbyTimes = StandbyTimes(),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._authority = folder, authority
        self._file = StandbyFile(folder)
        self._exchange = BlobExchange(None, lambda address: None)
        guard = Guard(self, Receiver.STANDBY, {Relation.ASKED: self._exchange.asked}, IS_STANDBY)
        self._endpoint = endpoint(guard)
        self._first = tuple(first)
        self._begins = begins
        self._look = addresses
        self._addresses = addresses(self._endpoint)
        self._link_watch = LinkWatch(self._endpoint, self._moved, wall)
        node, others = self._endpoint.identity.node_id, self._file.remembered.peers
        self._shell = StandbyShell(node, others, self._file, broken, times)
        self._tasks = Tasks()
        self._served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts: dict[Link, dict[_Told, list[Entry]]] = {}  # of what comes in several messages
        self._came: dict[ev.Entries, _Came] = {}  # with messages that are being handled
        self._writes: asyncio.Queue[tuple[ev.Entries, _Came]] = asyncio.Queue(JOURNAL_COPIES.most)
        self._authority_files: AuthorityFiles | None = None  # as the coordinator sent them last
        self._authority_news = asyncio.Event()
        self._workers: Mapping[str, Sequence[str]] = {}
        self._store: JobStore

    async def run(self) -> StandbyShell:
        """Follow until this one serves; its shell then, whose links and store are closed."""
        await self._file.change()  # from now on this one follows, with whatever words it is started again
        self._store, entries = await asyncio.to_thread(JobStore.open, self._folder / "jobs", 1)
        self._look_for_workers([Entry(entry.job, entry.kind, json.dumps(entry.fields).encode()) for entry in entries])
        self._shell.attach(
            self._link_to,
            {ev.Send: self._send, ev.Write: self._write, ev.Serve: self._serve, ev.StepDown: lambda action: None},
        )
        try:
            for address in self._first:
                self._tasks.keep("staying linked", partial(self._stay_linked, (address,)))
            for node, addresses in self._file.remembered.peers.items():
                self._tasks.keep("staying linked", partial(self._stay_linked, addresses, node))
            self._tasks.keep("watching links", self._link_watch.run)
            self._tasks.keep("writing the copy of a journal", self._write_all)
            self._tasks.keep("writing what is known of members", self._keep_authority)
            if self._begins:
                self._shell.feed(ev.Begin())
            self._tasks.keep("following", self._shell.run)
            self._tasks.keep("looking for a journal that comes", self._look_for_arrivals)
            self._tasks.keep("looking for the operator's word", self._look_for_promotion)
            await self._served
            return self._shell
        finally:
            running = list(self._tasks)
            self._tasks.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._endpoint.close()
            await self._store.close()
            if self._authority_files is not None:  # which may have come a moment ago
                with contextlib.suppress(OSError, MeshError, TimeoutError):
                    async with asyncio.timeout(AUTHORITY_S):
                        await behind_lock(self._take_authority, self._authority_files)

    # -- links

    async def _stay_linked(self, given: Sequence[str], node: str = "") -> None:
        """Stay linked to a coordinator, the one that answers unless one is named: it is dialled where it was `given`,
        and where it is by now, which it says with each link."""
        answered = node

        def addresses() -> Sequence[str]:
            return tuple(dict.fromkeys((*given, *self._file.remembered.peers.get(answered, ()))))

        async def ready(link: Link) -> None:
            nonlocal answered
            answered = node or link.peer.node_id
            if link.peer.node_id in self._file.remembered.peers:  # others are, once they send their journal
                with contextlib.suppress(NotDurable):
                    await self._file.met(link.peer.node_id, _addresses(link))

        await stay_linked(self._endpoint, addresses, ready)

    def _moved(self) -> bool:
        """Look where this one can be dialled by now, which coordinators are told when it attaches; true if that has
        changed."""
        before, self._addresses = self._addresses, self._look(self._endpoint)
        return self._addresses != before

    # -- performing

    async def _link_to(self, node: str) -> Link:
        link = self._endpoint.links.get(node)
        if link is not None and not link.closed:
            return link
        addresses = self._file.remembered.peers.get(node) or self._workers.get(node)
        if not addresses:
            raise ConnectFailed(f"no address of {node} is known")
        return await self._endpoint.reach(addresses, node)

    def _send(self, send: ev.Send) -> None:
        link, message = self._endpoint.links.get(send.node), send.message
        if link is None or link.closed:
            return
        match message:
            case ev.Attach():
                link.notify(AttachStandby(message.stream, self._addresses))
            case ev.Have():
                link.notify(JournalHave(message.stream, message.last))
            case ev.Denied():
                link.notify(JournalDenied(ballot_field(message.promised)))

    def _serve(self, _action: ev.Serve) -> None:
        if not self._served.done():
            self._served.set_result(None)

    def _write(self, write: ev.Write) -> None:
        try:
            self._writes.put_nowait((write.entries, self._came[write.entries]))
        except asyncio.QueueFull:
            self._shell.feed(ev.NotStored(write.entries.stream))

    async def _write_all(self) -> None:
        while True:
            message, came = await self._writes.get()
            link = self._endpoint.links.get(message.node)
            try:
                if link is None:
                    raise ConnectFailed("the coordinator is gone")
                await self._store.copy(came.entries, partial(self._exchange.fetch, link), message.whole)
                self._look_for_workers(came.entries)
                if message.whole:
                    await self._file.met(message.node, _addresses(link), epochs=came.epochs)
                    log.info("%d entries of the journal of %s are here", len(came.entries), link.peer.name)
            except Exception as fault:  # whatever it is: who has entries that come after these is believed to have them
                error = as_error("copying entries of the journal failed", fault)
                log.warning("entries of the journal were not copied: %s", error)
                self._shell.feed(ev.NotStored(message.stream))
                continue
            self._shell.feed(ev.Stored(message.stream, message.last))

    def _look_for_workers(self, entries: Sequence[Entry]) -> None:
        """Remember where workers are dialled, to ask them for votes."""
        for entry in entries:
            if entry.job == WORKERS:
                rows = json.loads(entry.body)["workers"]
                self._workers = {row["node_id"]: row["addresses"] for row in rows}

    async def _look_for_promotion(self) -> None:
        word = self._folder / PROMOTE_FILE
        while True:
            if word.exists():
                word.unlink()
                log.warning("this coordinator takes over by the operator's word")
                self._shell.feed(ev.Promote())
            await asyncio.sleep(self._shell.times.beat_s)

    async def _look_for_arrivals(self) -> None:
        """Tell that long messages of a coordinator come, which take as long as the link is slow."""
        before: dict[Link, int] = {}
        while True:
            links = [link for link in self._endpoint.links.values() if link.peer.role == "coordinator"]
            now = {link: link.bytes_received["bulk"] for link in links}
            if any(count > before.get(link, 0) for link, count in now.items()):
                self._shell.feed(ev.Arriving())
            before = now
            await asyncio.sleep(self._shell.times.beat_s)

    # -- what the coordinator says

    def _entries(self, link: Link, body: JournalEntries) -> None:
        range_key = body.stream, body.first, body.last, body.whole
        parts = self._parts.setdefault(link, {})
        came = parts.setdefault(range_key, [])
        came += [Entry(entry.job, entry.kind, entry.body) for entry in body.entries]
        if body.more:
            return
        del parts[range_key]
        if body.whole:
            self._shell.state.meet(link.peer.node_id)
        message = ev.Entries(link.peer.node_id, ballot_of(body.ballot), body.stream, body.first, body.last, body.whole)
        self._came[message] = _Came(came, tuple(body.epochs))
        self._shell.feed(message, lambda: self._came.pop(message, None))

    async def _keep_authority(self) -> None:
        """Write what the coordinator knows of members as it comes, and again where the disk refuses: who was thrown out
        is said once."""
        while True:
            await self._authority_news.wait()
            self._authority_news.clear()
            assert self._authority_files is not None
            try:
                await behind_lock(self._take_authority, self._authority_files)
            except (OSError, MeshError) as error:
                log.error("what the coordinator knows of members is not written: %s", error)
                self._authority_news.set()
                await asyncio.sleep(AUTHORITY_S)

    def _take_authority(self, body: AuthorityFiles) -> None:
        """Write what the coordinator knows of members: tokens and revocations have to hold here, too."""
        with FileLock(self._authority / "lock"):
            for file in body.files:
                path = self._authority / file.name
                if Path(file.name).name != file.name or (path.exists() and path.read_bytes() == file.data):
                    continue
                Disk().write_whole(path, [file.data])

    # -- the Handler

    async def on_request(self, link: Link, body: Message) -> Message:
        assert isinstance(body, Vote)  # the table of permissions names no other
        return await self._shell.vote(link, body)

    def on_notify(self, link: Link, body: Message) -> None:
        match body:
            case JournalEntries():
                self._entries(link, body)
            case AuthorityFiles():
                self._authority_files = body
                self._authority_news.set()

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        assert isinstance(header, BlobStream)
        return self._exchange.open_stream(link, header, size_bytes)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        if isinstance(header, BlobStream):
            self._exchange.stream_done(link, header, buffer, error)

    def on_linked(self, link: Link) -> None:
        if link.peer.role == "coordinator":
            self._shell.state.meet(link.peer.node_id)

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        self._parts.pop(link, None)


def _addresses(link: Link) -> tuple[str, ...]:
    """The addresses at which the other end of a link is dialled."""
    return tuple(dict.fromkeys((*link.peer.addresses, *((link.address,) if link.address else ()))))
