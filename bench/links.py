"""How fast a link is, process to process into the receiver's buffer, beside a bare aiohttp WebSocket in the same run.

    python bench/links.py [--mib 64] [--rounds 9] [--profile]

Shared memory is off.  The bare pair does the same as the link, from a buffer into a buffer in frames of 256 KiB, and
nothing more; "hot" is the bare pair that sends one frame again and again and drops what it receives, so that all bytes
stay in the processor's cache.  "up" is sent by the side that dialled, which has to mask every byte (RFC 6455), "down"
by the other.  Rounds alternate, figures are medians, and what counts is the ratio: absolute figures drift with the
machine.  TLS is that of members: 1.3, both sides with a certificate.  --profile shows where both ends spend time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.machines.links import Recorder, node
from support.tls import authority, credentials

from wire.errors import MeshError
from wire.joining.credentials import Credentials
from wire.limits import KIB, MIB
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import BlobStream, Done, FetchBlob, Message
from wire.security.certificates import any_server_name

FRAME_BYTES = 256 * KIB
GOALS = "goals: link / bare 0.6, plain and TLS alike; TLS / plain 0.35"
PINGS = 1000
UP, DOWN = "up", "down"
ADDRESS = bytes(32)


@dataclass(frozen=True, slots=True)
class Setup:
    """What both processes of a pair know; `cards` is the folder of their credentials, None for no TLS."""

    size: int
    cards: Path | None
    profile: bool = False

    @property
    def there(self) -> Credentials | None:
        """The identity of the accepting side."""
        return Credentials(self.cards / "there") if self.cards else None

    @property
    def here(self) -> Credentials | None:
        return Credentials(self.cards / "here") if self.cards else None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two connected processes: `move` moves all bytes once in a direction, `ping` asks something small."""

    move: Callable[[str], Awaitable[Any]]
    ping: Callable[[], Awaitable[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="size of what is moved at once")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--cards", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    setup = Setup(chosen.mib * MIB, chosen.cards, chosen.profile)
    work = SERVERS[chosen.serve](setup) if chosen.serve else compare(setup, chosen.rounds)
    with profiled(chosen.serve or "dialling side") if chosen.profile else contextlib.nullcontext():
        asyncio.run(work)


async def compare(setup: Setup, rounds: int) -> None:
    async with AsyncExitStack() as stack:
        cards = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        by = authority()
        for name in ("here", "there"):
            credentials(cards / name, by)
        pairs = {
            (name, tls): await stack.enter_async_context(pair(replace(setup, cards=cards if tls else None)))
            for tls in (False, True)
            for name, pair in PAIRS.items()
        }
        print(
            f"{'GB/s':12}"
            + "".join(f"{name:>9}" for name in PAIRS)
            + f"{'link/bare':>12}{'link/hot':>10}{'TLS/plain':>12}"
        )
        for direction in (UP, DOWN):
            seconds: dict[tuple[str, bool], list[float]] = {each: [] for each in pairs}
            for _ in range(rounds + 1):  # the first is not counted
                for each, pair in pairs.items():
                    seconds[each].append(await timed(pair.move, direction))
            show(setup.size, direction, {each: times[1:] for each, times in seconds.items()})
        print(GOALS)
        for (name, tls), pair in pairs.items():
            times = sorted([await timed(pair.ping) * 1e6 for _ in range(PINGS)])
            median, p99 = statistics.median(times), times[PINGS * 99 // 100]
            kind = f"{'TLS' if tls else 'plain'} {name}"
            print(f"{kind:12} control round trip   median {median:7.1f} us   p99 {p99:7.1f} us   n {PINGS}", flush=True)


def show(size: int, direction: str, seconds: Mapping[tuple[str, bool], Sequence[float]]) -> None:
    """A line for each of plain and TLS.  Ratios are medians of each round's own: within one, the machine is alike."""
    for tls in (False, True):
        speeds = "".join(f"{size / statistics.median(seconds[name, tls]) / 1e9:9.3f}" for name in PAIRS)
        against = [(("bare", tls), 12), (("hot", tls), 10), *([(("link", False), 12)] if tls else [])]
        ratios = "".join(f"{ratio(seconds[each], seconds['link', tls]):{width}.2f}" for each, width in against)
        print(f"{'TLS' if tls else 'plain'} {direction:6}".ljust(12) + speeds + ratios, flush=True)


def ratio(others: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(other / mine for other, mine in zip(others, ours, strict=True))


async def timed(work: Callable[..., Awaitable[Any]], *arguments: Any) -> float:
    began_s = time.perf_counter()
    await work(*arguments)
    return time.perf_counter() - began_s


# -- our link


class Bulk(Recorder):
    """Takes streams into one buffer, sends one when asked, and says when a stream came whole."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.buffer = memoryview(bytearray(os.urandom(MIB) * (size // MIB)))
        self.sending: set[asyncio.Task[None]] = set()

    async def on_request(self, link: Link, body: Message) -> Message:
        if isinstance(body, FetchBlob):
            task = asyncio.ensure_future(link.send_stream(BlobStream(ADDRESS, 1), self.buffer))
            self.sending.add(task)
            task.add_done_callback(self.sending.discard)
        return Done()

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        return self.buffer

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        super().on_stream_done(link, header, buffer, error)
        link.notify(Done())


def endpoint_of(name: str, size: int, card: Credentials | None) -> tuple[Endpoint, Bulk]:
    handler = Bulk(size)
    said = {"node_id": card.node_id, "mesh": card.mesh, "role": card.member.role} if card else {}
    return Endpoint(node(name, **said), handler, credentials=card), handler


async def serve_link(setup: Setup) -> None:
    endpoint, _ = endpoint_of("there", setup.size, setup.there)
    print(await endpoint.listen(port=0), flush=True)
    await until_stdin_ends()
    await endpoint.close()


@asynccontextmanager
async def link_pair(setup: Setup) -> AsyncIterator[Pair]:
    endpoint, here = endpoint_of("here", setup.size, setup.here)
    async with other_process("link", setup) as port:
        link = await endpoint.dial("127.0.0.1", port)

        async def move(direction: str) -> None:
            if direction == UP:
                await link.send_stream(BlobStream(ADDRESS, 1), here.buffer)
                await here.notes.get()
            else:
                await link.request(FetchBlob(ADDRESS, 1))
                await here.streams.get()

        yield Pair(move, lambda: link.request(Done()))
        await endpoint.close()


# -- the bare pair


class Bare:
    """A bare pair's buffer, or the one frame that `hot` moves instead."""

    def __init__(self, size: int, hot: bool) -> None:
        self.size = size
        self._hot = hot
        self._buffer = memoryview(bytearray(os.urandom(MIB) * (size // MIB)))
        self._frame = os.urandom(FRAME_BYTES)
        self._came = 0

    async def send(self, send_bytes: Callable[[bytes], Awaitable[None]]) -> None:
        for place in range(0, self.size, FRAME_BYTES):
            await send_bytes(self._frame if self._hot else bytes(self._buffer[place : place + FRAME_BYTES]))

    def took(self, data: bytes) -> bool:
        """Whether that was all."""
        if not self._hot:
            self._buffer[self._came : self._came + len(data)] = data
        self._came = (self._came + len(data)) % self.size
        return self._came == 0


async def serve_bare(setup: Setup, hot: bool = False) -> None:
    bare, card = Bare(setup.size, hot), setup.there

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=2 * FRAME_BYTES)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                if bare.took(message.data):
                    await socket.send_str("done")
            elif message.data == "ping":
                await socket.send_str("pong")
            else:
                await bare.send(socket.send_bytes)
        return socket

    context = card.server_context() if card else None
    server = await asyncio.get_running_loop().create_server(web.Server(handle), "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await until_stdin_ends()


@asynccontextmanager
async def bare_pair(setup: Setup, hot: bool = False) -> AsyncIterator[Pair]:
    bare, card = Bare(setup.size, hot), setup.here
    tls: dict[str, Any] = {}
    if card is not None:
        tls = {"ssl": card.client_context(), "server_hostname": any_server_name(card.mesh)}
    async with (
        other_process("hot" if hot else "bare", setup) as port,
        aiohttp.ClientSession(f"http{'s' if tls else ''}://127.0.0.1:{port}") as session,
        session.ws_connect("/", compress=0, max_msg_size=2 * FRAME_BYTES, **tls) as socket,
    ):

        async def move(direction: str) -> None:
            if direction == UP:
                await bare.send(socket.send_bytes)
                await socket.receive_str()
            else:
                await socket.send_str("send")
                while not bare.took(await socket.receive_bytes()):
                    pass

        async def ping() -> None:
            await socket.send_str("ping")
            await socket.receive_str()

        yield Pair(move, ping)


# -- processes

SERVERS = {"link": serve_link, "bare": serve_bare, "hot": partial(serve_bare, hot=True)}
PAIRS = {"link": link_pair, "bare": bare_pair, "hot": partial(bare_pair, hot=True)}


@asynccontextmanager
async def other_process(kind: str, setup: Setup) -> AsyncIterator[int]:
    """The accepting side, in a process of its own; its port."""
    words = [__file__, "--serve", kind, "--mib", str(setup.size // MIB)]
    if setup.cards is not None:
        words += ["--cards", str(setup.cards)]
    if setup.profile and kind == "link":
        words.append("--profile")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdin is not None and process.stdout is not None
    yield int(await process.stdout.readline())
    process.stdin.close()
    print((await process.stdout.read()).decode(), end="")
    await process.wait()


async def until_stdin_ends() -> None:
    await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def profiled(what: str) -> Any:
    with cProfile.Profile() as profile:
        yield
    print(f"-- {what}")
    pstats.Stats(profile).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
