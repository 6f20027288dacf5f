"""The decoder that the families share: a row says what differs between them (`decoders.py`).

Vaswani et al., 2017 (arXiv 1706.03762); Touvron et al., 2023 (arXiv 2302.13971).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from wire.errors import InputError

from ... import nn
from ... import numpy as mnp
from ...core.array import Array
from ...models.decoder import Alike, Attend, Decoder, Mixture, Params, Scores, whole
from ...models.model import Value
from ...nn.attention import join_heads, split_heads
from ...nn.precision import wide
from ...numpy.promotion import cast
from .config import Config
from .experts import Activation, ExpertLayers, Experts, experts_of, split_experts
from .family import IDS, MASK, Family, Kind, both, causal_mask, check_length, is_causal, key_mask, prefix_of, tied
from .keys import Key
from .rotary import SCALINGS, Rotary, rotary_of, rotary_tables, rotated
from .weights import Arrays, Weights

FULL, SLIDING = "full_attention", "sliding_attention"
Flag = str | bool
"""A key of config.json that says so, or what is known of the family."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of config.json by what they tell; "" where a family has none.

    Without `kv_heads` these are the heads, without `head_dim` a head is its part of the width, without `inner` the
    feed-forward network is four times as wide.  A number as `eps` is the family's own.
    """

    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    kv_heads: str = "num_key_value_heads"
    width: str = "hidden_size"
    head_dim: str = "head_dim"
    inner: str = "intermediate_size"
    positions: str = "max_position_embeddings"
    eps: str | float = "rms_norm_eps"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of weights; "" where a family has none.

    `prefixes` stand before them: that of a language model first, then that of a model without a head.  One name as
    `qkv` is one weight for all three; `mlp` are gate, up and down, the first two as one, or up and down.
    """

    prefixes: tuple[str, ...] = ("model.", "")
    known_by: str = "norm.weight"
    table: str = "embed_tokens"
    positions: str = ""
    table_norm: str = ""
    layer: str = "layers"
    attention_norm: str = "input_layernorm"
    attention_end_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_end_norm: str = ""
    norm: str = "norm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    head_norms: tuple[str, ...] = ()
    sinks: str = ""
    out: str = "self_attn.o_proj"
    mlp: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    head: str = "lm_head.weight"
    project_in: str = ""
    project_out: str = ""


def _full(config: Config, layers: int) -> tuple[tuple[str, int | None], ...]:
    return ((FULL, None),) * layers


def _root(config: Config, size: int, layer: int) -> float:
    return float(size**-0.5)


@dataclass(frozen=True, slots=True)
class Form:
    """What the decoder of a family is made of.

    `norm` is that of rows: by their root mean square, the same in float32 up to the factor ("rms_wide"), with 1 added
    to the factor ("rms_plus_one"), or with a mean and a bias ("layer").  `mixed` weights of queries, keys and values
    lie head by head.  `lengths` are the kind of attention and the window of each layer.  `thetas` name the key of the
    base of each kind's rotary positions, `scalings` are the kinds of these that are known, and `rotary` their settings
    where config.json has none.  `counted` positions are those among the tokens that the mask leaves.
    """

    settings: Settings = field(default_factory=Settings)
    act: Callable[[Config], Activation] = lambda config: config.activation("hidden_act")
    names: Names = field(default_factory=Names)
    norm: Literal["rms", "rms_wide", "rms_plus_one", "layer"] = "rms"
    norms_first: Flag = True
    final_norm: Callable[[Config], bool] = lambda config: True
    norm_is_residual: Flag = False
    parallel: Flag = False
    transposed: bool = False
    mixed: bool = False
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    positions: Literal["rotary", "learned", "slopes"] = "rotary"
    offset: int = 0
    counted: bool = False
    partial: str | None = None
    thetas: Mapping[str, str] = field(default_factory=lambda: {FULL: "rope_theta", SLIDING: "rope_theta"})
    rotary: Mapping[str, object] | None = None
    scalings: tuple[str, ...] = tuple(SCALINGS)
    lengths: Callable[[Config, int], tuple[tuple[str, int | None], ...]] = _full
    scale: Callable[[Config, int, int], float] = _root
    cap: str = ""
    logit_cap: str = ""
    scaled_table: bool = False
    table_width: str = ""
    experts: Experts | None = None


def kind_of(
    form: Form, keys: Mapping[str, Key], classes: tuple[str, ...], left: Mapping[str, str], renamed: Mapping[str, str]
) -> Kind:
    """The model type of a row."""
    return Kind(keys, classes, partial(decoder, form), left, renamed=renamed)


def decoder(form: Form, config: Config, weights: Arrays) -> Family:
    """The decoder, with logits where it is a language model."""
    own = _Shared(form, config, weights)
    outputs = ("logits",) if own.causal else ("last_hidden_state",)
    if own.causal:
        return Family((IDS, MASK), outputs, own.function, own.decoder())
    return Family((IDS, MASK), outputs, own.function, positions_max=own.positions_max)


class _Shared:
    """The decoder of a row by the settings of a model; it knows the names of the weights, and not their values."""

    def __init__(self, form: Form, config: Config, weights: Arrays) -> None:
        settings, names = form.settings, form.names
        self.form, self.names, self.width = form, names, settings.width
        self.heads_key, self.dtype = settings.heads, config.dtype
        self.layers, self.heads = config.integer(settings.layers), _heads(form, config)
        if self.layers > len(weights):
            raise InputError(
                f"{config.file}: {settings.layers} = {self.layers}, and the files have {len(weights)} weights"
            )
        self.shared = config.integer(settings.kv_heads, self.heads) if settings.kv_heads else self.heads
        if self.heads % self.shared:
            raise InputError(
                f"{config.file}: {settings.heads} = {self.heads} is no multiple of {settings.kv_heads} = {self.shared}"
            )
        self.eps = config.number(settings.eps) if isinstance(settings.eps, str) else settings.eps
        self.act = form.act(config)
        self.flags = {
            name: config.flag(flag) if isinstance(flag, str) else flag
            for name, flag in (
                ("qkv_bias", form.qkv_bias), ("out_bias", form.out_bias), ("mlp_bias", form.mlp_bias),
                ("parallel", form.parallel), ("norms_first", form.norms_first), ("of_norm", form.norm_is_residual),
            )
        }  # fmt: skip
        self.positions_max = config.integer(settings.positions) if settings.positions else None
        self._size(config, max(max(array.shape, default=0) for array in weights.values()))
        self.kinds, self.windows = zip(*form.lengths(config, self.layers), strict=True)
        self.turns = _turns(form, config, self.size, self.kinds) if form.positions == "rotary" else {}
        self.slopes = _slopes(self.heads) if form.positions == "slopes" else None
        self.scales = [form.scale(config, self.size, number) for number in range(self.layers)]
        self.cap, self.logit_cap = (
            None if not key or config[key] is None else config.number(key) for key in (form.cap, form.logit_cap)
        )
        self.prefix = prefix_of(weights, config, names.known_by, *names.prefixes)
        self.causal = is_causal(config, weights, self.prefix == names.prefixes[0])
        self.table = tied(config, weights, names.head, f"{self.prefix}{names.table}.weight") if self.causal else ""
        self.ends = form.final_norm(config)
        self.experts: ExpertLayers | None = None
        self.sparse: tuple[bool, ...] = (False,) * self.layers
        if form.experts:
            split_experts(weights, f"{self.prefix}{names.layer}.")
            self.experts = experts_of(form.experts, config, self.sizes, self.act, self.width)
            self.sparse = form.experts.sparse(config, self.layers)

    def _size(self, config: Config, most: int) -> None:
        """The size of a head, and the sizes from which the shapes of weights follow.  `most` is their longest axis."""
        settings, form = self.form.settings, self.form
        sizes = config.sizes("vocab_size", self.width, settings.heads)
        part = sizes[self.width] // self.heads
        self.size = size = config.integer(settings.head_dim, part) if settings.head_dim else part
        if self.heads * size > most:
            raise InputError(f"{config.file}: {self.heads} heads of {size} are more than any weight in the files has")
        self.inner = settings.inner or INNER
        four = 4 * sizes[self.width]
        sizes[self.inner] = config.integer(self.inner, four) if settings.inner else four
        self.table_width = form.table_width or self.width
        sizes[self.table_width] = config.integer(self.table_width, sizes[self.width])
        self.rows = f"{settings.positions} + {form.offset}" if form.offset else settings.positions
        sizes |= {
            QUERIES: self.heads * size, SHARED: self.shared * size, TOGETHER: (self.heads + 2 * self.shared) * size,
            TWICE: 2 * sizes[self.inner], self.rows: (self.positions_max or 0) + form.offset,
        }  # fmt: skip
        self.sizes = sizes

    def decoder(self) -> Decoder:
        """What `Model.generate` runs token by token."""
        positions_max, first_texts = self.positions_max, [turn.original for turn in self.turns.values()]
        for original in first_texts:  # longer texts turn the keys that were kept in another way
            if positions_max is not None and original is not None:
                positions_max = min(positions_max, original)
        return Decoder(
            self.embed, self.layer, self.head, self.windows, self.shared, self.size, positions_max,
            f"{self.prefix}{self.names.table}.weight", self.dtype, self.mixture, self.alike,
        )  # fmt: skip

    def _norm(self, params: Weights, name: str, x: Array) -> Array:
        return NORMS[self.form.norm](params, name, x, self.eps)

    def _split(self, params: Weights, x: Array) -> tuple[Array, Array, Array]:
        if len(self.names.qkv) == 3:
            q, k, v = (
                params.linear(name, x, out, bias=self.flags["qkv_bias"])
                for name, out in zip(self.names.qkv, (QUERIES, SHARED, SHARED), strict=True)
            )
            return split_heads(q, self.heads), split_heads(k, self.shared), split_heads(v, self.shared)
        qkv = params.linear(
            self.names.qkv[0], x, TOGETHER, bias=self.flags["qkv_bias"], transposed=self.form.transposed
        )
        if self.form.mixed:
            parts = mnp.reshape(qkv, (*qkv.shape[:-1], self.heads, 3, self.size))
            q, k, v = (mnp.moveaxis(parts[..., place, :], -2, -3) for place in range(3))
            return q, k, v
        heads = (0, self.heads, self.heads + self.shared, self.heads + 2 * self.shared)
        q, k, v = (qkv[..., start * self.size : stop * self.size] for start, stop in pairwise(heads))
        return split_heads(q, self.heads), split_heads(k, self.shared), split_heads(v, self.shared)

    def _attention(self, params: Weights, number: int, x: Array, positions: Array, attend: Attend) -> Array:
        q, k, v = self._split(params, x)
        if self.names.head_norms:
            q, k = (self._norm(params, name, part) for name, part in zip(self.names.head_norms, (q, k), strict=True))
        if self.turns:
            turned = rotary_tables(positions, self.turns[self.kinds[number]])
            q, k = rotated(q, turned), rotated(k, turned)
        sinks = params(self.names.sinks, self.heads_key) if self.names.sinks else None
        looked = attend(number, q, k, v, Scores(self.scales[number], self.cap, self.slopes, sinks))
        return params.linear(
            self.names.out, join_heads(looked), self.width, bias=self.flags["out_bias"], transposed=self.form.transposed
        )

    def _feed_forward(self, params: Weights, number: int, x: Array) -> Array:
        if self.experts is not None and self.sparse[number]:
            return self.experts.whole(params, x)
        *firsts, down = self.names.mlp
        out = TWICE if self.names.mlp == GATE_AND_UP else self.inner
        linear = partial(params.linear, bias=self.flags["mlp_bias"], transposed=self.form.transposed)
        wide = [linear(name, x, out) for name in firsts]
        if out is TWICE:
            wide = [wide[0][..., : self.sizes[self.inner]], wide[0][..., self.sizes[self.inner] :]]
        gated = self.act(wide[0]) * wide[1] if len(wide) == 2 else self.act(wide[0])
        return linear(down, gated, self.width)

    def embed(self, params: Params, ids: Array, positions: Array) -> Array:
        own = Weights(params, self.sizes, self.prefix)
        x = own.embedding(self.names.table, ids, "vocab_size", self.table_width)
        x = x if self.dtype is None else cast(x, self.dtype)  # weights of fewer bits stay as they are
        if self.form.scaled_table:
            x = x * mnp.asarray(np.asarray(self.sizes[self.width] ** 0.5, x.type.dtype.numpy))
        if self.names.table_norm:
            x = self._norm(own, self.names.table_norm, x)
        if self.names.project_in and self.sizes[self.table_width] != self.sizes[self.width]:
            x = own.linear(self.names.project_in, x, self.width, bias=False)
        if self.names.positions:
            places = positions + self.form.offset if self.form.offset else positions
            x = x + own.embedding(self.names.positions, places, self.rows, self.width)
        return x

    def layer(self, params: Params, number: int, x: Array, positions: Array, attend: Attend) -> Array:
        own = self._own(params, number)
        base, y = self._attended(own, number, x, positions, attend)
        return self._added(own, base, self._feed_forward(own, number, y))

    def alike(self, number: int) -> Alike:
        """Layers that differ in nothing of this differ in their weights alone."""
        return Alike((self.kinds[number], self.scales[number], self.sparse[number]), self._before(number))

    def mixture(self, number: int) -> Mixture | None:
        """The same layer in pieces, where it has experts."""
        experts = self.experts
        if experts is None or not self.sparse[number]:
            return None

        def begin(params: Params, x: Array, positions: Array, attend: Attend) -> tuple[Array, Array, Array]:
            own = self._own(params, number)
            base, y = self._attended(own, number, x, positions, attend)
            return base, y, experts.routed(own, y)

        def expert(params: Params, which: int, y: Array, parts: Array, total: Array) -> Array:
            return experts.added(self._own(params, number), which, y, parts, total)

        def end(params: Params, base: Array, y: Array, total: Array) -> Array:
            own = self._own(params, number)
            return self._added(own, base, experts.shared(own, y, total))

        before = self._before(number)
        return Mixture(begin, expert, end, tuple([f"{before}{name}" for name in experts.names]))

    def _before(self, number: int) -> str:
        """What the names of a layer's weights begin with."""
        return f"{self.prefix}{self.names.layer}.{number}."

    def _own(self, params: Params, number: int) -> Weights:
        return Weights(params, self.sizes, self._before(number))

    def _attended(
        self, params: Weights, number: int, x: Array, positions: Array, attend: Attend
    ) -> tuple[Array, Array]:
        """What the feed-forward network is added to, and what it takes."""
        y = self._norm(params, self.names.attention_norm, x) if self.flags["norms_first"] else x
        looked = self._attention(params, number, y, positions, attend)
        if self.flags["parallel"]:
            return x + looked, self._norm(params, self.names.mlp_norm, x)
        if self.names.attention_end_norm:
            looked = self._norm(params, self.names.attention_end_norm, looked)
        x = (y if self.flags["of_norm"] else x) + looked
        x = x if self.flags["norms_first"] else self._norm(params, self.names.attention_norm, x)
        y = self._norm(params, self.names.mlp_norm, x) if self.flags["norms_first"] else x
        return (y if self.flags["of_norm"] else x), y

    def _added(self, params: Weights, base: Array, wide: Array) -> Array:
        """The next x."""
        if self.flags["parallel"]:
            return base + wide
        if self.names.mlp_end_norm:
            wide = self._norm(params, self.names.mlp_end_norm, wide)
        x = base + wide
        return x if self.flags["norms_first"] else self._norm(params, self.names.mlp_norm, x)

    def _normed(self, params: Params, x: Array) -> Array:
        own = Weights(params, self.sizes, self.prefix)
        x = self._norm(own, self.names.norm, x) if self.ends else x
        if self.names.project_out and self.sizes[self.table_width] != self.sizes[self.width]:
            x = own.linear(self.names.project_out, x, self.table_width, bias=False)
        return x

    def head(self, params: Params, x: Array) -> Array:
        logits = Weights(params, self.sizes).logits(self.table, self._normed(params, x), "vocab_size", self.table_width)
        return logits if self.logit_cap is None else self.logit_cap * mnp.tanh(logits / self.logit_cap)

    def function(self, params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids, keys = inputs[IDS.name], key_mask(inputs)
        length = ids.shape[1]
        if self.names.positions:
            check_length(length, self.positions_max or 0)
        masks = {window: both(causal_mask(length, window), keys) for window in dict.fromkeys(self.windows)}
        positions = mnp.arange(length)[None]
        if self.form.counted and MASK.name in inputs:
            there = mnp.astype(mnp.asarray(inputs[MASK.name]) != 0, mnp.int32)
            positions = mnp.cumulative_sum(there, axis=1) * there - 1
        attend = whole(masks, self.windows, mnp.maximum(positions, 0) if self.form.counted else positions)
        x = self.embed(params, mnp.asarray(ids), positions)
        for number in range(self.layers):
            x = self.layer(params, number, x, positions, attend)
        return {"logits": self.head(params, x)} if self.causal else {"last_hidden_state": self._normed(params, x)}


QUERIES, SHARED = "num_attention_heads * head_dim", "num_key_value_heads * head_dim"
TOGETHER, TWICE = "queries, keys and values together", "2 * the inner width"
INNER = "4 * the width"
GATE_AND_UP = ("mlp.gate_up_proj", "mlp.down_proj")


def _heads(form: Form, config: Config) -> int:
    """The number of heads, which divides the width where it decides about a head's size."""
    settings = form.settings
    return config.integer(settings.heads) if settings.head_dim else config.heads(settings.heads, settings.width)


def _turns(form: Form, config: Config, size: int, kinds: tuple[str, ...]) -> dict[str, Rotary]:
    """The rotary positions of each kind of layers; `rope_scaling` is meant for those with full attention."""
    alike, scaling = len(set(form.thetas.values())) == 1, config["rope_scaling"]
    if not alike and isinstance(scaling, Mapping) and "rope_type" not in scaling and "type" in scaling:
        raise config.unknown("rope_scaling.type", scaling["type"], ["it by the name rope_type"])
    return {
        kind: rotary_of(
            config, size, form.partial, kind, form.thetas[kind], alike or kind == FULL, form.scalings, form.rotary
        )
        for kind in dict.fromkeys(kinds)
    }


def _slopes(heads: int) -> Array:
    """How fast each head forgets: powers of a root of 2, and some between them where heads are no power of 2."""
    near = 1 << (heads.bit_length() - 1)
    powers = [2.0 ** (-8 * (place + 1) / near) for place in range(near)]
    between = [2.0 ** (-4 * (2 * place + 1) / near) for place in range(heads - near)]
    return mnp.asarray(np.asarray([*powers, *between], np.float32))


def _rms(params: Weights, name: str, x: Array, eps: float) -> Array:
    return params.rms_norm(name, x, eps)


def _rms_wide(params: Weights, name: str, x: Array, eps: float, more: float = 0.0) -> Array:
    """The norm in float32 up to the factor, where Llama rounds before it."""
    factor = wide(params(f"{name}.weight", x.shape[-1]))
    return mnp.astype(nn.rms_norm(wide(x), factor + more if more else factor, eps=eps), x.dtype)


def _layer(params: Weights, name: str, x: Array, eps: float) -> Array:
    return params.layer_norm(name, x, eps)


NORMS: dict[str, Callable[[Weights, str, Array, float], Array]] = {
    "rms": _rms,
    "rms_wide": _rms_wide,
    "rms_plus_one": partial(_rms_wide, more=1.0),
    "layer": _layer,
}
