"""Sessions whose tables are updated in their own memory: deaths, copies and readers between steps see true values."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import Mesh, tree
from mesh.backends.config import MeshConfig
from mesh.simulation.loop import VirtualLoop
from worker.engine.donation import Versions

ROWS, WIDTH, STEPS = 96, 64, 15


def step(state: Any, at: Any, row: Any) -> Any:
    """One row of each table becomes something of the others; a cache, a table that is summed into, and a counter."""
    cache, table = state["cache"], state["table"]
    looked = table[at]
    cache[at] = row + looked
    table[(at + 1) % ROWS] = looked + cache[(at + 2) % ROWS]
    return {"cache": cache, "table": table, "done": state["done"] + 1}, mnp.sum(cache[at]) + looked[0]


def first_state() -> Any:
    rng = np.random.default_rng(7)
    tables = {name: rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for name in ("cache", "table")}
    return {**tables, "done": np.zeros((), np.int32)}


def given(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    return np.int32(rng.integers(0, ROWS)), rng.standard_normal(WIDTH).astype(np.float32)


def undisturbed() -> tuple[list[float], list[list[bytes]]]:
    """What every step tells, and the state after it, in numpy."""
    state, outputs, states = first_state(), [], []
    for number in range(STEPS):
        at, row = given(number)
        looked = state["table"][at].copy()
        state["cache"][at] = row + looked
        state["table"][(at + 1) % ROWS] = looked + state["cache"][(at + 2) % ROWS]
        state["done"] = state["done"] + np.int32(1)
        outputs.append(state["cache"][at].sum() + looked[0])
        states.append(bits(state))
    return outputs, states


def bits(state: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in tree.leaves(state)]


@pytest.fixture
def outgrown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The values whose memory another one took."""
    found: list[int] = []
    gave = Versions.gave

    def noted(self: Versions, number: int, lent: Any, later: int) -> None:
        found.append(number)
        gave(self, number, lent, later)

    monkeypatch.setattr(Versions, "gave", noted)
    return found


@pytest.mark.parametrize("strategy", ["single", "pipeline"])
def test_the_state_after_every_step_is_that_of_numpy(strategy: str, outgrown: list[int]) -> None:
    outputs, states = undisturbed()
    with (
        Mesh.builder().mesh("sim").simulate(3).build() as mesh,
        mesh.session(step, first_state(), *given(0), strategy=strategy) as session,
    ):
        for number in range(STEPS):
            assert np.allclose(session.step(*given(number)).result(), outputs[number], rtol=1e-5)
            assert bits(session.state()) == states[number]
    assert len(outgrown) >= STEPS - 1, "nothing was done in place"


def test_in_this_process_neither_the_first_state_nor_one_that_was_taken_is_written_to() -> None:
    _, states = undisturbed()
    first = first_state()
    before = bits(first)
    with Mesh(MeshConfig()) as mesh, mesh.session(step, first, *given(0)) as session:
        taken = []
        for number in range(STEPS):
            session.step(*given(number)).result()
            taken.append(session.state())
        assert [bits(state) for state in taken] == states
    assert bits(first) == before


async def disturbed(seed: int, copies: str, strategy: str) -> tuple[list[float], list[bytes], int]:
    rng = random.Random(seed)
    builder = Mesh.builder().mesh("sim").simulate(3, seed)
    async with await builder.build_async() as mesh:
        cluster = mesh.simulation
        deaths = 0

        async def mischief() -> None:
            nonlocal deaths
            while True:
                await asyncio.sleep(rng.uniform(0.001, 0.02))
                if len(cluster.alive) == len(cluster.names):
                    deaths += 1
                    name = rng.choice(cluster.names)
                    cluster.kill(name)
                    await asyncio.sleep(rng.uniform(0.05, 0.4))
                    cluster.start(name)
                    await asyncio.sleep(4)  # it joins, and the copies that it had are made again

        async with await mesh.session(
            step, first_state(), *given(0), copies=copies, every=rng.randint(1, 4), strategy=strategy
        ) as session:
            outputs = [float(await session.step(*given(0)))]
            player = asyncio.create_task(mischief())
            for first in range(1, STEPS, 3):
                steps = [session.step(*given(number)) for number in range(first, min(first + 3, STEPS))]
                outputs += [float(await each) for each in steps]
                await asyncio.sleep(rng.uniform(0, 1.5))
            player.cancel()
            state = bits(await session.state())
        cluster.checker.verdict()
        return outputs, state, deaths


@pytest.mark.parametrize("strategy", ["single", "pipeline"])
@pytest.mark.parametrize("copies", ["buddy", "coded", "checkpoint"])
def test_deaths_at_any_moment_change_no_bit(copies: str, strategy: str, outgrown: list[int]) -> None:
    outputs, states = undisturbed()
    deaths = 0
    for seed in range(3):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            found, state, happened = runner.run(disturbed(seed, copies, strategy))
        assert np.allclose(found, outputs, rtol=1e-5) and state == states[-1], seed
        deaths += happened
    assert deaths and outgrown
