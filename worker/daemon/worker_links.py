"""Worker links: a daemon's links to other nodes.  It dials, ends and probes them, sends messages over them, and relays
tensors to workers out of reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from wire.errors import ConnectFailed, MeshError, NodeLost
from wire.link.endpoint import Endpoint
from wire.link.keepalive import revived
from wire.link.link import Link
from wire.protocol.messages import Done, Landed, Message, Paused, PlanKey, Probe, Probed, Push, Relay
from wire.system.shared_memory import SharedDir, remove
from wire.transfer.link_probe import Meter
from wire.transfer.relay import RelayReceiver, RelaySender

from ..state import events as ev
from .arriving_tensors import ArrivingTensors
from .link_handler import Answer, Take
from .machine_shell import MachineShell, Performers
from .tensor_refs import bytes_of, header_of, push_of


class WorkerLinks:
    """`patience_s()` is how long a worker that is dialled may take."""

    def __init__(
        self,
        shell: MachineShell,
        endpoint: Endpoint,
        shared: SharedDir,
        arriving: ArrivingTensors,
        patience_s: Callable[[], float],
    ) -> None:
        self.meter = Meter()
        self._shell = shell
        self._endpoint = endpoint
        self._shared = shared
        self._patience_s = patience_s
        self._outgoing = RelaySender()
        self._arriving = arriving
        self._incoming = RelayReceiver(self._allocate, shared.write_at, self._discard)

    def performers(self) -> Performers:
        return {
            ev.LinkTo: self._link_to,
            ev.CloseLink: self._close,
            ev.SendBegan: lambda action: self.notify(action.node, action.began),
            ev.SendPaused: lambda action: self.notify(action.node, Paused(action.by)),
        }

    def requests(self) -> dict[type[Message], Answer]:
        return {Probe: self._probe, Relay: self._relayed}

    def notifications(self) -> dict[type[Message], Take]:
        return {Landed: self.meter.landed}

    def notify(self, node: str, message: Message) -> None:
        """Send a node a message, if there is a link to it."""
        link = self._endpoint.links.get(node)
        if link is not None and not link.closed:
            link.notify(message)

    def _close(self, action: ev.CloseLink) -> None:
        link = self._endpoint.links.get(action.node)
        if link is not None:
            link.close(action.reason)

    def _link_to(self, action: ev.LinkTo) -> None:
        link, now = self._endpoint.links.get(action.node), asyncio.get_running_loop().time()
        if link is not None and now - link.heard_s < self._endpoint.timeouts.keepalive_idle_s:
            self._shell.feed(ev.NodeLinked(action.node))
        else:
            self._shell.begin(action, self._dial(action))

    async def _dial(self, action: ev.LinkTo) -> None:
        patience_s = self._patience_s()
        try:
            async with asyncio.timeout(patience_s):
                await self.linked(action.node, action.addresses)
        except TimeoutError:
            raise ConnectFailed(f"no link within {patience_s:g} s", node=action.node) from None
        self._shell.feed(ev.NodeLinked(action.node))

    async def linked(self, node: str, addresses: Sequence[str]) -> Link:
        """The link to a node, dialled if there is none.  MeshError if it cannot be reached."""
        link = self._endpoint.links.get(node)
        if link is not None and not link.closed and await revived(link, self._endpoint.timeouts):
            return link
        return await self._endpoint.reach(addresses, node)

    async def _probe(self, link: Link, body: Probe) -> Probed:
        """Whether a node answers, and how fast the link to it is."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + body.wait_s
        try:
            async with asyncio.timeout_at(end_s):
                other = await self.linked(body.node, body.addresses)
                left_s = end_s - loop.time()
                if not body.measure:
                    return Probed(True, await other.ping(left_s), 0.0, other.same_host, other.address)
                figures = await self.meter.measure(other, left_s)
                return Probed(True, figures.rtt_s, figures.bytes_per_s, other.same_host, other.address)
        except TimeoutError:
            return Probed(False, cause=f"no answer within {body.wait_s:g} s")
        except MeshError as error:
            return Probed(False, cause=(error.cause or error.message)[:4096])

    async def relay(self, action: ev.SendPush) -> None:
        """Send a tensor through the coordinator to a worker without a link.  MeshError if that fails."""
        link, data = self._endpoint.links.get(self._shell.owner_id()), bytes_of(action.tensor)
        if link is None:
            raise NodeLost("no link to a worker of the plan, nor to the coordinator", node=action.node)
        await self._outgoing.send(link, action.node, push_of(action, header_of(action.tensor)), data)

    async def _relayed(self, link: Link, piece: Relay) -> Message:
        """Take a piece of a relayed tensor.  The machine hears of the tensor once it is complete."""
        name, push = self._incoming.take(piece), piece.push
        if name is not None:
            self._arriving.end(push)
            tensor = ev.SharedFile(push.value.dtype, push.value.shape, str(self._shared.path), name)
            self._shell.feed(ev.TensorArrived(piece.node, push.plan, push.step, push.part, push.slot, tensor))
        return Done()

    def forget(self, plan: PlanKey | None = None, step: int | None = None) -> None:
        """Discard what was relayed so far for a step, a plan, or all plans."""
        self._incoming.forget(plan, step)

    def _allocate(self, node: str, push: Push, size_bytes: int) -> str:
        """The name of a file, which has memory for pieces as they come: for all at once the loop would stand still."""
        self._arriving.check(push, node, size_bytes)
        name = self._shared.write(())
        self._arriving.begin(push, node, size_bytes)
        return name

    def _discard(self, push: Push, name: str) -> None:
        self._arriving.end(push)
        remove(self._shared.path, name)
