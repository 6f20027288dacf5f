"""HTTP server: requests from the network to the functions of `routes.py`, and their replies back.

A request is checked from its outside to its inside: Host and Origin, key, path, size, JSON.  A client has a stated time
for its headers and its body, and to read what it is sent; one that hangs up ends its request at once.  This file
knows HTTP, and no API.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from wire.bounds import HTTP_BODIES, HTTP_CONNECTIONS
from wire.deadlines import HTTP_BODY, HTTP_HEADERS, HTTP_LINGER, HTTP_READER, Deadline
from wire.errors import ConfigError
from wire.link.address_policy import is_loopback
from wire.security.tls import TLSContext
from wire.system.open_file_limit import open_files_max
from wire.system.steady_log import steady_logger
from wire.units import size_text

from .access import OWN, Access, bearer, single
from .api_error import ApiError, api_error, openai_shape
from .api_keys import ApiKeys
from .calls import Call, Models
from .fields import parsed_json
from .page import FILES, HEADERS
from .replies import EVENT_STREAM, JsonReply, Reply, StreamReply, TextReply, to_json
from .routes import ROUTES, Route, Shape, found, route_of, shape_of

log = steady_logger("graph_mesh.serving")

BODY_BYTES_MAX = 16 << 20
COMMON_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Server": "graph-mesh",
    "X-Content-Type-Options": "nosniff",
}
QUIET_S = 10.0  # after which a stream that has nothing to say has a comment
COMMENT = b": waiting\n\n"
NO_BODY = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Listening:
    """The address of a server, and whom it answers.  Without `keys` everybody who reaches it is answered."""

    host: str = "127.0.0.1"
    port: int = 0
    tls: TLSContext | None = None
    access: Access = OWN
    keys: ApiKeys | None = None
    body_bytes_max: int = BODY_BYTES_MAX
    bodies_bytes_max: int = HTTP_BODIES.most
    connections_max: int = HTTP_CONNECTIONS.most
    headers_s: float = HTTP_HEADERS.seconds
    body: Deadline = HTTP_BODY
    reader_s: float = HTTP_READER.seconds
    linger_s: float = HTTP_LINGER.seconds
    quiet_s: float = QUIET_S


OUTCOME = web.RequestKey(
    "outcome", int
)  # of a request: the status that it came to, where its response began with another
CLIENT_LEFT = 499


class HttpServer:
    """The listener, on a loop.  `start` gives the port, `close` ends every request."""

    def __init__(self, models: Models, listening: Listening, routes: Sequence[Route] = ROUTES) -> None:
        self._models = models
        self._routes = routes
        self._listening = listening
        self._server = web.Server(self._serve, handler_cancellation=True)
        self._sockets: asyncio.Server | None = None
        self._bodies_bytes = 0  # of bodies that are not whole yet

    async def start(self) -> int:
        """Listen; ConfigError where the port is taken or the address is none of this machine's."""
        where = self._listening
        if not 0 <= where.port < 1 << 16:
            raise ConfigError(f"port {where.port} is not from 0 to 65535", next_step="Choose another with --port")
        if not is_loopback(where.host) and where.keys is None:
            raise ConfigError(
                f"will not serve on {where.host} without API keys: anybody who reaches it could use it",
                next_step="Create one with: mesh-coord keys create NAME",
            )
        try:
            self._sockets = await asyncio.get_running_loop().create_server(
                self._protocol, where.host, where.port, ssl=where.tls
            )
        except OSError as error:
            step = "Choose another with --port"
            raise ConfigError(f"cannot listen on {where.host}:{where.port}", cause=str(error), next_step=step) from None
        port: int = self._sockets.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Take no more requests, and end those that run."""
        if self._sockets is not None:
            self._sockets.close()
        await self._server.shutdown(timeout=1.0)

    def _protocol(self) -> asyncio.Protocol:
        """What reads a new connection; one too many is closed."""
        # Without a file for one more, asyncio tries it again and again and logs each time, until nothing else runs.
        most = min(self._listening.connections_max, open_files_max() // 2)
        if len(self._server.connections) >= most:
            return _Refused()
        return _Connection(
            self._listening.linger_s,
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            logger=log,
            auto_decompress=False,
            keepalive_timeout=self._listening.headers_s,
        )

    # -- a request

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        status = CLIENT_LEFT
        try:
            response = await self._response(request)
            status = request.get(OUTCOME, response.status)
            return response
        finally:
            route = route_of(self._routes, request.path)
            self._models.meters.add("requests_total", route=route, status=str(status))

    async def _response(self, request: web.BaseRequest) -> web.StreamResponse:
        shape = shape_of(request.path)
        try:
            self._check(request)
            if request.method == "OPTIONS":
                return _whole(b"", 204, {**PREFLIGHT, **self._cors(request)})
            return await self._answered(request, shape)
        except (asyncio.CancelledError, GeneratorExit, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as fault:  # a panic of a library, as on a text that its tokenizer has met nowhere
            error = fault if isinstance(fault, Exception) else RuntimeError(repr(fault))
            return self._failed(request, error, shape)

    def _check(self, request: web.BaseRequest) -> None:
        """Refuse a request under another name, or of another site's page, with ApiError."""
        headers, here = tuple(request.headers.items()), _address_here(request)
        host, origin = single(headers, "Host"), single(headers, "Origin")
        self._listening.access.check(host, origin, here)
        if "://" in request.raw_path:  # a whole address, whose name counts in place of Host (RFC 9112, 3.2.2)
            self._listening.access.check(request.url.authority, None, here)

    async def _answered(self, request: web.BaseRequest, shape: Shape) -> web.StreamResponse:
        if request.method in ("GET", "HEAD"):
            if request.path == "/health":
                return _whole(to_json({"status": "ok"}))
            if request.path in FILES:
                content_type, data = FILES[request.path]
                return _whole(data, 200, {**HEADERS, "Content-Type": content_type})
        client = self._client(request)
        route, named = found(self._routes, "GET" if request.method == "HEAD" else request.method, request.path)
        body = None if request.method in NO_BODY else await self._body(request)
        call = Call(self._models, body, named, client, _now_s, time.monotonic_ns, _new_id, _new_seed)
        answering = asyncio.ensure_future(route.answer(call))
        try:
            if route.stream_failed is not None and isinstance(body, dict) and body.get("stream") is True:
                await asyncio.wait([answering], timeout=self._listening.quiet_s)
                if not answering.done():
                    return await self._streamed(request, _late(answering, route.stream_failed))
            reply = await answering
        except BaseException:
            _unwanted(answering)
            raise
        if isinstance(reply, JsonReply):
            data = await asyncio.to_thread(to_json, reply.data)  # thousands of embeddings take a while
            return _whole(data, 200, dict(reply.headers) | self._cors(request))
        if isinstance(reply, TextReply):
            return _whole(reply.text.encode(), 200, {**self._cors(request), "Content-Type": reply.content_type})
        return await self._streamed(request, reply)

    def _client(self, request: web.BaseRequest) -> str:
        """The id of the caller's key, or its address where none is needed; ApiError 401 for nobody's key."""
        keys = self._listening.keys
        if keys is None:
            return request.remote or ""
        given = bearer(tuple(request.headers.items()))
        holder = keys.holder(given) if given else None
        if holder is None:
            message = (
                "this server does not know the API key" if given else "an API key is needed: Authorization: Bearer KEY"
            )
            raise ApiError(401, message, code="invalid_api_key")
        return holder.key_id

    async def _body(self, request: web.BaseRequest) -> Any:
        """The JSON of a request."""
        most = self._listening.body_bytes_max
        kind = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(415, "the body is compressed, which this server does not read", code="wrong_encoding")
        if kind == "text/plain" or kind.startswith("multipart/") or kind == "application/x-www-form-urlencoded":
            raise ApiError(415, f"the body is {kind}, and has to be application/json", code="wrong_content_type")
        if (request.content_length or 0) > most:
            raise too_large(most)
        data = await self._read(request, most)
        if not data:
            return {}
        try:
            return await asyncio.to_thread(lambda: parsed_json(data.decode("utf-8")))
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not valid JSON: {str(error)[:200]}", code="invalid_json") from None

    async def _read(self, request: web.BaseRequest, most: int) -> bytearray:
        """The bytes of a body."""
        data = bytearray()
        try:
            async with asyncio.timeout(self._listening.body.of(request.content_length or 0)):
                async for piece in request.content.iter_any():
                    data += piece
                    self._bodies_bytes += len(piece)
                    if len(data) > most:
                        raise too_large(most)
                    if self._bodies_bytes > self._listening.bodies_bytes_max:
                        message = "too many large requests arrive at once: try again later"
                        raise ApiError(503, message, code="overloaded", retry_after_s=1)
        except TimeoutError:
            raise ApiError(408, "the body did not come in time", code="slow_body") from None
        finally:
            self._bodies_bytes -= len(data)
        return data

    # -- a reply

    def _failed(self, request: web.BaseRequest, error: Exception, shape: Shape) -> web.Response:
        answer = api_error(error)
        if answer.status == 500 and not isinstance(error, ApiError):
            log.error("%s %s failed", request.method, request.path, exc_info=error)
        headers = self._cors(request)
        if answer.retry_after_s:
            headers["Retry-After"] = str(answer.retry_after_s)
        if answer.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        response = _whole(to_json(shape(answer)), answer.status, headers)
        if answer.status in (408, 413, 503):
            response.force_close()  # what follows is the rest of the body
        return response

    async def _streamed(self, request: web.BaseRequest, reply: StreamReply) -> web.StreamResponse:
        headers = {"Content-Type": reply.content_type, **COMMON_HEADERS, **self._cors(request)}
        response = web.StreamResponse(headers=headers)
        sent, keeping = asyncio.Event(), None
        try:
            await self._sent(request, response.prepare(request))
            if reply.content_type == EVENT_STREAM:
                keeping = asyncio.ensure_future(self._keep_alive(request, response, sent))
            async with contextlib.aclosing(reply.frames) as frames:  # type: ignore[type-var]
                try:
                    async for frame in frames:
                        sent.set()
                        await self._sent(request, response.write(frame))
                except (ConnectionError, _TooSlow):
                    raise
                except Exception as error:
                    answer = api_error(error)
                    request[OUTCOME] = answer.status
                    if answer.status == 500:
                        log.error("%s %s failed", request.method, request.path, exc_info=error)
                    await self._sent(request, response.write(reply.failed(answer)))
            await self._sent(request, response.write_eof())
        except (ConnectionError, _TooSlow) as error:
            log.info("%s: %s", request.path, error)
            request[OUTCOME] = CLIENT_LEFT
            if request.transport is not None:
                request.transport.abort()
        finally:
            if keeping is not None:
                keeping.cancel()
            reply.close()
        return response

    async def _keep_alive(self, request: web.BaseRequest, response: web.StreamResponse, sent: asyncio.Event) -> None:
        """Send a comment whenever nothing was sent for a while: clients and proxies give up streams without a word."""
        while True:
            await asyncio.sleep(self._listening.quiet_s)
            if not sent.is_set():
                with contextlib.suppress(ConnectionError, _TooSlow):  # whoever sends the answer finds that, too
                    await self._sent(request, response.write(COMMENT))
            sent.clear()

    async def _sent(self, request: web.BaseRequest, sending: Awaitable[Any]) -> None:
        """Wait until the client takes more; a client that does not read for too long is dropped."""
        try:
            async with asyncio.timeout(self._listening.reader_s):
                await sending
        except TimeoutError:
            raise _TooSlow("the client does not read") from None

    def _cors(self, request: web.BaseRequest) -> dict[str, str]:
        """What lets a page read the reply, once its Origin was checked."""
        origin = request.headers.get("Origin")
        allowed = origin is not None and origin in self._listening.access.origins
        return {"Access-Control-Allow-Origin": origin or "", "Vary": "Origin"} if allowed else {}


def _late(answering: asyncio.Future[Reply], failed: Callable[[ApiError], bytes]) -> StreamReply:
    """The stream of a reply that is not there yet; what goes wrong until then is an error in the stream."""

    async def frames() -> AsyncIterator[bytes]:
        reply = await answering
        assert isinstance(reply, StreamReply)
        async with contextlib.aclosing(reply.frames) as late:  # type: ignore[type-var]
            async for frame in late:
                yield frame

    return StreamReply(EVENT_STREAM, frames(), failed, partial(_unwanted, answering))


def _unwanted(answering: asyncio.Future[Reply]) -> None:
    """Nobody wants an answer any more, which may be there already: a client may hang up in the very moment."""
    answering.cancel()
    if not answering.cancelled() and answering.done() and answering.exception() is None:
        reply = answering.result()
        if isinstance(reply, StreamReply):
            reply.close()


def _whole(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    named = {"Content-Type": "application/json", **COMMON_HEADERS, **(headers or {})}
    return web.Response(body=data, status=status, headers=named)


class _Connection(web.RequestHandler):
    """A connection, which answers what is no HTTP as the rest is answered.

    aiohttp would send back the bytes that it could not read, and log them with a traceback: a key among them, and
    megabytes of anybody's.  What comes after it is read for a while and thrown away: a connection that is closed with
    unread bytes is reset, and its client may lose the answer (RFC 9112, 9.6).
    """

    def __init__(self, linger_s: float, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._linger_s, self._lingers = linger_s, False

    def data_received(self, data: bytes) -> None:
        """Take what was read from the connection."""
        if not self._lingers:
            super().data_received(data)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The response to a request that could not be read; it is the last one of the connection."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        log.info("a request from %s is no HTTP/1.1: %s", request.remote, type(exc).__name__)
        answer = ApiError(400, "the request is not HTTP/1.1, or a line of it is too long", code="invalid_http")
        response = _LastResponse(self._linger, answer)
        response.force_close()
        return response

    async def _linger(self) -> None:
        """Say that nothing more is sent, and wait for the client to hang up, at which this is cancelled."""
        self._lingers = True
        if self.transport is not None:
            self.transport.resume_reading()
            if self.transport.can_write_eof():  # TLS cannot
                self.transport.write_eof()
        await asyncio.sleep(self._linger_s)


class _LastResponse(web.Response):
    """The response to what is no HTTP.  `then` follows it."""

    def __init__(self, then: Callable[[], Awaitable[None]], answer: ApiError) -> None:
        headers = {"Content-Type": "application/json", **COMMON_HEADERS}
        super().__init__(body=to_json(openai_shape(answer)), status=answer.status, headers=headers)
        self._then = then

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the rest."""
        await super().write_eof(data)
        await self._then()


class _Refused(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.abort()


class _TooSlow(Exception):
    """A client that does not take what it is sent."""


PREFLIGHT: Mapping[str, str] = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "authorization, content-type, x-api-key, anthropic-version, anthropic-beta",
    "Access-Control-Max-Age": "600",
}


def too_large(most: int) -> ApiError:
    """The error for a body that is larger than may be."""
    return ApiError(413, f"the body is larger than {size_text(most)}", code="request_too_large")


def _address_here(request: web.BaseRequest) -> str:
    """The address of this machine at which a request came in."""
    found = request.get_extra_info("sockname")
    return str(found[0]).partition("%")[0] if found else ""


def _now_s() -> int:
    return int(time.time())


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _new_seed() -> int:
    return secrets.randbits(63)
