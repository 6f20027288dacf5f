"""Replication: what a coordinator that serves does for its standby: it streams its journal, and answers for it.

Until a standby attaches for the first time there is nothing of all this, and no entry waits for a standby.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from wire.deadlines import STANDBY_ACKNOWLEDGED
from wire.errors import ConnectFailed, MeshError, NotDurable
from wire.limits import DEFAULT
from wire.link.link import Link
from wire.protocol.messages import (
    AttachStandby,
    AuthorityFile,
    AuthorityFiles,
    Blob,
    Coordinators,
    FetchBlob,
    JournalDenied,
    JournalEntries,
    JournalEntry,
    JournalHave,
    Message,
    Vote,
)
from wire.standby.in_messages import ballot_field, ballot_of
from wire.standby.standby_file import StandbyFile
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks
from wire.transfer.content_exchange import BlobExchange

from ..coordinator import Coordinator
from ..jobs.job_store import JobStore, check_size
from ..jobs.journal import Entry
from . import events as ev
from .shell import StandbyShell
from .state import StandbyTimes

log = steady_logger("graph_mesh.standby")

ACKNOWLEDGED_S = STANDBY_ACKNOWLEDGED.seconds  # without an answer of standby or voters, an entry is then refused
MESSAGE_BYTES = 4 << 20  # of entries in one message, after which the next one begins
LONG_BYTES = DEFAULT.chunk_bytes_max // 2  # of entries: such a message may take the way of long ones
ARBITERS_MAX = 3


class Replication:
    """The replication of `coordinator`, whose jobs are in `store`.

    `arbiters` are the names of the workers that vote; none: up to three that are connected, an odd number.  `over` is
    called, with the reason, when another coordinator took over: from then on nothing may be acknowledged or said any
    more.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: JobStore,
        file: StandbyFile,
        authority: Path,
        arbiters: Sequence[str],
        over: Callable[[str], None],
        times: StandbyTimes = StandbyTimes(),
    ) -> None:
        self._coordinator, self._store, self._file, self._authority = coordinator, store, file, authority
        self._named = tuple(arbiters)
        self._arbiters = frozenset[str]()
        self._over = over
        self._times = times
        self._shell: StandbyShell | None = None
        self._beginning = asyncio.Lock()
        self._tasks = Tasks()
        self._acknowledged = -1  # requests up to this entry may be answered
        self._count = 1  # entries since this coordinator serves; everything before counts as one
        self._batch: tuple[int, Sequence[Entry]] = (0, ())  # the number of its first, and the newest entries
        self._attaching: dict[str, AttachStandby] = {}  # by node, its newest word while the journal is read
        self._snapshots: dict[tuple[str, int], Sequence[Entry]] = {}  # by node and stream, while it attaches
        self._long: dict[str, tuple[int, int]] = {}  # by node, the stream and the last entry of a long message to it
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._informed: dict[str, tuple[Link, tuple[str, ...]]] = {}
        self._sent_authority: dict[Link, tuple[AuthorityFile, ...]] = {}  # what was sent is lost where its link ends
        self._content = BlobExchange(None, store.view)
        self._serve_blobs = coordinator.requests[FetchBlob]
        coordinator.requests[FetchBlob] = self._fetched
        coordinator.requests[Vote] = self._vote
        coordinator.notices[AttachStandby] = self._attach
        coordinator.notices[JournalHave] = self._have
        coordinator.notices[JournalDenied] = self._denied

    def close(self) -> None:
        self._tasks.cancel()

    async def go_on(self, shell: StandbyShell) -> None:
        """Go on with the shell of the time before this coordinator served, where it followed another one.  Entries wait
        for what its machine says from now on.  NotDurable if the disk refuses, and then nothing has begun."""
        epochs = tuple(dict.fromkeys((*self._file.remembered.epochs, self._coordinator.epoch)))[-256:]
        await self._file.change(epochs=epochs)  # before a worker hears of it
        self._coordinator.descends(epochs)
        self._shell = shell
        shell.attach(
            self._link_to,
            {
                ev.Send: self._send,
                ev.Acknowledge: self._acknowledge,
                ev.Serve: lambda action: shell.feed(ev.Wrote(self._count)),
                ev.StepDown: lambda action: self._step_down(action.why),
            },
        )
        shell.feed(ev.Wrote(self._count) if shell.state.serving else ev.Begin())
        self._store.replicate = self._replicate
        self._tasks.keep("looking after a standby", shell.run)
        self._tasks.keep("looking for voters", self._look_around)

    # -- entries

    async def _replicate(self, entries: Sequence[Entry]) -> None:
        """Return once these entries, which are on this disk, are where they have to be."""
        shell = self._shell
        assert shell is not None
        self._batch = self._count + 1, entries
        self._count += len(entries)
        shell.feed(ev.Wrote(self._count))
        if self._acknowledged >= self._count:
            return
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._count, acknowledged))
        try:
            async with asyncio.timeout(ACKNOWLEDGED_S):
                await acknowledged
        except TimeoutError:
            raise NotDurable(
                "the standby does not answer, and there is no majority of voters to leave it out",
                next_step="Start it again, or more of the voters; what was asked for may be done all the same",
            ) from None

    def _acknowledge(self, action: ev.Acknowledge) -> None:
        self._acknowledged = action.last
        for _, waiting in [each for each in self._waiting if each[0] <= action.last]:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting = [each for each in self._waiting if each[0] > action.last]

    def _step_down(self, why: str) -> None:
        for _, waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(NotDurable(f"another coordinator serves this mesh: {why}"))
        self._waiting.clear()
        self._over(why)

    async def _link_to(self, node: str) -> Link:
        endpoint = self._coordinator.endpoint
        link = endpoint.links.get(node)
        if link is not None and not link.closed:
            return link
        workers = {each.node_id: each.addresses for each in self._coordinator.nodes()}
        addresses = self._file.remembered.peers.get(node) or workers.get(node)
        if not addresses:
            raise ConnectFailed(f"{node} has no link, and no address of it is known")
        return await endpoint.reach(addresses, node)

    def _send(self, send: ev.Send) -> None:
        message, link = send.message, self._coordinator.endpoint.links.get(send.node)
        if not isinstance(message, ev.Entries):
            return
        first, batch = self._batch
        entries = self._snapshots.get((send.node, message.stream), ()) if message.whole else ()
        if not message.whole and message.last >= message.first:
            if message.first != first:
                return  # the standby notices, and asks for everything
            entries = batch
        if link is None or link.closed:
            return
        long = sum(len(entry.body) + len(entry.job) for entry in entries) > LONG_BYTES
        in_order = long or (bool(entries) and send.node in self._long)  # else it would overtake a long one
        if in_order:
            self._long[send.node] = message.stream, message.last
        for piece, more in _pieces(entries):
            epochs = self._coordinator.epochs if message.whole and not more else ()
            link.notify(
                JournalEntries(
                    ballot_field(message.ballot), message.stream, message.first, message.last, message.whole, more,
                    epochs, tuple(JournalEntry(entry.job, entry.kind, entry.body) for entry in piece),
                ),
                in_order,
            )  # fmt: skip

    # -- what standbys say

    async def _vote(self, link: Link, body: Vote) -> Message:
        shell = await self._begun()
        return await shell.vote(link, body)

    async def _begun(self) -> StandbyShell:
        """The shell; if there is none, begin to have a standby: nobody can have taken over from a coordinator that had
        none."""
        async with self._beginning:
            if self._shell is None:
                node = self._coordinator.identity.node_id
                await self.go_on(StandbyShell(node, (), self._file, self._over, self._times))
            assert self._shell is not None
            return self._shell

    def _attach(self, link: Link, body: AttachStandby) -> None:
        node = link.peer.node_id
        reads = node in self._attaching
        self._attaching[node] = body
        if not reads:
            self._tasks.run("sending the journal", self._send_all(node), _not_sent)

    async def _send_all(self, node: str) -> None:
        try:
            shell = await self._begun()
            shell.state.meet(node)
            await self._file.met(node, self._attaching[node].addresses)  # before it is in sync
            entries = await self._store.entries()  # with all that was written before, and no more than is counted
            for entry in entries:  # of an older version, whose entries had no limit
                check_size(entry.job, len(entry.body))
        finally:
            stream = self._attaching.pop(node).stream
        self._sent_authority.clear()
        self._snapshots[node, stream] = entries
        shell.feed(ev.Attach(node, stream), lambda: self._snapshots.pop((node, stream), None))

    def _have(self, link: Link, body: JournalHave) -> None:
        stream, last = self._long.get(link.peer.node_id, (0, 0))
        if body.stream > stream or (body.stream == stream and body.last >= last):
            self._long.pop(link.peer.node_id, None)
        if self._shell is not None:
            self._shell.feed(ev.Have(link.peer.node_id, body.stream, body.last))

    def _denied(self, link: Link, body: JournalDenied) -> None:
        if self._shell is not None:
            self._shell.feed(ev.Denied(link.peer.node_id, ballot_of(body.promised)))

    async def _fetched(self, link: Link, body: FetchBlob) -> Message:
        """Content of jobs for standbys; for all others what the coordinator holds."""
        if link.peer.role != "coordinator":
            return await self._serve_blobs(link, body)
        answer: Blob = await self._content.serve(link, body)
        return answer

    # -- voters, and who has to know of standbys

    async def _look_around(self) -> None:
        while True:
            self._choose_arbiters()
            self._tell_of_standbys()
            await self._send_authority()
            await asyncio.sleep(self._times.beat_s)

    def _choose_arbiters(self) -> None:
        """Name the workers that vote: those that were are kept while they are connected."""
        shell = self._shell
        assert shell is not None
        nodes = {node.node_id: node.name for node in self._coordinator.nodes() if node.state not in ("dead", "left")}
        here = sorted(node for node, name in nodes.items() if not self._named or name in self._named)
        here.sort(key=lambda node: node not in self._arbiters)
        most = len(self._named) or ARBITERS_MAX
        chosen = frozenset(here[: min(most, len(here) - 1 + len(here) % 2)])
        if len(chosen) >= len(self._arbiters) and chosen != self._arbiters:
            self._arbiters = chosen
            log.info("workers that vote on who serves: %s", ", ".join(nodes[node] for node in sorted(chosen)))
            shell.feed(ev.Named(chosen))

    def _tell_of_standbys(self) -> None:
        addresses = tuple(address for each in self._file.remembered.peers.values() for address in each)[:32]
        links = self._coordinator.endpoint.links
        for node, link in links.items():
            if link.peer.role != "coordinator" and self._informed.get(node) != (link, addresses) and not link.closed:
                self._informed[node] = link, addresses
                with contextlib.suppress(MeshError):  # an older node has no word for it
                    link.notify(Coordinators(addresses))
        for node in self._informed.keys() - links.keys():
            del self._informed[node]

    async def _send_authority(self) -> None:
        """Send the files of the authority to standbys whenever one of them has changed, and over each new link."""
        links, attached = self._coordinator.endpoint.links, self._file.remembered.peers
        standbys = [links[node] for node in attached if node in links and links[node].peer.role == "coordinator"]
        if not standbys:
            return
        try:
            files = await asyncio.to_thread(_authority_files, self._authority)
        except OSError as error:
            log.error("the files of the authority cannot be read: %s", error)
            return
        self._sent_authority = {link: sent for link, sent in self._sent_authority.items() if not link.closed}
        for link in standbys:
            if not link.closed and self._sent_authority.get(link) != files:
                link.notify(AuthorityFiles(files))
                self._sent_authority[link] = files


def _not_sent(error: MeshError) -> None:
    log.warning("the journal is not sent to a standby: %s", error)


def _authority_files(folder: Path) -> tuple[AuthorityFile, ...]:
    names = [path for path in sorted(folder.glob("authority*")) if path.suffix in (".key", ".pem")]
    return tuple(AuthorityFile(path.name, path.read_bytes()) for path in [*names, folder / "members.json"])


def _pieces(entries: Iterable[Entry]) -> Iterator[tuple[list[Entry], bool]]:
    """The entries of each message, and whether more follow; at least one message.

    Of several messages each is a long one: those keep their order, and a short one would overtake them.
    """
    pieces: list[list[Entry]] = [[]]
    size_bytes = 0
    for entry in entries:
        if size_bytes > MESSAGE_BYTES:
            pieces.append([])
            size_bytes = 0
        pieces[-1].append(entry)
        size_bytes += len(entry.body)
    if len(pieces) > 1 and size_bytes <= DEFAULT.chunk_bytes_max:
        last = pieces.pop()
        pieces[-1] += last
    for number, piece in enumerate(pieces, 1):
        yield piece, number < len(pieces)
