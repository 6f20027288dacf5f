"""A journal that goes to a standby in several messages is there as a whole, whatever comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.machines.links import node

from coordinator.jobs.journal import Entry
from coordinator.standby import events as ev
from coordinator.standby.following import Following
from coordinator.standby.replication import MESSAGE_BYTES, Replication, _pieces
from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import SimulatedNetwork
from wire.errors import LimitExceeded
from wire.limits import DEFAULT, KIB
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import AttachStandby, JournalEntries, JournalHave, Message
from wire.protocol.messages.standby import JOURNAL_BYTES_MAX
from wire.standby.configuration import Ballot

WHOLE = ev.Entries("a", Ballot(1, "a"), 1, 0, 9, True)
NEW = Entry("job", "accepted", b"{}")
NEXT = ev.Entries("a", Ballot(1, "a"), 1, 10, 10, False)
BEAT = ev.Entries("a", Ballot(1, "a"), 1, 10, 9, False)


def entries(size_bytes: int, each: int = 32 * KIB) -> list[Entry]:
    return [Entry(f"job {number}", "accepted", bytes(each)) for number in range(size_bytes // each)]


class Follower:
    """One that follows, and notes what its machine is told with which entries."""

    def __init__(self) -> None:
        self.told: list[tuple[ev.Entries, list[Entry]]] = []
        self.following = cast(Any, Following.__new__(Following))
        self.following._parts, self.following._came = {}, {}
        self.following._shell = SimpleNamespace(feed=self.feed, state=SimpleNamespace(meet=lambda node: None))

    def feed(self, event: ev.Entries, then: Callable[[], object]) -> None:
        self.told.append((event, list(self.following._came[event].entries)))
        then()
        assert not self.following._came

    def on_notify(self, link: Link, body: Message) -> None:
        assert isinstance(body, JournalEntries)
        self.following._entries(link, body)

    def on_unlinked(self, link: Link, error: Any) -> None:
        self.following.on_unlinked(link, error)

    def on_linked(self, link: Link) -> None: ...

    on_request = on_stream_open = on_stream_done = cast(Any, None)


def sender(endpoint: Endpoint, to: str, snapshot: Sequence[Entry]) -> Any:
    replication = cast(Any, Replication.__new__(Replication))
    replication._coordinator = SimpleNamespace(endpoint=endpoint, epochs=(1, 2))
    replication._batch, replication._snapshots, replication._long = (10, [NEW]), {(to, 1): snapshot}, {}
    return replication


def follow(snapshot: Sequence[Entry], *sent: ev.Entries, cut: str = "") -> Follower:
    """What one that follows is told, to which all this is sent at once.  A link from another node may end meanwhile."""
    follower = Follower()

    async def main() -> None:
        network = SimulatedNetwork(0)
        there = Endpoint(node("b", host_id="b"), cast(Any, follower), network.carrier("b"))
        here = Endpoint(node("a", host_id="a"), cast(Any, Follower()), network.carrier("a"))
        port = await there.listen("", 0, 0)
        link = await here.dial("b", port)
        replication = sender(here, link.peer.node_id, snapshot)
        for entries in sent:
            replication._send(ev.Send(link.peer.node_id, entries))
        if cut:
            other = Endpoint(node("c", host_id="c"), cast(Any, Follower()), network.carrier("c"))
            await other.dial("b", port)
            await other.close()
        await asyncio.sleep(60)
        await here.close()
        await there.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return follower


@pytest.mark.parametrize("size_bytes", [MESSAGE_BYTES + 32 * KIB, 2 * MESSAGE_BYTES + 64 * KIB, 3 * MESSAGE_BYTES])
def test_a_short_message_at_the_end_does_not_overtake_what_belongs_before_it(size_bytes: int) -> None:
    snapshot = entries(size_bytes)
    follower = follow(snapshot, WHOLE, BEAT, BEAT)
    (whole,) = (came for told, came in follower.told if told.whole)
    assert whole == snapshot
    assert [came for told, came in follower.told if not told.whole] == [[], []]


def test_a_link_that_ends_meanwhile_takes_nothing_of_another_ones_journal_along() -> None:
    snapshot = entries(3 * MESSAGE_BYTES)
    follower = follow(snapshot, WHOLE, cut="c")
    assert [came for told, came in follower.told if told.whole] == [snapshot]


def test_all_messages_of_several_are_long_ones_which_keep_their_order() -> None:
    for size_bytes in range(0, 3 * MESSAGE_BYTES, 256 * KIB):
        pieces = [piece for piece, _ in _pieces(entries(size_bytes))]
        assert [entry for piece in pieces for entry in piece] == entries(size_bytes)
        sizes = [sum(len(entry.body) for entry in piece) for piece in pieces]
        assert len(sizes) == 1 or min(sizes) > DEFAULT.chunk_bytes_max
    assert list(_pieces([])) == [([], False)]


def test_an_entry_that_is_written_while_the_journal_is_on_its_way_comes_after_it() -> None:
    snapshot = entries(3 * MESSAGE_BYTES)
    follower = follow(snapshot, WHOLE, NEXT)
    assert [(told.whole, came) for told, came in follower.told] == [(True, snapshot), (False, [NEW])]


def test_entries_come_by_the_short_way_again_once_the_long_one_is_empty() -> None:
    there = cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="b"), closed=False))
    sent: list[tuple[JournalEntries, bool]] = []
    there.notify = lambda message, in_order: sent.append((message, in_order))
    endpoint = cast(Any, SimpleNamespace(links={"b": there}))
    replication = sender(endpoint, "b", entries(MESSAGE_BYTES))
    replication._shell = None
    for message in (WHOLE, BEAT, NEXT):
        replication._send(ev.Send("b", message))
    for stream, last in ((0, 10), (1, 9)):  # of a stream before, and before the last that went the long way
        replication._have(there, JournalHave(stream, last))
        replication._send(ev.Send("b", NEXT))
    replication._have(there, JournalHave(1, 10))
    replication._send(ev.Send("b", NEXT))
    assert [in_order for _, in_order in sent] == [True, False, True, True, True, False]


async def test_an_entry_of_an_older_version_that_fits_into_no_message_is_told_and_not_sent_again_and_again() -> None:
    told: list[ev.Event] = []

    async def stored() -> list[Entry]:
        return [NEW, Entry("long", "accepted", bytes(JOURNAL_BYTES_MAX + 1))]

    replication = cast(Any, Replication.__new__(Replication))
    replication._store, replication._snapshots = SimpleNamespace(entries=stored), {}
    replication._attaching = {"b": AttachStandby(1, ())}
    replication._file = SimpleNamespace(met=lambda node, addresses: asyncio.sleep(0))
    shell = SimpleNamespace(feed=told.append, state=SimpleNamespace(meet=lambda node: None))
    replication._begun = lambda: asyncio.sleep(0, shell)
    with pytest.raises(LimitExceeded, match="entry of long"):
        await replication._send_all("b")
    assert not told and not replication._attaching
