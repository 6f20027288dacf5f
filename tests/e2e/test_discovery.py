"""Nodes find their own mesh by mDNS on the loopback interface, and no other mesh; a list of addresses does as well."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.lan.multicast import needs_multicast
from support.machines.links import Recorder
from support.processes.commands import PATIENT_S, daemon, environment, wait_for
from support.promised import within
from support.waiting import until

from mesh import Mesh, errors
from wire.discovery.announcements import Candidate
from wire.discovery.mdns import Announcer, Browser, discover
from wire.link.identity import identity_here
from wire.link.interfaces import Interface
from wire.link.websocket_carrier import Endpoint
from wire.security.user_secret import new_secret

APPEAR_S = 60.0
FOUND_S = 5.0  # promised
WORKER = ("worker", "--port", "0", "--device", "cpu")


@pytest.fixture
def mesh() -> str:
    """A name that no other test, and nobody else on this machine, uses."""
    return f"discovery-{secrets.token_hex(4)}"


@contextlib.asynccontextmanager
async def browsing(mesh: bytes | str, role: str = "", **options: Any) -> AsyncIterator[dict[str, Candidate]]:
    """The candidates that are there, by label, kept up to date."""
    present: dict[str, Candidate] = {}
    browser = Browser(
        mesh,
        lambda candidate: present.update({candidate.label: candidate}),
        lambda candidate: present.pop(candidate.label),
        role,
        **options,
    )
    await browser.start()
    try:
        yield present
    finally:
        await browser.close()


def hosts(present: dict[str, Candidate]) -> list[tuple[tuple[str, ...], str]]:
    return sorted((candidate.addresses, candidate.role) for candidate in present.values())


@needs_multicast
async def test_a_node_appears_to_its_own_mesh_and_goes_when_it_says_goodbye(mesh: str) -> None:
    async with browsing(mesh) as own, browsing(f"{mesh}-other") as other:
        async with Announcer(identity_here("worker", mesh, "kitchen", None), 7123):
            await until(lambda: hosts(own) == [(("127.0.0.1:7123",), "worker")], APPEAR_S)
        await until(lambda: not own, APPEAR_S)
        assert not other


@needs_multicast
async def test_a_browser_may_ask_for_one_role(mesh: str) -> None:
    async with (
        browsing(mesh, "coordinator") as coordinators,
        Announcer(identity_here("worker", mesh, "a", None), 7124),
        Announcer(identity_here("coordinator", mesh, "b", None), 7125),
    ):
        await until(lambda: bool(coordinators), APPEAR_S)
        assert hosts(coordinators) == [(("127.0.0.1:7125",), "coordinator")]


@needs_multicast
async def test_candidates_come_as_they_are_found_and_no_longer_than_was_asked(mesh: str) -> None:
    async with Announcer(identity_here("worker", mesh, "kitchen", None), 7126):
        async for candidate in discover(mesh, wait_s=APPEAR_S):
            assert (candidate.addresses, candidate.role) == (("127.0.0.1:7126",), "worker")
            break
    assert [candidate async for candidate in discover(f"{mesh}-other", wait_s=0.05)] == []


@needs_multicast
def test_a_started_worker_is_discovered_and_works(mesh: str, tmp_path: Path) -> None:
    with daemon(
        *WORKER, "--mesh", mesh, "--name", "kitchen", env=environment(tmp_path), log=tmp_path / "log"
    ) as worker:
        with Mesh.builder().mesh(mesh).discover(wait_s=APPEAR_S).node_timeout(PATIENT_S).build() as found:
            wait_for(lambda: [(node.name, node.state) for node in found.nodes] == [("kitchen", "healthy")])
            assert found.run(lambda x: x + 1, 1.0, mode="on") == 2.0
        with pytest.raises(errors.ConnectFailed, match="0 of at least 1 worker"):
            Mesh.builder().mesh(f"{mesh}-other").discover(wait_s=1.0).build()
        assert worker.stop(signal.SIGTERM) == 0


@needs_multicast
async def test_who_announces_itself_as_a_worker_of_this_user_and_is_none_is_not_taken_for_one(
    mesh: str, tmp_path: Path
) -> None:
    """Whoever knows the mesh's name can announce: an imposter beside the worker, one that hangs up, and one that says
    that the worker is a coordinator."""
    imposter = Endpoint(identity_here("worker", mesh, "mallory", None), Recorder(), secret=new_secret())
    port = await imposter.listen("127.0.0.1", 0)
    silent = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    words, env = ("--mesh", mesh, "--name", "kitchen"), environment(tmp_path)
    with daemon(*WORKER, *words, env=env, log=tmp_path / "log") as worker:
        async with (
            Announcer(imposter.identity, port),
            Announcer(identity_here("worker", mesh, "gone", None), silent.sockets[0].getsockname()[1]),
            Announcer(identity_here("coordinator", mesh, "boss", None), worker.ready["port"]),
        ):
            builder = Mesh.builder().mesh(mesh).node_timeout(PATIENT_S)
            found = await asyncio.to_thread(builder.discover(wait_s=APPEAR_S).build)
            assert [node.name for node in found.nodes] == ["kitchen"]
            assert await asyncio.to_thread(found.run, lambda x: x + 1, 1.0) == 2.0
            await asyncio.to_thread(found.close)
            second = builder.discover(wait_s=APPEAR_S / 10, min_nodes=2).build
            with pytest.raises(errors.ConnectFailed, match="1 of at least 2") as caught:
                await asyncio.to_thread(second)
            assert "is no node of yours" in str(caught.value.cause)
    assert not imposter.links
    await imposter.close()
    silent.close()


@needs_multicast
def test_a_worker_that_comes_later_joins_and_one_that_exits_has_left(mesh: str, tmp_path: Path) -> None:
    env = environment(tmp_path)
    with Mesh.builder().mesh(mesh).discover(wait_s=0.1, min_nodes=0).build() as found:
        assert found.nodes == ()
        with daemon(*WORKER, "--mesh", mesh, "--name", "late", env=env, log=tmp_path / "log") as worker:
            with within(FOUND_S, "a worker that came is found"):
                wait_for(lambda: [node.state for node in found.nodes] == ["healthy"])
            with within(FOUND_S, "a worker that exits is gone"):
                worker.stop(signal.SIGTERM)
                wait_for(lambda: [node.state for node in found.nodes] == ["left"])


# -- members, here on a machine without a network


@needs_multicast
async def test_what_a_member_announces_names_nobody() -> None:
    identity = identity_here("coordinator", "secret-mesh", "kitchen", None)
    loop = asyncio.get_running_loop()
    with listening() as sock:
        async with Announcer(identity, 7127, bytes(32), "::", look=list):
            packets = [await loop.sock_recv(sock, 9000) for _ in range(3)]
    ours = [packet for packet in packets if b"_graph-mesh" in packet]
    assert ours
    names = (identity.mesh, identity.name, identity.node_id, identity.role, identity.version, socket.gethostname())
    for packet in ours:
        assert not [name for name in names if name.encode() in packet]


@needs_multicast
async def test_an_interface_that_fails_is_tried_again_for_ever() -> None:
    ghost = [Interface("ghost", ("10.99.99.99",))]
    seen = [ghost, OSError(errno.EHOSTUNREACH, "no")]

    def look() -> list[Interface]:
        now = seen.pop(0) if seen else []
        if isinstance(now, OSError):
            raise now
        return now

    key = secrets.token_bytes(32)
    async with (
        browsing(key, look=list) as present,
        Announcer(identity_here("worker", "m", "n", None), 7129, key, look=look) as us,
    ):
        tally = us.tallies[0]
        assert (tally.interface, tally.sent) == ("ghost", 0) and tally.last_errno
        await until(lambda: bool(present), APPEAR_S)
        assert hosts(present) == [(("127.0.0.1:7129",), "worker")]


@needs_multicast
async def test_a_packet_that_does_not_leave_is_told_and_the_next_one_leaves() -> None:
    key = secrets.token_bytes(32)
    browser = Browser(key, look=list)
    await browser.start()
    try:
        (channel,) = browser._channels.open
        for reader in channel.zeroconf.engine.readers * 2:
            reader.transport.get_protocol().error_received(OSError(errno.EHOSTUNREACH, "No route to host"))
        (tally,) = browser.tallies
        assert str(tally).endswith("last error EHOSTUNREACH (No route to host)")
        async with Announcer(identity_here("worker", "m", "n", None), 7130, key, look=list), asyncio.timeout(APPEAR_S):
            assert (await browser.next()).addresses == ("127.0.0.1:7130",)
    finally:
        await browser.close()


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """What is said by mDNS on the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("", 5353))
        membership = socket.inet_aton("224.0.0.251") + socket.inet_aton("127.0.0.1")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        sock.setblocking(False)
        yield sock
