"""A standby follows its coordinator by any address that it announces, finds out about links that died without a word,
and tells where it can be dialled by now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.machines.links import Recorder, node
from support.processes.commands import COMES_TRUE_S
from support.processes.fault_proxy import FaultProxy

from coordinator.jobs.job_store import JobStore
from coordinator.standby.following import Following
from coordinator.standby.replication import Replication
from coordinator.standby.state import StandbyTimes
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import AttachStandby, FetchBlob, JournalHave
from wire.security.user_secret import user_secret
from wire.standby.standby_file import StandbyFile
from wire.timeouts import Timeouts

SERVES, STANDBY = "serves", "standby"
TIMES = Timeouts(keepalive_idle_s=0.5, keepalive_program_answer_s=3.0, reconnect_first_s=0.1, reconnect_most_s=0.2)
assert TIMES.keepalive_program_answer_s > StandbyTimes().patience_s  # whoever was silent for that long is asked anew


class Server(Recorder):
    """The handler of a coordinator, as far as a standby asks it.  `attached` are the addresses that standbys told."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[type, Any] = {FetchBlob: None}
        self.notices: dict[type, Any] = {}
        self.attached: list[tuple[str, ...]] = []

    def on_notify(self, link: Any, body: Any) -> None:
        if isinstance(body, AttachStandby):
            self.attached.append(tuple(body.addresses))
        if isinstance(body, (AttachStandby, JournalHave)):
            self.notices[type(body)](link, body)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(COMES_TRUE_S):
        while not holds():
            await asyncio.sleep(0.05)


class World:
    """A coordinator that serves, and a standby that was given the address of a proxy before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Server()
        self.here = Endpoint(node(SERVES, role="coordinator"), self.server, timeouts=TIMES)
        self.standbys_addresses: tuple[str, ...] = ("10.0.0.7:7100",)
        self.proxy: FaultProxy
        self.stack = ExitStack()

    def close_proxy(self) -> None:
        self.stack.close()

    @property
    def link(self) -> Link | None:
        """The coordinator's link to the standby."""
        return self.here.links.get(f"id-{STANDBY}")

    def remembered(self) -> tuple[str, ...]:
        """Where the standby remembers the coordinator."""
        return StandbyFile(self.folder / STANDBY).remembered.peers.get(f"id-{SERVES}", ())

    def in_sync(self) -> bool:
        """Whether the standby may take over, as far as it knows: only then does it miss a coordinator."""
        configuration = StandbyFile(self.folder / STANDBY).remembered.record.configuration
        return configuration is not None and len(configuration.in_sync) == 2

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[None]:
        for name in (SERVES, STANDBY):
            (self.folder / name).mkdir()
        (self.folder / "members.json").write_text("{}")
        port = await self.here.listen("127.0.0.1", 0, 0)
        store, _ = await asyncio.to_thread(JobStore.open, self.folder / SERVES / "jobs", 1)
        coordinator: Any = SimpleNamespace(
            endpoint=self.here, identity=self.here.identity, epoch=1, epochs=(1,), descends=lambda epochs: None,
            requests=self.server.requests, notices=self.server.notices, nodes=list,
        )  # fmt: skip
        over: list[str] = []
        file = StandbyFile(self.folder / SERVES)
        replication = Replication(coordinator, store, file, self.folder, (), over.append)
        self.proxy = self.stack.enter_context(FaultProxy(("127.0.0.1", port), secret=user_secret()))

        def endpoint(handler: Any) -> Endpoint:
            return Endpoint(node(STANDBY, role="coordinator"), handler, timeouts=TIMES)

        following = Following(
            endpoint, self.folder / STANDBY, self.folder, [self.proxy.address],
            lambda _: self.standbys_addresses, False, over.append,
        )  # fmt: skip
        running = asyncio.create_task(following.run())
        try:
            await until(lambda: running.done() or self.in_sync())
            assert not running.done() and not over
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            replication.close()
            await self.here.close()
            await store.close()
            self.stack.close()


async def test_it_follows_by_another_address_of_its_coordinator_when_the_given_one_is_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.follow():
        (direct,) = world.here.identity.addresses
        assert set(world.remembered()) == {world.proxy.address, direct}
        passed, before = len(world.proxy.connections), world.link
        world.here.advertise([direct, "127.0.0.1:7199"])
        world.close_proxy()
        await until(lambda: world.link not in (None, before))
        assert passed and len(world.proxy.connections) == passed
        await until(lambda: set(world.remembered()) == {direct, "127.0.0.1:7199"})


async def test_a_link_that_died_without_a_word_is_dialled_anew_and_who_moved_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.follow():
        assert set(world.server.attached) == {("10.0.0.7:7100",)}
        attached = len(world.server.attached)
        world.standbys_addresses = ("10.0.0.8:7100",)
        for connection in range(len(world.proxy.connections)):
            world.proxy.change(connection=connection, stalled=True)
        await until(lambda: len(world.server.attached) > attached)
        assert world.server.attached[-1] == ("10.0.0.8:7100",)
