"""Requests, texts, sessions, coded layers and coded weights under mischief on simulated workers, by seed.

A seed draws how many of each there are, how they are placed and copied, and when somebody gives up waiting.  What is
answered is right to the bit (coded: to 1e-4), what is not ends in an error of `mesh.errors` that says why, and in the
end nothing is left.  A new kind of work is a row of WORKS.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from support.cases.language import GOLDEN, golden_model
from support.cases.training import batch, first_state, train
from support.simulated.chaos_faults import ALL_FAULTS, check_nothing_left
from support.simulated.simulated import Chaos

import mesh.numpy as mnp
from mesh import AsyncInferenceServer, AsyncMesh, Mesh, tree
from mesh.backends.config import MeshConfig
from mesh.errors import Cancelled, DeviceLost, MeshError, NodeLost, PlacementError, PoisonTask, QueueFull
from mesh.simulation.loop import VirtualLoop

REFERENCE: dict[str, Any] = json.loads((GOLDEN / "generation.json").read_text())["llama"]
LAYERS = [np.random.default_rng(place).normal(0, 0.3, (16, 16)).astype(np.float32) for place in range(5)]
STRATEGIES = ("single", "pipeline", "auto")
COPIES = ("buddy", "checkpoint", "coded", "coded 1 of 2", "coded 2 of 4", "none")
ENDS = (NodeLost, DeviceLost, PoisonTask, PlacementError, QueueFull)
HANGS_S = 3000.0
STEPS = 12


def tower(x: Any) -> Any:
    for weights in LAYERS:
        x = mnp.tanh(x @ weights)
    return x


def rows(seed: int, count: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 16)).astype(np.float32)


@cache
def undisturbed() -> tuple[list[float], list[Any]]:
    """Losses, and the state after every step."""
    with Mesh(MeshConfig()) as here, here.session(train, first_state(), *batch(0)) as session:
        losses, states = [], [session.state()]
        for step in range(STEPS):
            losses.append(float(session.step(*batch(step)).result()))
            states.append(session.state())
        return losses, states


@dataclass
class Trial:
    """One seed."""

    seed: int
    only: str = ""
    random: random.Random = field(init=False)
    scenario: dict[str, Any] = field(init=False)
    ends: Counter[str] = field(init=False, default_factory=Counter)
    right: int = 0

    def __post_init__(self) -> None:
        rng = self.random = random.Random(self.seed)
        self.scenario = {
            "workers": rng.randint(1, 6),
            "works": [self.only] if self.only else rng.choices(list(WORKS), k=rng.randint(1, 5)),
            "strategy": rng.choice(STRATEGIES),
            "copies": rng.choice(COPIES),
            "gflops": 10 ** rng.uniform(-4, 1),
            "faults": rng.randint(0, 12),
            "rest_s": rng.choice(((0.01, 0.6), (0.05, 2.0), (0.001, 0.05))),
        }

    def run(self) -> str:
        """The transcript of a run to its end."""
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(self._run())

    async def _run(self) -> str:
        scenario = self.scenario
        async with (
            await Mesh.builder()
            .mesh("sim")
            .simulate(scenario["workers"], self.seed, scenario["gflops"])
            .build_async() as m
        ):
            cluster = m.simulation
            chaos = Chaos(cluster, self.random, rest_s=scenario["rest_s"])
            try:
                async with asyncio.timeout(HANGS_S):
                    await self._works(m, chaos)
                await self._check_nothing_left(m)
                cluster.checker.verdict()
            except BaseException as error:
                tasks = "\n".join(f"task {task.get_coro()}" for task in asyncio.all_tasks())
                error.add_note(f"{scenario}\n{dict(self.ends)}\n{cluster.transcript()}\n{tasks}")
                raise
            return cluster.transcript()

    async def _works(self, m: AsyncMesh, chaos: Chaos) -> None:
        async with AsyncInferenceServer(m) as server:
            await server.load_model("tower", tower, max_batch=4, strategy=self.scenario["strategy"])
            await server.load_model("llama", golden_model("llama"), max_batch=2, strategy=self.scenario["strategy"])
            player = asyncio.create_task(self._play(chaos))
            await asyncio.gather(*(WORKS[name](self, m, server) for name in self.scenario["works"]))
            chaos.settle()
            await player
            while m.simulation.coordinator.nodes() and not m.live():
                await asyncio.sleep(0.1)
            x = rows(1)
            found = await self._tried(lambda: server.infer("tower", x))
            assert found is not None, "once all is well a request is answered"
            np.testing.assert_allclose(found, tower_of(x), rtol=1e-5, atol=1e-6)

    async def _play(self, chaos: Chaos) -> None:
        await chaos.play(ALL_FAULTS, self.scenario["faults"])
        await asyncio.sleep(30.0)
        chaos.end()

    async def _tried(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What comes of it; None for an error that may be."""
        try:
            found = await ask()
        except MeshError as failure:
            error = failure
        else:
            self.right += 1
            return found
        self.ends[f"{type(error).__name__}: {error}"[:250]] += 1
        assert isinstance(error, ENDS), repr(error)
        assert error.next_step or error.cause, f"what now? {error!r}"
        return None

    async def _rest(self, most_s: float = 2.0) -> None:
        await asyncio.sleep(self.random.uniform(0, most_s))

    # -- works

    async def requests(self, m: AsyncMesh, server: AsyncInferenceServer) -> None:
        for turn in range(6):
            x = rows(turn, self.random.randint(1, 5))
            asked = asyncio.ensure_future(self._tried(lambda x=x: server.infer("tower", x)))
            if self.random.random() < 0.15:
                await self._rest(0.2)
                asked.cancel()
                await asyncio.wait([asked])
                continue
            found = await asked
            if found is not None:
                np.testing.assert_allclose(found, tower_of(x), rtol=1e-5, atol=1e-6)
            await self._rest()

    async def texts(self, m: AsyncMesh, server: AsyncInferenceServer) -> None:
        for _ in range(3):
            place, length = self.random.randrange(4), self.random.randint(1, 14)
            reply = server.generate("llama", REFERENCE["prompts"][place], max_new_tokens=length, ends=())
            if self.random.random() < 0.2:
                await self._rest(0.5)
                reply.cancel()
            found = await self._tried(reply.all)
            if found is not None:
                wanted = REFERENCE["tokens"][place][:length]
                assert found == wanted or (reply.reason == "cancelled" and found == wanted[: len(found)])
            await self._rest()

    async def session(self, m: AsyncMesh, server: AsyncInferenceServer) -> None:
        scenario = self.scenario
        strategy = self.random.choice(STRATEGIES)

        def same(found: Any, wanted: Any) -> bool:
            """To the bit; auto may split within ops."""
            leaves = zip(tree.leaves(found), tree.leaves(wanted), strict=True)
            near = 1e-5 if strategy == "auto" else 0
            return all(np.allclose(one, other, rtol=0, atol=near) for one, other in leaves)

        session = await m.session(
            train, first_state(), *batch(0), copies=scenario["copies"], every=self.random.randint(1, 5),
            strategy=strategy, ahead=self.random.choice((None, 1, 4)),
        )  # fmt: skip
        losses, states = undisturbed()
        closes_at = self.random.choice((None, None, self.random.randrange(STEPS)))
        steps: list[Any] = []
        for step in range(STEPS):
            steps.append(asyncio.ensure_future(session.step(*batch(step))))
            if step == closes_at:
                await self._rest(0.1)
                await session.close()
            if self.random.random() < 0.3:
                await self._rest()
            if self.random.random() < 0.2 and closes_at is None:
                found = await self._tried(session.state)
                assert found is None or same(found, states[step + 1]), "another state"
        for step, asked in enumerate(steps):
            if closes_at is not None:
                (found,) = await asyncio.gather(asked, return_exceptions=True)
                assert isinstance(found, (*ENDS, Cancelled)) or same(found, losses[step]), (step, closes_at, found)
                continue
            found = await self._tried(lambda asked=asked: _after(asked))
            if found is None:
                break
            assert same(found, losses[step]), "another loss"
        else:
            if closes_at is None:
                found = await self._tried(session.state)
                assert found is None or same(found, states[STEPS]), "another state"
        for asked in steps:
            asked.cancel()
        await asyncio.gather(*steps, return_exceptions=True)
        await session.close()

    async def calls(self, m: AsyncMesh, server: AsyncInferenceServer) -> None:
        for turn in range(6):
            x = rows(100 + turn, 3)
            found = await self._tried(
                lambda x=x: m.run(tower, x, strategy=self.scenario["strategy"], copies=self.random.choice(CALL_COPIES))
            )
            if found is not None:
                np.testing.assert_allclose(found, tower_of(x), rtol=1e-5, atol=1e-6)
            await self._rest()

    async def loading(self, m: AsyncMesh, server: AsyncInferenceServer) -> None:
        """Models come and go, some of them while they are asked."""
        for turn in range(3):
            name = f"model {turn} {self.random.random()}"
            await server.load_model(name, tower, max_batch=2, strategy=self.scenario["strategy"])
            asked = [asyncio.ensure_future(server.infer(name, rows(turn))) for _ in range(3)]
            await self._rest(0.3)
            if self.random.random() < 0.5:
                await asyncio.wait(asked)
            await server.unload_model(name)
            for found in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(found, BaseException):
                    assert isinstance(found, (*ENDS, Cancelled)), repr(found)
                else:
                    np.testing.assert_allclose(found, tower_of(rows(turn)), rtol=1e-5, atol=1e-6)

    async def _check_nothing_left(self, m: AsyncMesh) -> None:
        cluster = m.simulation
        gc.collect()
        await asyncio.sleep(40.0)
        gc.collect()
        await asyncio.sleep(1.0)
        check_nothing_left(cluster)


CALL_COPIES = ("replica", "buddy", "coded", "coded 2 of 4", "checkpoint")
WORKS: dict[str, Callable[[Trial, AsyncMesh, AsyncInferenceServer], Awaitable[None]]] = {
    "requests": Trial.requests,
    "texts": Trial.texts,
    "session": Trial.session,
    "calls": Trial.calls,
    "loading": Trial.loading,
}


def tower_of(x: Any) -> Any:
    for weights in LAYERS:
        x = np.tanh(x @ weights)
    return x


async def _after(asked: asyncio.Future[Any]) -> Any:
    return await asked
