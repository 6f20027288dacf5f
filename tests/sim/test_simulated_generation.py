"""Texts on simulated workers: whoever dies, and whenever, they go on with the same tokens."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any, cast

import pytest
from support.cases.language import GOLDEN, golden_model, gpt2_folder

import mesh
from mesh import Mesh
from mesh.errors import NodeLost, OutOfMemory
from mesh.inference import Generating, Sampling
from mesh.inference.drafting import Drafter
from mesh.inference.kv_cache_step import page_bytes
from mesh.simulation.loop import VirtualLoop
from wire.ir.dtypes import F32
from wire.limits import KIB
from worker.engine.protocol import Engine

REFERENCE: dict[str, Any] = json.loads((GOLDEN / "generation.json").read_text())["llama"]


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


@pytest.mark.parametrize("strategy", ["single", "pipeline"])
def test_three_workers_say_what_one_process_says(strategy: str) -> None:
    model, how = golden_model("gpt2"), {"temperature": 1.0, "top_p": 0.95, "seed": 2, "max_new_tokens": 8, "ends": ()}
    prompts = [[3, 4], list(range(2, 21)), [7]]
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        assert model.generate(prompts, mesh=mesh, strategy=strategy, **how) == model.generate(prompts, **how)
        mesh.simulation.wait(1.0)
        assert mesh.simulation._cluster.coordinator.sessions.idle


async def _killed_at_every_token() -> None:
    prompt, wanted = REFERENCE["prompts"][3], REFERENCE["tokens"][3][:7]
    async with await Mesh.builder().mesh("sim").simulate(3).build_async() as mesh:
        cluster = mesh.simulation
        generating = Generating(mesh, golden_model("llama"), strategy="pipeline", chunk=4)
        for place in range(len(wanted)):
            stream = generating.begin(prompt, len(wanted), ends=())
            said = [await anext(stream) for _ in range(place)]
            name = cluster.names[place % 3]
            cluster.kill(name)
            assert said + [token async for token in stream] == wanted
            cluster.start(name)
            while len(cluster.alive) < 3:
                await asyncio.sleep(0.1)
            await asyncio.sleep(3)  # it has joined, and the session has moved
        assert generating.rebuilt > len(wanted) // 2, "a session that has told nothing begins again by itself"
        await generating.close()


def test_a_worker_killed_after_every_single_token_changes_none() -> None:
    run(_killed_at_every_token())


async def _killed_with_shared_pages(model: mesh.Model) -> None:
    shared = [(3 * at) % 251 for at in range(40)]
    prompts = [[*shared, at] for at in range(4)]
    hows = [Sampling(0.9 * (at % 2), seed=at) for at in range(4)]
    wanted = [
        model.generate(prompt, max_new_tokens=30, ends=(), temperature=how.temperature, seed=how.seed)
        for prompt, how in zip(prompts, hows, strict=True)
    ]
    async with await Mesh.builder().mesh("sim").simulate(3).build_async() as own:
        cluster = own.simulation
        assert model.text is not None
        budget = 10 * page_bytes(model.text.decoder, F32)  # one text takes five pages, and two are shared
        generating = Generating(own, model, slots=4, strategy="pipeline", kv_bytes=budget)
        streams = [generating.begin(prompt, 30, how, ()) for prompt, how in zip(prompts, hows, strict=True)]
        said: list[list[int]] = []
        for place, stream in enumerate(streams):
            first = [await anext(stream) for _ in range(5)]
            name = cluster.names[place % 3]
            cluster.kill(name)
            said.append(first + [token async for token in stream])
            cluster.start(name)
        assert said == wanted
        assert generating.rebuilt and generating.put_back and generating.tokens_found
        await generating.close()


def test_texts_that_share_pages_and_wait_for_others_outlive_their_workers(tmp_path: Path) -> None:
    model = mesh.load(gpt2_folder(tmp_path, layers=3))
    run(_killed_with_shared_pages(model))


async def mischief(cluster: Any, rng: random.Random) -> None:
    """Workers die, or leave, and come back."""
    while True:
        await asyncio.sleep(rng.uniform(0.001, 0.5))
        name = rng.choice(cluster.names)
        if len(cluster.alive) < 2:
            continue
        rng.choice((cluster.kill, cluster.leave))(name)
        await asyncio.sleep(rng.uniform(0.05, 4))
        cluster.start(name)


async def _disturbed(seed: int, drafted: bool = False) -> None:
    """Texts that come at any time, with a drafter or without, while workers die and come back."""
    rng = random.Random(seed)
    async with await Mesh.builder().mesh("sim").simulate(3, seed).build_async() as mesh:

        async def text(place: int) -> None:
            await asyncio.sleep(rng.uniform(0, 1))
            stream = generating.begin(REFERENCE["prompts"][place], 14, Sampling(), ())
            assert [token async for token in stream] == REFERENCE["tokens"][place][:14]

        strategy = rng.choice(("single", "pipeline", "auto"))
        drafter = Drafter(mesh, golden_model("llama"), slots=4, strategy=strategy) if drafted else None
        generating = Generating(mesh, golden_model("llama"), slots=4, strategy=strategy, drafter=drafter)
        player = asyncio.create_task(mischief(mesh.simulation, rng))
        await asyncio.gather(*(text(rng.randrange(4)) for _ in range(8)))
        player.cancel()
        await generating.close()


def test_texts_that_come_and_go_while_workers_die() -> None:
    run(_disturbed(1))


def test_texts_with_a_drafter_that_come_and_go_while_workers_die() -> None:
    run(_disturbed(1, drafted=True))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 60))
def test_many_texts_with_a_drafter_that_come_and_go_while_workers_die(seed: int) -> None:
    run(_disturbed(seed, drafted=True))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 60))
def test_many_texts_that_come_and_go_while_workers_die(seed: int) -> None:
    run(_disturbed(seed))


async def _deserted() -> None:
    async with await Mesh.builder().mesh("sim").simulate(2).build_async() as mesh:
        generating = Generating(mesh, golden_model("llama"), strategy="pipeline")
        stream = generating.begin([3, 4], 30, ends=())
        await anext(stream)
        for name in mesh.simulation.names:
            mesh.simulation.kill(name)
        with pytest.raises(NodeLost):
            async for _ in stream:
                pass
        mesh.simulation.start(mesh.simulation.names[0])
        while not mesh.live():
            await asyncio.sleep(0.1)
        assert len([token async for token in generating.begin([3, 4], 5, ends=())]) == 5
        await generating.close()


def test_with_nobody_left_a_text_is_an_error_and_the_next_one_is_not() -> None:
    run(_deserted())


class _Full:
    """An engine whose device has no memory for any run once `full` says so."""

    def __init__(self, engine: Engine, full: list[bool]) -> None:
        self._engine, self._full = engine, full

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, *args: Any, **options: Any) -> Any:
        if self._full:
            raise OutOfMemory("the test's device is full")
        return self._engine.run(*args, **options)


async def _all_failed() -> None:
    async with await Mesh.builder().mesh("sim").simulate(2).build_async() as workers:

        def resident_bytes() -> int:
            daemons = [process.daemon for process in workers.simulation._processes.values()]
            return sum(host._host._resident_bytes for daemon in daemons for host in daemon._hosts.hosts)

        full: list[bool] = []
        for name, device in zip(("sim-0", "sim-1"), workers.simulation.devices, strict=True):
            workers.simulation.kill(name)
            device.wrap = lambda engine: cast(Engine, _Full(engine, full))
            workers.simulation.start(name)
        await asyncio.sleep(5)
        generating = Generating(workers, golden_model("llama"), strategy="pipeline", detailed=True)
        assert len([token async for token in generating.begin([3, 4], 5, ends=())]) == 5
        assert resident_bytes() > 10_000
        full.append(True)
        with pytest.raises(OutOfMemory, match="the test's device is full"):
            await generating.begin([3, 4], 5, ends=()).next()
        await generating.close()
        await asyncio.sleep(1)
        assert resident_bytes() == 0


def test_a_batch_whose_texts_all_failed_leaves_no_weights_on_the_workers() -> None:
    run(_all_failed())


async def _shrinking(folder: Path) -> None:
    """Three short texts and a long one: it ends alone, in a smaller batch, with the tokens that it has alone."""
    model, prompts, lengths = mesh.load(gpt2_folder(folder)), ([5, 6], [7], [8, 9, 3], [4]), (4, 6, 110, 5)
    how = {"temperature": 0.9, "seed": 3, "ends": ()}
    wanted = [
        model.generate(prompt, max_new_tokens=length, **how) for prompt, length in zip(prompts, lengths, strict=True)
    ]
    async with await Mesh.builder().mesh("sim").simulate(2).build_async() as workers:
        generating = Generating(workers, model, slots=4, strategy="pipeline")
        streams = [
            generating.begin(prompt, length, Sampling(0.9, seed=3), ())
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        rooms = []
        for stream, right in zip(streams, wanted, strict=True):
            said = []
            async for token in stream:
                said.append(token)
                rooms.append(generating.room.slots)
            assert said == right
        assert max(rooms) == 4 and rooms[-1] == 1
        assert generating.rebuilt == 0
        await generating.close()


def test_a_batch_whose_texts_ended_shrinks_around_the_one_that_is_left(tmp_path: Path) -> None:
    run(_shrinking(tmp_path))


async def _disturbed_rooms(seed: int, folder: Path) -> None:
    """Texts of any lengths, so that the batch grows and shrinks while workers die and come back."""
    rng = random.Random(seed)
    model, wishes = mesh.load(gpt2_folder(folder)), [([at + 1], rng.choice((3, 9, 120))) for at in range(7)]
    wanted = [model.generate(prompt, max_new_tokens=length, ends=()) for prompt, length in wishes]
    async with await Mesh.builder().mesh("sim").simulate(3, seed).build_async() as workers:
        generating = Generating(workers, model, slots=4, strategy="pipeline")

        async def text(place: int) -> None:
            await asyncio.sleep(rng.uniform(0, 2))
            prompt, length = wishes[place]
            assert [token async for token in generating.begin(prompt, length, ends=())] == wanted[place]

        player = asyncio.create_task(mischief(workers.simulation, rng))
        await asyncio.gather(*map(text, range(len(wishes))))
        player.cancel()
        await generating.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_batches_that_grow_and_shrink_while_workers_die(seed: int, tmp_path: Path) -> None:
    run(_disturbed_rooms(seed, tmp_path))


async def _sent_for_a_step(model: mesh.Model) -> tuple[float, int]:
    """The bytes that two workers send one another for a step of eight texts, and those that their plan has."""
    async with await Mesh.builder().mesh("sim").simulate(2).build_async() as own:
        cluster = own.simulation
        generating = Generating(own, model, slots=8, strategy="pipeline")

        def sent() -> int:
            workers = [cluster._running(name)._endpoint for name in cluster.names]
            links = [link for worker in workers for link in worker.links.values() if link.peer.role == "worker"]
            return sum(sum(link.bytes_sent.values()) for link in links)

        await asyncio.sleep(10)  # until their link is measured
        streams = [generating.begin([3, 4 + at], 60, ends=()) for at in range(8)]
        for _ in range(10):  # until all texts read by one token
            await asyncio.gather(*(anext(stream) for stream in streams))
        (session,) = cluster.coordinator.sessions._open
        plan, before = session.plan, sent()
        for _ in range(40):
            await asyncio.gather(*(anext(stream) for stream in streams))
        after = sent()
        await generating.close()
        planned = {(edge.source, plan.parts[edge.part].node): edge.size_bytes for edge in plan.edges}
        crossing = [size for (source, node), size in planned.items() if plan.parts[source.part].node != node]
        return (after - before) / 40, sum(crossing)


def test_a_plan_counts_what_the_workers_of_a_pipeline_send_one_another(tmp_path: Path) -> None:
    """Eight tokens of 256 numbers, of the 128 that there is room for, and no keys and values."""
    sent, planned = run(_sent_for_a_step(mesh.load(gpt2_folder(tmp_path, layers=4, width=256))))
    assert 8 * 256 * 4 <= planned <= sent <= planned + 2 * KIB, "messages have headers"
