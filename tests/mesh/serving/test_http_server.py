"""The server as the network sees it: bodies, methods, slow and crowding clients, keys; no model is needed for that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.errors import ConfigError
from mesh.serving.access import Access
from mesh.serving.api_error import ApiError
from mesh.serving.api_keys import ApiKeys
from mesh.serving.calls import Call
from mesh.serving.http_server import COMMENT, HttpServer, Listening
from mesh.serving.model_server import Served
from mesh.serving.openai_chat import failed_frame
from mesh.serving.replies import EVENT_STREAM, StreamReply, data_frame
from mesh.serving.routes import ROUTES, Route
from wire.deadlines import HTTP_BODY
from wire.security.certificates import certificate_pem, new_authority, new_key
from wire.security.tls import web_context
from wire.system.open_file_limit import allow_open_files, open_files_max

Reply = tuple[int, dict[str, str], bytes]
SOON_S = 60.0  # a hang, and not a busy machine


@asynccontextmanager
async def serving(listening: Listening = Listening(), *more: Route) -> AsyncIterator[int]:
    server = HttpServer(Served(), listening, (*ROUTES, *more))
    port = await server.start()
    try:
        yield port
    finally:
        await server.close()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON_S)).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(head[0].split()[1]), headers, body


async def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    named = {"Host": f"127.0.0.1:{port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body is not None:
        named.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + (body or b""))
    try:
        return await read_reply(reader)
    finally:
        writer.close()


def error_of(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply[2])["error"]
    return found


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "why"),
    [
        ("GET", "/nothing", None, {}, 404, "there is nothing at GET /nothing"),
        ("POST", "/chat/completions", b"{}", {}, 404, "at POST /chat/completions; it is at /v1/chat/completions"),
        ("GET", "/models", None, {}, 404, "at GET /models; it is at /v1/models"),
        ("POST", "/v1/v1/messages", b"{}", {}, 404, "at POST /v1/v1/messages; it is at /v1/messages"),
        ("POST", "/v1/api/chat", b"{}", {}, 404, "at POST /v1/api/chat; it is at /api/chat"),
        ("GET", "/v1/models/", None, {}, 404, "at GET /v1/models/; it is at /v1/models"),
        ("DELETE", "/v1/models", None, {}, 405, "takes GET, not DELETE"),
        ("GET", "/v1/chat/completions", None, {}, 405, "takes POST, not GET"),
        ("POST", "/v1/chat/completions", b"{", {}, 400, "the body is not valid JSON"),
        ("POST", "/v1/chat/completions", b"\xff", {}, 400, "the body is not valid JSON"),
        ("POST", "/v1/chat/completions", b"[" * 100_000, {}, 400, "the body is not valid JSON"),
        ("POST", "/v1/chat/completions", b"[" * 900 + b"]" * 900, {}, 400, "are nested more than 100 deep"),
        ("POST", "/v1/chat/completions", b'{"a": ' * 100 + b"1" + b"}" * 100, {}, 400, "model is required"),
        ("POST", "/v1/chat/completions", b"[]", {}, 400, "the body is a JSON object"),
        ("POST", "/v1/chat/completions", b"", {}, 400, "model is required"),
        ("POST", "/v1/chat/completions", b'{"model": "x"}', {}, 404, "there is no model 'x' here"),
        ("POST", "/v1/chat/completions", b"{}", {"Content_Type": "text/plain"}, 415, "has to be application/json"),
        ("POST", "/v1/chat/completions", b"{}", {"Content_Encoding": "gzip"}, 415, "compressed"),
        ("GET", "/v1/models", None, {"Host": "evil.example"}, 403, "not a name of this server"),
        ("DELETE", "/v1/models", None, {"Origin": "http://evil.example"}, 403, "may not send requests"),
        ("OPTIONS", "/v1/models", None, {"Origin": "http://evil.example"}, 403, "may not send requests"),
        ("GET", "/", None, {"Host": "evil.example"}, 403, "not a name of this server"),
        ("GET", "/health", None, {"Host": "evil.example"}, 403, "not a name of this server"),
        ("POST", "/v1/embeddings", b'{"model": "x"}', {}, 404, "there is no model"),
    ],
)
async def test_what_is_wrong_is_an_error_of_the_api(
    method: str, path: str, body: bytes | None, headers: dict[str, str], status: int, why: str
) -> None:
    async with serving() as port:
        reply = await ask(port, method, path, body, **headers)
        assert (reply[0], reply[1]["content-type"]) == (status, "application/json")
        assert why in error_of(reply)["message"]
        assert (await ask(port, "GET", "/health"))[0] == 200


async def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    async with serving(Listening(body_bytes_max=1000)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 100000000\r\n\r\n".encode()
        )
        status, headers, body = await read_reply(reader)  # though not a byte of it was sent
        writer.close()
        assert (status, headers["connection"]) == (413, "close")
        assert b"larger than 1000 B" in body
        chunked = b"".join(b"3e8\r\n" + b" " * 1000 + b"\r\n" for _ in range(9)) + b"0\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + chunked)
        assert (await read_reply(reader))[0] == 413
        writer.close()


async def test_a_client_that_sends_a_byte_now_and_then_is_refused_and_others_are_answered() -> None:
    slow = Listening(headers_s=1.0, body=replace(HTTP_BODY, seconds=1.0))
    async with serving(slow) as port:

        async def trickle(text: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answer = asyncio.create_task(asyncio.wait_for(reader.read(), SOON_S))
            for at in range(len(text)):
                if answer.done() or writer.is_closing():
                    break
                writer.write(text[at : at + 1])
                await asyncio.wait([answer], timeout=0.2)
            writer.close()
            return await answer

        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 500\r\n\r\n".encode()
        body, headers, _ = await asyncio.gather(
            _after(port, head, trickle), trickle(b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 200),
            ask(port, "GET", "/health"),
        )  # fmt: skip
        assert b"408" in body.split(b"\r\n")[0]
        assert headers == b""


async def _after(port: int, head: bytes, trickle: Any) -> bytes:
    """The answer to a head that comes at once, and a body that does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    for _ in range(3):
        writer.write(b" ")
        await asyncio.sleep(0.2)
    try:
        return await asyncio.wait_for(reader.read(), SOON_S)
    finally:
        writer.close()


async def test_so_many_bytes_of_bodies_are_held() -> None:
    async with serving(Listening(bodies_bytes_max=10_000)) as port:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9000\r\n\r\n".encode()
        _, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(head + b" " * 8000)
        async with asyncio.timeout(SOON_S):
            while (refused := await ask(port, "POST", "/v1/completions", b" " * 4000))[0] != 503:
                await asyncio.sleep(0.05)  # the first body is on its way
        assert (refused[0], refused[1]["retry-after"]) == (503, "1")
        assert (await ask(port, "POST", "/v1/completions", b"{}"))[0] == 400
        first.close()
        async with asyncio.timeout(SOON_S):
            while (await ask(port, "POST", "/v1/completions", b" " * 4000))[0] != 400:
                await asyncio.sleep(0.05)  # until there is room


async def test_so_many_connections_are_held() -> None:
    async with serving(Listening(connections_max=3)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in held:
            writer.write(f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert [(await read_reply(reader))[0] for reader, _ in held] == [200] * 3
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask(port, "GET", "/health")
        held[0][1].close()
        await held[0][1].wait_closed()
        again = None
        async with asyncio.timeout(SOON_S):
            while again is None:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # it has not seen the end yet
                    again = await ask(port, "GET", "/health")
        assert again[0] == 200
        for _, writer in held[1:]:
            writer.close()


FEW_FILES = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from mesh.serving.http_server import HttpServer, Listening
from mesh.serving.model_server import Served
async def serve():
    print(await HttpServer(Served(), Listening()).start(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
asyncio.run(serve())
"""


async def test_connections_leave_a_process_files_for_all_else() -> None:
    pytest.importorskip("resource")
    allow_open_files()
    if open_files_max() < 2000:
        pytest.skip("this process may not open as many files")
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", FEW_FILES, stdin=pipe, stdout=pipe, stderr=pipe)
    assert server.stdin is not None and server.stdout is not None
    port = int(await server.stdout.readline())
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1100)]
    for reader, _ in held[1024:]:
        with contextlib.suppress(ConnectionError):  # or it was reset
            assert await asyncio.wait_for(reader.read(), SOON_S) == b""
    held[0][1].write(f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert (await read_reply(held[0][0]))[0] == 200
    server.stdin.write(b"\n")
    _, said = await server.communicate()
    assert not said, said.decode()[:2000]
    for _, writer in held:
        writer.close()


async def test_keys_are_asked_for_and_hold_from_the_next_request_on(tmp_path: Path) -> None:
    keys = ApiKeys(tmp_path / "keys.json")
    async with serving(Listening(keys=ApiKeys(tmp_path / "keys.json"))) as port:
        refused = await ask(port, "GET", "/v1/models")
        assert (refused[0], error_of(refused)["code"]) == (401, "invalid_api_key")
        text = keys.create("me")
        assert (await ask(port, "GET", "/v1/models", Authorization=f"Bearer {text}"))[0] == 200
        assert (await ask(port, "GET", "/v1/models", X_Api_Key=text))[0] == 200
        assert (await ask(port, "GET", "/v1/models", Authorization=f"Bearer {text}x"))[0] == 401
        assert (await ask(port, "GET", "/health"))[0] == 200
        assert (await ask(port, "GET", "/"))[0] == 200
        keys.remove(keys.records()[0].key_id)
        assert (await ask(port, "GET", "/v1/models", Authorization=f"Bearer {text}"))[0] == 401


async def test_a_damaged_file_of_keys_is_for_the_log_and_not_for_strangers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    path.write_text("{")
    async with serving(Listening(keys=ApiKeys(path))) as port:
        refused = await ask(port, "GET", "/v1/models", Authorization="Bearer gm-x")
    assert (refused[0], error_of(refused)["code"]) == (500, "internal_error")
    assert str(tmp_path) not in refused[2].decode()
    assert str(path) in caplog.text


async def test_pages_of_an_allowed_origin_may_read_the_answer() -> None:
    origin = "https://chat.example"
    async with serving(Listening(access=Access(origins=frozenset({origin})))) as port:
        before = await ask(port, "OPTIONS", "/v1/models", Origin=origin, Access_Control_Request_Method="POST")
        answer = await ask(port, "GET", "/v1/models", Origin=origin)
        own = await ask(port, "GET", "/v1/models", Origin=f"http://127.0.0.1:{port}")
    assert (before[0], answer[0], own[0]) == (204, 200, 200)
    assert before[1]["access-control-allow-origin"] == answer[1]["access-control-allow-origin"] == origin
    assert "access-control-allow-origin" not in own[1]


async def test_https_by_files_of_the_user(tmp_path: Path) -> None:
    authority = new_authority("home", time.time())
    key = new_key()
    (tmp_path / "key.pem").write_bytes(key.pem())
    issued = authority.issue_web(key.public, ["localhost", "127.0.0.1"], time.time())
    (tmp_path / "certificate.pem").write_bytes(certificate_pem(issued))
    tls = web_context(tmp_path / "certificate.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cadata=authority.certificate)
    async with serving(Listening(tls=tls)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(f"GET /health HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        assert (await read_reply(reader))[0] == 200
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /health HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""  # without TLS there is no answer
        writer.close()
    with pytest.raises(ConfigError, match="no certificate and its key"):
        web_context(tmp_path / "key.pem", tmp_path / "key.pem")


class _Endless:
    """A stream of frames that never ends, and whether it was closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def frames(self) -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    def reply(self) -> StreamReply:
        return StreamReply("text/plain", self.frames(), lambda error: b"", self.closed.set)


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_a_client_that_hangs_up_or_does_not_read_ends_its_stream(hangs_up: bool) -> None:
    endless = _Endless()

    async def answer(call: Call) -> StreamReply:
        return endless.reply()

    async with serving(Listening(reader_s=1.0), Route("GET", "/endless", answer)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(f"GET /endless HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        if hangs_up:
            writer.close()
        await asyncio.wait_for(endless.closed.wait(), SOON_S)
        assert (await ask(port, "GET", "/health"))[0] == 200
        writer.close()


async def test_other_machines_are_answered_with_keys_alone() -> None:
    with pytest.raises(ConfigError, match="without API keys"):
        await HttpServer(Served(), Listening("0.0.0.0")).start()


async def test_a_taken_port_is_a_clear_error() -> None:
    async with serving() as port:
        with pytest.raises(ConfigError, match="cannot listen on"):
            await HttpServer(Served(), Listening(port=port)).start()


async def test_the_page_has_a_policy_and_nothing_from_elsewhere() -> None:
    async with serving() as port:
        status, headers, page = await ask(port, "GET", "/")
        script = (await ask(port, "GET", "/chat.js"))[2]
        style = (await ask(port, "GET", "/chat.css"))[2]
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    for text in (page, script, style):
        assert b"http://" not in text
        assert b"https://" not in text


async def begun(port: int, path: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@pytest.mark.parametrize("wrong", [False, True])
async def test_a_stream_that_has_to_wait_has_comments(wrong: bool) -> None:
    """Before its answer is there, as while a model is loaded, and between two pieces."""
    go, closed = [asyncio.Event(), asyncio.Event()], list[bool]()

    async def frames() -> AsyncIterator[bytes]:
        yield data_frame("first")
        await go[1].wait()
        yield data_frame("second")

    async def answer(call: Call) -> StreamReply:
        await go[0].wait()
        if wrong:
            raise ApiError(503, "no room", code="no_room")
        return StreamReply(EVENT_STREAM, frames(), failed_frame, lambda: closed.append(True))

    route = Route("POST", "/slow", answer, stream_failed=failed_frame)
    async with serving(Listening(quiet_s=0.01), route) as port, asyncio.timeout(SOON_S):
        reader, writer = await begun(port, "/slow", b'{"stream": true}')
        assert (await reader.readuntil(COMMENT)).startswith(b"HTTP/1.1 200")
        go[0].set()
        if wrong:
            assert b'"code":"no_room"' in await reader.read()
        else:
            await reader.readuntil(b'data: "first"')
            await reader.readuntil(COMMENT)
            go[1].set()
            assert b'data: "second"' in await reader.read()
            assert closed == [True]
        writer.close()


@pytest.mark.parametrize("late", [False, True])
async def test_a_client_that_hangs_up_before_its_stream_begins_ends_the_request(late: bool) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def answer(call: Call) -> StreamReply:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    route = Route("POST", "/slow", answer, stream_failed=failed_frame)
    async with serving(Listening(quiet_s=0.01 if late else SOON_S), route) as port, asyncio.timeout(SOON_S):
        reader, writer = await begun(port, "/slow", b'{"stream": true}')
        await (reader.readuntil(COMMENT) if late else asked.wait())
        writer.close()
        await ended.wait()


async def test_a_client_that_sends_much_that_is_no_http_can_read_the_answer() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(64):  # more than the buffers of a connection take
            writer.write(b"nonsense" * 8192)
            await asyncio.wait_for(writer.drain(), SOON_S)
        answer = await asyncio.wait_for(reader.read(), SOON_S)
        writer.close()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


async def test_a_client_that_is_no_http_and_does_not_hang_up_is_left() -> None:
    async with serving(Listening(linger_s=0.1)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x00\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), SOON_S)

        async def send_on() -> None:
            while True:
                writer.write(b"nonsense" * 8192)
                await writer.drain()
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_on(), SOON_S)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_hangs_up_as_its_stream_is_about_to_begin_keeps_no_place(streams: bool) -> None:
    """The answer is there, and nobody has it yet: what it holds, such as a place among those that are answered, was
    given back to nobody."""
    closed = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        yield b""

    async def answer(call: Call) -> StreamReply:
        (connection,) = server._server.connections
        asyncio.get_running_loop().call_soon(connection.connection_lost, None)
        return StreamReply(EVENT_STREAM, frames(), failed_frame, closed.set)

    route = Route("POST", "/soon", answer, stream_failed=failed_frame)
    server = HttpServer(Served(), Listening(), (*ROUTES, route))
    port = await server.start()
    try:
        _, writer = await begun(port, "/soon", json.dumps({"stream": streams}).encode())
        assert await asyncio.wait_for(closed.wait(), SOON_S)
        writer.close()
    finally:
        await server.close()


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("streams", [True, False])
async def test_a_panic_of_a_library_is_an_error_of_its_request(streams: bool, caplog: pytest.LogCaptureFixture) -> None:
    def tokens() -> None:
        raise Panic("index out of bounds")

    async def answer(call: Call) -> StreamReply:
        await asyncio.to_thread(tokens)
        raise AssertionError

    async with serving(Listening(), Route("POST", "/panics", answer, stream_failed=failed_frame)) as port:
        reply = await ask(port, "POST", "/panics", json.dumps({"stream": streams}).encode())
        assert reply[0] == 500 and error_of(reply)["type"] == "server_error" and "Panic" in caplog.text
        assert (await ask(port, "GET", "/health"))[0] == 200
