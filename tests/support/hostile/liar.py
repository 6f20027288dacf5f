"""A member that lies: a node with a good certificate that sends valid messages which it has no business to send."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mesh.backends.enrolment import enrolled
from wire.errors import ConnectFailed, MeshError, ProtocolError
from wire.joining.credentials import Credentials
from wire.link.identity import identity_here
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import (
    Beat,
    Deploy,
    DeviceReport,
    Devices,
    Drop,
    FetchBlob,
    Join,
    Joined,
    Message,
    PlanKey,
    Probe,
    Probed,
    Push,
    Relay,
    Revocations,
    Run,
    Value,
    with_fields,
)
from wire.protocol.permissions import TABLE, Receiver, Way

from ..messages import MESSAGES

ANSWER_S = 60.0  # a hang, and not a busy machine
USELESS = DeviceReport(0, "cpu", "liar", "cpu", "", False, 1, {}, {}, 1e-3, 1e-3, 1.0)  # a device that has no op


class Liar:
    """The Handler of a lying node.  As a worker it joins, and says that it can compute nothing."""

    def __init__(self) -> None:
        self.epoch = 0  # of the coordinator that had it join

    async def on_request(self, link: Link, body: Message) -> Message:
        if isinstance(body, Join):
            self.epoch = body.epoch
            return Joined((USELESS,), 1, (), "Linux")
        if isinstance(body, Probe):
            return Probed(False, cause="no")
        raise ProtocolError("a liar does not work")

    def on_notify(self, link: Link, body: Message) -> None:
        assert not isinstance(body, Revocations) or body.data

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        return memoryview(bytearray(min(size_bytes, 1 << 20)))

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        return

    def on_linked(self, link: Link) -> None:
        return

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        return


@dataclass
class Member:
    """A liar's place in a mesh: its certificate, which says `role`, and an endpoint of its own for each link."""

    mesh: str
    role: str
    credentials: Credentials
    endpoints: list[Endpoint] = field(default_factory=list)

    async def epoch(self, port: int) -> int:
        """The epoch of the coordinator at a port of this machine, which it tells every worker."""
        link = await self.link(port)
        handler = self.endpoints[-1].handler
        assert isinstance(handler, Liar)
        async with asyncio.timeout(ANSWER_S):
            while not handler.epoch:
                await link.ping(ANSWER_S)
        return handler.epoch

    async def link(self, port: int) -> Link:
        """A link to the node at a port of this machine, made anew."""
        identity = identity_here(self.role, self.mesh, f"bad-{self.role}", None, self.credentials.node_id)
        endpoint = Endpoint(identity, Liar(), credentials=self.credentials)
        self.endpoints.append(endpoint)
        async with asyncio.timeout(ANSWER_S):
            while True:
                with contextlib.suppress(ConnectFailed):  # the machine is busy: a link has few seconds to stand
                    return await endpoint.dial("127.0.0.1", port)

    async def leave(self) -> None:
        """End all links."""
        while self.endpoints:
            await self.endpoints.pop().close()


@asynccontextmanager
async def member(folder: Path, state_home: Path, mesh: str, role: str) -> AsyncIterator[Member]:
    """A member of a mesh whose authority is in a user's state folder."""
    authority = state_home / "graph-mesh" / mesh / "@authority"
    credentials = await asyncio.to_thread(enrolled, folder, mesh, role, f"bad-{role}", authority)
    assert credentials is not None
    made = Member(mesh, role, credentials)
    try:
        yield made
    finally:
        await made.leave()


async def sent(link: Link, body: Message, way: Way, stream_bytes: int = 8) -> MeshError | None:
    """Send a message in a way; the error that came back, None where none did.  What is no longer than the window has
    left before a refusal is here."""
    try:
        match way:
            case Way.REQUEST:
                await link.request(body, timeout_s=ANSWER_S)
            case Way.NOTIFICATION:
                link.notify(body)
                await link.ping(ANSWER_S)
            case Way.STREAM:
                async with asyncio.timeout(ANSWER_S):
                    await link.send_stream(body, memoryview(bytes(stream_bytes)))
                await link.ping(ANSWER_S)
    except MeshError as error:
        return error
    return None


async def pushed(link: Link, keys: Sequence[Push]) -> int:
    """Send notes as fast as they are read, until the link is ended; how many left."""
    count = 0
    with contextlib.suppress(MeshError):
        for push in keys:
            if link.closed:
                break
            link.notify(push)
            count += 1
            if count % 200 == 0:
                await link.ping(ANSWER_S)
        await link.ping(ANSWER_S)
    return count


def forged(
    epoch: int, generations: range, steps: range, parts: range, slots: Sequence[int], value: Value
) -> list[Push]:
    """Tensors for all these places of plans."""
    return [
        Push(PlanKey(epoch, generation), step, part, slot, value)
        for generation in generations
        for step in steps
        for part in parts
        for slot in slots
    ]


class Sequences:
    """Random sequences of valid messages by seed.  Half of them are about plans and steps that are `coming`, of the
    coordinator of this epoch, with tensors of the shape that goes between their parts.  No device is offered that could
    be given work."""

    def __init__(
        self,
        seed: int,
        epoch: int,
        shape: tuple[int, ...],
        nodes: Sequence[str],
        coming: Callable[[], tuple[range, range]],
    ) -> None:
        self._rng = random.Random(seed)
        self._epoch, self._nodes, self._coming = epoch, nodes, coming
        self._values = [
            Value("f32", shape, np.full(shape, 7, np.float32).tobytes()[: 64 << 10]),
            Value("f32", (), np.float32(-666.0).tobytes()),
            Value("f32", (1 << 20,)),
            Value("u8", (1 << 31,)),
            Value("f32", (), b"123"),
            Value("nope", (3,), b"123"),
        ]

    def next(self, receiver: Receiver) -> list[tuple[Message, Way]]:
        """The next sequence: up to eight messages for a kind of node, each with the way that it goes.  Most are those
        that such a node takes from somebody, since others end the link."""
        return [self._message(receiver) for _ in range(self._rng.randint(1, 8))]

    def _message(self, receiver: Receiver) -> tuple[Message, Way]:
        rng = self._rng
        if rng.random() < 0.5:
            push = self._push()
            if rng.random() < 0.3:
                return Relay(rng.choice(self._nodes), push, 8, 0, bytes(8)), Way.REQUEST
            return push, rng.choice((Way.NOTIFICATION, Way.STREAM))
        body, way = rng.choice(MESSAGES), rng.choice(list(Way))
        while receiver not in TABLE[way].get(type(body), {}) and rng.random() < 0.99:
            body, way = rng.choice(MESSAGES), rng.choice(list(Way))
        changes: dict[str, Any] = {}
        if isinstance(body, Deploy | Run | Drop) or hasattr(body, "plan"):
            changes["plan"] = self._key()
        if hasattr(body, "step") and isinstance(body.step, int):
            changes["step"] = rng.randrange(12)
        if isinstance(body, Beat):
            changes = {"incarnation": 1, "working": ()}
        if isinstance(body, Devices):
            changes = {"devices": (USELESS,)}
        if isinstance(body, FetchBlob):
            changes = {"blob": rng.randbytes(32)}
        fields = set(body.__struct_fields__)
        return with_fields(body, **{name: value for name, value in changes.items() if name in fields}), way

    def _push(self) -> Push:
        rng = self._rng
        slot = rng.choice((0, 0, 0, 1, 2, 9999))
        part, value = rng.randrange(3), rng.choice(self._values)
        if rng.random() < 0.5:
            generations, steps = self._coming()
            return Push(PlanKey(self._epoch, rng.choice(generations)), rng.choice(steps), part, slot, value)
        return Push(self._key(), rng.randrange(12), part, slot, value)

    def _key(self) -> PlanKey:
        epoch = self._rng.choice((self._epoch, self._epoch, self._epoch, 1))
        return PlanKey(epoch, self._rng.randrange(1, 60))
