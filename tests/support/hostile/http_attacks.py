"""Attacks on a server of models: what to send it, and what it may say to that.

An attack is the bytes of one connection.  None may be answered with what a model says, or with what a server tells
those who have a key.  `here` is the server's own Host, `key` a key that it knows.  To add an attack, add a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

ASKS = json.dumps(
    {"model": "llama", "prompt": [5, 6, 7], "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
)
BODIES = {
    "/v1/chat/completions": {"model": "llama", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"model": "llama", "max_tokens": 4, "prompt": [5, 6, 7]},
    "/v1/responses": {"model": "llama", "max_output_tokens": 4, "input": "Hello"},
    "/v1/embeddings": {"model": "minilm", "input": "Hello"},
    "/v1/messages": {"model": "llama", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]},
    "/v1/messages/count_tokens": {"model": "llama", "messages": [{"role": "user", "content": "Hello"}]},
    "/api/chat": {"model": "llama", "messages": [{"role": "user", "content": "Hello"}]},
    "/api/generate": {"model": "llama", "prompt": "Hello"},
    "/api/embed": {"model": "minilm", "input": "Hello"},
    "/api/embeddings": {"model": "minilm", "prompt": "Hello"},
    "/api/show": {"model": "llama"},
}
READS = ("/v1/models", "/v1/models/llama", "/api/tags", "/api/ps", "/api/version", "/metrics")
TELLS = (  # what stands in an answer to somebody with a key, and in no error
    b'"choices"', b'"embedding', b'"response"', b'"role"', b'"output', b'"data":', b'"models"', b'"model_info"',
    b'"input_tokens"', b'"version"', b'"owned_by"', b"graph_mesh_", b"event:", b"data:",
)  # fmt: skip
REFUSED = frozenset((400, 401, 403, 404, 405))
REPLIES_S = 60.0
MORE_S = 0.3  # a second reply to one request comes right behind the first


@dataclass(frozen=True, slots=True)
class Attack:
    """What is sent, and the statuses with which it may be refused; `silent`: or by closing the connection."""

    name: str
    data: Callable[[str, str], bytes]
    statuses: frozenset[int]
    silent: bool = False
    replies_max: int = 1
    bodiless: bool = False  # a reply has no body, whatever its length says
    slow: bool = False  # the server waits for more before it gives up


def request(
    path: str, host: str, *headers: str, method: str = "", body: str | None = None, version: str = "1.1"
) -> bytes:
    """A request: POST with the body that the path takes, GET for a path that takes none."""
    if body is None:
        body = json.dumps(BODIES[path]) if path in BODIES else "" if path in READS else ASKS
    method = method or ("GET" if path in READS else "POST")
    lines = [f"{method} {path} HTTP/{version}", *([f"Host: {host}"] if host else []), *headers]
    if body and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body.encode())}")
    return ("\r\n".join([*lines, "", ""]) + body).encode("utf-8", "surrogateescape")


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


# -- keys

NEAR: dict[str, Callable[[str], str]] = {
    "a shorter one": lambda key: key[:-1],
    "its beginning": lambda key: key[:3],
    "a longer one": lambda key: key + "a",
    "another case": str.swapcase,
    "capitals": str.upper,
    "without its prefix": lambda key: key.removeprefix("gm-"),
    "NUL behind it": lambda key: key + "%00",
    "a comma behind it": lambda key: f"{key},",
    "twice": lambda key: f"{key} {key}",
    "in quotes": lambda key: f'"{key}"',
    "wide letters": lambda key: "".join(chr(ord(letter) + 0xFEE0) for letter in key),
    "a combining mark": lambda key: key + "\u0301",
    "a space of no width": lambda key: key[:5] + "\u200b" + key[5:],
    "bytes that are no UTF-8": lambda key: key + "\udcff",
    "nothing": lambda key: "",
    "a star": lambda key: "*",
    "null": lambda key: "null",
    "very long": lambda key: key * 100,
}


def _keys() -> Iterator[Attack]:
    for path in (*BODIES, *READS):
        yield Attack(f"no key, {path}", lambda host, key, path=path: request(path, host), frozenset((401,)))
    for name, near in NEAR.items():
        for header in (bearer, "x-api-key: {}".format):
            yield Attack(
                f"a key that is {name}, as {header('')[:9]}",
                lambda host, key, near=near, header=header: request("/v1/completions", host, header(near(key))),
                frozenset((400, 401)),
            )
    others: dict[str, Callable[[str], Sequence[str]]] = {
        "a NUL behind the key": lambda key: (bearer(key + "\0"),),
        "a wrong key before the right one": lambda key: (bearer("gm-wrong"), bearer(key)),
        "a wrong key behind the right one": lambda key: (bearer(key), bearer("gm-wrong")),
        "a wrong key beside the right one": lambda key: (bearer(key), "x-api-key: gm-wrong"),
        "the key in a header of continuation": lambda key: ("Authorization: Bearer", f" {key}"),
        "the key as Basic": lambda key: (f"Authorization: Basic {key}",),
        "the key without a scheme": lambda key: (f"Authorization: {key}",),
        "the key in a cookie": lambda key: (f"Cookie: x-api-key={key}; Authorization=Bearer {key}",),
        "the key of a proxy": lambda key: (f"Proxy-Authorization: Bearer {key}",),
        "a space before the colon": lambda key: (f"Authorization : Bearer {key}",),
        "an address of this machine": lambda key: (
            "X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "Forwarded: for=127.0.0.1;host=localhost",
        ),
    }  # fmt: skip
    for name, headers in others.items():
        yield Attack(
            name,
            lambda host, key, headers=headers: request("/v1/completions", host, *headers(key)),
            frozenset((400, 401)),
        )
    yield Attack(
        "the key in the address", lambda host, key: request(f"/v1/models?key={key}&api_key={key}", host, body="",
        method="GET"), frozenset((401,)),
    )  # fmt: skip


# -- names


HOSTS = (
    "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:{port}",
    "127.0.0.1:{port}@evil.example", "evil.example#127.0.0.1", "evil.example/127.0.0.1", "127.0.0.1, evil.example",
    "127.0.0.2.nip.io", "0.0.0.0", "0", "2130706433", "0x7f000001", "127.1", "[::ffff:127.0.0.1]", "[::2]",
    "localhost.", "localhost%00.evil.example", "LOCALHOST.EVIL.EXAMPLE", "evil.example\\@localhost", "local host", "",
)  # fmt: skip
ORIGINS = (
    "http://evil.example", "https://evil.example:{port}", "null", "file://", "http://127.0.0.1:1",
    "http://127.0.0.1:{port}.evil.example", "http://127.0.0.1:{port}@evil.example", "http://localhost:{port}",
    "http://127.0.0.1:{port}/", "https://127.0.0.1", "chrome-extension://abc", "http://[", "",
    "http://127.0.0.1:{port} ,",
)  # fmt: skip
NOT_HERE = frozenset((400, 403))


def _names() -> Iterator[Attack]:
    for name in HOSTS:

        def under(host: str, key: str, name: str = name) -> bytes:
            return request("/v1/completions", name.format(port=host.rpartition(":")[2]), bearer(key))

        yield Attack(f"the Host {name}", under, NOT_HERE)
    for origin in ORIGINS:
        for path in ("/v1/completions", "/v1/models", "/metrics"):

            def of(host: str, key: str, origin: str = origin, path: str = path) -> bytes:
                return request(path, host, f"Origin: {origin.format(port=host.rpartition(':')[2])}", bearer(key))

            yield Attack(f"the Origin {origin}, {path}", of, NOT_HERE)
    rows: dict[str, Callable[[str, str], bytes]] = {
        "no Host": lambda host, key: request("/v1/models", "", bearer(key)),
        "no Host, HTTP/1.0": lambda host, key: request("/v1/models", "", bearer(key), version="1.0"),
        "a second Host": lambda host, key: request("/v1/models", host, "Host: evil.example", bearer(key)),
        "a second Host before": lambda host, key: request("/v1/models", "evil.example", f"Host: {host}", bearer(key)),
        "the same Host twice": lambda host, key: request("/v1/models", host, f"Host: {host}", bearer(key)),
        "a second Origin": lambda host, key: request(
            "/v1/models", host, f"Origin: http://{host}", "Origin: http://evil.example", bearer(key)
        ),
        "an address with another name": lambda host, key: request(
            "http://evil.example/v1/models", host, bearer(key), method="GET", body=""
        ),
        "an address with a user": lambda host, key: request(
            f"http://evil.example@{host}/v1/models", "evil.example", bearer(key), method="GET", body=""
        ),
        "the name of a proxy": lambda host, key: request(
            "/v1/models", "evil.example", f"X-Forwarded-Host: {host}", f"X-Host: {host}", bearer(key)
        ),
        "OPTIONS of another site": lambda host, key: request(
            "/v1/completions", host, "Origin: http://evil.example", "Access-Control-Request-Method: POST",
            method="OPTIONS", body="",
        ),
    }  # fmt: skip
    for name, data in rows.items():
        yield Attack(name, data, NOT_HERE)


# -- one request within another

INNER = "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n\r\n{body}"


def _inner(host: str) -> str:
    body = json.dumps(BODIES["/v1/completions"])
    return INNER.format(host=host, size=len(body), body=body)


def _smuggled() -> Iterator[Attack]:
    """What two programs could read as different requests is refused as a whole, with a key that is right."""
    framings: dict[str, Callable[[str], tuple[Sequence[str], str]]] = {
        "CL and TE": lambda inner: (
            (f"Content-Length: {len(inner) + 5}", "Transfer-Encoding: chunked"), "0\r\n\r\n" + inner,
        ),
        "TE and CL": lambda inner: (
            ("Transfer-Encoding: chunked", "Content-Length: 4"), "5c\r\n" + inner + "\r\n0\r\n\r\n",
        ),
        "two lengths": lambda inner: (("Content-Length: 0", f"Content-Length: {len(inner)}"), inner),
        "a list of lengths": lambda inner: ((f"Content-Length: 0, {len(inner)}",), inner),
        "a length with a sign": lambda inner: ((f"Content-Length: +{len(inner)}",), inner),
        "a negative length": lambda inner: (("Content-Length: -1",), inner),
        "a length in hex": lambda inner: (("Content-Length: 0x10",), inner),
        "a length with a line in it": lambda inner: (("Content-Length: 1\n0",), inner),
        "TE that is not chunked at its end": lambda inner: (
            ("Transfer-Encoding: chunked, identity",), "0\r\n\r\n" + inner,
        ),
        "TE twice": lambda inner: (
            ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), "0\r\n\r\n" + inner,
        ),
        "TE of a strange name": lambda inner: (("Transfer-Encoding: xchunked",), "0\r\n\r\n" + inner),
        "TE with a space before the colon": lambda inner: (("Transfer-Encoding : chunked",), "0\r\n\r\n" + inner),
        "a chunk of a negative size": lambda inner: (("Transfer-Encoding: chunked",), "-1\r\n" + inner),
        "a chunk of a size with 0x": lambda inner: (("Transfer-Encoding: chunked",), "0x0\r\n\r\n" + inner),
        "a chunk that is longer than it says": lambda inner: (("Transfer-Encoding: chunked",), "1\r\nab\r\n0\r\n\r\n"),
        "a header without a colon": lambda inner: (("Transfer-Encoding chunked", "Content-Length: 0"), inner),
        "a NUL in a header": lambda inner: (("X: a\0b", "Content-Length: 0"), inner),
        "a lone CR in a header": lambda inner: (("X: a\rContent-Length: 0",), inner),
    }  # fmt: skip
    for name, framing in framings.items():

        def of(host: str, key: str, framing: Callable[[str], tuple[Sequence[str], str]] = framing) -> bytes:
            headers, body = framing(_inner(host))
            return request("/v1/completions", host, bearer(key), *headers, body=body)

        yield Attack(name, of, frozenset((400,)), silent=True)

    def behind(host: str, key: str) -> bytes:
        return request("/v1/messages", host) + _inner(host).encode()

    yield Attack("a second request behind one, both without a key", behind, frozenset((401,)), replies_max=2)
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    yield Attack(
        "an upgrade to HTTP/2", lambda host, key: request("/v1/completions", host, *upgrade), REFUSED, silent=True,
        replies_max=2,
    )  # fmt: skip
    yield Attack("HTTP/2 at once", lambda host, key: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", REFUSED, silent=True)
    yield Attack("TLS", lambda host, key: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), REFUSED, True)


# -- paths and methods

PATHS = (
    "//v1/models", "/v1//models", "/v1/models/", "/v1/models//llama", "/V1/models", "/v1/MODELS", "/v1/./models",
    "/v1/../v1/models", "/health/../v1/models", "/health/..%2fv1/models", "/health%2f..%2fv1/models", "/%76%31/models",
    "/v1/%6dodels", "/v1%2fmodels", "/v1/models%00", "/v1/models%20", "/v1/models;a=b", "/v1/models?x", "/v1/models#x",
    "/%2e%2e/v1/models", "/..%5cv1/models", "/v1\\models", "/health;/v1/models", "/health?/../v1/models%",
    "/.%0d%0a/v1/models",
    "/%c0%ae%c0%ae/v1/models", "/%252e%252e/v1/models", "/health/v1/models", "/etc/passwd", "/../../../../etc/passwd",
    "/static/../../serving/page.py", "/v1/models/../../../etc/passwd", "*", "v1/models", "?", "/%", "/%zz", "/\u00e9",
)  # fmt: skip
METHODS = (
    "HEAD", "TRACE", "CONNECT", "PUT", "DELETE", "PATCH", "PROPFIND", "get", "G\u00cbT", "GET\t", "POST,GET", "PRI",
    "X" * 300,
)  # fmt: skip


def _paths() -> Iterator[Attack]:
    for path in PATHS:
        statuses = REFUSED if not path.startswith("/health?") else REFUSED | {200}  # that is /health
        for method in ("GET", "POST"):
            yield Attack(
                f"{method} {path}",
                lambda host, key, path=path, method=method: request(path, host, method=method),
                statuses, silent=True,
            )  # fmt: skip
    for method in METHODS:
        for path in ("/v1/models", "/v1/completions"):
            yield Attack(
                f"{method} {path}", lambda host, key, path=path, method=method: request(path, host, method=method),
                REFUSED, silent=True, replies_max=2, bodiless=method == "HEAD",
            )  # fmt: skip
    overrides = ("X-HTTP-Method-Override: GET", "X-Original-URL: /health", "X-Rewrite-URL: /health")
    yield Attack("the path of a header", lambda host, key: request("/v1/models", host, *overrides), frozenset((401,)))
    yield Attack(
        "OPTIONS without a key", lambda host, key: request("/v1/completions", host, method="OPTIONS"),
        frozenset((204,)), replies_max=2,
    )  # fmt: skip


# -- too much


def _floods() -> Iterator[Attack]:
    many = [f"X-{place}: {place}" for place in range(20_000)]
    rows: dict[str, Callable[[str, str], bytes]] = {
        "20,000 headers": lambda host, key: request("/v1/models", host, *many),
        "a header of 1 MB": lambda host, key: request("/v1/models", host, "X: " + "a" * 1_000_000),
        "a path of 1 MB": lambda host, key: request("/" + "a" * 1_000_000, host, method="GET", body=""),
        "a method of 1 MB": lambda host, key: request("/v1/models", host, method="A" * 1_000_000),
        "lines without end": lambda host, key: b"\r\n" * 500_000,
        "bytes that are no HTTP": lambda host, key: bytes(range(256)) * 4000,
        "a key of 1 MB": lambda host, key: request("/v1/models", host, bearer("a" * 1_000_000)),
    }
    for name, data in rows.items():
        yield Attack(name, data, REFUSED, silent=True, slow=name == "lines without end")
    yield Attack(
        "a thousand requests in a row without a key", lambda host, key: request("/v1/completions", host) * 1000,
        frozenset((401,)), silent=True, replies_max=1000,
    )  # fmt: skip


ATTACKS = (*_keys(), *_names(), *_smuggled(), *_paths(), *_floods())


@dataclass(frozen=True, slots=True)
class Refusal:
    """What came back: the statuses, and what was wrong with that, "" for nothing."""

    statuses: tuple[int, ...]
    wrong: str


async def attacked(attack: Attack, host: str, port: int, key: str) -> Refusal:
    """Attack a server once; TimeoutError where it neither answers nor closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        sending = asyncio.ensure_future(_sent(writer, attack.data(host, key)))
        replies, data = await _replies(reader, attack)
        sending.cancel()
        return Refusal(tuple([status for status, _ in replies]), _wrong(attack, replies, data, key))
    finally:
        writer.transport.abort()


async def _sent(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()


async def _replies(reader: asyncio.StreamReader, attack: Attack) -> tuple[list[tuple[int, bytes]], bytes]:
    """All replies on a connection, until it is closed or nothing more comes, and all that came."""
    found: list[tuple[int, bytes]] = []
    came = b""
    for _ in range(attack.replies_max + 1):
        try:
            async with asyncio.timeout(MORE_S if found else REPLIES_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as ended:
            return found, came + ended.partial
        except ConnectionError:
            return found, came
        except TimeoutError:
            if found:
                return found, came
            raise
        size = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        body = b""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            async with asyncio.timeout(REPLIES_S):
                body = await reader.readexactly(int(size[1])) if size and not attack.bodiless else b""
        came += head + body
        found.append((int(head.split()[1]), body))
    return found, came


def _wrong(attack: Attack, replies: Sequence[tuple[int, bytes]], data: bytes, key: str) -> str:
    if not replies and not attack.silent:
        return f"no reply, but {data!r:.200}"
    for status, body in replies:
        if status not in attack.statuses:
            return f"status {status}: {body!r:.200}"
    if len(replies) > attack.replies_max:
        return f"{len(replies)} replies: {data!r:.400}"
    told = [text for text in (*TELLS, key.encode()) if text in data]
    if told:
        return f"{told} in {data!r:.400}"
    return ""
