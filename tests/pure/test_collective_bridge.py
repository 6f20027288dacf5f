"""The daemons' bridge between mailboxes of two machines, over links that reorder, end and come back."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from wire.errors import ConnectFailed, MeshError, NodeLost, OutOfMemory, ProtocolError, StaleGeneration
from wire.messages import Gang, Letter, LettersRead, Member, Message, PlanKey
from wire.sharedmem import SharedDir
from wire.types import Attrs
from worker.collectives.bridge import Bridge, name_of
from worker.collectives.opening import ranks_of
from worker.collectives.ranks import Ranks
from worker.engine import never

PLAN = PlanKey(1, 4)
MEMBERS = (Member("a", 0, 0), Member("b", 1, 0))
SUM = Attrs({"axes": ("dp",), "sizes": (2,), "reduction": "sum"})


class Link:
    """One end of a link: what is sent lies in `flying` until the network delivers it."""

    def __init__(self, network: Network, node: str, here: str) -> None:
        self.peer = SimpleNamespace(node_id=node, shared_memory="")
        self.same_host, self.closed = False, False
        self._network, self._here = network, here

    def notify(self, message: Message) -> None:
        self._network.flying.append((self, self._here, message, None, None))

    async def send_stream(self, header: Message, data: memoryview) -> None:
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._network.flying.append((self, self._here, header, bytes(data), sent))
        await sent


@dataclass(slots=True)
class Node:
    name: str
    shared: SharedDir
    links: dict[str, Any]
    bridge: Bridge


class Network:
    """Two daemons and what is between them; messages arrive in any order."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.flying: list[Any] = []
        self.nodes = {}
        self._chance = random.Random(seed)
        for name in ("a", "b"):
            (folder / name).mkdir()
            links: dict[str, Any] = {}
            shared = SharedDir.create(folder / name)
            self.nodes[name] = Node(name, shared, links, Bridge(links, shared))

    def connect(self) -> None:
        for name, other in (("a", "b"), ("b", "a")):
            self.nodes[name].links[other] = Link(self, other, name)
        for name, other in (("a", "b"), ("b", "a")):
            self.nodes[name].bridge.linked(other)

    def cut(self) -> None:
        """The link ends, and what flies is lost."""
        for node in self.nodes.values():
            for link in node.links.values():
                link.closed = True
            node.links.clear()
        lost, self.flying = self.flying, []
        for _, _, _, _, sent in lost:
            if sent is not None and not sent.done():
                sent.set_exception(NodeLost("the link ended"))

    def deliver(self) -> None:
        """One of what flies."""
        _, source, message, data, sent = self.flying.pop(self._chance.randrange(len(self.flying)))
        target = self.nodes["b" if source == "a" else "a"]
        link = Link(self, source, target.name)
        if data is None:
            target.bridge.take(link, message)  # type: ignore[arg-type]
            return
        try:
            target.bridge.open_stream(link, message, len(data))[:] = data  # type: ignore[arg-type]
        except MeshError as error:
            sent.set_exception(error)
        else:
            target.bridge.stream_done(message, None)
            sent.set_result(None)

    async def run(self, work: Callable[[int], Any], cuts: int = 0) -> list[Any]:
        """What `work(rank)` gives or raises, each in a thread, while messages arrive."""
        results: list[Any] = [None, None]

        def caught(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except MeshError as error:
                results[rank] = error

        threads = [threading.Thread(target=caught, args=(rank,), daemon=True) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        turns = 0
        while any(thread.is_alive() for thread in threads):
            for _ in range(self._chance.randrange(4)):
                if self.flying:
                    self.deliver()
            turns += 1
            if cuts and turns % 40 == 0:
                self.cut()
                self.connect()
                cuts -= 1
            await asyncio.sleep(0.0005)
        while self.flying:
            self.deliver()
            await asyncio.sleep(0)
        return results


def prepared(network: Network, plan: PlanKey = PLAN) -> list[Ranks]:
    """Both ranks of a gang, as their hosts have them."""
    loop, found = asyncio.get_running_loop(), []
    for rank, node in enumerate(network.nodes.values()):
        told = node.bridge.prepare(7, plan, Gang(("dp",), (2,), rank, MEMBERS))
        inboxes = node.bridge.inboxes(7)
        assert inboxes[1 - rank] == ""

        def ring(bridge: Bridge = node.bridge) -> None:
            loop.call_soon_threadsafe(bridge.rang, 0)

        found.append(ranks_of(told, str(node.shared.path), inboxes, ring))
    return found


@pytest_asyncio.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    made = Network(tmp_path)
    made.connect()
    yield made
    for node in made.nodes.values():
        node.bridge.close()
        node.shared.close()


def reducing(ranks: list[Ranks], arrays: list[Any], tag: int) -> Callable[[int], Any]:
    def work(rank: int) -> bytes:
        ranks[rank].begin(tag, never)
        found = ranks[rank].start("all_reduce", SUM, arrays[rank], meanwhile=False).result()
        ranks[rank].end()
        return found.tobytes()

    return work


async def test_letters_arrive_in_any_order_and_are_read_in_theirs(network: Network) -> None:
    ranks = prepared(network)
    for tag, size in enumerate((3, 5000, 3_000_000), 1):
        arrays = [np.random.default_rng([rank, tag]).standard_normal(size).astype(np.float32) for rank in (0, 1)]
        assert await network.run(reducing(ranks, arrays, tag)) == [(arrays[0] + arrays[1]).tobytes()] * 2


async def test_what_a_link_lost_is_sent_again(network: Network) -> None:
    ranks = prepared(network)
    arrays = [np.random.default_rng(rank).standard_normal(3_000_000).astype(np.float32) for rank in (0, 1)]
    assert await network.run(reducing(ranks, arrays, 1), cuts=5) == [(arrays[0] + arrays[1]).tobytes()] * 2


async def test_who_gives_up_is_heard_on_the_other_machine_and_the_next_step_is_clean(network: Network) -> None:
    ranks = prepared(network)
    arrays = [np.ones(1000, np.float32)] * 2
    good = reducing(ranks, arrays, 3)

    def fails(rank: int) -> Any:
        if rank == 1:
            ranks[1].begin(2, never)
            ranks[1].fail(OutOfMemory("no room", node="b"))
            return None
        return reducing(ranks, arrays, 2)(0)

    failed = (await network.run(fails))[0]
    assert isinstance(failed, OutOfMemory)
    assert failed.node == "b"
    ranks[0].fail(failed)
    assert await network.run(good) == [(arrays[0] + arrays[1]).tobytes()] * 2


async def test_mailboxes_go_with_the_last_part_that_has_them(network: Network) -> None:
    prepared(network)
    node = network.nodes["a"]
    second = Gang(("tp",), (2,), 0, (Member("a", 2, 0), Member("b", 3, 0)))
    node.bridge.prepare(8, PLAN, second)
    files = {path.name for path in node.shared.path.iterdir()} - {"lock"}
    assert files == {name_of(PLAN, MEMBERS[0], MEMBERS[1]), name_of(PLAN, MEMBERS[1], MEMBERS[0])}
    node.bridge.unprepare(7)
    assert {path.name for path in node.shared.path.iterdir()} - {"lock"} == files
    node.bridge.unprepare(8)
    assert {path.name for path in node.shared.path.iterdir()} == {"lock"}


async def test_letters_of_a_plan_that_is_over_or_without_a_place_are_refused(network: Network) -> None:
    prepared(network)
    bridge, link = network.nodes["b"].bridge, Link(network, "a", "b")
    mine, other = name_of(PLAN, MEMBERS[0], MEMBERS[1]), name_of(PlanKey(9, 9), MEMBERS[0], MEMBERS[1])
    with pytest.raises(StaleGeneration):
        bridge.open_stream(link, Letter(other, 0), 500)  # type: ignore[arg-type]
    for number, size in ((8, 500), (0, 3), (0, 1 << 20)):
        with pytest.raises(ProtocolError):
            bridge.open_stream(link, Letter(mine, number), size)  # type: ignore[arg-type]
    with pytest.raises(StaleGeneration):
        bridge.open_stream(Link(network, "c", "b"), Letter(mine, 0), 500)  # type: ignore[arg-type]
    for message in (Letter(other, 0, bytes(200)), LettersRead(other, 5), LettersRead(mine, 1 << 40)):
        bridge.take(link, message)  # type: ignore[arg-type]


async def test_a_gang_whose_workers_are_not_linked_is_an_error_that_says_so(network: Network) -> None:
    network.cut()
    bridge = network.nodes["a"].bridge
    bridge.prepare(7, PLAN, Gang(("dp",), (2,), 0, MEMBERS))
    with pytest.raises(ConnectFailed, match="no link"):
        bridge.inboxes(7)
