"""Two daemons' bridges between ring buffers, and a network between them that the test drives."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from wire.errors import MeshError, NodeLost
from wire.ir.types import Attrs
from wire.protocol.messages import Gang, Member, Message, PlanKey
from wire.system.shared_memory import SharedDir
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts
from worker.collectives.open_channels import open_rank
from worker.collectives.rank import RankCollectives
from worker.daemon.collective_bridge import Bridge
from worker.engine.protocol import never

PLAN = PlanKey(1, 4)
MEMBERS = (Member("a", 0, 0), Member("b", 1, 0))
SUM = Attrs({"axes": ("dp",), "sizes": (2,), "reduction": "sum"})


class Link:
    """One end of a link: what is sent lies in `flying` until the network delivers it."""

    def __init__(self, network: Network, node: str, here: str) -> None:
        self.peer = SimpleNamespace(node_id=node, name=node, shared_memory="")
        self.same_host, self.closed, self.address = False, False, ""
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

    def __init__(self, folder: Path, seed: int = 0, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        self.flying: list[Any] = []
        self.nodes = {}
        self._chance = random.Random(seed)
        for name in ("a", "b"):
            (folder / name).mkdir()
            links: dict[str, Any] = {}
            shared = SharedDir.create(folder / name)
            self.nodes[name] = Node(name, shared, links, Bridge(links, shared, timeouts=timeouts))

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
            buffer = target.bridge.open_stream(link, message, len(data))  # type: ignore[arg-type]
            buffer[:] = data
        except MeshError as error:
            sent.set_exception(error)
        else:
            target.bridge.stream_done(link, message, buffer, None)  # type: ignore[arg-type]
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


def prepared(network: Network, plan: PlanKey = PLAN) -> list[RankCollectives]:
    """Both ranks of a gang, as their hosts have them."""
    loop, found = asyncio.get_running_loop(), []
    for rank, node in enumerate(network.nodes.values()):
        told = node.bridge.prepare(7, plan, Gang(("dp",), (2,), rank, MEMBERS))
        directories = node.bridge.directories(7)
        assert directories[1 - rank] == ""

        def ring(bridge: Bridge = node.bridge) -> None:
            loop.call_soon_threadsafe(bridge.buffers_changed, 0)

        found.append(open_rank(told, str(node.shared.path), directories, ring))
    return found


def reducing(ranks: list[RankCollectives], arrays: list[Any], tag: int) -> Callable[[int], Any]:
    def work(rank: int) -> bytes:
        ranks[rank].begin(tag, never)
        found = ranks[rank].start("all_reduce", SUM, arrays[rank], meanwhile=False).result()
        ranks[rank].end()
        return found.tobytes()

    return work
