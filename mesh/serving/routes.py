"""Routes: every path of the server, by one table: its method, its function, and the shape of its errors.

To add an API, write its functions in a file of its own and add its rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .anthropic_messages import count_tokens, failed_message, messages
from .api_error import ApiError, anthropic_shape, ollama_shape, openai_shape
from .calls import Call
from .metrics import CONTENT_TYPE
from .ollama import chat, embed, embed_one, generate, running, show, tags, version
from .openai_chat import chat_completions, failed_frame
from .openai_completions import completions
from .openai_models import embeddings, list_models, one_model
from .openai_responses import failed_response, responses
from .replies import Reply, TextReply

Shape = Callable[[ApiError], dict[str, Any]]


async def metrics(call: Call) -> Reply:
    """What the server did and does."""
    return TextReply(CONTENT_TYPE, call.models.metrics())


@dataclass(frozen=True, slots=True)
class Route:
    """A path, in which {name} stands for one part, or for all that follow at its end."""

    method: str
    path: str
    answer: Callable[[Call], Awaitable[Reply]]
    shape: Shape = openai_shape
    stream_failed: Callable[[ApiError], bytes] | None = None  # an error in a stream of events; None: it has none

    def matches(self, path: str) -> Mapping[str, str] | None:
        """What stands for the names in this path; None for another path."""
        fixed, _, name = self.path.partition("{")
        if not name:
            return {} if path == fixed else None
        rest = path.removeprefix(fixed) if path.startswith(fixed) else ""
        return {name.rstrip("}"): rest} if rest else None


ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/models", list_models),
    Route("GET", "/v1/models/{model}", one_model),
    Route("POST", "/v1/chat/completions", chat_completions, stream_failed=failed_frame),
    Route("POST", "/v1/completions", completions, stream_failed=failed_frame),
    Route("POST", "/v1/embeddings", embeddings),
    Route("POST", "/v1/responses", responses, stream_failed=failed_response),
    Route("POST", "/v1/messages", messages, anthropic_shape, failed_message),
    Route("POST", "/v1/messages/count_tokens", count_tokens, anthropic_shape),
    Route("POST", "/api/chat", chat, ollama_shape),
    Route("POST", "/api/generate", generate, ollama_shape),
    Route("POST", "/api/embed", embed, ollama_shape),
    Route("POST", "/api/embeddings", embed_one, ollama_shape),
    Route("POST", "/api/show", show, ollama_shape),
    Route("GET", "/api/tags", tags, ollama_shape),
    Route("GET", "/api/ps", running, ollama_shape),
    Route("GET", "/api/version", version, ollama_shape),
    Route("GET", "/metrics", metrics),
)
SHAPES: tuple[tuple[str, Shape], ...] = (("/v1/messages", anthropic_shape), ("/api/", ollama_shape))


OTHER = "other"  # the route of a path that has none
MEANT: tuple[Callable[[str], str], ...] = (  # what a path may be that has no route, most often by a wrong base URL
    lambda path: path.rstrip("/"), lambda path: f"/v1{path}", lambda path: path.removeprefix("/v1"),
)  # fmt: skip
BASES = "a base URL ends in /v1 for OpenAI's clients, and without it for others"


def route_of(routes: Sequence[Route], path: str) -> str:
    """The path of a route as it is in the table, for metrics."""
    return next((route.path for route in routes if route.matches(path) is not None), OTHER)


def shape_of(path: str) -> Shape:
    """The shape of errors under a path, known or not."""
    return next((shape for start, shape in SHAPES if path.startswith(start)), openai_shape)


def found(routes: Sequence[Route], method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """The route of a request; ApiError 404 for another path, 405 for another method."""
    methods = []
    for route in routes:
        named = route.matches(path)
        if named is not None:
            if route.method == method:
                return route, named
            methods.append(route.method)
    if methods:
        raise ApiError(405, f"{path} takes {' and '.join(methods)}, not {method}", code="wrong_method")
    near = next((each for each in (meant(path) for meant in MEANT) if route_of(routes, each) != OTHER), "")
    where = f"; it is at {near} ({BASES})" if near else ""
    raise ApiError(404, f"there is nothing at {method} {path}{where}", code="unknown_url")
