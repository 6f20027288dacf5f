"""Decoder: what a causal language model is made of, so that it may be run whole or token by token.

An importer makes one for every family that generates text.  Whoever runs it says how queries attend: to all tokens at
once (`whole`), or to keys and values that were kept (`mesh/inference/kv_cache_step.py`).  It knows no weights' names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from wire.ir.dtypes import F32, DType, dtype_of

from .. import numpy as mnp
from ..core.array import Array
from ..nn.attention import masked, masked_value, scaled_dot_product_attention
from ..nn.functions import softmax
from ..nn.packed import WORDS
from ..nn.precision import wide
from ..numpy.promotion import cast


@dataclass(frozen=True, slots=True)
class Scores:
    """How queries score keys: by their products times `scale`.

    `cap` bends scores into (-cap, cap) by a tanh.  `slopes` f32 (heads,) times a key's place is added (Press et al.,
    2021, arXiv 2108.12409).  `sinks` (heads,) is one more score, which takes its part of the attention and gives
    nothing (Xiao et al., 2023, arXiv 2309.17453).
    """

    scale: float
    cap: float | None = None
    slopes: Array | None = None
    sinks: Array | None = None


Params = Mapping[str, Array]
Attend = Callable[[int, Array, Array, Array, Scores], Array]
"""(layer, queries (batch, heads, n, size), keys and values (batch, kv_heads, n, size), scores) to what was looked up,
(batch, heads, n, size)."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """A layer with experts in three pieces, so that experts may be computed elsewhere than the rest of it.

    `begin(params, x, positions, attend)` is all up to the experts, as in `Decoder.layer`: what they are added to, what
    they take (batch, n, width), and how much of each a token gets (batch, n, experts).  `expert(params, number, y,
    parts, total)` adds one to the total (batch, n, width), which begins at zeros; they are added in their order.
    `end(params, base, y, total)` gives the next x.  `names` are those that the weights of each expert are below.
    """

    begin: Callable[[Params, Array, Array, Attend], tuple[Array, Array, Array]]
    expert: Callable[[Params, int, Array, Array, Array], Array]
    end: Callable[[Params, Array, Array, Array], Array]
    names: tuple[str, ...]


def no_mixture(number: int) -> None:
    """A layer without experts."""


@dataclass(frozen=True, slots=True)
class Alike:
    """What a layer has in common with others.  Layers of one `kind` and window compute the same, each of weights of its
    own: the names of these begin with `prefix`, and the layer reads no others."""

    kind: Hashable
    prefix: str


def unlike(number: int) -> None:
    """A layer that may compute something else than all others."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """`embed(params, ids, positions)` gives x (batch, n, width), `layer(params, number, x, positions, attend)` the
    next x, and `head(params, x)` of x (..., width) logits (..., vocab); ids and positions are i32 (batch, n).

    `mixture(number)` is a layer with experts in pieces, None for a layer that has none.  `alike(number)` is None for a
    layer of which nobody knows whether another one is like it; of layers that are alike one is traced.

    `positions_max` is how many tokens it was made for, None where nothing says so; `windows` how far each layer looks
    back, None for all the way.  `table` names the weight with a row per token; the model computes in `dtype`, by
    default that of the table.
    """

    embed: Callable[[Params, Array, Array], Array]
    layer: Callable[[Params, int, Array, Array, Attend], Array]
    head: Callable[[Params, Array], Array]
    windows: tuple[int | None, ...]
    kv_heads: int
    size: int
    positions_max: int | None
    table: str
    dtype: DType | None = None
    mixture: Callable[[int], Mixture | None] = no_mixture
    alike: Callable[[int], Alike | None] = unlike

    @property
    def layers(self) -> int:
        return len(self.windows)


@dataclass(frozen=True, slots=True)
class TextMetadata:
    """What the file of a model tells of its texts: its architecture, its tokenizer as a tokenizer.json, and its chat
    templates and special tokens by name.  `tokenizer` and `template` raise an InputError or Unsupported for what is
    missing, damaged or not known."""

    file: Path
    architecture: str
    tokenizer: Callable[[], str]
    template: Callable[[], tuple[Mapping[str, str], Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class EncoderMetadata:
    """What the file of an encoder tells: of its texts, and how the embedding of one is made of those of its tokens
    ("mean", "first", another way by its name, "" where nothing says it)."""

    text: TextMetadata
    pooling: str


@dataclass(frozen=True, slots=True)
class Text:
    """A model's side of text: its decoder, the folder with its tokenizer, and the tokens that end what it says.

    `metadata` tells what the files of the folder do not; None for a model whose own file tells nothing of it.
    """

    decoder: Decoder
    folder: Path
    ends: tuple[int, ...]
    metadata: TextMetadata | None = None


def table_of(weights: Mapping[str, NDArray[Any]], decoder: Decoder) -> tuple[DType, int]:
    """The dtype that a model computes in, and how many tokens it knows."""
    table = weights.get(decoder.table)
    if table is None:  # it is packed, its tokens last
        return decoder.dtype or F32, weights[f"{decoder.table}.{WORDS}"].shape[1]
    return decoder.dtype or dtype_of(table), table.shape[0]


def whole(masks: Mapping[int | None, Array | None], windows: tuple[int | None, ...], places: Array) -> Attend:
    """Attention among the tokens that are there, at these places, under the mask of each layer's window."""
    return lambda number, q, k, v, scores: attended(q, k, v, masks[windows[number]], scores, places)


def attended(q: Array, k: Array, v: Array, mask: Array | None, scores: Scores, places: Array) -> Array:
    """Attention to keys at `places` (batch or 1, keys), under a bool mask (..., n, keys).

    Heads may share keys and values: these stand side by side along an axis of their own.
    """
    batch, heads, length, size = q.shape
    shared = k.shape[1]
    near = mask
    if scores.slopes is not None:
        far = cast(scores.slopes[:, None, None] * mnp.astype(places, mnp.float32)[:, None, None, :], q.type.dtype)
        near = far if mask is None else mnp.where(mask, far, masked_value(q.type.dtype))
    if shared == heads:
        return _looked_up(q, k, v, near, scores, scores.sinks)
    shape = (batch, shared, heads // shared, length, size)
    if near is not None and near.ndim > 2:
        near = (
            near[:, :, None]
            if near.shape[1] == 1
            else mnp.reshape(near, (*near.shape[:1], *shape[1:3], *near.shape[2:]))
        )
    sinks = None if scores.sinks is None else mnp.reshape(scores.sinks, shape[1:3])
    looked = _looked_up(mnp.reshape(q, shape), k[:, :, None], v[:, :, None], near, scores, sinks)
    return mnp.reshape(looked, (batch, heads, length, v.shape[-1]))


def _looked_up(q: Array, k: Array, v: Array, mask: Array | None, how: Scores, sinks: Array | None) -> Array:
    """(..., n, size) for q (..., n, size); `sinks` has the axes of the heads."""
    if how.cap is None and sinks is None:
        return scaled_dot_product_attention(q, k, v, mask, scale=how.scale)
    scores = wide(q) @ wide(k).mT * how.scale
    if how.cap is not None:
        scores = how.cap * mnp.tanh(scores / how.cap)
    if mask is not None:
        scores = masked(scores, mask)
    if sinks is None:
        return cast(softmax(scores), v.type.dtype) @ v
    more = mnp.broadcast_to(cast(sinks, scores.type.dtype)[..., None, None], (*scores.shape[:-1], 1))
    parts = softmax(mnp.concat([scores, more], axis=-1))
    return cast(parts[..., :-1], v.type.dtype) @ v
