"""Decoder: what a causal language model is made of, so that it may be run whole or token by token.

An importer makes one for every family that generates text.  Whoever runs it says how queries attend: to all tokens at
once (`whole`), or to keys and values that were kept (`mesh/inference/kv_cache_step.py`).  It knows no weights' names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import numpy as mnp
from ..core.array import Array
from ..nn.attention import scaled_dot_product_attention

Params = Mapping[str, Array]
Attend = Callable[[int, Array, Array, Array, float], Array]
"""(layer, queries (batch, heads, n, size), keys and values (batch, kv_heads, n, size), scale) to what was looked up,
(batch, heads, n, size)."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """`embed(params, ids, positions)` gives x (batch, n, width), `layer(params, number, x, positions, attend)` the
    next x, and `head(params, x)` of x (..., width) logits (..., vocab); ids and positions are i32 (batch, n).

    `positions_max` is how many tokens it was made for, None where nothing says so; `windows` how far each layer looks
    back, None for all the way.  `table` names the weight with a row per token, whose dtype the model computes in.
    """

    embed: Callable[[Params, Array, Array], Array]
    layer: Callable[[Params, int, Array, Array, Attend], Array]
    head: Callable[[Params, Array], Array]
    windows: tuple[int | None, ...]
    kv_heads: int
    size: int
    positions_max: int | None
    table: str

    @property
    def layers(self) -> int:
        return len(self.windows)


@dataclass(frozen=True, slots=True)
class Text:
    """A model's side of text: its decoder, the folder with its tokenizer, and the tokens that end what it says."""

    decoder: Decoder
    folder: Path
    ends: tuple[int, ...]


def whole(masks: Mapping[int | None, Array | None], windows: tuple[int | None, ...]) -> Attend:
    """Attention among the tokens that are there, under the mask of each layer's window."""
    return lambda number, q, k, v, scale: attended(q, k, v, masks[windows[number]], scale)


def attended(q: Array, k: Array, v: Array, mask: Array | None, scale: float) -> Array:
    """Attention whose heads may share keys and values: these stand side by side along an axis of their own."""
    batch, heads, length, size = q.shape
    shared = k.shape[1]
    if shared == heads:
        return scaled_dot_product_attention(q, k, v, mask, scale=scale)
    grouped = mnp.reshape(q, (batch, shared, heads // shared, length, size))
    near = mask if mask is None or mask.ndim == 2 else mask[:, :, None]
    looked = scaled_dot_product_attention(grouped, k[:, :, None], v[:, :, None], near, scale=scale)
    return mnp.reshape(looked, (batch, heads, length, size))
