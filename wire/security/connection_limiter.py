"""How many strangers a port deals with at once, and how fast it answers them (docs/protocol.md, "Joining").

A caller that has proved who it is does not count.  Pure: callers are numbers, time is an argument.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from ..bounds import QUESTIONS, STRANGERS


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Each half-open TLS connection costs about 300 KiB, so 64 cost 20 MiB."""

    strangers_max: int = STRANGERS.most
    strangers_per_origin_max: int = 8  # an origin is an IPv4 address or an IPv6 network of 64 bits; loopback is free
    patience_s: float = 0.25  # for the next step of a caller that others would like to take the place of
    questions_per_origin: int = 5  # within the window, answered at once
    questions: int = 60  # of all origins
    window_s: float = 60.0
    delay_s: float = 1.0  # of every answer beyond
    questions_remembered: int = QUESTIONS.most


@dataclass(frozen=True, slots=True)
class Arrival:
    """Whether a caller is heard, and which other one has to go for it."""

    heard: bool
    evicted: int | None = None


@dataclass(slots=True)
class _Stranger:
    origin: str
    stalled_s: float  # from when on it is one that does not get on
    spoke: bool = False


class ConnectionLimiter:
    """The limiter counts callers from `arrive` until `leave`, and questions.

    Where there is no room, the one goes that has not got on for longest: each has a moment for every step, and not
    more.  So a flood takes the places of its own, and an honest caller gets in between, if it tries again.  Where all
    are quick a newcomer is not heard, unless others have more callers than its origin: then the oldest of the origin
    with the most goes, one that has said nothing yet if there is any.
    """

    def __init__(self, limits: ConnectionLimits = ConnectionLimits()) -> None:
        self._limits = limits
        self._strangers: dict[int, _Stranger] = {}  # in order of arrival
        self._questions: deque[tuple[float, str]] = deque(maxlen=limits.questions_remembered)

    def arrive(self, caller: int, host: str, now_s: float) -> Arrival:
        """A connection came."""
        origin = origin_of(host)
        from_there = [other for other, stranger in self._strangers.items() if stranger.origin == origin]
        goes = None
        if origin and len(from_there) >= self._limits.strangers_per_origin_max:
            goes = self._stalled(from_there, now_s)
            if goes is None:
                return Arrival(heard=False)
        elif len(self._strangers) >= self._limits.strangers_max:
            goes = self._stalled(self._strangers, now_s)
            goes = self._oldest_of_the_most(len(from_there)) if goes is None else goes
            if goes is None:
                return Arrival(heard=False)
        if goes is not None:
            self.leave(goes)
        self._strangers[caller] = _Stranger(origin, now_s + self._limits.patience_s)
        return Arrival(True, goes)

    def spoke(self, caller: int) -> None:
        """The caller said all that it has to say first, or asked: now it is our turn."""
        if caller in self._strangers:
            self._strangers[caller].spoke = True
            self._strangers[caller].stalled_s = math.inf

    def answered(self, caller: int, now_s: float) -> None:
        """Now it is the caller's turn."""
        if caller in self._strangers:
            self._strangers[caller].stalled_s = now_s + self._limits.patience_s

    def leave(self, caller: int) -> None:
        """The caller is gone, or no stranger any more."""
        self._strangers.pop(caller, None)

    def delay_s(self, host: str, now_s: float) -> float:
        """How long to wait before this question is answered."""
        while self._questions and self._questions[0][0] <= now_s - self._limits.window_s:
            self._questions.popleft()
        origin = origin_of(host)
        from_there = sum(other == origin for _, other in self._questions) if origin else 0
        too_many = len(self._questions) >= self._limits.questions or from_there >= self._limits.questions_per_origin
        self._questions.append((now_s, origin))
        return self._limits.delay_s if too_many else 0.0

    def _stalled(self, callers: Iterable[int], now_s: float) -> int | None:
        """The oldest of those that do not get on, of the origin with the most of them; None if there is none."""
        stalled = [caller for caller in callers if self._strangers[caller].stalled_s <= now_s]
        counts = Counter(stranger.origin for stranger in self._strangers.values())
        rank = {
            caller: (-counts[self._strangers[caller].origin], self._strangers[caller].stalled_s) for caller in stalled
        }
        return min(rank, key=lambda caller: rank[caller], default=None)

    def _oldest_of_the_most(self, from_there: int) -> int | None:
        """A caller of the origin with the most, which must be more than `from_there`; silent ones first."""
        counts = Counter(stranger.origin for stranger in self._strangers.values())
        ((origin, most),) = counts.most_common(1)
        callers = [caller for caller, stranger in self._strangers.items() if stranger.origin == origin]
        silent = [caller for caller in callers if not self._strangers[caller].spoke]
        return (silent or callers)[0] if most > from_there else None


def origin_of(host: str) -> str:
    """The origin of an address, as far as it is known; "" for this machine itself."""
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
