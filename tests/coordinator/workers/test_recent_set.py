"""What the coordinator remembers of a worker's content does not grow with the programs that were run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from support.machines.profiles import device, near, worker

from coordinator.delivery.deployer import Deployer
from coordinator.delivery.param_slices import ParamSlices
from coordinator.delivery.tensor_store import TensorStore
from coordinator.planning.planner import make_plan
from coordinator.workers.recent_set import RecentSet
from coordinator.workers.records import Member
from wire.bounds import KNOWN_CONTENTS, KNOWN_GRAPHS
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.ir.types import TensorType
from wire.protocol.messages import Deploy, Deployed, Joined, Message, PlanKey


def test_the_longest_unnamed_goes_first() -> None:
    known = RecentSet(3)
    known.update([b"a", b"b", b"c", b"a", b"d"])
    assert list(known) == [b"c", b"a", b"d"] and b"b" not in known
    known.difference_update([b"a", b"x"])
    assert list(known) == [b"c", b"d"] and len(known) == 2


def test_a_worker_of_many_programs_is_known_to_hold_the_latest() -> None:
    """As a program whose weights are others with every call, and a program of its own for each of them."""
    addresses = [number.to_bytes(32, "big") for number in range(KNOWN_CONTENTS.most + 2)]

    class There:
        peer = SimpleNamespace(name="there", node_id="node-0", addresses=())

        async def request(self, message: Message, timeout_s: float = 0.0) -> Message:
            assert isinstance(message, Deploy)
            return Deployed(0, 0, 0, 0, 0.0, 0, 0)

    async def scenario() -> Member:
        profile = worker(0, device(0, 5.0, 10.0))
        member = Member(cast(Any, There()), Joined((), 1 << 30, ()), profile)
        prober: Any = SimpleNamespace(
            table=SimpleNamespace(relayed=lambda node: ()), bytes_per_s=lambda *_: 1e9, unreached=lambda *_: None
        )
        deployer = Deployer({"node-0": member}, prober, ParamSlices(TensorStore()), 1.0)
        member.blobs.update(addresses)
        member.graphs.update(addresses)
        for number in range(3):
            builder = GraphBuilder()
            x, w = builder.input("x", (2 + number,), F32), builder.param("w", (2 + number,), F32)
            graph = builder.build([builder.add("add", x, w)])
            weights = np.full(2 + number, number, np.float32)
            content = hash_array(weights), TensorType(weights.shape, F32)
            plan = make_plan(graph, near(profile), "single")
            await deployer.deploy(plan, "node-0", PlanKey(1, number), {"w": content})
            assert content[0] in member.blobs
        return member

    member = asyncio.run(scenario())
    assert (len(member.blobs), len(member.graphs)) == (KNOWN_CONTENTS.most, KNOWN_GRAPHS.most)
    assert addresses[4] not in member.blobs and addresses[5] in member.blobs, "the latest"
