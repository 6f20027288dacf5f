"""A server of several models whose workers die, freeze and leave under load: nothing is lost, no slot stays taken.

A frozen worker (SIGSTOP, a machine that hangs) is one that nothing gets to or from for a while, with its links open.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import numpy as np
import pytest
from support.cases.language import GOLDEN, golden_model

import mesh.numpy as mnp
from mesh import AsyncInferenceServer, Mesh
from mesh.errors import QueueFull
from mesh.simulation.loop import VirtualLoop

REFERENCE: dict[str, Any] = json.loads((GOLDEN / "generation.json").read_text())
LANGUAGE = ("llama", "gpt2")
W = {name: np.random.default_rng(place).normal(size=(16, 16)).astype(np.float32) for place, name in enumerate("ab")}
CLIENTS, TURNS = 3, 5


def layer(name: str) -> Any:
    return lambda x: mnp.tanh(x @ W[name])


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(1 + seed % 3, 16)).astype(np.float32)


class Load:
    """Clients of all kinds, and what they saw."""

    def __init__(self, server: AsyncInferenceServer, seed: int) -> None:
        self.server = server
        self.rng = random.Random(seed)
        self.counts = dict.fromkeys(("answers", "dropped requests", "texts", "dropped texts", "refused"), 0)

    async def asks(self, name: str, seed: int) -> None:
        """Requests one after the other, of which some are cancelled while they wait or are computed."""
        for turn in range(TURNS):
            x = rows(100 * seed + turn)
            task = asyncio.ensure_future(self.server.infer(name, x))
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.choice([0, 0.0005, 0.05]))
                task.cancel()
                await asyncio.wait([task])
                self.counts["dropped requests"] += task.cancelled()
            else:
                np.testing.assert_allclose(await task, np.tanh(x @ W[name]), rtol=1e-5, atol=1e-6)
                self.counts["answers"] += 1
            await asyncio.sleep(self.rng.uniform(0, 0.8))

    async def reads(self, name: str, place: int) -> None:
        """Streams one after the other, of which some are cancelled in the middle, and never read to the end."""
        wanted = REFERENCE[name]["tokens"][place][:14]
        for _ in range(TURNS):
            try:
                reply = self.server.generate(name, REFERENCE[name]["prompts"][place], max_new_tokens=14, ends=())
            except QueueFull:
                self.counts["refused"] += 1
                await asyncio.sleep(0.5)
                continue
            if self.rng.random() < 0.4:
                said = [await anext(reply) for _ in range(self.rng.randint(0, 13))]
                reply.cancel()
                assert said == wanted[: len(said)] and reply.reason == "cancelled"
                self.counts["dropped texts"] += 1
            else:
                assert await reply.all() == wanted and reply.reason == "length"
                self.counts["texts"] += 1
            await asyncio.sleep(self.rng.uniform(0, 0.8))


async def mischief(cluster: Any, rng: random.Random) -> list[str]:
    """Every worker once, in any order and in any of these ways; the next while the one before may still be away."""
    done = []
    for name in rng.sample(cluster.names, len(cluster.names)):
        await asyncio.sleep(rng.uniform(0.05, 1.0))
        how = rng.choice(["killed", "frozen", "frozen for long", "asked to leave"])
        done.append(how)
        if how.startswith("frozen"):
            cluster.silence(name)
            await asyncio.sleep(rng.uniform(0.05, 0.5) if how == "frozen" else rng.uniform(2, 4))
            cluster.reconnect(name)
        else:
            (cluster.kill if how == "killed" else cluster.leave)(name)
            await asyncio.sleep(rng.uniform(0.3, 1.0))
            cluster.start(name)
        await asyncio.sleep(rng.uniform(0.5, 2.5))
    return done


def slots_of(server: AsyncInferenceServer) -> list[tuple[int, int, int]]:
    """For every batch of texts: those in slots, those that wait, and the open streams."""
    models = [served for served in server._models.values() if served.replicas is not None]
    every = [each for served in models for each in served.replicas.batches()]
    return [(each.active, each.waiting, len(each._streams)) for each in every]


async def under_faults(seed: int) -> tuple[dict[str, int], list[str]]:
    rng = random.Random(seed)
    async with (
        await Mesh.builder().mesh("sim").simulate(3, seed).build_async() as workers,
        AsyncInferenceServer(workers) as server,
    ):
        cluster = workers.simulation
        for name in W:
            await server.load_model(name, layer(name), max_batch=2, queue=8, strategy=rng.choice(["auto", "pipeline"]))
        for name in LANGUAGE:
            strategy = rng.choice(["auto", "pipeline"])
            await server.load_model(name, golden_model(name), max_batch=2, queue=4, replicas=2, strategy=strategy)
        load = Load(server, seed)
        clients = [load.asks(name, place) for name in W for place in range(CLIENTS)]
        clients += [load.reads(name, place) for name in LANGUAGE for place in range(CLIENTS)]
        *_, done = await asyncio.gather(*clients, mischief(cluster, rng))
        for _ in range(200):  # what is cancelled is over once the steps under way are
            if all(told.waiting == told.texts == 0 for told in server.loaded_models()):
                break
            await asyncio.sleep(0.1)
        assert slots_of(server) == [(0, 0, 0)] * len(slots_of(server)), "a slot is taken by nobody"
        assert all(not served.request_runner._requests for served in server._models.values())
        cluster.heal()
        await asyncio.sleep(5)  # who was away is back
        for name in LANGUAGE:
            count = 4 + 4  # slots of two replicas, and the queue
            replies = [
                server.generate(name, REFERENCE[name]["prompts"][0], max_new_tokens=14, ends=()) for _ in range(count)
            ]
            for reply in replies:
                assert await reply.all() == REFERENCE[name]["tokens"][0][:14], "every slot serves again"
        for name in W:
            np.testing.assert_allclose(
                await server.infer(name, rows(1)), np.tanh(rows(1) @ W[name]), rtol=1e-5, atol=1e-6
            )
        for name in (*W, *LANGUAGE):
            await server.unload_model(name)
        await asyncio.sleep(2)
        assert cluster.coordinator.sessions.idle and not any(cluster.busy().values())
        cluster.checker.verdict()
        return load.counts, done


def check(seed: int) -> tuple[dict[str, int], list[str]]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        counts, done = runner.run(under_faults(seed))
    asked = CLIENTS * TURNS * len(W)
    assert counts["answers"] + counts["dropped requests"] <= asked
    assert counts["texts"] + counts["dropped texts"] + counts["refused"] == CLIENTS * TURNS * len(LANGUAGE)
    assert counts["answers"] and counts["texts"] and counts["dropped texts"]
    return counts, done


@pytest.mark.parametrize("seed", range(1))
def test_nothing_is_lost_and_no_slot_leaks(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 40))
def test_nothing_is_lost_and_no_slot_leaks_in_many_orders(seed: int) -> None:
    check(seed)
