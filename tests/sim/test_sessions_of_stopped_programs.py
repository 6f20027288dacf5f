"""A program that stands still, as by SIGSTOP, finds its sessions as they were: at any moment, with copies of any kind.

The program is the client with a coordinator inside; its workers go on.  A stop of a minute is outlasted by links; where
they are cut meanwhile, as by a router that forgets them, all are made anew and what workers kept is gone on with.
"""

from __future__ import annotations

import asyncio
import random
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.cases.training import batch, first_state, train
from support.undisturbed import bits, undisturbed

from mesh import Mesh
from mesh.errors import NodeLost
from mesh.simulation.cluster import COORDINATOR
from mesh.simulation.loop import VirtualLoop, context_of
from worker.state.events import MemoryLeft

STOPS_S = (1.0, 3.0, 10.0, 60.0)
MOMENTS = 50
STEPS_MAX = 4  # between two stops
KINDS = ("buddy", "coded", "coded 1 of 3", "checkpoint", "none")
RANKS_RTOL = 1e-4
SOON_S = 2.0  # from its waking until all that was asked for is done
RESTS_S = 0.2  # at most between two steps that are asked for; a step takes a tenth of that


async def stopped(copies: str, strategy: str, cut: bool, seed: int, moments: int, ranks: bool = False) -> float:
    """Train, and stand still at random moments; the longest that it then took until all steps were done.  The sums of
    `ranks` have another order than those of one machine."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    async with await Mesh.builder().mesh("sim").simulate(3, seed).build_async() as mesh:
        cluster = mesh.simulation

        def stop(seconds: float) -> None:
            cluster.stand_still(seconds)
            if cut:
                cluster.network.kill(COORDINATOR)

        losses: list[float] = []
        longest_s = 0.0
        async with await mesh.session(
            train, first_state(), *batch(0), copies=copies, every=rng.randint(1, 5), strategy=strategy
        ) as session:
            losses.append(float(await session.step(*batch(0))))
            for moment in range(moments):
                seconds, after_s = STOPS_S[moment % len(STOPS_S)], rng.uniform(0, RESTS_S)
                wakes_s = loop.time() + after_s + seconds
                loop.call_later(after_s, stop, seconds, context=context_of("who stops it"))
                steps = []
                for _ in range(rng.randint(1, STEPS_MAX)):
                    steps.append(session.step(*batch(len(losses) + len(steps))))
                    await asyncio.sleep(rng.uniform(0, RESTS_S))
                losses += [float(await step) for step in steps]
                longest_s = max(longest_s, loop.time() - wakes_s)
                await asyncio.sleep(max(0.0, wakes_s - loop.time()) + rng.choice((0.0, 0.05, 3.0)))
            state = bits(await session.state())
        await asyncio.sleep(1.0)
        cluster.checker.verdict()
        assert not any(process.daemon.shell.machine._plans for process in cluster._processes.values()), (
            "something stays"
        )
    expected, final = undisturbed(len(losses))
    if ranks:
        np.testing.assert_allclose(losses, expected, rtol=RANKS_RTOL)
    else:
        assert (losses, state) == (expected, final)
    return longest_s


def check(copies: str, strategy: str, cut: bool, seed: int = 0, moments: int = MOMENTS, ranks: bool = False) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        took_s = runner.run(stopped(copies, strategy, cut, seed, moments, ranks))
    rests_s = STEPS_MAX * RESTS_S  # for which the program may have slept itself since it woke
    assert took_s < SOON_S + rests_s


@pytest.mark.parametrize(
    "copies", [pytest.param(kind, marks=pytest.mark.long) if kind == "coded 1 of 3" else kind for kind in KINDS]
)
def test_a_program_that_stood_still_goes_on_where_it_was(copies: str) -> None:
    """With links that are cut meanwhile; the long run has links that stand, too, and more moments."""
    check(copies, "pipeline", cut=True, moments=16)


@pytest.mark.parametrize("cut", [False, True], ids=["links stand", "links are cut"])
def test_ranks_that_wait_for_each_other_meanwhile_go_on_too(cut: bool) -> None:
    """Some workers may have the Run and others not: they wait, or are told that the step was given up."""
    check("buddy", "data", cut, moments=12, ranks=True)


async def short_of_memory(short: tuple[str, ...], still_s: float = 60.0) -> None:
    """Train while the program stands still once, and machines run short of memory meanwhile."""
    async with await Mesh.builder().mesh("sim").simulate(3).build_async() as mesh:
        cluster = mesh.simulation
        daemons: dict[str, Any] = {name: process.daemon for name, process in cluster._processes.items()}
        async with await mesh.session(train, first_state(), *batch(0), every=2, strategy="single") as session:
            losses = [float(await session.step(*batch(step))) for step in range(8)]
            await asyncio.sleep(1.0)
            for name in short:
                left = MemoryLeft(1, 100)
                daemon = daemons[name]
                daemon.availability.memory = lambda left=left: left
                what = "looking at the machine's memory", daemon.availability.watch_memory
                keep = partial(daemon.shell.tasks.keep, *what)
                asyncio.get_running_loop().call_soon(keep, context=context_of(name))
            cluster.stand_still(still_s)
            losses.append(float(await session.step(*batch(8))))
            assert (losses, bits(await session.state())) == undisturbed(9)
            assert all("gives way" in str(daemons[name].shell.machine.log) for name in short), "nothing was freed"


@pytest.mark.parametrize("short", ["sim-0", "sim-1"])
def test_memory_that_one_machine_takes_back_costs_no_session_its_state(short: str) -> None:
    """One of them has the state, and the other one a copy."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(short_of_memory((short,)))


def test_where_all_machines_take_their_memory_back_the_program_hears_what_it_hears_after_too_long() -> None:
    said = []
    for short, still_s in ((("sim-0", "sim-1"), 60.0), ((), 900.0)):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(NodeLost) as caught:
            runner.run(short_of_memory(short, still_s))
        said.append(re.sub(r"workers [^:]*, and", "workers, and", caught.value.message))
    assert said[0] == said[1] and "there is no copy of it" in said[0]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 40))
@pytest.mark.parametrize("cut", [False, True], ids=["links stand", "links are cut"])
@pytest.mark.parametrize("copies", KINDS)
def test_many_programs_that_stood_still_go_on_where_they_were(copies: str, cut: bool, seed: int) -> None:
    check(copies, ("single", "pipeline", "auto")[seed % 3], cut, seed)
