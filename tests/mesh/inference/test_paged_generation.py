"""Texts whose keys and values lie in pages: beginnings that are found again, and budgets that are too small for all."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.cases.language import golden_model, gpt2_folder
from support.processes.commands import PATIENT_S

import mesh
from mesh.errors import InputError, PlacementError
from mesh.inference import Generating, Sampling
from mesh.inference.generation_runner import PAGE
from mesh.inference.kv_cache_step import page_bytes
from wire.ir.dtypes import F32

WARM = Sampling(0.9, 30, 0.95, 7)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> mesh.Model:
    return mesh.load(gpt2_folder(tmp_path_factory.mktemp("gpt2"), layers=2, positions=512))


def bytes_of(model: mesh.Model, pages: int) -> int:
    assert model.text is not None
    return pages * page_bytes(model.text.decoder, F32)


def generating(model: mesh.Model, work: Callable[[Generating], Awaitable[None]], **how: Any) -> None:
    """Do something with a batch in this process."""

    async def done() -> None:
        async with await mesh.Mesh.builder().build_async() as own:
            batch = Generating(own, model, **how)
            try:
                await work(batch)
            finally:
                await batch.close()

    asyncio.run(done())


def alone(model: mesh.Model, prompt: list[int], count: int, how: Sampling = Sampling()) -> list[int]:
    """What a text becomes in a batch of its own, whose prompt is read at once."""
    told: list[list[int]] = []

    async def one(batch: Generating) -> None:
        told.append([token async for token in batch.begin(prompt, count, how, ())])

    generating(model, one, slots=1, chunk=len(prompt))
    return told[0]


def test_a_prompt_that_begins_as_one_before_is_read_from_there_and_says_the_same(model: mesh.Model) -> None:
    shared = [(7 * at) % 251 for at in range(18 * PAGE)]
    prompts = [[*shared, 1, 2, 3], [*shared, 9], shared, [*shared[: 5 * PAGE], 4, 4]]
    wanted = [alone(model, prompt, 6, how) for prompt in prompts for how in (Sampling(), WARM)]

    async def work(batch: Generating) -> None:
        said, read, found = [], [], []
        for prompt in prompts:
            for how in (Sampling(), WARM):
                before = batch.tokens_read, batch.tokens_found
                said.append([token async for token in batch.begin(prompt, 6, how, ())])
                read.append(batch.tokens_read - before[0])
                found.append(batch.tokens_found - before[1])
        assert said == wanted
        assert found == [0, *[18 * PAGE] * 3, *[17 * PAGE] * 2, *[5 * PAGE] * 2]
        wanted_least = [len(prompt) for prompt in prompts for _ in range(2)]
        assert all(sum(each) >= least for *each, least in zip(read, found, wanted_least, strict=True))
        assert max(read[1:]) <= PAGE + 6, "the rest of the prompt, its last page, and tokens that were known"
        assert batch.kv_bytes == 0, "nobody holds a page now"

    generating(model, work, slots=2)


def test_what_was_told_is_found_too_by_who_goes_on_with_it(model: mesh.Model) -> None:
    prompt = [5, 6, 7]
    following = [*prompt, *alone(model, prompt, 60), 9]
    wanted = alone(model, following, 4)

    async def work(batch: Generating) -> None:
        said = [token async for token in batch.begin(prompt, 60, Sampling(), ())]
        assert [*prompt, *said, 9] == following
        assert [token async for token in batch.begin(following, 4, Sampling(), ())] == wanted
        assert batch.tokens_found == 3 * PAGE

    generating(model, work)


def test_a_budget_that_is_too_small_for_all_makes_texts_wait_and_fails_none(model: mesh.Model) -> None:
    prompts = [[at, *range(3 * at, 3 * at + 40)] for at in range(8)]
    hows = [Sampling() if at % 2 else Sampling(0.9, seed=at) for at in range(8)]
    wanted = [alone(model, prompt, 50, how) for prompt, how in zip(prompts, hows, strict=True)]
    budget = bytes_of(model, 16)  # two texts of 90 tokens have 12 pages, and one page is nobody's

    async def work(batch: Generating) -> None:
        most = 0

        async def told(prompt: list[int], how: Sampling) -> list[int]:
            nonlocal most
            tokens = []
            async for token in batch.begin(prompt, 50, how, ()):
                most = max(most, batch.kv_bytes)
                tokens.append(token)
            return tokens

        said = await asyncio.gather(*(told(prompt, how) for prompt, how in zip(prompts, hows, strict=True)))
        assert said == wanted
        assert batch.put_back, "texts that came later gave their pages to those before them"
        assert bytes_of(model, 10) < most < budget and batch.room.pages == 16

    generating(model, work, slots=4, kv_bytes=budget)


def test_the_memory_of_a_stream_grows_with_its_tokens(model: mesh.Model) -> None:
    async def work(batch: Generating) -> None:
        held = []
        async for _ in batch.begin(list(range(10)), 200, Sampling(), ()):
            held.append(batch.kv_bytes)
        assert held[:-1] == sorted(held[:-1]) and held[-1] == 0, "all are free at the end"
        for place, size in enumerate(held[:-1], 1):
            tokens = 10 + place
            assert bytes_of(model, 1) * (tokens // PAGE) <= size <= bytes_of(model, 1) * (tokens // PAGE + 2)

    generating(model, work)


def test_a_budget_says_what_is_too_long_for_it_before_anything_is_computed(model: mesh.Model) -> None:
    async def work(batch: Generating) -> None:
        with pytest.raises(InputError, match=r"of keys and values hold 48 tokens, got 49 tokens\. Give more bytes"):
            batch.begin([1] * 49, None)
        with pytest.raises(InputError, match="48 tokens: after a prompt of 40 tokens there is room for 9 new ones"):
            batch.begin([1] * 40, 10)
        assert len([token async for token in batch.begin([1] * 40, None, ends=())]) == 9
        assert len([token async for token in batch.begin([1] * 48, 1, ends=())]) == 1

    generating(model, work, kv_bytes=bytes_of(model, 4))
    with pytest.raises(InputError, match=r"is too little: 16 tokens of .* take 8\.0 KiB.*Give 16\.0 KiB at least"):
        generating(model, work, kv_bytes=bytes_of(model, 1))


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("much", "kv_budget is a size such as 4GiB, got 'much'"),
        (0, "kv_budget, the bytes for keys and values, counts from 1, got 0"),
        (True, "kv_budget, the bytes for keys and values, counts from 1, got True"),
        ("1KiB", "1.0 KiB for keys and values of each batch is too little"),
        ([1], r"kv_budget is a size such as 4GiB, got \[1\]"),
    ],
)
def test_a_budget_that_cannot_be_is_named_when_a_model_is_loaded(budget: Any, says: str) -> None:
    with mesh.Mesh.builder().build() as own, mesh.InferenceServer(own) as server:
        with pytest.raises(InputError, match=says):
            server.load_model("gpt2", golden_model("gpt2"), kv_budget=budget)
        server.load_model("gpt2", golden_model("gpt2"), kv_budget="1MiB", replicas=2)
        assert len(server.generate("gpt2", [1, 2], max_new_tokens=3)) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_pool_of_two_workers_is_halved_where_one_of_them_dies(tmp_path: Path) -> None:
    model = mesh.load(gpt2_folder(tmp_path, width=256, layers=2, heads=4, positions=512))
    prompts = [[at, 1, 2] for at in range(3)]
    wanted = model.generate(prompts, max_new_tokens=130, ends=())

    async def work() -> None:
        builder = mesh.AsyncMesh.builder().local(2, engine="cpu", max_memory="28MiB").node_timeout(PATIENT_S)
        async with await builder.build_async() as own:
            batch = Generating(own, model, strategy="pipeline", slots=4, kv_bytes=bytes_of(model, 64))
            streams = [batch.begin(prompt, 130, ends=()) for prompt in prompts]
            said = [[await anext(stream) for _ in range(50)] for stream in streams]
            assert batch.room.pages == 32
            os.kill((await own.nodes())[1].pid, signal.SIGKILL)
            said = [first + [token async for token in stream] for first, stream in zip(said, streams, strict=True)]
            assert said == wanted and batch.room.pages == 16, "32 pages do not fit the worker that is left"
            await batch.close()

    asyncio.run(work())


def test_a_pool_that_workers_have_no_memory_for_stays_as_large_as_it_was(tmp_path: Path) -> None:
    """A pool for three texts to their ends does not fit the worker, and a smaller one does: they take turns in it.  In
    one that holds no text to its end, a text that outgrows it fails, and says how much memory is missing."""
    model = mesh.load(gpt2_folder(tmp_path, width=256, layers=2, heads=4, positions=512))
    prompts = [[at, 1, 2] for at in range(3)]
    wanted = model.generate(prompts, max_new_tokens=130, ends=())
    with mesh.Mesh.builder().local(1, engine="cpu", max_memory="28MiB").build() as own:
        assert model.generate(prompts, max_new_tokens=130, ends=(), mesh=own) == wanted
    with mesh.Mesh.builder().local(1, engine="cpu", max_memory="20MiB").build() as own:
        with pytest.raises(PlacementError, match=r"local-0 needs .* and has 20\.0 MiB"):
            model.generate(prompts, max_new_tokens=130, ends=(), mesh=own)
        assert model.generate(prompts, max_new_tokens=90, ends=(), mesh=own) == [one[:90] for one in wanted]
