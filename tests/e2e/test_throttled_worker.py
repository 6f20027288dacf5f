"""A throttled worker process: what it tells at join, that it shares no memory, and that its parts take their time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.processes.worker_process import Coordinator, worker

from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages import PartSpec, PlanKey, Source, SourceKind, Target
from wire.protocol.throttled_adapters import throttle_in

FLOPS_PER_S = 1e5
SIZE = 10_000


async def test_a_throttled_worker_says_so_and_is_another_machine(tmp_path: Path) -> None:
    coordinator, text = Coordinator(), f"flops={FLOPS_PER_S:g},rate=400Mbit/s,delay=1ms"
    builder = GraphBuilder()
    x = builder.input("x", (SIZE,), F32)
    graph = builder.build([builder.add("add", x, x)])
    try:
        async with worker(tmp_path, throttle=text) as process:
            link, joined = await coordinator.join(process)
            (device,) = joined.devices
            assert throttle_in(device.adapter) == text and device.gflops == FLOPS_PER_S / 1e9
            assert not link.same_host and link.peer.shared_memory == ""
            plan = PlanKey(1, 1)
            part = PartSpec(0, 0, graph.hash, (Source(SourceKind.INPUT),), ((Target("", 0, 0),),))
            await coordinator.deploy(link, [(part, graph)], plan)
            feed = coordinator.feed(0, 0, np.ones(SIZE, np.float32), "inline")
            ran, outputs = await coordinator.run(link, plan, 0, feed)
            assert ran.parts[0].compute_s >= SIZE / FLOPS_PER_S
            assert (outputs[0] == 2).all()
    finally:
        await coordinator.close()
