"""One kind of client of a server of models, until it is told to end: `serving_load.py KIND URL KEY ANSWERS`.

ANSWERS is a file with what the model says to each case alone.  One line of JSON per request that is over: its kind,
what came of it ("right", or the status with which it was refused), and the seconds that it took; "wrong" says what
should not be.  While there is a file called PAUSE beside ANSWERS it asks for nothing more.  Once stdin is closed it
ends in good order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from support.cases.served_requests import CASES, VECTORS, Answered, Asker, Case, user
from support.hostile.bad_bodies import BODIES, asks_for_few, nearly_right
from support.hostile.http_attacks import ATTACKS, attacked

ENDS_S = 360.0  # every request is over by then: its model is waited for 300 s at most (docs/deadlines.md)
LEAVES_S = 60.0  # who asked for a text without an end leaves by then
BUSY = (429, 503, 504)  # documented: more than may wait, lost workers, a limit of time
ROUNDING = 5e-6  # of embeddings, in batches of any size
RESTS_S = (0.0, 0.6)  # between two requests of a client
CROWD, CROWD_EVERY_S = 32, 20.0  # 8 are answered and 16 wait
IDLE = 100  # connections that say nothing
LARGE_BYTES = 100_000_000
PAUSE = "pause"  # a file beside the answers

over = asyncio.Event()


def say(kind: str, outcome: str, began_s: float, wrong: str = "") -> None:
    told = {"kind": kind, "outcome": outcome, "s": round(time.monotonic() - began_s, 2)}
    print(json.dumps({**told, "wrong": wrong} if wrong else told), flush=True)


class Client:
    """What all kinds have: the server, a key, the answers that are right, and a file: while it is there, clients ask
    for nothing more."""

    def __init__(self, url: str, key: str, answers: dict[str, Answered], pause: Path) -> None:
        self.url, self.key, self.answers = url, key, answers
        self.host = url.removeprefix("http://")
        self.port = int(url.rpartition(":")[2])
        self.pause = pause
        self.chance = random.Random()
        self.asker = Asker(url, key, ENDS_S)

    async def rest(self, least_s: float = 0.0) -> None:
        """Wait for a moment, and until no client is to wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(least_s or self.chance.uniform(*RESTS_S)):
                await over.wait()
        while self.pause.exists() and not over.is_set():
            await asyncio.sleep(0.5)

    async def ask(self, case: Case, kind: str = "") -> None:
        """Ask until it is answered, as long as the server says that it is busy."""
        stream = case.streams and self.chance.random() < 0.6
        kind = kind or f"{case.name}{', streamed' if stream else ''}"
        while True:
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(ENDS_S):
                    found = await self.asker.ask(case, stream)
            except TimeoutError:
                return say(kind, "stuck", began_s, f"it took more than {ENDS_S:g} s")
            except Exception as error:
                wait_s, outcome, wrong = _refused(error)
                say(kind, outcome, began_s, wrong)
                if wrong or over.is_set():
                    return None
                await asyncio.sleep(wait_s)
            else:
                expected = self.answers[case.name]
                wrong = (
                    "" if _same(case, found, expected) else f"{json.dumps(found)} in place of {json.dumps(expected)}"
                )
                return say(kind, "wrong" if wrong else "right", began_s, wrong)


def _same(case: Case, found: Answered, expected: Answered) -> bool:
    if case.asks not in VECTORS:
        return found == expected
    rows, wanted = np.asarray(found["rows"]), np.asarray(expected["rows"])
    return rows.shape == wanted.shape and bool(np.allclose(rows, wanted, rtol=0, atol=ROUNDING))


def _refused(error: Exception) -> tuple[float, str, str]:
    """How long to wait after an error of a client, what it was, and what is wrong with that."""
    status = getattr(error, "status_code", None)
    response = getattr(error, "response", None)
    if status is None or status < 0:  # in the middle of a stream, whose status was 200
        text = f"{error} {getattr(error, 'body', '')}"
        known = next((word for word in ENDINGS if word in text), None)
        return 1.0, f"stream ended: {known}", "" if known else f"{type(error).__name__}: {text}"
    if status not in BUSY:
        return 0.0, str(status), f"{status}: {error}"
    after = response.headers.get("retry-after") if response is not None else "1"  # Ollama's client does not show it
    if status == 429 and not (after or "").isdigit():
        return 1.0, str(status), "429 without Retry-After"
    return min(float(after or 1), 5.0), f"{status} {getattr(error, 'code', None) or ''}".strip(), ""


ENDINGS = (
    "workers_lost", "deadline_exceeded", "no_room", "not_available", "overloaded", "timeout_error", "disk_full",
    "rate_limit",
)  # fmt: skip


# -- kinds of clients


async def of_one_api(client: Client, api: str, tasks: int) -> None:
    cases = [case for case in CASES if case.name.startswith(api)]

    async def one() -> None:
        while not over.is_set():
            await client.ask(client.chance.choice(cases))
            await client.rest()
            if api == "ollama" and client.chance.random() < 0.02:
                began_s = time.monotonic()
                await client.asker.unload(client.chance.choice(("llama", "minilm")))
                say("ollama unloads a model", "right", began_s)

    await _together(*[one() for _ in range(tasks)])


async def openai(client: Client) -> None:
    await of_one_api(client, "openai", 3)


async def anthropic(client: Client) -> None:
    await of_one_api(client, "anthropic", 2)


async def ollama(client: Client) -> None:
    await of_one_api(client, "ollama", 2)


async def crowd(client: Client) -> None:
    """More requests at once than there is room for: some are refused, and the others are right."""
    case = next(case for case in CASES if case.name == "openai chat: greedy")
    while not over.is_set():
        await _together(*[client.ask(case, "one of a crowd") for _ in range(CROWD)])
        await client.rest(CROWD_EVERY_S)


async def rude(client: Client) -> None:
    """Clients that leave, read slowly, send too much, or nearly what is right."""

    async def one(kinds: tuple[Callable[[Client], Awaitable[None]], ...]) -> None:
        while not over.is_set():
            kind = client.chance.choice(kinds)
            began_s, name = time.monotonic(), kind.__name__.replace("_", " ")
            try:
                async with asyncio.timeout(ENDS_S):
                    await kind(client)
            except TimeoutError:
                say(name, "stuck", began_s, f"it took more than {ENDS_S:g} s")
            except (Wrong, OSError, asyncio.IncompleteReadError) as wrong:
                say(name, "wrong", began_s, f"{type(wrong).__name__}: {wrong}")
            else:
                say(name, "right", began_s)
            await client.rest()

    quick = (leaves_in_the_middle, leaves_before_the_answer, nearly_right_body, no_json, too_long)
    await _together(one(quick), one(quick), one((reads_a_byte_a_second,)), one((large_body, large_chunks, *quick)))


async def attacker(client: Client) -> None:
    """All attacks, in turns, some at a time."""

    async def one() -> None:
        while not over.is_set():
            attack = client.chance.choice(ATTACKS)
            began_s = time.monotonic()
            kind = "attack that floods" if attack.slow else "attack"
            try:
                async with asyncio.timeout(ENDS_S):
                    wrong = (await attacked(attack, client.host, client.port, client.key)).wrong
            except TimeoutError:
                say(kind, "stuck", began_s, f"{attack.name}: it took more than {ENDS_S:g} s")
            except OSError as error:
                say(kind, "wrong", began_s, f"{attack.name}: {error!r}")
            else:
                say(kind, "wrong" if wrong else "right", began_s, f"{attack.name}: {wrong}" if wrong else "")
            await client.rest()

    async def holds() -> None:
        while not over.is_set():
            began_s = time.monotonic()
            held = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(IDLE)]
            await asyncio.sleep(client.chance.uniform(1, 10))
            for _, writer in held:
                writer.transport.abort()
            say("connections without a word", "right", began_s)
            await client.rest()

    await _together(one(), one(), one(), holds())


KINDS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "openai": openai, "anthropic": anthropic, "ollama": ollama, "crowd": crowd, "rude": rude, "attacker": attacker,
}  # fmt: skip


async def _together(*running: Any) -> None:
    async with asyncio.TaskGroup() as group:
        for each in running:
            group.create_task(each)


# -- what rude clients do


class Wrong(Exception):
    """What a server should not say."""


async def _posted(client: Client, path: str, body: Any, size: int | None = None) -> Any:
    """A connection on which a request was sent, with the key."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    length = "Transfer-Encoding: chunked" if size == -1 else f"Content-Length: {len(data) if size is None else size}"
    head = f"POST {path} HTTP/1.1\r\nHost: {client.host}\r\nAuthorization: Bearer {client.key}\r\n{length}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


async def _reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers["content-length"])) if "content-length" in headers else b""
    return int(lines[0].split()[1]), headers, body


LONG = {"model": "llama", "messages": user("Tell me a very long story."), "max_tokens": 600, "temperature": 0}


async def leaves_in_the_middle(client: Client) -> None:
    reader, writer = await _posted(client, "/v1/chat/completions", {**LONG, "stream": True})
    for _ in range(client.chance.randrange(1, 60)):
        if not await reader.readline():
            break
    if client.chance.random() < 0.5:  # with a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def leaves_before_the_answer(client: Client) -> None:
    path, body = client.chance.choice((
        ("/v1/chat/completions", LONG), ("/v1/messages", LONG), ("/api/chat", {**LONG, "max_tokens": None}),
        ("/v1/embeddings", {"model": "minilm", "input": ["a cat"] * 20}),
    ))  # fmt: skip
    _, writer = await _posted(client, path, {name: value for name, value in body.items() if value is not None})
    await asyncio.sleep(client.chance.uniform(0, 0.3))
    writer.transport.abort()


async def reads_a_byte_a_second(client: Client) -> None:
    reader, writer = await _posted(client, "/v1/chat/completions", {**LONG, "stream": True, "n": 4, "logprobs": True})
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    own = writer.get_extra_info("socket")
    reads_until_s = time.monotonic() + client.chance.uniform(5, 50)
    while time.monotonic() < reads_until_s and not over.is_set() and not client.pause.exists():
        with contextlib.suppress(BlockingIOError, ConnectionError):
            own._sock.recv(1) if hasattr(own, "_sock") else own.recv(1)
        await asyncio.sleep(1.0)
    writer.transport.abort()


def _shaped(path: str, body: bytes) -> Any:
    """The error in a body, which has the shape of its API."""
    try:
        error = json.loads(body)["error"]
        assert isinstance(error if path.startswith("/api/") else error["message"], str)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise Wrong(f"{path}: {body!r:.300}") from None
    return error


async def _refused_with(client: Client, path: str, body: Any, *statuses: int, size: int | None = None) -> Any:
    reader, writer = await _posted(client, path, body, size)
    try:
        status, _, data = await _reply(reader)
        if status == 200:
            if 200 in statuses:
                return None
            raise Wrong(f"{path} took {body!r:.300}")
        error = _shaped(path, data)
        if status not in (*statuses, *BUSY):
            raise Wrong(f"{path}: status {status} to {body!r:.300}: {error}")
        return status, error
    finally:
        writer.transport.abort()


async def nearly_right_body(client: Client) -> None:
    """Whoever asks for no few tokens gets as many as the context has, and leaves after a while."""
    path = client.chance.choice(list(BODIES))
    body = nearly_right(client.chance, path, client.chance.choice((1, 1, 2)))
    ends = asks_for_few(path, body)
    try:
        async with asyncio.timeout(ENDS_S if ends else LEAVES_S):
            await _refused_with(client, path, body, 200, 400, 404)
    except TimeoutError:
        if ends:
            raise Wrong(f"{path}: {body!r:.1000} took more than {ENDS_S:g} s") from None


async def no_json(client: Client) -> None:
    bad = (
        b"{",
        b"\xff\xfe",
        b"[" * 90_000,
        b'{"a":' * 200,
        b"NaN",
        b'{"model": "llama", "model": ',
        b"\0" * 1000,
        b"<xml/>",
    )
    await _refused_with(client, client.chance.choice(list(BODIES)), client.chance.choice(bad), 400)


async def too_long(client: Client) -> None:
    path, body = client.chance.choice((
        ("/v1/chat/completions", {"model": "llama", "messages": user("word " * 9000)}),
        ("/v1/completions", {"model": "llama", "prompt": [7] * 3000}),
        ("/v1/messages", {"model": "llama", "max_tokens": 5, "messages": user("word " * 9000)}),
        ("/api/chat", {"model": "llama", "messages": user("word " * 9000)}),
    ))  # fmt: skip
    told = await _refused_with(client, path, body, 400)
    if told and told[0] == 400 and "tokens" not in str(told[1]):
        raise Wrong(f"{path}: {told[1]}")


async def large_body(client: Client) -> None:
    """100 MB, which the server refuses before it reads them."""
    told = await _refused_with(client, client.chance.choice(list(BODIES)), b"{", 413, size=LARGE_BYTES)
    assert told is not None


async def large_chunks(client: Client) -> None:
    """100 MB whose size nobody says before: the server reads as much as it takes, and no more."""
    reader, writer = await _posted(client, "/v1/chat/completions", b"", -1)
    piece, sent = b" " * (1 << 20), 0
    answering = asyncio.ensure_future(_reply(reader))
    try:
        while sent < LARGE_BYTES and not answering.done():
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            sent += len(piece)
        status, _, data = await answering
        _shaped("/v1/chat/completions", data)
        if status not in (413, *BUSY):
            raise Wrong(f"status {status} to 100 MB")
    except (ConnectionError, asyncio.IncompleteReadError):  # it closes while we still send, and the reply may be lost
        if sent >= LARGE_BYTES:
            raise Wrong("it took all of 100 MB") from None
    finally:
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            await answering
        writer.transport.abort()


async def main(kind: str, url: str, key: str, answers: str) -> None:
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(over.set)), daemon=True).start()
    client = Client(url, key, json.loads(Path(answers).read_text()), Path(answers).with_name(PAUSE))
    await KINDS[kind](client)
    await client.asker.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
