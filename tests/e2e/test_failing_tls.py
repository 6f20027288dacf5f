"""Members in one process whose Nth call of TLS, or question for a name, fails, for every N: a named error, or well."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from support.hostile.failing_calls import each_call, names_refuse, tls_refuses
from support.hostile.faulty_disk import Fuse, QuickDisk
from support.machines.links import Recorder, node
from support.processes.talking import CONTENT, ENDS_S, Talk, descriptors
from support.tls import authority, credentials
from support.waiting import until

from coordinator.authority.authority import Authority
from wire.errors import ConfigError, MeshError
from wire.joining.credentials import Credentials
from wire.joining.join_port import join, serve_joining
from wire.link.reconnect import stay_linked
from wire.link.websocket_carrier import Endpoint
from wire.security.certificates import new_key
from wire.security.connection_limiter import ConnectionLimiter, ConnectionLimits

NAME = "attic.example"  # of nobody
KNOWN = {NAME: "127.0.0.1"}
EVERY = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])


@pytest.fixture
def cards(tmp_path: Path) -> tuple[Credentials, Credentials]:
    by = authority()
    return credentials(tmp_path / "a", by, "coordinator"), credentials(tmp_path / "b", by)


async def talk(fuse: Fuse, cards: tuple[Credentials, Credentials]) -> Talk:
    call = Talk(cards=cards)
    with tls_refuses(fuse):
        async with asyncio.timeout(ENDS_S):
            await call.run()
    return call


@EVERY
async def test_whatever_call_of_tls_fails_nothing_hangs_and_nothing_is_wrong(
    cards: tuple[Credentials, Credentials], every: int
) -> None:
    tasks, before, failed = len(asyncio.all_tasks()), descriptors(), 0
    for fuse in each_call(every):
        call = await talk(fuse, cards)
        assert call.arrived in (b"", CONTENT), "wrong bytes"
        assert call.well or call.errors, f"call {fuse.fails_at} failed and nobody said so"
        failed += bool(call.errors)
        await asyncio.sleep(0)
    assert failed >= 2
    assert (await talk(Fuse(), cards)).well
    await until(lambda: len(asyncio.all_tasks()) == tasks, ENDS_S)
    await until(lambda: descriptors() <= before, ENDS_S)


@EVERY
async def test_whatever_call_of_tls_fails_a_node_joins_once_or_hears_why(tmp_path: Path, every: int) -> None:
    made = Authority(tmp_path / "authority", "home", disk=QuickDisk())
    own = Credentials(tmp_path / "coordinator", QuickDisk())
    own.adopt(made.certify_coordinator(own.key.public))
    in_no_hurry = ConnectionLimiter(ConnectionLimits(questions=10_000))
    opened, port = await serve_joining(["127.0.0.1"], 0, own, made, in_no_hurry)
    failed = tried = 0
    try:
        for fuse in each_call(every):
            tried += 1
            key = new_key()
            token = made.create_token()
            with tls_refuses(fuse):
                async with asyncio.timeout(ENDS_S):
                    try:
                        await join("127.0.0.1", port, token, key, "worker", f"n{fuse.fails_at}")
                    except MeshError:
                        failed += 1
            async with asyncio.timeout(ENDS_S):  # the same token lets the same node in, whatever became of its answer
                await join("127.0.0.1", port, token, key, "worker", f"n{fuse.fails_at}")
        joined = [member.name for member in made.members()]
        assert len(joined) == len(set(joined)) == tried
    finally:
        await opened.close()
    assert failed >= 2


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_NONAME, socket.EAI_FAIL])
async def test_a_name_that_nobody_knows_just_now_is_said_and_is_asked_for_again(number: int) -> None:
    for fuse in each_call():
        call = Talk(NAME)
        with names_refuse(fuse, number, KNOWN):
            async with asyncio.timeout(ENDS_S):
                await call.run()
        assert call.well or [type(error) for error in call.errors] == [ConfigError]
        if call.errors:
            assert NAME in str(call.errors[0]) and "no answer" in str(call.errors[0])
    here, there = Endpoint(node("a"), Recorder()), Endpoint(node("b"), Recorder())
    try:
        port = await there.listen("127.0.0.1", 0)
        with names_refuse(Fuse(fails_at=1, heals_at=4), number, KNOWN):
            staying = asyncio.create_task(stay_linked(here, lambda: (f"{NAME}:{port}",)))
            await until(lambda: bool(here.links), ENDS_S)
        staying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await staying
    finally:
        await here.close()
        await there.close()
