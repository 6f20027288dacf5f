"""Two endpoints over real loopback sockets: what every part of the system relies on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.machines.links import Recorder, node
from support.waiting import until

from wire.errors import (
    Busy,
    Cancelled,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    LocalError,
    MeshError,
    NodeLost,
    OutOfMemory,
    ProtocolError,
    RemoteError,
    VersionMismatch,
    WrongMesh,
)
from wire.limits import DEFAULT, KIB, MIB, Limits
from wire.link.endpoint import CLEAR_S
from wire.link.link import Link
from wire.link.user_handshake import prove_as_dialer
from wire.link.websocket_carrier import UNLINKED_MAX, Endpoint
from wire.protocol.messages import AskNodes, BlobStream, Done, LogLines, Message, PlanGraph, TailLog
from wire.protocol.peer import Identity
from wire.security.user_secret import user_secret
from wire.system.shared_memory import SharedDir
from wire.transfer.content_exchange import share_with

pytestmark = pytest.mark.asyncio
HEADER = BlobStream(bytes(32), 1)
TIMEOUT_S = 120.0


@dataclass
class Answering(Recorder):
    """Answers by what was asked: TailLog waits until told, AskNodes fails, PlanGraph has a bug, others come back."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    refuse: MeshError | None = None
    buffer: bytearray | None = None

    def __post_init__(self) -> None:
        super().__init__()

    async def on_request(self, link: Link, body: Message) -> Message:
        self.asked.put_nowait(body)
        if isinstance(body, TailLog):
            try:
                await self.may_answer.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if isinstance(body, AskNodes):
            raise OutOfMemory("needs 3 GiB, has 2 GiB", op="dot (node 7)", next_step="Use a smaller batch")
        if isinstance(body, PlanGraph):
            raise KeyError("a bug")
        return body

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        if self.refuse is not None:
            raise self.refuse
        return memoryview(bytearray(size_bytes) if self.buffer is None else self.buffer)


class Mesh:
    """Makes endpoints that are closed at the end."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.ports: dict[str, int] = {}

    async def node(
        self,
        name: str,
        limits: Limits = DEFAULT,
        admit: Any = None,
        host: str = "127.0.0.1",
        **fields: Any,
    ) -> Endpoint:
        endpoint = Endpoint(node(name, **fields), Answering(), limits, admit)
        self._stack.push_async_callback(endpoint.close)
        self.ports[name] = await endpoint.listen(host, 0)
        return endpoint

    async def pair(self, limits: Limits = DEFAULT) -> tuple[Link, Link]:
        """Both ends of a link from a to b."""
        a, b = await self.node("a", limits), await self.node("b", limits)
        link = await dial(a, b)
        return link, await handler(b).linked.get()


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with asyncio.timeout(240), AsyncExitStack() as stack:
        yield Mesh(stack)


async def dial(a: Endpoint, b: Endpoint) -> Link:
    host, _, port = b.identity.addresses[0].rpartition(":")
    return await a.dial(host, int(port), TIMEOUT_S)


def handler(owner: Endpoint | Link) -> Answering:
    endpoint = owner._owner if isinstance(owner, Link) else owner
    assert isinstance(endpoint.handler, Answering)
    return endpoint.handler


# -- linking -----------------------------------------------------------------------------------------------


async def test_a_dial_links_both_ends_and_tells_each_who_the_other_is(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    assert (there.peer.name, back.peer.name) == ("b", "a")
    assert there.link_id == back.link_id and there.peer.op_rows == back.peer.op_rows
    assert await there.ping() >= 0 and await back.ping() >= 0


async def test_dialling_a_linked_node_again_gives_the_same_link(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    a, b = there._owner, back._owner
    assert isinstance(a, Endpoint) and isinstance(b, Endpoint)
    assert await dial(a, b) is there and await dial(b, a) is back
    assert list(a.links.values()) == [there] and list(b.links.values()) == [back]


@pytest.mark.parametrize("dials", [1, 3])
async def test_simultaneous_dials_settle_on_one_link(mesh: Mesh, dials: int) -> None:
    for round_ in range(8):
        a, b = await mesh.node(f"a{round_}"), await mesh.node(f"b{round_}")
        links = await asyncio.gather(*[dial(*way) for way in ((a, b), (b, a)) for _ in range(dials)])
        (one,), (other,) = a.links.values(), b.links.values()
        assert one.link_id == other.link_id and not one.closed and not other.closed
        live = {link for link in links if not link.closed}
        assert live <= {one, other} and live
        assert await one.request(Done()) == await other.request(Done()) == Done()


async def test_several_dials_of_one_node_are_one_link_that_is_never_replaced(mesh: Mesh) -> None:
    for round_ in range(8):
        a, b = await mesh.node(f"a{round_}"), await mesh.node(f"b{round_}")
        links = await asyncio.gather(*[dial(a, b) for _ in range(3)])
        assert set(links) == set(a.links.values()) and not links[0].closed
        assert handler(a).unlinked.empty() and handler(b).unlinked.empty()


async def test_a_restarted_node_replaces_its_old_link(mesh: Mesh) -> None:
    b = await mesh.node("b")
    old = await dial(await mesh.node("a"), b)
    again = await mesh.node("a", boot_id="later", incarnation=2)
    await dial(again, b)
    link, error = await handler(b).unlinked.get()
    assert isinstance(error, NodeLost) and link.closed
    assert [each.peer.boot_id for each in b.links.values()] == ["later"]
    await old.wait_closed()


async def test_versions_that_differ_are_refused_with_the_side_to_upgrade(mesh: Mesh) -> None:
    old, new = await mesh.node("old", protocol=(1, 9)), await mesh.node("new", protocol=(2, 0))
    for dialer, acceptor, says in ((old, new, "this node"), (new, old, "the other node")):
        with pytest.raises(VersionMismatch, match=f"Upgrade graph-mesh on {says}"):
            await dial(dialer, acceptor)
    assert not old.links and not new.links


async def test_another_mesh_is_refused_with_what_to_do(mesh: Mesh) -> None:
    home, work = await mesh.node("a", mesh="home"), await mesh.node("b", mesh="work")
    with pytest.raises(WrongMesh, match=r"'home'.*'work'.*--mesh NAME|'work'.*'home'.*--mesh NAME"):
        await dial(home, work)


async def test_a_node_may_be_turned_away(mesh: Mesh) -> None:
    def busy(who: Identity) -> None:
        raise Busy(f"not for {who.name}", next_step="Try another worker")

    with pytest.raises(Busy, match=r"not for a.*Try another worker"):
        await dial(await mesh.node("a"), await mesh.node("b", admit=busy))


async def test_more_nodes_than_the_limit_are_turned_away(mesh: Mesh) -> None:
    hub = await mesh.node("hub", replace(DEFAULT, nodes_max=2))
    links = [await dial(await mesh.node(f"n{number}"), hub) for number in range(2)]
    with pytest.raises(Busy, match="2 nodes"):
        await dial(await mesh.node("n2"), hub)
    assert all([await link.ping() >= 0 for link in links])


async def test_nobody_at_the_port(mesh: Mesh) -> None:
    a, gone = await mesh.node("a"), await mesh.node("gone")
    await gone.close()
    with pytest.raises(ConnectFailed, match="Is mesh-coord serve, or mesh-worker, running there"):
        await dial(a, gone)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
async def test_something_else_at_the_port(mesh: Mesh, answer: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    a = await mesh.node("a")
    with pytest.raises(ConnectFailed):
        await a.dial("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()


async def test_silence_at_the_port_ends_at_the_time_limit(mesh: Mesh) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    a = await mesh.node("a")
    with pytest.raises(ConnectFailed, match=r"did not answer within 0.2 s"):
        await a.dial("127.0.0.1", server.sockets[0].getsockname()[1], timeout_s=0.2)
    server.close()


async def test_of_many_that_come_at_once_the_oldest_go(mesh: Mesh) -> None:
    """Many prove at once who runs them, so that they are accepted in one turn of its loop."""
    await mesh.node("a")
    callers: list[socket.socket] = []
    try:
        while len(callers) < UNLINKED_MAX + 50:
            some = [socket.create_connection(("127.0.0.1", mesh.ports["a"])) for _ in range(51)]
            callers += some
            for caller in some:
                caller.setblocking(False)
            await asyncio.gather(*(prove_as_dialer(caller, user_secret()) for caller in some))
        for caller in callers[:50]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(caller, 1) == b""
    finally:
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
async def test_only_loopback_is_listened_on_and_dialled(mesh: Mesh, host: str) -> None:
    endpoint = Endpoint(node("x"), Answering())
    with pytest.raises(ConfigError, match=r"will not listen.*token"):
        await endpoint.listen(host, 0)
    with pytest.raises(ConfigError, match=r"will not dial.*token"):
        await endpoint.dial(host, 7100)


async def test_the_first_free_port_of_a_range_is_taken_and_a_full_range_is_named(mesh: Mesh) -> None:
    first = await mesh.node("first")
    port = int(first.identity.addresses[0].rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"port {port} .*--port"):
        await Endpoint(node("x"), Answering()).listen("127.0.0.1", port, port)


# -- requests ----------------------------------------------------------------------------------------------


async def test_requests_are_answered_in_any_order_both_ways(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    waiting = asyncio.create_task(there.request(TailLog(5)))
    assert await handler(back).asked.get() == TailLog(5)
    asked = [LogLines((str(number),)) for number in range(200)]
    assert await asyncio.gather(*map(there.request, asked)) == asked
    assert await asyncio.gather(*map(back.request, asked)) == asked
    handler(back).may_answer.set()
    assert await waiting == TailLog(5)


async def test_a_long_message_travels_in_pieces(mesh: Mesh) -> None:
    there, _ = await mesh.pair()
    lines = LogLines(tuple("x" * 4096 for _ in range(1000)))
    assert await there.request(lines) == lines
    assert there.bytes_sent["bulk"] > 4_000_000 > 100_000 > there.bytes_sent["control"]
    with pytest.raises(LocalError, match="too long"):
        await there.request(PlanGraph(bytes(DEFAULT.message_bytes_max - 10)))
    assert await there.request(Done()) == Done()


async def test_an_error_keeps_its_class_and_where_it_happened(mesh: Mesh) -> None:
    there, _ = await mesh.pair()
    with pytest.raises(OutOfMemory) as caught:
        await there.request(AskNodes())
    assert caught.value.node == "b" and caught.value.op == "dot (node 7)"
    assert str(caught.value).endswith("Use a smaller batch")


async def test_a_bug_of_the_other_side_is_a_remote_error_and_ends_nothing(
    mesh: Mesh, caplog: pytest.LogCaptureFixture
) -> None:
    there, _ = await mesh.pair()
    with pytest.raises(RemoteError, match="KeyError"):
        await there.request(PlanGraph(b""))
    assert "answering PlanGraph" in caplog.text
    assert await there.request(Done()) == Done()


async def test_cancelling_a_request_stops_it_on_the_other_side(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    asking = asyncio.create_task(there.request(TailLog(1)))
    await handler(back).asked.get()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await handler(back).cancelled.wait()
    assert await there.request(Done()) == Done()


async def test_a_deadline_ends_the_wait_and_stops_the_other_side(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    while handler(back).asked.empty():  # or the deadline was over before the request arrived
        with pytest.raises(DeadlineExceeded, match=r"0.05 s"):
            await there.request(TailLog(1), timeout_s=0.05)
    await handler(back).cancelled.wait()
    assert not there.closed


async def test_notes_arrive_in_order_and_have_no_answer(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    notes = [LogLines((str(number),)) for number in range(1000)]
    for note in notes:
        there.notify(note)
    assert [await handler(back).notes.get() for _ in notes] == notes


# -- streams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, 64 * MIB])
async def test_a_stream_of_any_size_arrives_whole(mesh: Mesh, size: int) -> None:
    there, back = await mesh.pair()
    data = os.urandom(min(size, MIB)) * max(size // MIB, 1)
    await there.send_stream(HEADER, memoryview(data))
    header, buffer, error = await handler(back).streams.get()
    assert (header, error) == (HEADER, None) and buffer == data


async def test_a_stream_may_be_several_parts_and_some_empty(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    parts = [os.urandom(size) for size in (0, 3, 0, 300 * KIB, 1, 0)]
    await there.send_stream(HEADER, [memoryview(part) for part in parts])
    assert (await handler(back).streams.get())[1] == b"".join(parts)


async def test_small_messages_pass_between_the_chunks_of_a_large_stream(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    data = memoryview(bytearray(64 * MIB))
    sending = asyncio.create_task(there.send_stream(HEADER, data))
    behind: list[int] = []  # bytes of the stream that came between a request and its answer
    while not sending.done():
        before = back.bytes_received["bulk"]
        await there.request(Done())
        behind.append(back.bytes_received["bulk"] - before)
    await sending
    assert len(behind) >= 16
    assert sorted(behind)[len(behind) // 2] <= 16 * MIB
    print(f"{len(behind)} round trips during 64 MiB, median {sorted(behind)[len(behind) // 2] / KIB:.0f} KiB between")


async def test_streams_share_the_link_chunk_by_chunk(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    long = asyncio.create_task(there.send_stream(BlobStream(bytes(32), 1), memoryview(bytearray(64 * MIB))))
    short = asyncio.create_task(there.send_stream(BlobStream(bytes(32), 2), memoryview(bytearray(2 * MIB))))
    first = (await handler(back).streams.get())[0]
    assert isinstance(first, BlobStream) and first.stream == 2
    await asyncio.gather(long, short)


async def test_a_stream_takes_no_more_memory_than_its_window(mesh: Mesh) -> None:
    there, back = await mesh.pair(replace(DEFAULT, window_bytes=4 * MIB))
    data, handler(back).buffer = memoryview(bytearray(64 * MIB)), bytearray(64 * MIB)
    tracemalloc.start()
    await there.send_stream(HEADER, data)
    await handler(back).streams.get()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * MIB  # the window, and what both ends' WebSockets hold of it


async def test_a_link_whose_other_side_does_not_read_ends(mesh: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    there, _ = await mesh.pair(replace(DEFAULT, queue_bytes_max=MIB))
    said = LogLines(("x" * 1000,) * 100)
    sent = 0
    while not there.closed and sent < 1000:  # the loop has no turn, so nobody reads
        there.notify(said)
        sent += 1
    assert there.closed and sent > 10, "what the sockets hold, and a queue of 1 MiB"
    assert "link to worker b: it does not read what is sent to it" in caplog.text


async def test_a_receiver_may_refuse_a_stream(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    handler(back).refuse = OutOfMemory("no room")
    with pytest.raises(OutOfMemory, match="no room"):
        await there.send_stream(HEADER, memoryview(bytearray(64 * MIB)))
    assert there.bytes_sent["bulk"] <= DEFAULT.window_bytes + MIB
    handler(back).refuse = None
    await there.send_stream(HEADER, memoryview(b"next"))
    assert (await handler(back).streams.get())[1] == b"next"


async def test_a_sender_may_give_a_stream_up(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    sending = asyncio.create_task(there.send_stream(HEADER, memoryview(bytearray(64 * MIB))))
    while not back.bytes_received["bulk"]:
        await asyncio.sleep(0)
    sending.cancel()
    _, _, error = await handler(back).streams.get()
    assert isinstance(error, Cancelled)
    await there.send_stream(HEADER, memoryview(b"next"))
    assert (await handler(back).streams.get())[1] == b"next"


# -- the end -----------------------------------------------------------------------------------------------


async def test_closing_ends_both_sides_in_good_order(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    there.notify(LogLines(("last words",)))
    there.close("done")
    assert await handler(there).unlinked.get() == (there, None)
    assert await handler(back).unlinked.get() == (back, None)
    assert await handler(back).notes.get() == LogLines(("last words",))
    with pytest.raises(NodeLost):
        there.notify(Done())
    with pytest.raises(NodeLost):
        await back.request(Done())


async def test_what_was_open_fails_when_the_link_ends(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    asking = asyncio.create_task(there.request(TailLog(1)))
    await handler(back).asked.get()
    sending = asyncio.create_task(back.send_stream(HEADER, memoryview(bytearray(64 * MIB))))
    while not there.bytes_received["bulk"]:
        await asyncio.sleep(0)
    back.close()
    for waiting in (asking, sending):
        with pytest.raises(NodeLost):
            await waiting
    _, _, error = await handler(there).streams.get()
    assert isinstance(error, NodeLost)
    await handler(back).cancelled.wait()


async def test_a_message_the_handler_blames_ends_the_link_with_its_reason(mesh: Mesh) -> None:
    there, back = await mesh.pair()
    handler(back).refuse = ProtocolError("no such stream was asked for")
    with pytest.raises(ProtocolError, match="no such stream"):
        await there.send_stream(HEADER, memoryview(bytearray(64 * MIB)))
    _, error = await handler(there).unlinked.get()
    assert isinstance(error, ProtocolError)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_killed_peer_is_lost_at_once(mesh: Mesh, number: int) -> None:
    async with echo_process() as (process, port):
        a = await mesh.node("a")
        link = await a.dial("127.0.0.1", port)
        assert await link.request(Done()) == Done()
        asking = asyncio.create_task(link.request(TailLog(1)))
        await link.ping()
        process.send_signal(number)
        with pytest.raises(NodeLost):
            async with asyncio.timeout(TIMEOUT_S):
                await asking
        lost, error = await handler(a).unlinked.get()
        assert lost is link and isinstance(error, NodeLost) and not a.links


async def test_what_a_killed_peer_did_not_take_is_removed_and_what_a_living_one_may_take_stays(
    mesh: Mesh, tmp_path: Path
) -> None:
    async with echo_process(str(tmp_path)) as (process, port):
        own = SharedDir.create(tmp_path)
        a = await mesh.node("a", shared_memory=str(own.path))
        link = await a.dial("127.0.0.1", port)
        taken, *files = [own.path / await share_with(link, own, memoryview(bytes(size))) for size in (1, 2, 2 * MIB)]
        taken.unlink()
        process.send_signal(signal.SIGSTOP)
        link.close("it seems dead")
        with pytest.raises(NodeLost):
            await share_with(link, own, memoryview(b"abc"))
        await asyncio.sleep(1.5 * CLEAR_S)
        assert set(files) == {path for path in own.path.iterdir() if path.name != "lock"}, "it may read on"
        process.kill()
        await until(lambda: not any(path.exists() for path in files), TIMEOUT_S)
        assert [path.name for path in own.path.iterdir()] == ["lock"]
        (dead,) = set(tmp_path.iterdir()) - {own.path}
        await process.wait()
        SharedDir.create(tmp_path).close()
        assert not dead.exists() and own.path.exists(), "whoever begins removes what the dead left, and no more"
        own.close()


async def test_a_file_whose_writing_was_given_up_is_removed(mesh: Mesh, tmp_path: Path) -> None:
    own = SharedDir.create(tmp_path)
    there, _ = await mesh.pair()
    for _ in range(3):
        writing = asyncio.create_task(share_with(there, own, memoryview(bytes(8 * MIB))))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    await until(lambda: [path.name for path in own.path.iterdir()] == ["lock"], TIMEOUT_S)
    own.close()


@contextlib.asynccontextmanager
async def echo_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A node of its own process, and its port."""
    folder = Path(__file__).parent.parent
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(folder / "support" / "processes" / "echo_node.py"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder.parent, folder)))},
    )
    try:
        assert process.stdout is not None
        yield process, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
