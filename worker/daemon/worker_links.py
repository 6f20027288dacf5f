"""Worker links: a daemon's links to other workers.  It dials and probes them, and relays tensors to those out of reach.

Only the coordinator that owns this worker may ask it to probe another node, or relay tensors to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from wire.errors import MeshError, NodeLost, ProtocolError
from wire.link.endpoint import Endpoint
from wire.link.keepalive import revived
from wire.link.link import Link
from wire.protocol.messages import PlanKey, Probe, Probed, Push, Relay, Value
from wire.system.shared_memory import SharedDir, remove
from wire.transfer.link_probe import Meter
from wire.transfer.relay import RelayReceiver, RelaySender

from ..state import events as ev
from .tensor_refs import bytes_of, push_header_of


class WorkerLinks:
    """`owner()` is the coordinator's node id, "" if there is none.  `check` raises for a tensor of no plan here."""

    def __init__(
        self,
        endpoint: Endpoint,
        shared: SharedDir,
        owner: Callable[[], str],
        check: Callable[[Any, Value, int], None],
    ) -> None:
        self.meter = Meter()
        self._endpoint = endpoint
        self._shared = shared
        self._owner = owner
        self._check = check
        self._outgoing = RelaySender()
        self._incoming = RelayReceiver(self._allocate, lambda _, name: remove(shared.path, name))

    async def linked(self, node: str, addresses: Sequence[str]) -> Link:
        """The link to a node, dialled if there is none.  MeshError if it cannot be reached."""
        link = self._endpoint.links.get(node)
        if link is not None and not link.closed and await revived(link, self._endpoint.timeouts):
            return link
        return await self._endpoint.reach(addresses, node)

    async def probe(self, asker: str, body: Probe) -> Probed:
        """Whether a node answers, and how fast the link to it is."""
        self._only_owner(asker, "have this worker probe others")
        loop = asyncio.get_running_loop()
        end_s = loop.time() + body.wait_s
        try:
            async with asyncio.timeout_at(end_s):
                link = await self.linked(body.node, body.addresses)
                left_s = end_s - loop.time()
                if not body.measure:
                    return Probed(True, await link.ping(left_s), 0.0, link.same_host, link.address)
                figures = await self.meter.measure(link, left_s)
                return Probed(True, figures.rtt_s, figures.bytes_per_s, link.same_host, link.address)
        except TimeoutError:
            return Probed(False, cause=f"no answer within {body.wait_s:g} s")
        except MeshError as error:
            return Probed(False, cause=(error.cause or error.message)[:4096])

    async def relay(self, action: ev.SendPush) -> None:
        """Send a tensor through the coordinator to a worker without a link.  MeshError if that fails."""
        link, data = self._endpoint.links.get(self._owner()), bytes_of(action.tensor)
        if link is None:
            raise NodeLost("no link to a worker of the plan, nor to the coordinator", node=action.node)
        await self._outgoing.send(link, action.node, push_header_of(action), data)

    def take(self, asker: str, piece: Relay) -> ev.TensorArrived | None:
        """Take a piece of a relayed tensor.  Returns the tensor once it is complete."""
        self._only_owner(asker, "relay to it")
        name, push = self._incoming.take(piece), piece.push
        if name is None:
            return None
        tensor = ev.SharedFile(push.value.dtype, push.value.shape, str(self._shared.path), name)
        return ev.TensorArrived(piece.node, push.plan, push.step, push.part, push.slot, tensor)

    def forget(self, plan: PlanKey | None = None, step: int | None = None) -> None:
        """Discard what was relayed so far for a step, a plan, or all plans."""
        self._incoming.forget(plan, step)

    def _only_owner(self, asker: str, what: str) -> None:
        if asker != self._owner():
            raise ProtocolError(f"only the coordinator of a worker may {what}")

    def _allocate(self, push: Push, size_bytes: int) -> tuple[memoryview, str]:
        self._check(push.plan, push.value, size_bytes)
        segment = self._shared.allocate(size_bytes)
        return segment.buffer, segment.name
