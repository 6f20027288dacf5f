"""What passes a coordinator between two workers that cannot connect: what the plan has the one send to the other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.machines.links import node

from coordinator.delivery.relay import RelayServer
from coordinator.planning.plan_messages import Transfers
from wire.bounds import RELAYED_AT_ONCE
from wire.errors import Busy, MeshError, NodeLost, NotTrusted, ProtocolError, StaleGeneration
from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.protocol.messages import Done, Message, PlanKey, Push, Relay, Value

KEY = PlanKey(7, 1)
KIND = TensorType((3,), dtype_named("f32"))
EDGES = {(4, 1): ("id-a", "id-b", KIND)}
GOOD = Relay("id-b", Push(KEY, 0, 4, 1, Value("f32", (3,))), 12, 0, bytes(12))


class End:
    """A link to a worker, which takes pieces once it may."""

    def __init__(self, name: str) -> None:
        self.peer, self.came, self.open = node(name), list[Message](), asyncio.Event()

    async def request(self, body: Message, timeout_s: float | None = None) -> Message:
        self.came.append(body)
        await self.open.wait()
        return Done()


@pytest.fixture
def ends() -> dict[str, Any]:
    return {f"id-{name}": End(name) for name in "abc"}


def server(ends: dict[str, Any]) -> RelayServer:
    deployment = cast(Any, SimpleNamespace(transfers=Transfers({}, EDGES)))
    links = cast(dict[str, Link], ends)
    return RelayServer(links.get, {}, lambda: KEY.epoch, {KEY.generation: deployment}.get)


async def test_what_the_plan_has_passes_and_its_receiver_learns_from_whom(ends: dict[str, Any]) -> None:
    ends["id-b"].open.set()
    assert await server(ends).serve(ends["id-a"], GOOD) == Done()
    assert ends["id-b"].came == [Relay("id-a", GOOD.push, 12, 0, bytes(12))]


@pytest.mark.parametrize(
    ("sender", "piece", "error"),
    [
        ("id-c", GOOD, NotTrusted),
        ("id-a", Relay("id-c", GOOD.push, 12, 0, bytes(12)), NotTrusted),
        ("id-a", Relay("id-b", Push(KEY, 0, 4, 0, Value("f32", (3,))), 12, 0, bytes(12)), NotTrusted),
        ("id-a", Relay("id-b", Push(KEY, 0, 4, 1, Value("i32", (3,))), 12, 0, bytes(12)), ProtocolError),
        ("id-a", Relay("id-b", Push(KEY, 0, 4, 1, Value("f32", (1 << 30,))), 1 << 32, 0, bytes(12)), ProtocolError),
        ("id-a", Relay("id-b", GOOD.push, 1 << 40, 0, bytes(12)), ProtocolError),
        ("id-a", Relay("id-b", Push(PlanKey(6, 1), 0, 4, 1, Value("f32", (3,))), 12, 0, bytes(12)), StaleGeneration),
        ("id-a", Relay("id-b", Push(PlanKey(7, 9), 0, 4, 1, Value("f32", (3,))), 12, 0, bytes(12)), StaleGeneration),
    ],
)
async def test_anything_else_reaches_nobody(
    ends: dict[str, Any], sender: str, piece: Relay, error: type[MeshError]
) -> None:
    with pytest.raises(error):
        await server(ends).serve(ends[sender], piece)
    assert not any(end.came for end in ends.values())


async def test_a_receiver_that_is_gone_is_said(ends: dict[str, Any]) -> None:
    del ends["id-b"]
    with pytest.raises(NodeLost):
        await server(ends).serve(ends["id-a"], GOOD)


async def test_a_worker_that_relays_more_at_once_than_workers_do_is_refused(ends: dict[str, Any]) -> None:
    relay = server(ends)
    pieces = [asyncio.ensure_future(relay.serve(ends["id-a"], GOOD)) for _ in range(RELAYED_AT_ONCE.most)]
    await asyncio.sleep(0)
    assert len(ends["id-b"].came) == RELAYED_AT_ONCE.most
    with pytest.raises(Busy):
        await relay.serve(ends["id-a"], GOOD)
    ends["id-b"].open.set()
    assert await asyncio.gather(*pieces) == [Done()] * RELAYED_AT_ONCE.most
    assert await relay.serve(ends["id-a"], GOOD) == Done() and not relay._in_flight
