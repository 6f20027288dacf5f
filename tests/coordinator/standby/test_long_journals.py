"""A journal that takes long to get to a standby gets there: it is not asked for again while it comes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.machines.links import Recorder, node

from coordinator.jobs.job_store import JobStore
from coordinator.jobs.journal import Entry, Journal
from coordinator.standby import events as ev
from coordinator.standby.following import Following
from coordinator.standby.replication import Replication
from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import LAN, SimulatedNetwork
from wire.limits import KIB, MIB
from wire.link.endpoint import Endpoint
from wire.protocol.messages import AttachStandby, FetchBlob, JournalHave
from wire.standby.standby_file import StandbyFile
from wire.system.tasks import Tasks

SERVES, STANDBY = "serves", "standby"
ENTRIES, ENTRY_BYTES = 512, 16 * KIB  # 8 MiB


class Server(Recorder):
    """The handler of a coordinator, as far as a standby asks it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[type, Any] = {FetchBlob: None}
        self.notices: dict[type, Any] = {}
        self.attached = 0

    def on_notify(self, link: Any, body: Any) -> None:
        self.attached += isinstance(body, AttachStandby)
        if isinstance(body, (AttachStandby, JournalHave)):
            self.notices[type(body)](link, body)

    async def on_request(self, link: Any, body: Any) -> Any:
        return await self.requests[type(body)](link, body)


def written(folder: Path) -> list[Entry]:
    """A journal of some MiB in this folder."""
    journal, _ = Journal.open(folder)
    body = b'{"text": "' + b"x" * ENTRY_BYTES + b'"}'
    entries = [Entry(f"job {number}", "accepted", body) for number in range(ENTRIES)]
    journal.write(entries)
    journal.close()
    return entries


@pytest.mark.parametrize("bytes_per_s", [8 * MIB, 1 * MIB, 64 * KIB])
def test_it_comes_over_a_slow_link(bytes_per_s: int, tmp_path: Path) -> None:
    entries = written(tmp_path / SERVES / "jobs")
    server = Server()

    async def main() -> None:
        network = SimulatedNetwork(0)
        network.set_way(SERVES, STANDBY, replace(LAN, bytes_per_s=float(bytes_per_s)))
        here = Endpoint(node(SERVES, host_id=SERVES, role="coordinator"), server, network.carrier(SERVES))
        port = await here.listen(SERVES, 0, 0)
        store, _ = JobStore.open(tmp_path / SERVES / "jobs", 1)
        coordinator: Any = SimpleNamespace(
            endpoint=here, identity=here.identity, epoch=1, epochs=(1,), descends=lambda epochs: None,
            requests=server.requests, notices=server.notices, nodes=list,
        )  # fmt: skip
        over: list[str] = []
        (tmp_path / STANDBY).mkdir()
        (tmp_path / "members.json").write_text("{}")
        file = StandbyFile(tmp_path / SERVES)
        replication = Replication(coordinator, store, file, tmp_path, (), over.append)

        def endpoint(handler: Any) -> Endpoint:
            return Endpoint(node(STANDBY, host_id=STANDBY, role="coordinator"), handler, network.carrier(STANDBY))

        following = Following(
            endpoint, tmp_path / STANDBY, tmp_path, [f"{SERVES}:{port}"], lambda _: (), False, over.append,
            wall=asyncio.get_running_loop().time,
        )  # fmt: skip
        running = asyncio.create_task(following.run())
        try:
            async with asyncio.timeout(3 * (10 + ENTRIES * ENTRY_BYTES / bytes_per_s)):
                while not file.exists or len((file.remembered.record.configuration or _NOBODY).in_sync) < 2:
                    assert not running.done()
                    await asyncio.sleep(0.1)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            replication.close()
            await here.close()
            await store.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    journal, copied = Journal.open(tmp_path / STANDBY / "jobs")
    journal.close()
    assert copied == entries
    assert server.attached <= 3


async def test_it_is_read_once_for_a_standby_that_asks_again_meanwhile() -> None:
    reads, told = list[asyncio.Future[list[Entry]]](), list[ev.Event]()
    link: Any = SimpleNamespace(peer=SimpleNamespace(node_id=STANDBY))

    def stored() -> asyncio.Future[list[Entry]]:
        reads.append(asyncio.get_running_loop().create_future())
        return reads[-1]

    def feed(event: ev.Event, then: Any) -> None:
        assert replication._snapshots == {(STANDBY, event.stream): []}
        told.append(event)
        then()

    shell = SimpleNamespace(feed=feed, state=SimpleNamespace(meet=lambda node: None))
    replication: Any = Replication.__new__(Replication)
    replication._tasks, replication._attaching, replication._snapshots = Tasks(), {}, {}
    replication._store, replication._sent_authority = SimpleNamespace(entries=stored), {}
    replication._file = SimpleNamespace(met=lambda node, addresses: asyncio.sleep(0))
    replication._begun = lambda: asyncio.sleep(0, shell)
    for stream in range(1, 10):
        replication._attach(link, AttachStandby(stream, ()))
        await asyncio.sleep(0.01)
    (read,) = reads
    read.set_result([])
    await asyncio.gather(*replication._tasks)
    assert told == [ev.Attach(STANDBY, 9)] and not replication._snapshots
    replication._attach(link, AttachStandby(10, ()))
    await asyncio.sleep(0.01)
    assert len(reads) == 2
    replication._tasks.cancel()


_NOBODY: Any = SimpleNamespace(in_sync=())
