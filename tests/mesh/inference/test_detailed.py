"""Detailed batches: guides that limit the tokens of a text, and the logarithms of probabilities."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.language import golden_model

import mesh
from mesh.errors import InputError
from mesh.inference import Generating, Sampling
from mesh.inference.continuous_batching import FAILED, Feeds, Slots, TextRequest


@dataclass
class Cycle:
    """Allows one token after the other of a list, and nothing behind its last one."""

    tokens: list[int]
    vocabulary: int
    seen: list[int] = field(default_factory=list)

    @property
    def mask(self) -> NDArray[np.uint32]:
        bits = np.zeros(-(-self.vocabulary // 32) * 32, np.uint8)
        bits[self.tokens[len(self.seen)]] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> str:
        self.seen.append(token)
        return "" if len(self.seen) < len(self.tokens) else FAILED


def generated(*texts: dict[str, Any]) -> list[tuple[list[Any], str]]:
    async def one(batch: Generating, text: dict[str, Any]) -> tuple[list[Any], str]:
        stream = batch.begin(**text)
        tokens = []
        while (token := await stream.next()) is not None:
            tokens.append(token)
        return tokens, stream.reason

    async def together() -> list[tuple[list[Any], str]]:
        async with await mesh.Mesh.builder().build_async() as own:
            batch = Generating(own, golden_model("llama"), slots=4, detailed=True)
            try:
                return await asyncio.gather(*(one(batch, text) for text in texts))
            finally:
                await batch.close()

    return asyncio.run(together())


def test_a_guided_text_has_the_tokens_that_its_guide_allows_and_others_beside_it_are_as_ever() -> None:
    model = golden_model("llama")
    vocabulary = model.weights["model.embed_tokens.weight"].shape[0]
    guide = Cycle([7, 3, 31, 32, vocabulary - 1], vocabulary)
    drawn = Cycle([40, 2, 40, 2, 40, 2, 40], vocabulary)
    (told, reason), (free, _), (warm, _) = generated(
        {"prompt": [1, 2, 3], "tokens_max": 20, "ends": (), "guide": guide},
        {"prompt": [5, 6, 7], "tokens_max": 9, "ends": ()},
        {"prompt": [4], "tokens_max": 6, "ends": (), "guide": drawn, "how": Sampling(1.0, seed=3)},
    )
    assert [each.token for each in told] == guide.tokens == guide.seen
    assert reason == FAILED
    assert [each.token for each in warm] == drawn.tokens[:6]
    assert [each.token for each in free] == model.generate([5, 6, 7], max_new_tokens=9, ends=())
    assert all(each.score is None for each in [*told, *free])


def test_scores_are_those_of_the_models_logits() -> None:
    model, prompt = golden_model("llama"), [5, 6, 7, 9]
    ((told, _),) = generated({"prompt": prompt, "tokens_max": 5, "ends": (), "scored": True})
    for place, each in enumerate(told):
        ids = np.array([prompt + [one.token for one in told[:place]]], np.int32)
        logits = np.asarray(model(input_ids=ids), np.float64)[0, -1]
        wanted = logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
        assert each.score is not None
        assert each.score.logprob == pytest.approx(wanted[each.token], abs=1e-4)
        tokens = [token for token, _ in each.score.likeliest]
        assert tokens == np.argsort(-wanted)[:20].tolist()
        assert [value for _, value in each.score.likeliest] == pytest.approx(wanted[tokens], abs=1e-4)


def test_a_guided_text_is_asked_for_one_token_at_a_time() -> None:
    slots = Slots(2, 4)
    slots.join(TextRequest(0, (1, 2), 9, guide=Cycle([5] * 9, 64)))
    assert isinstance(slots.ask(), Feeds)
    assert slots.ask() is None  # the token of the first step is not known yet
    (told,) = slots.answer([5])
    feeds = slots.ask()
    assert feeds is not None
    assert (feeds.ids[0, 0], bool(feeds.follow[0])) == (told.token, False)


def test_a_plain_batch_refuses_guides_and_scores() -> None:
    async def begin() -> None:
        async with await mesh.Mesh.builder().build_async() as own:
            batch = Generating(own, golden_model("llama"))
            try:
                with pytest.raises(InputError, match="detailed=True"):
                    batch.begin([1], 3, scored=True)
            finally:
                await batch.close()

    asyncio.run(begin())
