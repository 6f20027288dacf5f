"""Request queue: which waiting request is answered next, so that no client waits for the crowd of another.  Pure.

Up to `running_max` requests are answered at a time.  The others wait, each client in its own line, and the lines take
turns.  More than `waiting_max` are refused.  How long it may take is estimated from the times of those that are over.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

RETRY_S = (1, 60)  # what a client that is refused is asked to wait
LEARNING = 0.2  # weight of the latest request in the mean time


@dataclass(slots=True)
class RequestQueue:
    """The pure machine of one model's requests."""

    running_max: int
    waiting_max: int
    running: set[int] = field(default_factory=set)
    lines: OrderedDict[str, deque[int]] = field(default_factory=OrderedDict)  # the client whose turn is next first
    mean_s: float = 0.0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(len(line) for line in self.lines.values())

    @property
    def full(self) -> bool:
        """Whether a request has to be refused."""
        return len(self.running) >= self.running_max and self.waiting >= self.waiting_max

    def add(self, number: int, client: str) -> list[int]:
        """A request comes; the requests that are to be begun now.  Whoever calls has seen that there is room."""
        assert not self.full
        self.lines.setdefault(client, deque()).append(number)
        return self._begun()

    def leave(self, number: int, took_s: float | None = None) -> list[int]:
        """A request is over, or not wanted any more; the requests that are to be begun now."""
        self.running.discard(number)
        for client, line in list(self.lines.items()):
            if number in line:
                line.remove(number)
                if not line:
                    del self.lines[client]
        if took_s is not None:
            self.mean_s += (took_s - self.mean_s) * (LEARNING if self.mean_s else 1.0)
        return self._begun()

    @property
    def retry_after_s(self) -> int:
        """Seconds until a place will be free, by what requests took until now."""
        least, most = RETRY_S
        return round(min(max(self.mean_s * (self.waiting + 1) / self.running_max, least), most))

    def _begun(self) -> list[int]:
        begun = []
        while self.lines and len(self.running) < self.running_max:
            client, line = self.lines.popitem(last=False)
            number = line.popleft()
            if line:
                self.lines[client] = line  # behind the others
            self.running.add(number)
            begun.append(number)
        return begun
