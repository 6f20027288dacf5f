"""Texts with a drafter say what they say without one, whatever the drafter is, and whatever becomes of it."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.language import golden_model, gpt2_folder, with_bytes

import mesh
from mesh.errors import InputError
from mesh.inference import Generating, Options, Sampling
from mesh.inference.drafting import Drafter, check_draft, divided
from mesh.inference.kv_cache_step import page_bytes
from mesh.models.decoder import table_of
from wire.ir.dtypes import F32

FAMILIES = ("gpt2", "gemma2", "gpt-oss", "bloom", "mixtral")  # that differ in how they read the cache
LONG_FAMILIES = ("llama", "mistral", "opt", "qwen2-windows", "phi3")
HOWS = (Sampling(), Sampling(1.0, seed=3), Sampling(0.9, 30, 0.95, 7))


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> mesh.Model:
    return mesh.load(gpt2_folder(tmp_path_factory.mktemp("gpt2"), layers=2, positions=512))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: Any) -> mesh.Model:
    return mesh.load(gpt2_folder(tmp_path_factory.mktemp("stranger"), layers=1, positions=512, seed=5))


def perturbed(model: mesh.Model, size: float) -> mesh.Model:
    """The model with noise on its weights: it often says the same."""
    rng = np.random.default_rng(3)
    noise = {name: (array + rng.normal(0, size, array.shape)).astype(array.dtype)
             for name, array in model.params.items()}  # fmt: skip
    return model.trained(noise)


def on_batch(
    model: mesh.Model, work: Callable[[Generating, Drafter | None], Awaitable[Any]], draft: mesh.Model | None = None,
    drafts: int = 4, adaptive: bool = False, patience_s: float = math.inf, **how: Any,
) -> Any:  # fmt: skip
    """Do something with a batch in this process; its texts wait for drafts for ever, however slow this machine is."""

    async def done() -> Any:
        async with await mesh.Mesh.builder().build_async() as own:
            slots = how.get("slots", 8)
            drafter = None
            if draft is not None:
                drafter = Drafter(own, draft, drafts, slots=slots, adaptive=adaptive, patience_s=patience_s)
            batch = Generating(own, model, drafter=drafter, **how)
            try:
                return await work(batch, drafter)
            finally:
                await batch.close()

    return asyncio.run(done())


def texts(*wishes: tuple[list[int], int, Sampling]) -> Callable[[Generating, Drafter | None], Awaitable[Any]]:
    async def one(batch: Generating, prompt: list[int], count: int, how: Sampling) -> list[int]:
        return [token async for token in batch.begin(prompt, count, how, ())]

    async def work(batch: Generating, _: Drafter | None) -> tuple[list[list[int]], int, int, int]:
        said = await asyncio.gather(*(one(batch, *wish) for wish in wishes))
        return said, batch.steps, batch.drafted, batch.accepted

    return work


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(each, marks=pytest.mark.long) for each in LONG_FAMILIES)])
def test_every_family_says_the_same_with_a_drafter_that_is_often_right(family: str) -> None:
    target = golden_model(family)
    _, vocabulary = table_of(target.weights, target.text.decoder)
    prompts = [[3, 4], [7], [(5 * at) % vocabulary for at in range(9)]]
    wishes = [(prompt, 14, how) for prompt, how in zip(prompts, HOWS, strict=True)]
    wanted, *_ = on_batch(target, texts(*wishes))
    said, _, drafted, accepted = on_batch(target, texts(*wishes), perturbed(target, 0.01))
    assert said == wanted
    assert 0 < accepted <= drafted


PROMPTS = [[5, 6, 7], list(range(100, 130)), [9], [5, 6, 7, *range(40)]]
WISHES = [(prompt, 60, how) for prompt, how in zip(PROMPTS, (*HOWS, Sampling()), strict=True)]


@pytest.fixture(scope="module")
def undrafted(model: mesh.Model) -> tuple[list[list[int]], int]:
    """What the texts of WISHES say without a drafter, and the steps that they take."""
    said, steps, *_ = on_batch(model, texts(*WISHES))
    return said, steps


@pytest.mark.parametrize(
    ("drafts", "adaptive"),
    [
        (4, True), (15, False),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((1, False), (1, True), (4, False), (15, True))),
    ],
)  # fmt: skip
def test_texts_are_the_same_whoever_drafts(
    model: mesh.Model, stranger: mesh.Model, undrafted: tuple[list[list[int]], int], drafts: int, adaptive: bool
) -> None:
    wanted, steps = undrafted
    shares = {}
    for name, draft in (("itself", model), ("near", perturbed(model, 0.01)), ("stranger", stranger)):
        said, took, drafted, accepted = on_batch(model, texts(*WISHES), draft, drafts, adaptive)
        assert said == wanted, name
        shares[name] = accepted / max(drafted, 1)
        if not adaptive:
            assert drafted > 60 and (name != "itself" or took < 0.8 * steps)
    if not adaptive:
        assert shares["itself"] == 1, "both draw with the same noise"
        assert shares["stranger"] < shares["near"] < 1


def test_many_texts_at_once_have_no_drafts_and_the_last_of_them_has(model: mesh.Model) -> None:
    wishes = [([at], 30 if at else 120, HOWS[1]) for at in range(5)]
    wanted, *_ = on_batch(model, texts(*wishes))

    async def work(batch: Generating, _: Drafter | None) -> tuple[list[list[int]], int]:
        streams = [batch.begin(*wish, ()) for wish in wishes]
        said = [[token async for token in stream] for stream in streams[1:]]
        before = batch.drafted
        return [[token async for token in streams[0]], *said], before

    said, before = on_batch(model, work, model, adaptive=True)
    assert said == wanted and before == 0


def test_texts_that_end_at_tokens_in_the_middle_of_drafts_end_there(model: mesh.Model) -> None:
    wanted, *_ = on_batch(model, texts(([5, 6], 40, HOWS[1])))
    for place in range(1, 10, 2):  # every one of five: four drafts, and the token after them
        end = wanted[0][place]
        stop = wanted[0].index(end)

        async def work(batch: Generating, _: Drafter | None, end: int = end) -> tuple[list[int], str]:
            stream = batch.begin([5, 6], 40, HOWS[1], (end,))
            return [token async for token in stream], stream.reason

        assert on_batch(model, work, model) == (wanted[0][: stop + 1], "stop")


@pytest.mark.parametrize("budget", [12, pytest.param(20, marks=pytest.mark.long)])
def test_few_pages_and_beginnings_that_are_shared_change_nothing(model: mesh.Model, budget: int) -> None:
    shared = [(3 * at) % 251 for at in range(40)]
    wishes = [([*shared, at], 40, HOWS[at % 3].shifted(at)) for at in range(6)]
    wanted = [on_batch(model, texts(wish))[0][0] for wish in wishes]
    kv_bytes = budget * page_bytes(model.text.decoder, F32)
    said, _, drafted, _ = on_batch(model, texts(*wishes), perturbed(model, 0.01), slots=4, kv_bytes=kv_bytes)
    assert said == wanted and drafted


@pytest.mark.parametrize(("length", "count"), [(8, 1000), pytest.param(9, 2000, marks=pytest.mark.long)])
def test_the_distribution_of_tokens_is_the_targets(tmp_path: Path, length: int, count: int) -> None:
    """Texts of which the last tokens are drafts that were checked, or the tokens in their place: how often each triple
    of the last three came is compared with its exact probability by a chi-square test, which 1 of 10,000 right programs
    would fail; seeds are fixed."""
    size, temperature = 3, 2.0
    target = mesh.load(gpt2_folder(tmp_path, vocabulary=size, width=16, layers=2))
    draft, prompt = perturbed(target, 0.05), [1, 2]

    def exact(model: mesh.Model) -> Any:
        shares = np.ones(1)
        for place in range(length):
            rows = [[*prompt, *before] for before in itertools.product(range(size), repeat=place)]
            logits = np.asarray(model(np.asarray(rows, np.int32)), np.float64)[:, -1] / temperature
            odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
            shares = (shares[:, None] * (odds / odds.sum(axis=-1, keepdims=True))).reshape(-1)
        return shares.reshape(-1, size**3).sum(axis=0)

    wishes = [(prompt, length, Sampling(temperature, seed=seed)) for seed in range(count)]
    said, _, drafted, accepted = on_batch(target, texts(*wishes), draft, 4, slots=32, queue=count)
    places = np.array(said)[:, -3:] @ [size * size, size, 1]
    seen = np.bincount(places, minlength=size**3)
    assert drafted > 2 * count and 0.3 < accepted / drafted < 0.95, "some are right, and some are not"
    most = chi_square_most(size**3 - 1)
    assert chi_square(seen, count * exact(target)) < most
    assert chi_square(seen, count * exact(draft)) > 2 * most, "the drafter's own distribution is told apart"


def chi_square(seen: Any, expected: Any) -> float:
    return float((((seen - expected) ** 2) / expected).sum())


def chi_square_most(freedom: int, normal: float = 3.719) -> float:
    """What a chi-square exceeds in 1 of 10,000 cases: Wilson and Hilferty, 1931."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + normal * math.sqrt(part)) ** 3


def test_a_text_that_is_cancelled_or_too_long_for_the_drafter_holds_nothing_there(
    model: mesh.Model, tmp_path: Path
) -> None:
    short = mesh.load(gpt2_folder(tmp_path, layers=2, positions=32))
    prompts = [[1, 2, 3], list(range(40))]
    wanted, *_ = on_batch(model, texts(*((prompt, 60, Sampling()) for prompt in prompts)))

    async def work(batch: Generating, drafter: Drafter | None) -> None:
        assert drafter is not None
        streams = [batch.begin(prompt, 60, ends=()) for prompt in (*prompts, [4])]
        assert len([await anext(streams[2]) for _ in range(20)]) == 20
        streams[2].cancel()
        assert [[token async for token in stream] for stream in streams[:2]] == wanted
        assert batch.drafted and drafter._generating._slots.idle and drafter.deadline_s is None
        assert drafter._generating.kv_bytes == batch.kv_bytes == 0

    on_batch(model, work, short)


def test_a_text_that_goes_on_in_another_batch_is_drafted_there(model: mesh.Model) -> None:
    wanted, *_ = on_batch(model, texts(([5, 6, 7], 100, HOWS[1])))

    async def work(batch: Generating, drafter: Drafter | None) -> None:
        assert drafter is not None
        other = Generating(batch._mesh, model, drafter=Drafter(batch._mesh, model, adaptive=False, patience_s=math.inf))
        stream = batch.begin([5, 6, 7], 100, HOWS[1], ())
        said = [await anext(stream) for _ in range(40)]
        for moving in batch.carry():
            other.adopt(moving)
        assert drafter._generating._slots.idle and not drafter._texts
        said += [token async for token in stream]
        assert said == wanted[0] and batch.accepted and other.accepted == other.drafted > 20
        await other.close()

    on_batch(model, work, model)


def test_a_drafter_that_fails_costs_no_text(model: mesh.Model, caplog: pytest.LogCaptureFixture) -> None:
    wanted, *_ = on_batch(model, texts(([5, 6, 7], 120, HOWS[1])))

    async def work(batch: Generating, drafter: Drafter | None) -> None:
        assert drafter is not None
        stream = batch.begin([5, 6, 7], 120, HOWS[1], ())
        said = [await anext(stream) for _ in range(20)]
        before = batch.drafted
        assert before
        drafter._generating._fail_all(RuntimeError("no more memory"))
        said += [token async for token in stream]
        assert said == wanted[0]
        assert batch.drafted > before, "it was read again, and drafts again"

    on_batch(model, work, model)
    assert [record.message for record in caplog.records if "drafter" in record.message] == [
        "a drafter failed, and texts go on without drafts for a while: no more memory"
    ]


def test_a_drafter_that_does_not_answer_holds_a_text_up_for_a_moment_only(model: mesh.Model) -> None:
    wanted, *_ = on_batch(model, texts(([5, 6, 7], 100, Sampling())))

    async def work(batch: Generating, drafter: Drafter | None) -> None:
        assert drafter is not None
        stream = batch.begin([5, 6, 7], 100, ends=())
        said = [await anext(stream) for _ in range(40)]
        drafter._generating.go_on = lambda *_: None  # type: ignore[method-assign]
        said += [token async for token in stream]
        assert said == wanted[0] and 0 < drafter.speculation.missed < 6

    on_batch(model, work, model, patience_s=0.05)


def test_who_cannot_draft_is_told_at_the_start(model: mesh.Model, tmp_path: Path) -> None:
    other = mesh.load(gpt2_folder(tmp_path / "other", vocabulary=100, layers=1))
    with pytest.raises(InputError, match=r"it has 100 tokens, and .* has 256\. Choose a smaller model of the same fam"):
        check_draft(model, other)
    with pytest.raises(InputError, match=r"does not generate text, and so cannot be a drafter"):
        check_draft(model, golden_model("bert"))
    source = gpt2_folder(tmp_path / "source", layers=1)
    folders = [with_bytes(source, tmp_path / name) for name in ("one", "two")]
    check_draft(*(mesh.load(folder) for folder in folders))
    file = folders[1] / "tokenizer.json"
    file.write_text(file.read_text().replace('"a":', '"\\u00c3a":'))
    with pytest.raises(InputError, match="their tokenizers differ, for instance in 'a'"):
        check_draft(*(mesh.load(folder) for folder in folders))

    async def made(**how: Any) -> None:
        async with await mesh.Mesh.builder().build_async() as own:
            Generating(own, model, drafter=Drafter(own, model, 4), **how)

    with pytest.raises(InputError, match="a detailed batch has no drafter"):
        asyncio.run(made(detailed=True))
    with pytest.raises(InputError, match="reads 4 tokens of a text, and checks 4 drafts"):
        asyncio.run(made(chunk=4))


def test_the_budget_of_keys_and_values_is_for_both(model: mesh.Model, stranger: mesh.Model) -> None:
    own, others = divided(model, stranger, 3 << 20)
    assert (own, others) == (2 << 20, 1 << 20), "two layers and one: room for the same number of tokens"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"draft": "x", "draft_tokens": 0}, "draft_tokens counts from 1, got 0"),
        ({"draft": "x", "draft_tokens": 65}, "draft_tokens is 64 at most"),
        ({"draft": "x", "chunk": 4}, "chunk = 4 tokens of a text, and checks draft_tokens = 4 behind one token"),
        ({"draft_on": "anna"}, "draft_on is where the drafter is computed, and there is none"),
    ],
)
def test_options_of_a_drafter_that_cannot_be_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Options(**options)


def test_a_served_model_with_a_drafter_says_the_same_and_tells_how_often_it_was_right(
    model: mesh.Model, stranger: mesh.Model
) -> None:
    how: dict[str, Any] = {"max_new_tokens": 60, "temperature": 0.8, "seed": 4, "ends": ()}
    wanted = model.generate([5, 6, 7], **how)
    with mesh.Mesh.builder().build() as own, mesh.InferenceServer(own) as server:
        server.load_model("text", model, draft=perturbed(model, 0.01))
        while not (told := server.loaded_models()[0]).accepted:  # on a busy machine no draft may come for a whole text
            assert server.generate("text", [5, 6, 7], **how) == wanted
        assert told.accepted <= told.drafted
        with pytest.raises(InputError, match="a function has no drafter"):
            server.load_model("double", lambda x: 2 * x, draft=model)
        with pytest.raises(InputError, match="does not generate text"):
            server.load_model("bert", golden_model("bert"), draft=model)
        with pytest.raises(InputError, match=r"no worker is called 'anna'\. Workers now: none"):
            server.load_model("other", model, draft=model, draft_on="anna")
        with pytest.raises(InputError, match="for keys and values of each batch is too little"):
            server.load_model("other", model, draft=model, kv_budget=3 * page_bytes(model.text.decoder, F32))
        with pytest.raises(InputError, match=r"the drafter 3 is no model"):
            server.load_model("other", model, draft=3)  # type: ignore[arg-type]
        assert len(server.loaded_models()) == 1
