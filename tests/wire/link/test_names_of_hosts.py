"""Names of hosts: those that no resolver can be asked for have no address, and a resolver that does not answer holds
up nothing else."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wire.errors import ConfigError
from wire.limits import DEFAULT
from wire.link.websocket_carrier import WebSockets


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "\udcff", "nobody.invalid"])
async def test_a_name_that_cannot_be_resolved_is_said_to_be_none(host: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of any address"):
        await WebSockets(DEFAULT).resolve(host)


async def test_a_resolver_that_does_not_answer_keeps_no_thread_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a machine's nameserver is out of reach: each question takes a minute, and who dials asks again."""
    answers, asked = threading.Event(), list[str]()

    def silent(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        answers.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    dialling = WebSockets(DEFAULT)
    try:
        for _ in range(4):  # as often as links are dialled again, each attempt for as long as it may take
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await dialling.resolve("far.example")
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(lambda: "written") == "written"
        assert asked == ["far.example"], "one question is asked at a time"
        waiting = asyncio.ensure_future(dialling.resolve("far.example"))
        await asyncio.sleep(0)
    finally:
        answers.set()
    assert await waiting == ["127.0.0.1"]
    assert await dialling.resolve("far.example") == ["127.0.0.1"] and len(asked) == 2, "it may be elsewhere by now"


async def test_callers_that_are_noted_behind_a_lock_keep_no_thread_from_others() -> None:
    """The audit log is locked, and whoever has the lock may be a command that was stopped by Ctrl-Z."""
    unlocked = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    listening = WebSockets(DEFAULT)
    listening.audit = lambda host, why: unlocked.wait(60)
    noting = [asyncio.ensure_future(listening._turned_away(f"10.0.{number}.1", "no TLS")) for number in range(4)]
    await asyncio.sleep(0)  # all of them have begun
    try:
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(lambda: "written") == "written"
    finally:
        unlocked.set()
        await asyncio.gather(*noting)
