"""The graph cache: encoded graphs by hash, so that a new plan need not send them again.  Pure."""

from __future__ import annotations

from collections import OrderedDict

from wire.protocol.messages import Deploy


class GraphCache:
    """Encoded graphs, `bytes_max` at most.  The least recently used are evicted first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._graphs: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, address: bytes) -> bytes:
        return self._graphs[address]

    def add(self, deploy: Deploy) -> tuple[bytes, ...]:
        """Keep the graphs that a Deploy brings.  Returns the hashes of the graphs that its parts name and that are
        neither here nor in the Deploy."""
        for address, encoded in deploy.graphs.items():
            if address not in self._graphs:
                self._graphs[address] = encoded
                self._bytes += len(encoded)
        wanted = dict.fromkeys(part.graph for part in deploy.parts)
        for address in wanted:
            if address in self._graphs:
                self._graphs.move_to_end(address)
        missing = tuple(address for address in wanted if address not in self._graphs)
        for address in list(self._graphs):
            if self._bytes <= self._bytes_max or address in wanted:
                break
            self.remove(address)
        return missing

    def remove(self, address: bytes) -> None:
        self._bytes -= len(self._graphs.pop(address, b""))

    def validate(self) -> None:
        assert self._bytes == sum(len(encoded) for encoded in self._graphs.values())
