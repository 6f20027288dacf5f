"""Call: one request of an API, as its function takes it, whoever received it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .metrics import Meters
from .served_embedding import ServedEmbedding
from .served_text import ModelFacts, ServedText


class Models(Protocol):
    """The models of a server.  `text` and `embedding` raise ApiError 404 for a name that none has."""

    def text(self, name: str) -> ServedText: ...

    def embedding(self, name: str) -> ServedEmbedding: ...

    def facts(self) -> list[ModelFacts]: ...

    @property
    def meters(self) -> Meters: ...

    def metrics(self) -> str: ...

    def resident(self) -> list[tuple[ModelFacts, float | None]]: ...


@dataclass(frozen=True, slots=True)
class Call:
    """`body` is the JSON of the request, `path` what the route leaves open, `client` who shares a queue's turns."""

    models: Models
    body: Any
    path: Mapping[str, str]
    client: str
    now_s: Callable[[], int]
    clock_ns: Callable[[], int]
    new_id: Callable[[str], str]
    new_seed: Callable[[], int]
