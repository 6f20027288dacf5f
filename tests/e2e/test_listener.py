"""wire.security.tls_listener: who comes as it closes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from wire.errors import ConfigError
from wire.security.connection_limiter import ConnectionLimiter
from wire.security.tls_listener import Listener


async def nobody(*_: Any) -> None:
    raise AssertionError("a caller was served")


async def test_a_caller_who_comes_as_it_closes_is_no_error() -> None:
    loop = asyncio.get_running_loop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    listener = Listener(nobody, nobody, ConnectionLimiter())
    port = listener.listen(["127.0.0.1"], 0)
    await asyncio.sleep(0)
    with socket.create_connection(("127.0.0.1", port)):  # the system takes the call, and nobody has looked yet
        await listener.close()
    await asyncio.sleep(0.01)
    assert errors == []


async def test_where_one_address_cannot_be_had_it_listens_on_none() -> None:
    listener = Listener(nobody, nobody, ConnectionLimiter())
    with pytest.raises(ConfigError, match=r"cannot listen on port \d+ of 203\.0\.113\.1") as raised:
        listener.listen(["127.0.0.1", "203.0.113.1"], 0)  # the second one is nobody's: RFC 5737
    port = int(raised.value.message.split()[4])
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    await listener.close()
