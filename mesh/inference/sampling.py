"""Sampling: the next token of every text of a batch, from its logits, by its own settings and its own numbers.

Noise is a function of a text's key and of the token's position, and of nothing else: so a text is the same alone or in
a batch, on one worker or on three, and again after a worker died.  A draw is the largest of logits plus Gumbel noise
(Gumbel, 1954).  `top_p`: Holtzman et al., 2020, "The curious case of neural text degeneration".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import numpy as mnp
from ..core.array import Array, apply
from ..nn import log_softmax, softmax
from ..numpy import random
from ..transforms.control_flow import cond
from ..transforms.vmap import vmap
from .continuous_batching import Score, TextRequest
from .settings import Sampling

LIKELIEST = 20  # tokens whose probabilities a step gives, if a text asks for them
_HIDDEN = -1e30
_COLDEST, _HOTTEST = 1e-20, 1e20  # temperatures that choose as those beyond them do, and leave what is hidden lowest


def fed(settings: Sequence[Sampling]) -> dict[str, NDArray[Any]]:
    """The settings of a batch as arrays: temperature and top_p f32 (n,), top_k i32 (n,), key u32 (n, 2)."""
    words = [(seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF) for seed in (int(one.seed) for one in settings)]
    return {
        "temperature": np.array(
            [min(max(one.temperature, _COLDEST), _HOTTEST) if one.temperature else 0 for one in settings], np.float32
        ),
        "top_k": np.array([one.top_k for one in settings], np.int32),
        "top_p": np.array([one.top_p for one in settings], np.float32),
        "key": np.array(words, np.uint32).reshape(len(settings), 2),
    }


def limits(texts: Sequence[TextRequest | None], vocabulary: int) -> dict[str, NDArray[Any]]:
    """What a detailed step takes besides: the tokens that may come, u32 (n, words), and who wants scores, bool (n,)."""
    masks = np.full((len(texts), -(-vocabulary // 32)), 0xFFFFFFFF, np.uint32)
    for slot, text in enumerate(texts):
        if text is not None and text.guide is not None:
            masks[slot] = text.guide.mask
    return {"mask": masks, "scored": np.array([text is not None and text.scored for text in texts], np.bool_)}


def scored(logits: Array, token: Array, how: dict[str, Array]) -> Array:
    """Tokens with their scores, i32 (n, 2 + 2 * likeliest): the token, the bits of its logprob, the likeliest tokens,
    the bits of theirs; zeros for scores that nobody wants.  One array, so that it is one message."""
    count = min(LIKELIEST, logits.shape[-1])

    def scores() -> Array:
        logprobs = log_softmax(mnp.astype(logits, mnp.float32), axis=-1)
        order = mnp.astype(mnp.argsort(logprobs, axis=-1, descending=True)[:, :count], mnp.int32)
        picked = mnp.take_along_axis(logprobs, mnp.concat([token[:, None], order], axis=1), axis=1)
        bits = apply("bitcast", picked, dtype="i32")
        return mnp.concat([bits[:, :1], order, bits[:, 1:]], axis=1)

    nothing = mnp.zeros((logits.shape[0], 1 + 2 * count), dtype=mnp.int32)
    return mnp.concat([token[:, None], cond(mnp.any(how["scored"]), scores, lambda: nothing)], axis=1)


def read_scores(answer: NDArray[np.int32]) -> list[Score]:
    """The scores in what `scored` made, by slots."""
    count = (answer.shape[1] - 2) // 2
    logprobs = np.ascontiguousarray(answer[:, [1, *range(2 + count, 2 + 2 * count)]]).view(np.float32)
    return [
        Score(float(row[0]), tuple(zip(tokens.tolist(), row[1:].tolist(), strict=True)))
        for tokens, row in zip(answer[:, 2 : 2 + count], logprobs, strict=True)
    ]


def chosen(logits: Array, positions: Array, how: dict[str, Array]) -> Array:
    """The tokens i32 (n,) that stand at `positions` i32 (n,), of logits (n, vocab) and settings as `fed` makes them."""
    scores = mnp.astype(logits, mnp.float32)
    if "changed" in how:
        before = scores
        scores = cond(mnp.any(how["changed"] >= 0), lambda: _adjusted(before, how), lambda: before)
    if "mask" in how:
        scores = mnp.where(_allowed(how["mask"], scores.shape[-1]), scores, _HIDDEN)
    likeliest = mnp.astype(mnp.argmax(scores, axis=-1), mnp.int32)
    warm = how["temperature"] > 0
    drawn = cond(mnp.any(warm), lambda: _drawn(scores, positions, how), lambda: likeliest)
    return mnp.where(warm, drawn, likeliest)


def _adjusted(scores: Array, how: dict[str, Array]) -> Array:
    """Scores f32 (n, vocabulary) with those of some tokens changed, as `logit_adjustment.fed` makes them."""
    tokens, repeat = how["changed"], how["repeat"]
    texts, vocabulary = scores.shape
    before = mnp.take_along_axis(scores, mnp.maximum(tokens, 0), axis=1)
    after = mnp.where(before > 0, before / repeat, before * repeat) + how["added"]
    row = mnp.astype(mnp.arange(texts), mnp.int32)[:, None] * vocabulary
    places = mnp.where(tokens >= 0, row + tokens, texts * vocabulary)  # beyond the end: dropped
    flat = [mnp.reshape(each, (-1,)) for each in (scores, places, after)]
    return mnp.reshape(apply("scatter", *flat, axis=0, mode="set"), scores.shape)


def _allowed(mask: Array, vocabulary: int) -> Array:
    """The bits of u32 (n, words) as bool (n, vocabulary)."""
    places = mnp.astype(mnp.arange(32), mnp.uint32)
    bits = (mask[:, :, None] >> places[None, None]) & mnp.asarray(np.uint32(1))
    return mnp.reshape(bits > 0, (mask.shape[0], -1))[:, :vocabulary]


def _drawn(scores: Array, positions: Array, how: dict[str, Array]) -> Array:
    scaled = scores / mnp.where(how["temperature"] > 0, how["temperature"], 1.0)[:, None]
    limited = mnp.any((how["top_k"] > 0) | (how["top_p"] < 1))
    left = cond(limited, lambda: _limited(scaled, how), lambda: scaled)
    noise = vmap(lambda key, at: random.gumbel(random.fold_in(key, at), scores.shape[1:]))(how["key"], positions)
    return mnp.astype(mnp.argmax(left + noise, axis=-1), mnp.int32)


def _limited(scaled: Array, how: dict[str, Array]) -> Array:
    """Scores with all hidden that top_k or top_p leave away; of equal ones all stay or none."""
    falling = mnp.sort(scaled, axis=-1, descending=True)
    rank = mnp.arange(scaled.shape[-1])[None]
    first = (rank < how["top_k"][:, None]) | (how["top_k"] <= 0)[:, None]
    shares = softmax(mnp.where(first, falling, _HIDDEN), axis=-1)
    before = mnp.cumsum(shares, axis=-1) - shares
    most = mnp.where(how["top_p"] < 1, how["top_p"], mnp.inf)  # sums of many shares are rounded, and may reach 1 early
    stay = first & ((before < most[:, None]) | (rank == 0))
    least = mnp.min(mnp.where(stay, falling, mnp.inf), axis=-1, keepdims=True)
    return mnp.where(scaled >= least, scaled, _HIDDEN)
