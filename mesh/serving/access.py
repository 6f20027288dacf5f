"""Access: which requests a server looks at, by where they come from and what they say of that.  Pure.

A page of another site makes the reader's browser send requests here; its Origin, or the Host under which it found
this server (DNS rebinding), gives it away.  Both are checked for every method.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from .api_error import ApiError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?")


@dataclass(frozen=True, slots=True)
class Access:
    """`hosts` are the names by which this server is called, beside those of loopback; `origins` the pages of other
    sites that may ask it, such as "https://chat.example"."""

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def check(self, host: str | None, origin: str | None, here: str = "") -> None:
        """ApiError 403 for a request under another name, or of another site's page.

        `here` is the address at which the request came in: no other site has it as its name.
        """
        name = _host_name(host or "")
        if name not in LOOPBACK_NAMES and name not in self.hosts and (not here or name.strip("[]") != here):
            raise ApiError(
                403,
                f"the Host header says {name!r:.80}, which is not a name of this server: allow it with --allow-host",
                code="wrong_host",
            )
        if origin is None or origin in self.origins:
            return
        if origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise ApiError(
                403, f"pages of {origin[:80]!r} may not send requests to this server: allow it with --allow-origin",
                code="wrong_origin",
            )  # fmt: skip


OWN = Access()  # loopback, and this server's own pages


def single(headers: Collection[tuple[str, str]], name: str) -> str | None:
    """The value of a header, None without it; ApiError 400 for one that comes twice: which of the two holds, other
    programs on the way may see in another way."""
    values = [value for given, value in headers if given.lower() == name.lower()]
    if len(values) > 1:
        raise ApiError(400, f"the request has {len(values)} headers {name}: send one", code="repeated_header")
    return values[0] if values else None


def bearer(headers: Collection[tuple[str, str]]) -> str:
    """The key of a request, as OpenAI's, Anthropic's and Ollama's clients send it; "" without one.  ApiError 401 for
    several that differ."""
    given = set()
    for name, value in headers:
        if name.lower() == "authorization" and value.lower().startswith("bearer "):
            given.add(value[7:].strip())
        if name.lower() == "x-api-key":
            given.add(value.strip())
    given.discard("")
    if len(given) > 1:
        raise ApiError(401, f"the request has {len(given)} different API keys: send one", code="invalid_api_key")
    return given.pop() if given else ""


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; all of one that is no name and port."""
    host = host.strip().lower()
    found = HOST.fullmatch(host)
    return found[1] if found else host
