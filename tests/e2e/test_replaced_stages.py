"""A server under load on real workers: one is killed, another one comes and takes its place, a second one is killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from support.cases.language import gpt2_folder
from support.processes.commands import PATIENT_S
from support.processes.worker_process import HANGS_S, worker
from support.waiting import until

import mesh
from mesh import AsyncInferenceServer, Mesh

ASKERS, PROMPTS = 4, [[5, 6, 7], [9]]
IDS = np.arange(12, dtype=np.int32).reshape(2, 6)


@pytest.mark.long  # tests/sim/test_inference_server.py has the same in virtual time
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
async def test_every_request_is_answered_while_workers_die_and_come(tmp_path: Path) -> None:
    model = mesh.load(gpt2_folder(tmp_path / "model"))
    wanted, texts = np.asarray(model(IDS)), model.generate(PROMPTS, max_new_tokens=30)
    async with AsyncExitStack() as stack:
        first, second, third = [
            await stack.enter_async_context(worker(tmp_path, name, "replaced")) for name in ("a", "b", "c")
        ]
        builder = Mesh.builder().mesh("replaced").node_timeout(PATIENT_S)
        for each in (first, second, third):
            builder = builder.node(each.address)
        workers = await stack.enter_async_context(await builder.build_async())
        server = await stack.enter_async_context(AsyncInferenceServer(workers))
        await server.load_model("gpt2", model, strategy="pipeline", max_batch=2, queue=1000)
        asked = answered = said = 0
        over = asyncio.Event()

        async def asks() -> None:
            nonlocal asked, answered
            while not over.is_set():
                asked += 1
                np.testing.assert_allclose(await server.infer("gpt2", IDS), wanted, rtol=1e-4, atol=1e-4)
                answered += 1

        async def reads(place: int) -> None:
            nonlocal asked, answered, said
            while not over.is_set():
                asked += 1
                assert await server.generate("gpt2", PROMPTS[place], max_new_tokens=30).all() == texts[place]
                answered, said = answered + 1, said + 1

        async def going_on() -> None:
            """Until several more requests and texts were answered."""
            goal = answered + 3 * ASKERS, said + 2 * len(PROMPTS)
            await until(lambda: answered >= goal[0] and said >= goal[1], HANGS_S)

        async def healthy() -> set[str]:
            return {node.name for node in await workers.nodes() if node.state == "healthy"}

        clients = [asyncio.create_task(asks()) for _ in range(ASKERS)]
        clients += [asyncio.create_task(reads(place)) for place in range(len(PROMPTS))]
        await going_on()
        second.signal(signal.SIGKILL)
        await going_on()
        await stack.enter_async_context(worker(tmp_path, "d", "replaced", port=second.port))
        async with asyncio.timeout(HANGS_S):
            while "d" not in await healthy():
                await asyncio.sleep(0.05)
        await going_on()
        first.signal(signal.SIGKILL)
        await going_on()
        over.set()
        await asyncio.wait_for(asyncio.gather(*clients), HANGS_S)
        assert answered == asked
        assert {"c", "d"} <= await healthy()
