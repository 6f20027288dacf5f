"""Biases and penalties of texts, against the formulas of OpenAI's reference and of llama.cpp, written in numpy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.language import golden_model
from support.cases.served_models import llama_folder

import mesh
from mesh import numpy as mnp
from mesh.errors import InputError
from mesh.inference import Generating, LogitAdjustment, Sampling, kv_cache_step
from mesh.inference import logit_adjustment as adjustments
from mesh.inference import sampling as samplings
from mesh.inference.continuous_batching import Feeds, Slots, TextRequest
from mesh.inference.generation_runner import text_of
from wire.ir.dtypes import F32

PROMPT, TOKENS, LONG = [5, 6, 7, 9, 5, 6], 14, 40
WARM = Sampling(0.9, top_k=20, top_p=0.95, seed=11)
Formula = Callable[[NDArray[np.float32], list[int], list[int]], NDArray[np.float32]]


def openai(biases: dict[int, float], presence: float, frequency: float) -> Formula:
    def formula(logits: NDArray[np.float32], _: list[int], chosen: list[int]) -> NDArray[np.float32]:
        counts = np.bincount(chosen, minlength=len(logits)) if chosen else np.zeros(len(logits))
        bias = np.zeros(len(logits))
        bias[list(biases)] = list(biases.values())
        return np.float32(logits - counts * frequency - (counts > 0) * presence + bias)

    return formula


def llama_cpp(last: int, repeat: float, presence: float, frequency: float) -> Formula:
    def formula(logits: NDArray[np.float32], prompt: list[int], chosen: list[int]) -> NDArray[np.float32]:
        counts = np.bincount([*prompt, *chosen][-last:], minlength=len(logits))
        repeated = np.where(logits <= 0, logits * repeat, logits / repeat)
        return np.float32(np.where(counts > 0, repeated - counts * frequency - (counts > 0) * presence, logits))

    return formula


# By name: what the text asks for, and its formula.
CASES: dict[str, tuple[LogitAdjustment, Formula]] = {
    "biases": (LogitAdjustment(((3, 100.0), (4, 99.9), (7, -100.0))), openai({3: 100, 4: 99.9, 7: -100}, 0, 0)),
    "presence": (LogitAdjustment(presence=2.0), openai({}, 2, 0)),
    "frequency": (LogitAdjustment(frequency=0.7), openai({}, 0, 0.7)),
    "rewards": (LogitAdjustment(presence=-1.5, frequency=-0.5), openai({}, -1.5, -0.5)),
    "all of OpenAI's": (
        LogitAdjustment(((3, 60.0), (4, 60.5), (6, 59.0)), 1.0, 0.3),
        openai({3: 60, 4: 60.5, 6: 59}, 1.0, 0.3),
    ),
    "repeat": (LogitAdjustment(repeat=1.6, window=64), llama_cpp(64, 1.6, 0, 0)),
    "repeat, few": (LogitAdjustment(repeat=4.0, window=3), llama_cpp(3, 4.0, 0, 0)),
    "all of Ollama's": (LogitAdjustment((), 0.5, 0.25, 1.3, 10), llama_cpp(10, 1.3, 0.5, 0.25)),
}


def wanted(
    formulas: Sequence[Formula], how: Sampling, count: int = TOKENS, model: mesh.Model | None = None
) -> list[list[int]]:
    """The tokens by each formula over logits of the whole text, without any cache."""
    model, texts = model or golden_model("llama"), [list[int]() for _ in formulas]
    fed = {name: mnp.asarray(value) for name, value in samplings.fed([how] * len(texts)).items()}
    for place in range(count):
        ids = np.array([PROMPT + chosen for chosen in texts], np.int32)
        logits = np.asarray(model(input_ids=ids), np.float32)[:, -1]
        left = np.stack([each(*given) for each, *given in zip(formulas, logits, repeat(PROMPT), texts, strict=False)])
        at = mnp.asarray(np.full(len(texts), len(PROMPT) + place, np.int32))
        drawn = np.asarray(samplings.chosen(mnp.asarray(left), at, fed)) if how.temperature else np.argmax(left, -1)
        for chosen, token in zip(texts, drawn.tolist(), strict=True):
            chosen.append(token)
    return texts


def generated(
    texts: list[dict[str, Any]],
    check: Callable[[Generating], None] = lambda _: None,
    model: mesh.Model | None = None,
    **options: Any,
) -> list[list[int]]:
    """The tokens of texts that run together; `check` looks at their batch then."""

    async def one(batch: Generating, text: dict[str, Any]) -> list[int]:
        return [token async for token in batch.begin(**{"tokens_max": TOKENS, "ends": (), **text})]

    async def together() -> list[list[int]]:
        async with await mesh.Mesh.builder().build_async() as own:
            batch = Generating(own, model or golden_model("llama"), detailed=True, adjusted=True, **options)
            try:
                tokens = await asyncio.gather(*(one(batch, text) for text in texts))
                check(batch)
                return tokens
            finally:
                await batch.close()

    return asyncio.run(together())


@pytest.mark.parametrize("how", [Sampling(), WARM], ids=["greedy", "seeded"])
def test_texts_have_the_tokens_of_the_formulas_alone_and_beside_plain_ones(how: Sampling) -> None:
    texts: list[dict[str, Any]] = [
        {"prompt": PROMPT, "how": how, "adjustment": adjustment} for adjustment, _ in CASES.values()
    ]
    plain = {"prompt": PROMPT, "how": how}
    together = generated([*texts, plain], slots=4)  # more than there are slots for: some wait
    *right, unchanged = wanted([*(formula for _, formula in CASES.values()), lambda logits, *_: logits], how)
    assert dict(zip(CASES, together, strict=False)) == dict(zip(CASES, right, strict=True))
    assert together[-1] == unchanged
    assert sum(tokens != unchanged for tokens in right) == len(right), "a case that changes nothing tests nothing"
    assert generated(texts, slots=1) == right  # one after the other


def test_a_text_that_is_put_back_counts_the_tokens_that_it_had(tmp_path: Path) -> None:
    """Five pages for texts of three: one is read again in its middle, and its tokens count once."""
    model, (penalty, formula) = mesh.load(llama_folder(tmp_path)), CASES["all of OpenAI's"]
    texts: list[dict[str, Any]] = [{"prompt": PROMPT, "adjustment": penalty, "tokens_max": LONG}] * 3

    def check(batch: Generating) -> None:
        assert batch.put_back

    budget = 6 * kv_cache_step.page_bytes(text_of(model).decoder, F32)
    found = generated(texts, check, model, slots=4, kv_bytes=budget)
    assert found == wanted([formula], Sampling(), LONG, model) * 3


@dataclass
class Only:
    """Allows the same tokens always."""

    tokens: list[int]
    vocabulary: int
    seen: list[int] = field(default_factory=list)

    @property
    def mask(self) -> NDArray[np.uint32]:
        bits = np.zeros(-(-self.vocabulary // 32) * 32, np.uint8)
        bits[self.tokens] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> str:
        self.seen.append(token)
        return ""


def test_a_guide_limits_what_an_adjustment_leaves() -> None:
    vocabulary = golden_model("llama").weights["model.embed_tokens.weight"].shape[0]
    guide = Only([7, 8], vocabulary)
    penalty = LogitAdjustment(((3, 100.0), (7, 50.0), (8, 50.0)), presence=2.0, frequency=2.0)
    (tokens,) = generated([{"prompt": PROMPT, "guide": guide, "adjustment": penalty}])
    assert set(tokens) == {7, 8}
    biased = {3: 100.0, 7: 50.0, 8: 50.0}

    def formula(logits: NDArray[np.float32], prompt: list[int], chosen: list[int]) -> NDArray[np.float32]:
        left = openai(biased, 2.0, 2.0)(logits, prompt, chosen)
        return np.where(np.isin(np.arange(len(left)), [7, 8]), left, np.float32(-1e30))

    assert tokens == guide.seen == wanted([formula], Sampling())[0]


def test_a_text_with_penalties_is_asked_for_one_token_at_a_time_and_one_with_biases_is_not() -> None:
    slots = Slots(2, 4)
    slots.join(TextRequest(0, (1, 2), 9, adjustment=LogitAdjustment(((4, 1.0),), frequency=0.5)))
    feeds = slots.ask()
    assert isinstance(feeds, Feeds)
    assert feeds.changes == ({4: (1.0, 1.0)},)
    assert slots.ask() is None  # the token of the first step is not known yet
    slots.answer([4])
    feeds = slots.ask()
    assert feeds is not None
    assert feeds.changes == ({4: (1.0, 0.5)},)
    biased = Slots(2, 4)
    biased.join(TextRequest(0, (1, 2), 9, adjustment=LogitAdjustment(((4, 1.0),))))
    assert [feeds.changes for feeds in (biased.ask(), biased.ask()) if feeds is not None] == [({4: (1.0, 1.0)},)] * 2


def test_more_tokens_than_a_step_takes_changes_of_cannot_be() -> None:
    text = LogitAdjustment(tuple((token, 1.0) for token in range(300)), presence=1.0)
    assert len(text.changes(range(300, 1324), 0)) == adjustments.changed_max(1024, 1 << 17) == 1324
    assert adjustments.changed_max(1024, 64) == 64


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"presence": 2.5}, "presence is a number from -2 to 2, got 2.5"),
        ({"frequency": float("nan")}, "frequency is a number from -2 to 2, got nan"),
        ({"frequency": "1"}, "frequency is a number from -2 to 2, got '1'"),
        ({"repeat": 0}, "repeat is a number from 0.01 to 100, got 0"),
        ({"window": -1}, "window, the last tokens that count, counts from 0, got -1"),
        ({"window": True}, "window, the last tokens that count, counts from 0, got True"),
        ({"biases": ((-1, 1.0),)}, "a bias is for a token, counted from 0, got -1"),
        ({"biases": ((7, 101),)}, "the bias of token 7 is a number from -100 to 100, got 101"),
        ({"biases": ((7, 1), (7, 2))}, "a token has one bias"),
        ({"biases": tuple((token, 1) for token in range(301))}, "300 biases at most, got 301"),
        ({"biases": {7: 1}}, "biases are pairs of a token and a number, got {7: 1}. Of a mapping, give tuple("),
        ({"biases": ((7, 1, 2),)}, "biases are pairs"),
        ({"biases": None}, "biases are pairs"),
    ],
)
def test_values_out_of_range_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        LogitAdjustment(**given)


def test_batches_refuse_what_they_cannot_do() -> None:
    async def begin() -> None:
        async with await mesh.Mesh.builder().build_async() as own:
            with pytest.raises(InputError, match="detailed=True"):
                Generating(own, golden_model("llama"), adjusted=True)
            plain = Generating(own, golden_model("llama"))
            adjusted = Generating(own, golden_model("llama"), detailed=True, adjusted=True)
            try:
                with pytest.raises(InputError, match="adjusted=True"):
                    plain.begin([1], 3, adjustment=LogitAdjustment(presence=1.0))
                with pytest.raises(InputError, match="no token 9999"):
                    adjusted.begin([1], 3, adjustment=LogitAdjustment(((9999, 1.0),)))
            finally:
                await asyncio.gather(plain.close(), adjusted.close())

    asyncio.run(begin())


@pytest.mark.parametrize(
    ("adjustment", "neutral"),
    [
        (LogitAdjustment(), True),
        (LogitAdjustment(((3, 0.0),)), True),
        (LogitAdjustment(repeat=2.0, presence=1.0, window=0), True),
        (LogitAdjustment(((3, -1.0),)), False),
        (LogitAdjustment(frequency=-0.1), False),
        (LogitAdjustment(repeat=0.5, window=1), False),
    ],
)
def test_what_changes_nothing_says_so(adjustment: LogitAdjustment, neutral: bool) -> None:
    assert adjustment.neutral is neutral
