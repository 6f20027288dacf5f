"""API error: what a caller did wrong, or what went wrong here, before it has the shape of one of the APIs.

To add a kind of error, add a row of KINDS.  What the mesh raises becomes one by the rows of STATUS_OF.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wire.errors import (
    Busy,
    Cancelled,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    DeviceLost,
    InputError,
    LimitExceeded,
    MeshError,
    NodeLost,
    NoSuchDevice,
    NotDurable,
    OutOfMemory,
    PlacementError,
    QueueFull,
    StaleGeneration,
    StorageError,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a status is called in each API."""

    openai: str
    anthropic: str


KINDS: Mapping[int, Kind] = {
    400: Kind("invalid_request_error", "invalid_request_error"),
    401: Kind("authentication_error", "authentication_error"),
    403: Kind("permission_error", "permission_error"),
    404: Kind("not_found_error", "not_found_error"),
    405: Kind("invalid_request_error", "invalid_request_error"),
    408: Kind("timeout_error", "timeout_error"),
    413: Kind("invalid_request_error", "request_too_large"),
    415: Kind("invalid_request_error", "invalid_request_error"),
    429: Kind("rate_limit_error", "rate_limit_error"),
    500: Kind("server_error", "api_error"),
    503: Kind("server_error", "overloaded_error"),
    504: Kind("timeout_error", "timeout_error"),
}

# The first row whose class fits.
STATUS_OF: tuple[tuple[type[MeshError], int, str], ...] = (
    (QueueFull, 429, "rate_limit_exceeded"),
    (InputError, 400, "invalid_value"),
    (LimitExceeded, 400, "too_large"),
    (ConfigError, 503, "not_available"),
    (Busy, 503, "overloaded"),
    (NodeLost, 503, "workers_lost"),
    (DeviceLost, 503, "workers_lost"),
    (StaleGeneration, 503, "workers_lost"),
    (ConnectFailed, 503, "workers_lost"),
    (NotDurable, 503, "disk_full"),
    (NoSuchDevice, 503, "workers_lost"),
    (PlacementError, 503, "no_room"),
    (OutOfMemory, 503, "no_room"),
    (Cancelled, 503, "model_unloaded"),
    (DeadlineExceeded, 504, "deadline_exceeded"),
    (MeshError, 500, "internal_error"),
)


FULL_DISK = "a disk of the mesh is full, or fails; the log of its coordinator says which"


class ApiError(Exception):
    """An error for the caller of an API: its HTTP status, what is wrong, and the parameter that it is about."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        assert status in KINDS
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


def api_error(error: BaseException, param: str | None = None) -> ApiError:
    """The error that a caller gets.  What an error of a disk names, and what is no MeshError, is in the log alone."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in STATUS_OF:
        if isinstance(error, kind) and (status != 500 or not isinstance(error, StorageError)):
            text = FULL_DISK if isinstance(error, StorageError) else str(error)
            return ApiError(status, text, code=code, param=param)
    return ApiError(500, "the server failed to answer; its log has the reason", code="internal_error")


def wrong(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A request whose parameter is wrong."""
    return ApiError(400, message, code=code, param=param)


def openai_shape(error: ApiError) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = KINDS[error.status].openai
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_shape(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic's clients read it."""
    return {"type": "error", "error": {"type": KINDS[error.status].anthropic, "message": error.message}}


def ollama_shape(error: ApiError) -> dict[str, Any]:
    """An error as Ollama's clients read it."""
    return {"error": error.message}
