"""How many strangers a port deals with at once, and how fast it answers them (docs/protocol.md, "Joining").

Whoever has proved who it is does not count.  Pure: callers are numbers, time is an argument.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateLimits:
    """Each half-open TLS connection costs about 300 KiB, so 64 cost 20 MiB."""

    strangers_max: int = 64
    strangers_per_origin_max: int = 8  # an origin is an IPv4 address or an IPv6 network of 64 bits; loopback is free
    questions_per_origin: int = 5  # within the window, answered at once
    questions: int = 60  # of all origins
    window_s: float = 60.0
    delay_s: float = 1.0  # of every answer beyond
    questions_remembered: int = 1024


@dataclass(frozen=True, slots=True)
class Arrival:
    """Whether a caller is heard, and which other one has to go for it."""

    heard: bool
    evicted: int | None = None


class Gate:
    """Counts callers from `arrive` until `leave`, and questions.

    Beyond the total someone goes: one that has said nothing yet, if there is any, of the origin that has the most of
    them, and there the oldest.  So a flood pushes itself out, and not the one node that wants to join meanwhile.
    """

    def __init__(self, limits: GateLimits = GateLimits()) -> None:
        self._limits = limits
        self._strangers: dict[int, str] = {}  # in order of arrival, with their origins
        self._silent: set[int] = set()
        self._questions: deque[tuple[float, str]] = deque(maxlen=limits.questions_remembered)

    def arrive(self, caller: int, host: str) -> Arrival:
        """A connection came."""
        origin = _origin(host)
        from_there = sum(other == origin for other in self._strangers.values())
        if origin and from_there >= self._limits.strangers_per_origin_max:
            return Arrival(heard=False)
        evicted = None
        if len(self._strangers) >= self._limits.strangers_max:
            evicted = self._least_promising()
            self.leave(evicted)
        self._strangers[caller] = origin
        self._silent.add(caller)
        return Arrival(True, evicted)

    def spoke(self, caller: int) -> None:
        """It sent its first byte."""
        self._silent.discard(caller)

    def leave(self, caller: int) -> None:
        """It is gone, or no stranger any more."""
        self._strangers.pop(caller, None)
        self._silent.discard(caller)

    def delay_s(self, host: str, now_s: float) -> float:
        """How long to wait before this question is answered."""
        while self._questions and self._questions[0][0] <= now_s - self._limits.window_s:
            self._questions.popleft()
        origin = _origin(host)
        from_there = sum(other == origin for _, other in self._questions) if origin else 0
        too_many = len(self._questions) >= self._limits.questions or from_there >= self._limits.questions_per_origin
        self._questions.append((now_s, origin))
        return self._limits.delay_s if too_many else 0.0

    def _least_promising(self) -> int:
        callers = [each for each in self._strangers if each in self._silent] or list(self._strangers)
        counts = Counter(self._strangers[each] for each in callers)
        return max(callers, key=lambda each: counts[self._strangers[each]])  # the first, so the oldest, of equals


def _origin(host: str) -> str:
    """Who is behind an address, as far as it tells; "" for this machine itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return ""
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
