"""Worker links: how a worker's daemon gets at other workers.  It dials and probes them, and relays to those out of
reach.

What is said to whom, and that a tensor has arrived, the machine (`worker/state/worker_state.py`) is told and decides;
only the coordinator that owns this worker may have it probe anybody, or hand it what others send.
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


class Neighbours:
    """`owner()` is the coordinator's node id, "" if there is none; `check` raises for a tensor that no plan wants."""

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
        """The link to a node, dialled if there is none; MeshError."""
        link = self._endpoint.links.get(node)
        if link is not None and not link.closed and await revived(link):
            return link
        return await self._endpoint.reach(addresses, node)

    async def probe(self, asker: str, body: Probe) -> Probed:
        """Whether a node answers us, and what the link to it carries."""
        self._only_owner(asker, "have this worker probe others")
        loop = asyncio.get_running_loop()
        end_s = loop.time() + body.wait_s
        try:
            async with asyncio.timeout_at(end_s):
                link = await self.linked(body.node, body.addresses)
                left_s = end_s - loop.time()
                if not body.measure:
                    return Probed(True, await link.ping(left_s), 0.0, link.same_host, link.address)
                found = await self.meter.measure(link, left_s)
                return Probed(True, found.rtt_s, found.bytes_per_s, link.same_host, link.address)
        except TimeoutError:
            return Probed(False, cause=f"no answer within {body.wait_s:g} s")
        except MeshError as error:
            return Probed(False, cause=(error.cause or error.message)[:4096])

    async def relay(self, action: ev.SendPush) -> None:
        """Send a tensor to a worker without a link, through the coordinator; MeshError."""
        link, data = self._endpoint.links.get(self._owner()), bytes_of(action.tensor)
        if link is None:
            raise NodeLost("no link to a worker of the plan, nor to the coordinator", node=action.node)
        await self._outgoing.send(link, action.node, push_header_of(action), data)

    def take(self, asker: str, piece: Relay) -> ev.TensorArrived | None:
        """Keep a piece of what another worker relays to us; the tensor, once it is complete."""
        self._only_owner(asker, "relay to it")
        name, push = self._incoming.take(piece), piece.push
        if name is None:
            return None
        tensor = ev.SharedFile(push.value.dtype, push.value.shape, str(self._shared.path), name)
        return ev.TensorArrived(piece.node, push.plan, push.step, push.part, push.slot, tensor)

    def forget(self, plan: PlanKey | None = None, step: int | None = None) -> None:
        """What is over does not arrive any more: a step, a plan, or everything."""
        self._incoming.forget(plan, step)

    def _only_owner(self, asker: str, what: str) -> None:
        if asker != self._owner():
            raise ProtocolError(f"only the coordinator of a worker may {what}")

    def _allocate(self, push: Push, size_bytes: int) -> tuple[memoryview, str]:
        self._check(push.plan, push.value, size_bytes)
        segment = self._shared.allocate(size_bytes)
        return segment.buffer, segment.name
