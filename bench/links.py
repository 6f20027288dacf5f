"""How fast a link is, process to process into the receiver's buffer, beside a bare aiohttp WebSocket in the same run.

    python bench/links.py [--mib 64] [--rounds 9] [--profile]

Shared memory is off.  The bare pair does the same as the link, from a buffer into a buffer in frames of 256 KiB, and
nothing more; "hot" is the bare pair that sends one frame again and again and drops what it receives, so that all bytes
stay in the processor's cache.  "up" is sent by the side that dialled, which has to mask every byte (RFC 6455), "down"
by the other.  Rounds alternate, figures are medians, and what counts is the ratio: absolute figures drift with the
machine.  --profile shows where both ends of a link spend time.
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
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.links import Recorder, node

from wire.errors import MeshError
from wire.limits import KIB, MIB
from wire.link import Link
from wire.messages import BlobStream, Done, FetchBlob, Message
from wire.transport import Endpoint

FRAME_BYTES = 256 * KIB
GOAL = 0.6  # of the bare pair
PINGS = 1000
UP, DOWN = "up", "down"
ADDRESS = bytes(32)


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
    chosen = parser.parse_args()
    work = SERVERS[chosen.serve](chosen.mib * MIB) if chosen.serve else compare(chosen)
    with profiled(chosen.serve or "dialling side") if chosen.profile else contextlib.nullcontext():
        asyncio.run(work)


async def compare(chosen: argparse.Namespace) -> None:
    size = chosen.mib * MIB
    async with AsyncExitStack() as stack:
        pairs = {name: await stack.enter_async_context(pair(size, chosen)) for name, pair in PAIRS.items()}
        for direction in (UP, DOWN):
            seconds: dict[str, list[float]] = {name: [] for name in pairs}
            for _ in range(chosen.rounds + 1):  # the first is not counted
                for name, pair in pairs.items():
                    seconds[name].append(await timed(pair.move, direction))
            speeds = {name: size / statistics.median(each[1:]) / 1e9 for name, each in seconds.items()}
            shown = "   ".join(f"{name} {speed:6.3f} GB/s" for name, speed in speeds.items())
            ratios = "   ".join(f"/ {name} {speeds['link'] / speeds[name]:.2f}" for name in speeds if name != "link")
            print(f"{direction:5} {shown}   link {ratios}   goal {GOAL:g}", flush=True)
        for name, pair in pairs.items():
            times = sorted([await timed(pair.ping) * 1e6 for _ in range(PINGS)])
            median, p99 = statistics.median(times), times[PINGS * 99 // 100]
            print(f"{name:4} control round trip   median {median:7.1f} us   p99 {p99:7.1f} us   n {PINGS}", flush=True)


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


async def serve_link(size: int) -> None:
    endpoint = Endpoint(node("there"), Bulk(size))
    print(await endpoint.listen(port=0), flush=True)
    await until_stdin_ends()
    await endpoint.close()


@asynccontextmanager
async def link_pair(size: int, chosen: argparse.Namespace) -> AsyncIterator[Pair]:
    here = Bulk(size)
    endpoint = Endpoint(node("here"), here)
    async with other_process("link", chosen) as port:
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


async def serve_bare(size: int, hot: bool = False) -> None:
    bare = Bare(size, hot)

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

    server = await asyncio.get_running_loop().create_server(web.Server(handle), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await until_stdin_ends()


@asynccontextmanager
async def bare_pair(size: int, chosen: argparse.Namespace, hot: bool = False) -> AsyncIterator[Pair]:
    bare = Bare(size, hot)
    async with (
        other_process("hot" if hot else "bare", chosen) as port,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}", compress=0, max_msg_size=2 * FRAME_BYTES) as socket,
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
async def other_process(kind: str, chosen: argparse.Namespace) -> AsyncIterator[int]:
    """The accepting side, in a process of its own; its port."""
    words = [__file__, "--serve", kind, "--mib", str(chosen.mib)]
    if chosen.profile and kind == "link":
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
