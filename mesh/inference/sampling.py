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
from ..core.array import Array
from ..nn import softmax
from ..numpy import random
from ..transforms.control_flow import cond
from ..transforms.vmap import vmap
from .settings import Sampling

_HIDDEN = -1e30
_COLDEST = 1e-30  # of temperatures above 0: logits divided by less are infinite


def fed(settings: Sequence[Sampling]) -> dict[str, NDArray[Any]]:
    """The settings of a batch as arrays: temperature and top_p f32 (n,), top_k i32 (n,), key u32 (n, 2)."""
    words = [(one.seed >> 32 & 0xFFFFFFFF, one.seed & 0xFFFFFFFF) for one in settings]
    return {
        "temperature": np.array(
            [max(one.temperature, _COLDEST) if one.temperature else 0 for one in settings], np.float32
        ),
        "top_k": np.array([one.top_k for one in settings], np.int32),
        "top_p": np.array([one.top_p for one in settings], np.float32),
        "key": np.array(words, np.uint32).reshape(len(settings), 2),
    }


def chosen(logits: Array, positions: Array, how: dict[str, Array]) -> Array:
    """The tokens i32 (n,) that stand at `positions` i32 (n,), of logits (n, vocab) and settings as `fed` makes them."""
    scores = mnp.astype(logits, mnp.float32)
    likeliest = mnp.astype(mnp.argmax(scores, axis=-1), mnp.int32)
    warm = how["temperature"] > 0
    drawn = cond(mnp.any(warm), lambda: _drawn(scores, positions, how), lambda: likeliest)
    return mnp.where(warm, drawn, likeliest)


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
    stay = first & ((before < how["top_p"][:, None]) | (rank == 0))
    least = mnp.min(mnp.where(stay, falling, mnp.inf), axis=-1, keepdims=True)
    return mnp.where(scaled >= least, scaled, _HIDDEN)
