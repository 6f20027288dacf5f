"""Strangers and broken nodes on a worker's port: each is refused in time, the worker keeps serving and stays small."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import random
import socket
import struct
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
import psutil
import pytest
import pytest_asyncio
from support.cases.random_graphs import random_graph
from support.golden import square_sum
from support.hostile.raw_client import (
    BINARY,
    CLOSE,
    PING,
    TEXT,
    RawClient,
    RawLink,
    connected,
    raw_client,
    raw_link,
    upgrade,
    ws_frame,
)
from support.hostile.tampering import graph_bombs, tamper
from support.machines.links import Recorder, node
from support.processes.worker_process import HANGS_S, Coordinator, WorkerProcess, worker

from wire.errors import ConnectFailed, GraphError, MeshError, ProtocolError, VersionMismatch, WrongMesh
from wire.ir.codec import decode_graph, hash_bytes
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.limits import DEFAULT, MIB
from wire.link.link import Link
from wire.link.user_handshake import prove_as_acceptor
from wire.link.websocket_carrier import UNLINKED_MAX, Endpoint
from wire.protocol.frames import (
    HELLO_BYTES_MAX,
    Cancel,
    Credit,
    Hello,
    HelloAck,
    Notify,
    Piece,
    Ping,
    Pong,
    Refuse,
    Reply,
    Request,
    StreamChunk,
    StreamOpen,
    encode,
)
from wire.protocol.messages import Deploy, PartSpec, PlanKey, Source, SourceKind, Target
from wire.protocol.peer import BULK, CONTROL, Channel, Identity, Peer
from wire.protocol.versions import usable_ops
from wire.security import user_proof
from wire.security.user_secret import user_secret
from wire.system.private_folder import user_name
from wire.timeouts import DEFAULT_TIMEOUTS as LAN

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),  # one worker bears it all
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the daemon's memory from /proc"),
]
PLAN = PlanKey(1, 1)
SLACK_S = 60.0  # of a loaded machine
GROWTH_MAX = 48 * MIB


@dataclass
class Served:
    """A worker that holds a plan, and the coordinator that made it."""

    worker: WorkerProcess
    coordinator: Coordinator
    link: Link
    rss_bytes: int = 0
    steps: int = 0

    async def still_right(self) -> None:
        """The good client's link stands and gives right results, and the daemon has not grown."""
        x = np.random.default_rng(self.steps).standard_normal(4).astype(np.float32)
        feed = self.coordinator.feed(0, 0, x)
        _, outputs = await self.coordinator.run(self.link, PLAN, self.steps, feed)
        self.steps += 1
        assert np.array_equal(outputs[0], x + x)
        grown = psutil.Process(self.worker.process.pid).memory_info().rss - self.rss_bytes
        assert grown < GROWTH_MAX, f"grown by {grown / MIB:.0f} MiB"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    builder = GraphBuilder()
    x = builder.input("x", (4,), F32)
    graph = builder.build([builder.add("add", x, x)], names=["y"])
    coordinator = Coordinator()
    async with worker(tmp_path_factory.mktemp("served")) as started:
        link, _ = await coordinator.join(started)
        part = PartSpec(0, 0, graph.hash, (Source(SourceKind.INPUT),), ((Target("", 0, 0),),))
        await coordinator.deploy(link, [(part, graph)], PLAN)
        made = Served(started, coordinator, link)
        made.rss_bytes = psutil.Process(started.process.pid).memory_info().rss
        await made.still_right()
        yield made
    await coordinator.close()


async def in_time(limit_s: float, what: str, work: Awaitable[None]) -> None:
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(limit_s + SLACK_S):
            await work
    except TimeoutError:
        raise AssertionError(f"{what}: not closed within {limit_s} s") from None
    except AssertionError as error:
        raise AssertionError(f"{what}: {error} (after {time.monotonic() - began_s:.1f} s)") from error


# -- who is not a node -------------------------------------------------------------------------------------

POST = upgrade().replace(b"GET ", b"POST ", 1)
STRANGERS: list[tuple[str, bytes, bytes, float]] = [  # what, what it sends, the answer, closed within
    ("plain HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404", 1),
    ("no upgrade", upgrade(Upgrade="", Connection=""), b"426", 1),
    ("another method", POST, b"405", 1),
    ("a browser", upgrade(Origin="http://evil.example"), b"403", 1),
    ("a page without a name", upgrade(Origin="null"), b"403", 1),
    ("a page that names no origin", upgrade(Sec_Fetch_Site="cross-site"), b"403", 1),
    ("a rebound name", upgrade(Host="evil.example"), b"403", 1),
    ("a rebound name that looks like an address", upgrade(Host="127.0.0.1.evil.example"), b"403", 1),
    ("smuggled", POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"4", 1),
    ("two hosts", upgrade(Host="127.0.0.1\r\nHost: evil.example"), b"400", 1),
    ("an unknown WebSocket", upgrade(Sec_WebSocket_Version="99"), b"4", 1),
    ("no key", upgrade(Sec_WebSocket_Key=""), b"426", 1),
    ("garbage", b"\xff\xfe" * 200 + b"\r\n\r\n", b"400", 1),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"400", LAN.request_header_s),
    ("a header of 1 MiB", b"GET /" + b"a" * MIB + b" HTTP/1.1\r\n\r\n", b"", 1),
    ("1 MiB of headers", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (MIB // 6), b"", LAN.request_header_s),
    ("silence", b"", b"", LAN.request_header_s),
    ("half a handshake", upgrade()[:60], b"", LAN.request_header_s),
]  # fmt: skip


async def test_who_is_not_a_node_is_sent_away_in_time(served: Served) -> None:
    async def come(opening: bytes, status: bytes) -> None:
        async with raw_client(served.worker.port) as client:
            await client.send(opening)
            got = await client.until_end()
            assert got[9:12].startswith(status), got[:80]  # what is much too long may be cut off without a word
            assert b"Traceback" not in got

    await asyncio.gather(
        *(in_time(limit_s, what, come(opening, status)) for what, opening, status, limit_s in STRANGERS)
    )
    await served.still_right()


UNPROVEN: list[tuple[str, bytes]] = [
    ("plain HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ("an older node", upgrade()),
    ("a browser", upgrade(Origin="http://evil.example")),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)),
    ("garbage", b"\xff\xfe" * 200),
    ("1 MiB of headers", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (MIB // 6)),
    ("silence", b""),
    ("half an opening", user_proof.opening(bytes(32))[:30]),
    ("a nonce that is none", user_proof.opening(bytes(32)).replace(b"00", b"zz", 1)),
]


async def test_who_does_not_prove_to_be_this_user_gets_not_one_byte(served: Served) -> None:
    async def come(opening: bytes) -> None:
        async with raw_client(served.worker.port, proves=False) as client:
            await client.send(opening)
            assert await client.until_end() == b""

    await asyncio.gather(*(in_time(LAN.first_word_s, what, come(opening)) for what, opening in UNPROVEN))
    await served.still_right()


async def test_a_wrong_proof_gets_the_users_name_and_nothing_else(served: Served) -> None:
    """Guesses, proofs of before and the node's own proof sent back are all the same to it."""
    nonce, proofs = bytes(range(32)), [os.urandom(32).hex().encode() + user_proof.END for _ in range(50)]

    async def come(proof: bytes) -> bytes:
        async with raw_client(served.worker.port, proves=False) as client:
            await client.send(user_proof.opening(nonce))
            said = await client.reader.readuntil(user_proof.END)
            answer = user_proof.read_answer(said)
            assert answer is not None and answer.user == user_name()
            assert len(said) == len(user_proof.opening(nonce)) + 1 + 64 + 1 + len(user_name())
            await client.send((proof or answer.proof + user_proof.END) + upgrade())
            assert await client.until_end() == b""
            return answer.proof

    told = served.worker.log.read_text().count("turned away a caller")
    before = await come(b"")
    proved = await asyncio.gather(*(come(proof) for proof in (*proofs, before + user_proof.END)))
    assert len({before, *proved}) == 52, "each is good once"
    await served.still_right()
    assert served.worker.log.read_text().count("turned away a caller") - told < 10, "many lines for many strangers"


async def drip(client: RawClient, data: bytes) -> None:
    """A byte now and then, for longer than anybody should wait."""
    for at in range(len(data)):
        if client.reader.at_eof():
            return
        await client.send(data[at : at + 1])
        await asyncio.sleep(0.1)


async def test_a_slow_hello_is_not_waited_for(served: Served) -> None:
    async def slow_header() -> None:
        async with raw_client(served.worker.port) as client:
            slow = asyncio.create_task(drip(client, upgrade()))
            assert await client.until_end() == b""
            slow.cancel()

    async def slow_frame() -> None:
        async with raw_client(served.worker.port) as client:
            await client.open_socket()
            slow = asyncio.create_task(drip(client, ws_frame(bytes(1000))))
            await client.until_end()
            slow.cancel()

    async def no_frame() -> None:
        async with raw_client(served.worker.port) as client:
            await client.open_socket()
            await client.until_end()

    async def no_bulk() -> None:
        async with raw_client(served.worker.port) as client:
            await client.open_socket()
            await client.send(ws_frame(hello(node("half"))))
            await client.until_end()

    async def pings_only() -> None:
        async with raw_client(served.worker.port) as client:
            await client.open_socket()
            slow = asyncio.create_task(drip_pings(client))
            await client.until_end()
            slow.cancel()

    await asyncio.gather(
        in_time(LAN.request_header_s, "a header", slow_header()),
        in_time(LAN.link_setup_s, "a frame", slow_frame()),
        in_time(LAN.link_setup_s, "no frame", no_frame()),
        in_time(LAN.link_setup_s, "no second connection", no_bulk()),
        in_time(LAN.link_setup_s, "pings", pings_only()),
    )
    await served.still_right()


async def drip_pings(client: RawClient) -> None:
    while not client.reader.at_eof():
        await client.send(ws_frame(b"", PING))
        await asyncio.sleep(0.1)


# -- WebSockets that are not links -------------------------------------------------------------------------


def compressed(data: bytes) -> bytes:
    """What a frame of the extension permessage-deflate has."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)[:-4]


SOCKETS: list[tuple[str, bytes]] = [
    ("a claim of 2^32-1 bytes", ws_frame(b"x", size=(1 << 32) - 1)),
    ("a claim of 2^63 bytes", ws_frame(b"x", size=1 << 63)),
    ("a frame one byte too long", ws_frame(bytes(DEFAULT.chunk_bytes_max + 100))),
    ("reserved bits", ws_frame(b"x", first_bits=0xF0)),
    ("a compressed frame", ws_frame(compressed(b"x"), first_bits=0xC0)),
    ("a compressed gigabyte", ws_frame(compressed(bytes(MIB)) * 16, first_bits=0xC0)),
    ("a reserved opcode", ws_frame(b"x", opcode=5)),
    ("a long ping", ws_frame(bytes(200), opcode=PING)),
    ("a bad close", ws_frame(b"\x00", opcode=CLOSE)),
    ("a continuation of nothing", ws_frame(b"x", opcode=0)),
    ("text", ws_frame(b"hello", opcode=TEXT)),
    ("text that is none", ws_frame(b"\xff\xfe", opcode=TEXT)),
    ("endless fragments", ws_frame(bytes(60_000), first_bits=0) + ws_frame(bytes(60_000), 0, first_bits=0) * 8),
    ("unmasked", struct.pack("!BB", 0x80 | BINARY, 1) + b"x"),
    ("random bytes", np.random.default_rng(3).bytes(100_000)),
]


async def test_a_websocket_that_breaks_its_rules_is_closed(served: Served) -> None:
    async def come(data: bytes) -> None:
        async with raw_client(served.worker.port) as client:
            await client.open_socket()
            await client.send(data)
            await client.until_end()

    await asyncio.gather(*(in_time(LAN.link_setup_s, what, come(data)) for what, data in SOCKETS))
    await served.still_right()


async def test_compression_is_not_agreed_to(served: Served) -> None:
    """Who asks for it gets a WebSocket without, and a compressed frame ends that."""
    offer = "permessage-deflate; client_max_window_bits; server_no_context_takeover"
    async with raw_client(served.worker.port) as client:
        await client.send(upgrade(Sec_WebSocket_Extensions=offer))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ") and b"extensions" not in head.lower()
        await client.send(ws_frame(compressed(hello(node("raw", role="client"))), first_bits=0xC0))
        assert b"raw" not in await client.until_end()
    await served.still_right()


@pytest.mark.parametrize("extensions", [b"", b"Sec-WebSocket-Extensions: permessage-deflate\r\n"])
async def test_a_node_that_answers_in_compressed_frames_is_hung_up_on(extensions: bytes) -> None:
    """It is of the same user, and may even say that compression was agreed to."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        key = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
        proof = hashlib.sha1(key.split()[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(head + extensions + b"Sec-WebSocket-Accept: " + base64.b64encode(proof) + b"\r\n\r\n")
        writer.write(b"\xc2\x7f" + (len(BOMB)).to_bytes(8) + BOMB)
        await writer.drain()
        assert await reader.read() is not None
        writer.close()

    async def accept() -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(listening)
        await prove_as_acceptor(connection, user_secret())
        await answer(*await asyncio.open_connection(sock=connection))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        accepting = asyncio.create_task(accept())
        here = Endpoint(node("here"), Recorder())
        before = psutil.Process().memory_info().rss
        with pytest.raises(MeshError):
            await here.dial("127.0.0.1", listening.getsockname()[1], timeout_s=SLACK_S)
        assert psutil.Process().memory_info().rss - before < GROWTH_MAX
        await here.close()
        await asyncio.wait_for(accepting, SLACK_S)


# -- hellos ------------------------------------------------------------------------------------------------


def hello(identity: Identity) -> bytes:
    return Peer.dialer(identity, DEFAULT, os.urandom(16)).next_frame(CONTROL) or b""


BOMB = compressed(bytes(MIB)) * 60  # 60 MiB
LINK = bytes(range(16))
HELLOS: list[tuple[str, bytes, type[MeshError], str]] = [
    ("another major", hello(node("x", protocol=(9, 0))), VersionMismatch, "protocol 9.0"),
    ("another major and nothing else", hello(node("x", protocol=(9, 0)))[:9], VersionMismatch, "Upgrade graph-mesh"),
    ("another mesh", hello(node("x", mesh="theirs")), WrongMesh, "--mesh"),
    ("no identity", encode(Hello((1, 0), LINK, False, b"")), ConnectFailed, "the other connection of the link ended"),
    ("an identity that is junk", encode(Hello((1, 0), LINK, False, b"\x91" * 5000)), ProtocolError, "identity"),
    ("no link id", encode(Hello((1, 0), bytes(16), False, b"")), ProtocolError, "link id"),
    ("a huge hello", encode(Hello((1, 0), LINK, False, bytes(HELLO_BYTES_MAX + 1))), ProtocolError, "65537 bytes"),
    ("a hello of another protocol", b"\x01HTTP" + bytes(40), ProtocolError, "mesh"),
    ("an answer instead", encode(HelloAck((1, 0), LINK, False)), ProtocolError, "HelloAck"),
    ("a request before hello", encode(Request(1, b"x")), ProtocolError, "Request"),
    ("a stream before hello", encode(StreamOpen(1, 1 << 35, b"")), ProtocolError, "StreamOpen"),
    ("an unknown frame", b"\xee" * 100, ProtocolError, "0xee"),
    ("an empty frame", b"", ProtocolError, "empty"),
]  # fmt: skip


async def test_a_wrong_hello_is_refused_with_its_reason(served: Served) -> None:
    async def come(data: bytes, error: type[MeshError], says: str) -> None:
        async with raw_client(served.worker.port) as client:
            await client.open_socket()
            await client.send(ws_frame(data))
            refusal = await client.refusal()
            assert isinstance(refusal.error, error) and says in str(refusal.error), refusal.error

    for what, data, error, says in HELLOS:
        await in_time(1, what, come(data, error, says))
    await served.still_right()


async def test_a_link_id_stands_once_and_a_bulk_connection_belongs_to_its_link(served: Served) -> None:
    first = hello(node("first"))
    async with raw_client(served.worker.port) as one, raw_client(served.worker.port) as two:
        await one.open_socket()
        await one.send(ws_frame(first))
        assert await one.receive() is not None
        await two.open_socket()
        await two.send(ws_frame(encode(Hello((1, 0), first[9:25], False, b"not for bulk"))))
        assert await two.receive() is None
        assert (await one.refusal()).error.code == "protocol_error"
    await served.still_right()


async def test_a_node_of_another_op_table_is_linked_and_agrees_on_fewer_ops(served: Served) -> None:
    mine = served.coordinator.endpoint.identity
    other = replace(
        mine,
        node_id="other",
        boot_id="other",
        role="worker",
        op_rows={**mine.op_rows, "add": b"changed!", "brand_new": b"12345678"},
    )
    async with raw_link(served.worker.port, other) as link:
        assert link.peer.other is not None
        assert usable_ops(other, link.peer.other) == set(mine.op_rows) - {"add"}
        await link.send(CONTROL, encode(Ping(5)))
        assert await link.received(Pong) == Pong(5)
    await served.still_right()


# -- links that misbehave ----------------------------------------------------------------------------------

WINDOW = DEFAULT.window_bytes
BREAKS: list[tuple[str, Channel, list[bytes]]] = [
    ("an unknown frame", CONTROL, [b"\xee"]),
    ("a message that is none", CONTROL, [encode(Notify(b"\xdd\xff\xff\xff\xff"))]),
    ("a request that is none", CONTROL, [encode(Request(1, b"\xc1"))]),
    ("an answer to nothing", CONTROL, [encode(Reply(99, b""))]),
    ("a reply on bulk", BULK, [encode(Reply(1, b""))]),
    ("credit for nothing", CONTROL, [encode(Credit((1 << 64) - 1))]),
    ("a chunk of nothing", BULK, [encode(StreamChunk(5, 0, b"x"))]),
    ("a stream of 2^63 bytes", BULK, [encode(StreamOpen(1, 1 << 63, b""))]),
    ("a stream nobody asked for", BULK, [encode(StreamOpen(1, 1 << 35, b"\xc1"))]),
    ("a frame of 4 GiB in pieces", BULK, [encode(Piece((1 << 32) - 1, 0, b"x"))]),
    ("a piece from the middle", BULK, [encode(Piece(1000, 500, b"x"))]),
    ("two hellos", CONTROL, [encode(Hello((1, 0), LINK, False))]),
    ("more than the window", BULK, [encode(Piece(WINDOW + MIB, at << 18, bytes(1 << 18))) for at in range(68)]),
]


async def test_a_link_that_breaks_the_protocol_is_closed_and_no_other(served: Served) -> None:
    async def come(channel: Channel, frames: list[bytes]) -> None:
        async with raw_link(served.worker.port) as link:
            for frame in frames:
                await link.send(channel, frame)
            refusal = await link.received(Refuse)
            assert isinstance(refusal.error, ProtocolError), refusal.error

    for what, channel, frames in BREAKS:
        await in_time(2, what, come(channel, frames))
    await served.still_right()


async def test_frames_that_are_allowed_but_useless_are_borne(served: Served) -> None:
    async with raw_link(served.worker.port) as link:
        for number in range(2000):
            await link.send(CONTROL, encode(Cancel(number)))
            await link.send(CONTROL, encode(Ping(number)))
        for _ in range(2000):
            await link.received(Pong)
        await served.still_right()


async def test_a_node_that_never_reads_does_not_fill_the_workers_memory(served: Served) -> None:
    async with raw_link(served.worker.port) as link:
        await flood(link)
        await served.still_right()


async def flood(link: RawLink) -> None:
    """Ask for pongs and never read them, until the worker stops taking more or has taken plenty."""
    pings = ws_frame(encode(Ping(1))) * 2000
    try:
        async with asyncio.timeout(3):
            for _ in range(200):
                await link.clients[CONTROL].send(pings)
    except TimeoutError:
        return


# -- graphs ------------------------------------------------------------------------------------------------


async def test_hostile_graphs_are_refused_with_their_error_and_their_host_lives(served: Served) -> None:
    hosts = [psutil.Process(pid) for pid in served.worker.host_pids()]
    before = sum(host.memory_info().rss for host in hosts)
    rng = random.Random(4)
    valid = [square_sum().encoded, random_graph(1).graph.encoded]
    graphs = {**graph_bombs(), **{f"tampered {number}": tamper(rng, valid[number % 2], valid) for number in range(100)}}
    graphs = {what: data for what, data in graphs.items() if _is_refused(data)}
    assert len(graphs) > 80
    for number, data in enumerate(graphs.values()):
        address = hash_bytes(data)
        part = PartSpec(0, 0, address, (Source(SourceKind.INPUT),), ((Target("", 0, 0),),))
        with pytest.raises((GraphError, VersionMismatch)):
            await served.link.request(Deploy(PlanKey(1, 2 + number), (part,), {address: data}, (), {}), HANGS_S)
    assert served.worker.host_pids() == [host.pid for host in hosts]
    assert sum(host.memory_info().rss for host in hosts) - before < 2 * GROWTH_MAX
    await served.still_right()


async def test_a_graph_under_another_address_is_refused(served: Served) -> None:
    address = bytes(32)
    part = PartSpec(0, 0, address, (Source(SourceKind.INPUT),), ((Target("", 0, 0),),))
    with pytest.raises(GraphError, match="hash"):
        await served.link.request(Deploy(PlanKey(1, 1000), (part,), {address: square_sum().encoded}, (), {}))
    await served.still_right()


def _is_refused(data: bytes) -> bool:
    try:
        decode_graph(data)
    except (GraphError, VersionMismatch):
        return True
    return False


# -- floods ------------------------------------------------------------------------------------------------


async def together(count: int, work: Callable[[], Awaitable[None]], at_once: int = 100) -> None:
    gate = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with gate:
            await work()

    await asyncio.gather(*(one() for _ in range(count)))


async def test_thousands_of_connections_are_borne(served: Served) -> None:
    async def come_and_go(proves: bool = False) -> None:
        with contextlib.suppress(
            ConnectionError, ConnectFailed
        ):  # others displaced it: a worker has so many that are no links
            async with raw_client(served.worker.port, proves) as client:
                await client.send(b"\xff")

    async def prove_and_go() -> None:
        await come_and_go(proves=True)

    await together(3000, come_and_go)
    await together(1000, prove_and_go)
    await served.still_right()


async def test_idle_connections_displace_the_oldest_of_their_kind_and_never_a_link(served: Served) -> None:
    clients = [await connected(served.worker.port) for _ in range(UNLINKED_MAX + 50)]
    async with asyncio.timeout(SLACK_S):
        for client in clients[:50]:
            assert await client.until_end() == b""
    await served.still_right()
    async with raw_link(served.worker.port) as link:
        await link.send(CONTROL, encode(Ping(1)))
        assert await link.received(Pong) == Pong(1)
    for client in clients:
        client.writer.transport.abort()
    await served.still_right()
