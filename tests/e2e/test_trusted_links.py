"""Links between members of a mesh: mutual TLS over real sockets, and nobody else gets a byte through."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import ssl
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web
from support.hostile.flood import hello
from support.machines.links import Recorder, node
from support.tls import MESH, authority, credentials

from wire.errors import ConnectFailed, MeshError, NotTrusted
from wire.joining.credentials import Credentials
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import Done, PlanKey, Push, Value
from wire.security.certificates import CERTIFICATE_S, CertificateAuthority, any_server_name
from wire.security.connection_limiter import ConnectionLimits
from wire.security.tls_listener import HEADER_BYTES, HELLO_BYTES_MAX


class Home:
    """A mesh of one authority; nodes are closed at the end."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.authority: CertificateAuthority = authority()
        self.folder = folder
        self.ports: dict[str, int] = {}  # by the names of nodes
        self._stack = stack
        self._count = 0

    def card(self, role: str = "worker", by: CertificateAuthority | None = None, **more: Any) -> Credentials:
        self._count += 1
        return credentials(self.folder / str(self._count), by or self.authority, role, **more)

    async def node(self, name: str, card: Credentials | None, host: str = "127.0.0.1", **said: Any) -> Endpoint:
        """An endpoint that says it is `said`, where that differs from its certificate."""
        fields = {"mesh": MESH, **({"node_id": card.node_id, "role": card.member.role} if card else {}), **said}
        endpoint = Endpoint(node(name, **fields), Recorder(), credentials=card)
        self._stack.push_async_callback(endpoint.close)
        self.ports[name] = await endpoint.listen(host, 0)
        return endpoint


@pytest_asyncio.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with asyncio.timeout(240), AsyncExitStack() as stack:
        yield Home(tmp_path, stack)


def port_of(endpoint: Endpoint) -> int:
    return int(endpoint.identity.addresses[0].rpartition(":")[2])


async def dial(here: Endpoint, there: Endpoint) -> Any:
    return await here.dial("127.0.0.1", port_of(there))


async def test_members_link_and_exchange_over_tls(home: Home) -> None:
    a, b = await home.node("a", home.card()), await home.node("b", home.card("coordinator"))
    link = await dial(a, b)
    assert await link.request(Done()) == Done()
    assert link.peer.role == "coordinator"
    data = np.random.default_rng(0).standard_normal(1 << 20)
    header = Push(PlanKey(1, 1), 1, 0, 0, Value("f64", data.shape))
    await link.send_stream(header, memoryview(data.view(np.uint8)))
    assert isinstance(b.handler, Recorder)
    got, buffer, error = await b.handler.streams.get()
    assert got == header and error is None and bytes(buffer) == data.tobytes()


async def test_what_a_closed_endpoint_held_is_freed_at_once(home: Home) -> None:
    """Not by the garbage collector, which counts objects and does not see what TLS has behind them."""
    there = await home.node("there", home.card("coordinator"))
    gc.collect()
    gc.disable()
    try:
        freed = await _come_and_go(home.card(), there)
        assert len(freed) > 4, "a TLS context is among them"
        while any(each() is not None for each in freed):
            await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def _come_and_go(card: Credentials, there: Endpoint) -> list[weakref.ref[Any]]:
    owner = Recorder()
    here = Endpoint(node("here", mesh=MESH, node_id=card.node_id, role="worker"), owner, credentials=card)
    owner.endpoint = here  # type: ignore[attr-defined]  # as owners do
    link = await dial(here, there)
    assert await link.request(Done()) == Done()
    await here.close()
    return [weakref.ref(each) for each in (owner, here, link, card, *card._contexts.values())]


async def test_a_member_listens_on_every_address(home: Home) -> None:
    there = await home.node("there", home.card(), host="::")
    assert there.identity.addresses == (), "which ones others can dial is not known from here"
    for host in ("127.0.0.1", "localhost", *(["::1"] if has_ipv6() else ())):
        here = await home.node(f"here-{host}", home.card())
        assert (await here.dial(host, home.ports["there"])).peer.name == "there"


@pytest.mark.parametrize("who", ["plain", "another mesh", "expired", "revoked"])
async def test_whoever_is_no_member_is_refused_in_words(home: Home, who: str) -> None:
    strange = {
        "plain": lambda: None,
        "another mesh": lambda: home.card(by=authority()),
        "expired": lambda: home.card(now_s=time.time() - CERTIFICATE_S - 1000),
        "revoked": home.card,
    }[who]()
    revoked = (strange.node_id,) if who == "revoked" and strange else ()
    there = await home.node("there", home.card(revoked=revoked))
    here = await home.node("here", strange)
    with pytest.raises(MeshError) as caught:
        await dial(here, there)
    assert isinstance(caught.value, ConnectFailed if who == "plain" else NotTrusted), caught.value
    assert not there.links and not here.links


async def test_a_member_does_not_dial_into_another_mesh(home: Home) -> None:
    there = await home.node("there", home.card(by=authority()))
    here = await home.node("here", home.card())
    with pytest.raises(NotTrusted, match="belongs to another mesh"):
        await dial(here, there)


@pytest.mark.parametrize("said", [{"node_id": "b" * 26}, {"role": "coordinator"}])
async def test_a_member_that_says_it_is_another_is_refused(home: Home, said: dict[str, str]) -> None:
    """With the genuine certificate of a worker; whichever side dials."""
    honest, liar = await home.node("honest", home.card()), await home.node("liar", home.card(), **said)
    for here, there in ((liar, honest), (honest, liar)):
        with pytest.raises(NotTrusted, match="says it is"):
            await dial(here, there)
    assert not honest.links


async def test_a_revocation_holds_from_the_next_handshake_on(home: Home) -> None:
    mine, theirs = home.card(), home.card()
    there, here = await home.node("there", mine), await home.node("here", theirs)
    link = await dial(here, there)
    assert mine.take_trust(home.authority.revocations((theirs.node_id,), 1))
    assert await link.request(Done()) == Done(), "links that stand are for whoever heard of it to close"
    link.close()
    await link.wait_closed()
    with pytest.raises(NotTrusted):
        await dial(here, there)


async def test_strangers_bytes_never_reach_the_http_parser(
    home: Home, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = await home.node("there", home.card())
    heard: list[bytes] = []
    monkeypatch.setattr(web.RequestHandler, "data_received", lambda _, data: heard.append(data))
    loose = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    loose.check_hostname, loose.verify_mode = False, ssl.CERT_NONE
    with caplog.at_level(logging.WARNING, "graph_mesh"):
        for context in (None, loose):
            for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x02??", b"\x00" * 4096, b"\xff"):
                answer = await tell("127.0.0.1", port_of(there), data, context)
                assert b"HTTP" not in answer
    assert not heard
    here = await home.node("here", home.card())
    while not heard:  # a member's bytes do reach it, if it has the time to say them
        with pytest.raises(ConnectFailed, match="did not answer"):
            await here.dial("127.0.0.1", port_of(there), timeout_s=0.5)
    monkeypatch.undo()
    assert len([record for record in caplog.records if "turned away" in record.message]) == 1
    assert (await dial(here, there)).peer.name == "there"


async def test_a_first_record_of_more_than_4_kib_is_not_waited_for(home: Home) -> None:
    there = await home.node("there", home.card())
    most, heard = HELLO_BYTES_MAX - HEADER_BYTES, []
    async with contextlib.AsyncExitStack() as stack:
        for claims in (most, most + 1):  # the one that is waited for comes first
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(there))
            stack.callback(writer.close)
            writer.write(b"\x16\x03\x01" + claims.to_bytes(2) + bytes(100))
            heard.append(asyncio.ensure_future(reader.read()))
        done, _ = await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
        assert done == {heard[1]}
    for each in heard:
        with contextlib.suppress(OSError):
            assert await each == b""


async def test_a_crowd_at_the_mesh_port_holds_64_places_and_keeps_no_member_out(home: Home) -> None:
    """Some say nothing, some begin a word of TLS, some say a whole one and leave it there."""
    there, here = await home.node("there", home.card()), await home.node("here", home.card())
    words = (b"", b"\x16\x03\x01\x02\x00\x01", hello())
    callers = [await asyncio.open_connection("127.0.0.1", port_of(there)) for _ in range(200)]
    for (_, writer), word in zip(callers, itertools.cycle(words), strict=False):
        writer.write(word)
    listener = there._sockets._listener
    assert listener is not None
    for _ in range(10):
        await asyncio.sleep(0.02)
        assert len(listener._strangers) <= ConnectionLimits().strangers_max
    async with asyncio.timeout(120.0):
        while True:
            try:
                assert (await dial(here, there)).peer.name == "there"
                break
            except ConnectFailed:  # whoever is hung up on dials again, as stay_linked does
                await asyncio.sleep(0.05)
    for _, writer in callers:
        writer.close()


@pytest.mark.long  # it waits for the 3 s
@pytest.mark.parametrize("word", ["nothing", "half a word", "a whole one"])
async def test_whoever_does_not_prove_to_be_a_member_has_3_s(home: Home, word: str) -> None:
    there = await home.node("there", home.card())
    said = {"nothing": b"", "half a word": b"\x16\x03\x01\x02\x00\x01", "a whole one": hello()}[word]
    began_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(there))
    writer.write(said)
    with contextlib.suppress(OSError):
        while await reader.read(4096):
            pass
    assert 2.5 < time.monotonic() - began_s < 6.0
    writer.close()


async def tell(host: str, port: int, data: bytes, context: ssl.SSLContext | None) -> bytes:
    """Say something to a port, over TLS without a certificate or in the clear, and hang up; what was answered."""
    name = any_server_name(MESH) if context else None
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
        writer.write(data)
        writer.write_eof() if context is None else None
        answer = await asyncio.wait_for(reader.read(4096), 10)
        writer.close()
    except (OSError, ssl.SSLError):
        return b""
    return answer


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as here:
            here.bind(("::1", 0))
    except OSError:
        return False
    return True
