"""A listening port that hears only so many strangers at once, whatever comes (docs/protocol.md, "Joining").

It accepts every connection, so that a flood costs the kernel nothing, and closes those beyond the gate's limits before
a byte is read.  What a connection carries is the business of `serve`; TLS, too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from .errors import ConfigError
from .gate import Gate

log = logging.getLogger("graph_mesh.listener")

BACKLOG = 256
PAUSE_S = 0.1  # after a failed accept: no file descriptor is free, most of the time


class Listener:
    """Calls `serve(connection, host)` for each caller; it counts as a stranger until that returns.

    `serve` owns the socket and takes care of its time limit; it is cancelled when the caller has to go.
    """

    def __init__(self, serve: Callable[[socket.socket, str], Awaitable[None]], gate: Gate) -> None:
        self._serve = serve
        self._gate = gate
        self._numbers = itertools.count()
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._strangers: dict[int, asyncio.Task[None]] = {}

    def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen on all these addresses ("0.0.0.0" and "::" for any), 0 meaning any free port; returns the port."""
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
            except OSError as error:
                raise ConfigError(f"cannot listen on port {port} of {host}", cause=error.strerror or "") from None
            bound.setblocking(False)
            port = bound.getsockname()[1]
            self._listening.append(bound)
            self._accepting.append(asyncio.get_running_loop().create_task(self._accept(bound)))
        return port

    async def close(self) -> None:
        """Stop listening, and end what strangers there are."""
        await asyncio.sleep(0)  # every task has begun, and so takes care of its socket
        tasks = [*self._accepting, *self._strangers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bound in self._listening:
            bound.close()

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(bound)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            self._arrived(connection, address[0])

    def _arrived(self, connection: socket.socket, host: str) -> None:
        number = next(self._numbers)
        arrival = self._gate.arrive(number, host)
        if arrival.evicted is not None:
            # Behind the first step of the task, which takes charge of the socket.
            asyncio.get_running_loop().call_soon(self._strangers[arrival.evicted].cancel)
        if not arrival.heard:
            connection.close()
            return
        connection.setblocking(False)
        self._strangers[number] = asyncio.get_running_loop().create_task(self._hear(number, connection, host))

    async def _hear(self, number: int, connection: socket.socket, host: str) -> None:
        try:
            await self._serve(connection, host)
        except OSError as error:
            log.debug("a caller from %s ended early: %s", host, error)
        finally:
            self._gate.leave(number)
            self._strangers.pop(number, None)
