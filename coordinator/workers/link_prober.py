"""Link prober: carries out the probes that are due by `link_table.py`, and reports changed links.

The worker at one end of a link is asked to dial the other.  Links that begin at this process are measured here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

from wire.errors import MeshError, NodeLost, ProtocolError
from wire.link.link import Link as Wire
from wire.protocol.messages import PairReport, Probe, Probed
from wire.system.steady_log import steady_logger
from wire.system.tasks import as_error
from wire.timeouts import DEFAULT_TIMEOUTS, SILENT
from wire.transfer.link_probe import Meter
from wire.units import time_text

from ..planning.model.profiles import CLIENT, Link, Profiles
from .link_table import LinkTable, Pair, ProbeResult

log = steady_logger("graph_mesh.coordinator")

ANSWER_SHARE = 1.2  # the answer is waited for a little longer than the worker tries


class LinkProber:
    """Probes links.  `node_id` is this process's; `links` gives the link to a connected worker; `changed` is called
    when links changed so much that plans may change."""

    def __init__(
        self,
        node_id: str,
        meter: Meter,
        links: Callable[[str], Wire | None],
        changed: Callable[[], object],
        probe_s: float = DEFAULT_TIMEOUTS.link_probe_s,
    ) -> None:
        self._probe_s = probe_s
        self.table = LinkTable()
        self._node_id = node_id
        self._meter = meter
        self._links = links
        self._changed = changed
        self._changes = asyncio.Event()

    def joined(self, node: str) -> None:
        """A worker joined, perhaps again."""
        self.table.joined(node, asyncio.get_running_loop().time())
        self._changes.set()

    def left(self, node: str) -> None:
        self.table.left(node)
        self._changes.set()

    def probe_again(self, source: str, target: str) -> None:
        """Probe two workers again: something was lost between them."""
        self.table.probe_again((source, target))
        self._changes.set()

    def lost_between(self, node: str, error: MeshError) -> None:
        """Probe two workers again after an error of one that has the id of the other; the id becomes its name."""
        other = self._links(error.node)
        if not isinstance(error, NodeLost) or other is None or error.node == node:
            return
        if error.cause == SILENT and self.table.mark_silent((node, error.node), error.message):
            self._changed()
            self._changes.set()
        else:
            self.probe_again(node, error.node)
        error.node = other.peer.name

    def reports(self, names: Mapping[str, str]) -> list[PairReport]:
        """The reports on all links; `names` are those of the connected workers, by id."""
        rows = [
            PairReport(names[pair[0]], names[pair[1]], path, way.rtt_s, way.bytes_per_s, way.address, way.cause)
            for pair, way, path in self.table.rows()
        ]
        return sorted(rows, key=lambda row: (row.source, row.target))

    def known(self, nodes: Iterable[str]) -> dict[Pair, Link]:
        """The links between these workers and the client that differ from the assumed ones."""
        return self.table.links(nodes, self._assumed)

    def bytes_per_s(self, source: str, target: str) -> float:
        """How fast content comes from one node to another: measured, or as planning assumes."""
        return self.table.link(source, target, self._assumed).bytes_per_s

    async def run(self) -> None:
        """Probe what is due; never returns."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as probes:
            while True:
                for pair in self.table.due(loop.time()):
                    probes.create_task(self._probe(pair))
                due_s = self.table.next_deadline()
                self._changes.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due_s):
                        await self._changes.wait()

    def _assumed(self, source: str, target: str) -> Link:
        """The link that planning assumes where nothing is measured."""
        near = frozenset(node for node in (source, target) if (link := self._links(node)) and link.same_host)
        return Profiles((), near).link(source, target)

    async def _probe(self, pair: Pair) -> None:
        source, target = pair
        try:
            way = await (self._measure(target) if source == CLIENT else self._ask(source, target))
        except TimeoutError:
            way = ProbeResult(False, cause=f"no answer within {self._probe_s:g} s")
        except Exception as fault:  # the table waits for an answer, and others for both nodes
            error = as_error("probing a link failed", fault)
            way = ProbeResult(False, cause=error.cause or error.message)
        log.debug("from %s to %s: %s", source or "here", target or "here", way)
        if self.table.probed(pair, way, asyncio.get_running_loop().time(), self._assumed(source, target)):
            self._changed()
        self._changes.set()

    async def _measure(self, target: str) -> ProbeResult:
        link = self._links(target)
        if link is None:
            return ProbeResult(False, cause="it is gone")
        measured = await self._meter.measure(link, self._probe_s)
        return ProbeResult(True, measured.rtt_s, measured.bytes_per_s, link.same_host, link.address)

    async def _ask(self, source: str, target: str) -> ProbeResult:
        prober, other = self._links(source), self._links(target)
        if prober is None or (other is None and target != CLIENT):
            return ProbeResult(False, cause="one of the two is gone")
        addresses = other.peer.addresses if other is not None else ()
        body = Probe(target or self._node_id, addresses, self._probe_s, measure=True)
        answer = await prober.request(body, timeout_s=self._probe_s * ANSWER_SHARE)
        if not isinstance(answer, Probed):
            raise ProtocolError(f"expected Probed, got {type(answer).__name__}", node=prober.peer.name)
        figures = answer.rtt_s, answer.bytes_per_s
        return ProbeResult(answer.reached, *figures, answer.shared, answer.address, answer.cause)


async def probe_through_peer(peer: Wire | None, silent: Wire, wait_s: float) -> tuple[bool | None, str]:
    """Whether another worker reaches one that is silent to us, None if it cannot be asked; and the same as text."""
    if peer is None:
        return None, "cannot be asked"
    try:
        body = Probe(silent.peer.node_id, silent.peer.addresses, wait_s)
        answer = await peer.request(body, timeout_s=wait_s * ANSWER_SHARE)
    except MeshError as error:
        log.debug("probing %s: %s", silent.peer.name, error)
        return None, "cannot be asked"
    if not isinstance(answer, Probed):
        return None, "gave no answer of that kind"
    return answer.reached, f"reached it in {time_text(answer.rtt_s)}" if answer.reached else "could not reach it"
