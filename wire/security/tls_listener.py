"""A listening port that hears a bounded number of strangers at once (docs/protocol.md, "Joining").

It accepts every connection, so that a flood costs the kernel nothing, and closes those beyond the gate's limits.  TLS
takes 300 KiB, so it only begins when the whole first record is there and can be TLS's; what does not begin so goes at
once.  Where no TLS is spoken, callers begin with another first word.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..errors import ConfigError
from ..system.steady_log import steady_logger
from ..system.tasks import Tasks, unheard
from ..timeouts import DEFAULT_TIMEOUTS
from .connection_limiter import ConnectionLimiter

log = steady_logger("graph_mesh.listener")

BACKLOG = 256
PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)  # another port may do; others are of the address
TLS_HANDSHAKE = b"\x16"  # the first byte of every TLS connection
HELLO_BYTES_MAX = 4096  # of the first record, which is 300 to 2,000
HEADER_BYTES = 5  # of a record: its kind, version (2) and length (2)
LOOK_S = 0.01  # from one look for the rest of a record to the next
TOO_MANY_LINE_EVERY_S = 10.0  # from one word about callers that find no room to the next
TURN_S = 0.005  # from one begin of TLS to the next: a flood takes a part of the loop's time, and no more memory
PAUSE_S = 0.1  # after a failed accept: no file descriptor is free, most of the time


def addresses_of(host: str) -> tuple[str, ...]:
    """What to listen on for `host`: for "::" every address, of IPv6 too where this machine has it."""
    if host != "::":
        return (host,)
    try:
        with socket.socket(socket.AF_INET6) as here:
            here.bind(("::1", 0))
    except OSError:
        return ("0.0.0.0",)
    return ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class FirstWord:
    """What callers begin with: `size_of(received)` is its size, as far as its beginning shows, and a ValueError says
    what is wrong with a beginning.  What follows begins every `turn_s` at most."""

    size_of: Callable[[bytes], int]
    turn_s: float = 0.0


def _record_size(received: bytes) -> int:
    size = HEADER_BYTES + int.from_bytes(received[3:HEADER_BYTES])
    if received[:1] != TLS_HANDSHAKE or size > HELLO_BYTES_MAX:
        raise ValueError("it does not speak TLS")
    return max(size, HEADER_BYTES)


TLS_RECORD = FirstWord(_record_size, TURN_S)


@dataclass(frozen=True, slots=True)
class Caller:
    """A stranger that is being served."""

    host: str
    number: int
    _gate: ConnectionLimiter

    def asked(self) -> None:
        """The caller said all that it has to say, and waits for us."""
        self._gate.spoke(self.number)

    def answered(self) -> None:
        """The caller's turn has come, and others may take its place if it sends nothing."""
        self._gate.answered(self.number, asyncio.get_running_loop().time())


class Listener:
    """The listener calls `serve(connection, caller)` for each caller; it counts as a stranger until that returns.

    `serve` owns the socket and takes care of its time limit; it is cancelled when the caller has to go.
    `turned_away(host, why)` hears of callers that did not begin with the `first_word`.
    """

    def __init__(
        self,
        serve: Callable[[socket.socket, Caller], Awaitable[None]],
        turned_away: Callable[[str, str], Awaitable[None]],
        gate: ConnectionLimiter,
        first_word_s: float = DEFAULT_TIMEOUTS.first_word_s,
        first_word: FirstWord = TLS_RECORD,
    ) -> None:
        self._first_word_s = first_word_s
        self._first_word = first_word
        self._serve = serve
        self._turned_away = turned_away
        self._gate = gate
        self._turn = asyncio.Lock()
        self._begun_s = 0.0
        self._reported_too_many_s = float("-inf")
        self._numbers = itertools.count()
        self._listening: list[socket.socket] = []
        self._tasks = Tasks()
        self._strangers: dict[int, asyncio.Task[None]] = {}

    def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen on all these addresses ("0.0.0.0" and "::" for any), 0 meaning any free port; returns the port.

        ConfigError if one of them cannot be had, and then it listens on none.
        """
        with contextlib.ExitStack() as given_up:
            listening: list[socket.socket] = []
            for host in hosts:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                try:
                    bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
                except OSError as error:
                    flag = "--port" if error.errno in PORT_ERRORS else "--host"
                    raise ConfigError(
                        f"cannot listen on port {port} of {host}",
                        cause=error.strerror or "",
                        next_step=f"Choose another with {flag}",
                    ) from None
                listening.append(given_up.enter_context(bound))
                bound.setblocking(False)
                port = bound.getsockname()[1]
            given_up.pop_all()
        for bound in listening:
            self._listening.append(bound)
            self._tasks.keep("accepting", partial(self._accept, bound))
        return port

    async def close(self) -> None:
        """Stop listening, and end what strangers there are."""
        await asyncio.sleep(0)  # every task has begun, and so takes care of its socket
        for bound in self._listening:
            # asyncio gives a caller who is there already to the accept that is cancelled below, which is an error.
            with contextlib.suppress(NotImplementedError):  # on Windows it does not
                asyncio.get_running_loop().remove_reader(bound)
        self._tasks.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for bound in self._listening:
            bound.close()
        self._listening.clear()

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
        arrival = self._gate.arrive(number, host, asyncio.get_running_loop().time())
        if arrival.evicted is not None:
            # Behind the first step of the task, which takes charge of the socket.
            asyncio.get_running_loop().call_soon(self._strangers[arrival.evicted].cancel)
        if not arrival.heard:
            connection.close()
            self._report_too_many(host)
            return
        connection.setblocking(False)
        caller = Caller(host, number, self._gate)
        hearing = self._tasks.run("hearing a caller", self._hear(caller, connection), lambda _: connection.close())
        self._strangers[number] = hearing

    def _report_too_many(self, host: str) -> None:
        """Report that there are too many callers, at most once per interval: a caller that is in earnest tries
        again."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._reported_too_many_s >= TOO_MANY_LINE_EVERY_S:
            self._reported_too_many_s = now_s
            self._tasks.run("reporting too many callers", self._log_too_many(host), unheard)

    async def _log_too_many(self, host: str) -> None:
        await self._turned_away(host, "too many callers at once")

    async def _hear(self, caller: Caller, connection: socket.socket) -> None:
        try:
            if await self._begins(connection, caller.host):
                caller.asked()
                await self._wait_for_turn(connection)
                caller.answered()
                await self._serve(connection, caller)
        except OSError as error:
            log.debug("a caller from %s ended early: %s", caller.host, error)
        finally:
            self._gate.leave(caller.number)
            self._strangers.pop(caller.number, None)

    async def _begins(self, connection: socket.socket, host: str) -> bool:
        """Whether the caller begins as it should; if not, its connection is closed."""
        try:
            async with asyncio.timeout(self._first_word_s):
                why = await _is_there(connection, self._first_word.size_of)
        except TimeoutError:
            why = f"it said nothing for {self._first_word_s:g} s"
        except BaseException:
            connection.close()
            raise
        if why is None:
            return True
        connection.close()
        if why:
            await self._turned_away(host, why)
        return False

    async def _wait_for_turn(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._begun_s + self._first_word.turn_s - loop.time()))
                self._begun_s = loop.time()
        except BaseException:
            connection.close()
            raise


async def _is_there(connection: socket.socket, size_of: Callable[[bytes], int]) -> str | None:
    """Wait for a whole first word, left where it is: None, or why it is none, "" if the caller hung up."""
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    try:
        loop.add_reader(connection, there.set)
    except NotImplementedError:  # Windows' loop waits for whole reads only, and so what follows begins at once
        return None
    try:
        await there.wait()
    finally:
        loop.remove_reader(connection)
    while True:
        received = connection.recv(HELLO_BYTES_MAX, socket.MSG_PEEK)
        if not received:
            return ""
        try:
            size = size_of(received)
        except ValueError as error:
            return str(error)
        if len(received) >= size:
            return None
        await asyncio.sleep(LOOK_S)
