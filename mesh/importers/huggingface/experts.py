"""A mixture of experts in place of a feed-forward network: a router chooses a few of them for each token.

Shazeer et al., 2017 (arXiv 1701.06538); Jiang et al., 2024 (arXiv 2401.04088).  Each expert has weights of its own, so
that experts may be placed on different workers, and one that no token asks for is not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError

from ... import nn
from ... import numpy as mnp
from ...core.array import Array
from ...nn.attention import masked_value
from ...nn.precision import wide
from ...transforms.control_flow import cond
from .config import Config
from .weights import Arrays, Weights

Activation = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Experts:
    """What the mixtures of a family are made of; `count`, `chosen`, `inner`, `shared_inner` are keys of config.json.

    `renormalised` says whether the weights of the chosen ones sum to 1 (a key, or it is known); `of_chosen` that the
    softmax is of their scores alone.  `clamped` experts are those of gpt-oss.  `shared` is an expert for every token,
    with a gate of its own.  `sparse` says which layers have experts.
    """

    count: str
    chosen: str = "num_experts_per_tok"
    inner: str = "intermediate_size"
    router: str = "mlp.gate"
    router_bias: bool = False
    expert: str = "mlp.experts.{}"
    parts: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    renormalised: str | bool = True
    of_chosen: bool = False
    clamped: bool = False
    shared: str = ""
    shared_inner: str = ""
    sparse: Callable[[Config, int], tuple[bool, ...]] = field(default=lambda config, layers: (True,) * layers)


@dataclass(frozen=True, slots=True)
class ExpertLayers:
    """The mixtures of a model's layers; each function takes the weights of a layer.

    `routed(weights, x)` says how much of each expert a token of x (batch, n, width) gets, (batch, n, experts).
    `added(weights, number, x, parts, total)` adds an expert to the total (batch, n, width), and `shared(weights, x,
    total)` what all tokens get.  `names` are those of the experts within a layer.
    """

    routed: Callable[[Weights, Array], Array]
    added: Callable[[Weights, int, Array, Array, Array], Array]
    shared: Callable[[Weights, Array, Array], Array]
    names: tuple[str, ...]

    def whole(self, params: Weights, x: Array) -> Array:
        """All that a layer's mixture makes of x, (batch, n, width)."""
        parts, total = self.routed(params, x), mnp.zeros_like(x)
        for number in range(len(self.names)):
            total = self.added(params, number, x, parts, total)
        return self.shared(params, x, total)


def experts_of(row: Experts, config: Config, sizes: dict[str, int], act: Activation, width: str) -> ExpertLayers:
    """The mixtures by the settings; `sizes` gets those of their weights."""
    count, chosen = config.integer(row.count), config.integer(row.chosen)
    if chosen > count:
        raise InputError(f"{config.file}: {row.chosen} = {chosen} is more than {row.count} = {count}")
    sizes |= config.sizes(row.count, row.inner) | {DOUBLE: 2 * config.integer(row.inner)}
    renormalised = config.flag(row.renormalised) if isinstance(row.renormalised, str) else row.renormalised
    limits = (config.number("swiglu_alpha"), config.number("swiglu_limit")) if row.clamped else (0.0, 0.0)
    if row.shared:
        sizes |= config.sizes(row.shared_inner)

    def expert(params: Weights, x: Array) -> Array:
        if row.clamped:
            both = params.linear("gate_up_proj", x, DOUBLE, transposed=True)
            gate, up = mnp.minimum(both[..., ::2], limits[1]), mnp.clip(both[..., 1::2], -limits[1], limits[1])
            return params.linear("down_proj", (up + 1) * (gate * nn.sigmoid(gate * limits[0])), width, transposed=True)
        return feed_forward(params, row.parts, x, row.inner, width)

    def feed_forward(params: Weights, names: tuple[str, ...], x: Array, inner: str, width: str) -> Array:
        gate, up, down = names
        gated = act(params.linear(gate, x, inner, bias=False)) * params.linear(up, x, inner, bias=False)
        return params.linear(down, gated, width, bias=False)

    def routed(params: Weights, x: Array) -> Array:
        """How much of each expert a token gets, (batch, n, count): 0 of most of them."""
        scores = wide(params.linear(row.router, x, row.count, bias=row.router_bias, rounds=False))
        places = mnp.argsort(mnp.argsort(-scores, axis=-1, stable=True), axis=-1)
        first = places < chosen
        if row.of_chosen:
            parts = nn.softmax(mnp.where(first, scores, masked_value(scores.type.dtype)))
        else:
            parts = nn.softmax(scores)
        parts = mnp.where(first, parts, 0)
        if renormalised and not row.of_chosen:
            parts = parts / mnp.sum(parts, axis=-1, keepdims=True)
        return mnp.astype(parts, x.dtype)

    def added(params: Weights, number: int, x: Array, parts: Array, total: Array) -> Array:
        near, part = params.at(row.expert.format(number)), parts[..., number : number + 1]

        def computed(x: Array, part: Array, total: Array) -> Array:
            return total + expert(near, x) * part

        chosen: Array = cond(mnp.any(part != 0), computed, lambda x, part, total: total, x, part, total)
        return chosen

    def shared(params: Weights, x: Array, total: Array) -> Array:
        if not row.shared:
            return total
        gate = nn.sigmoid(params.linear(f"{row.shared}_gate", x, 1, bias=False, rounds=False))
        names = tuple([f"{row.shared}.{name}" for name in row.parts])
        return total + gate * feed_forward(params, names, x, row.shared_inner, width)

    return ExpertLayers(routed, added, shared, tuple([row.expert.format(number) for number in range(count)]))


DOUBLE = "2 * the width of an expert"


def split_experts(weights: Arrays, layer: str) -> None:
    """Make each expert's weights its own where the files hold all of a layer in one tensor; nothing is copied.

    `layer` is what the names begin with.  Tensors are (experts, ...), by names that end in `.experts.gate_up_proj`,
    say, and in `_bias`.
    """
    for name in [name for name in weights if name.startswith(layer) and ".experts." in name]:
        before, _, part = name.partition(".experts.")
        if part.count(".") or weights[name].ndim < 2:
            continue
        kind = "bias" if part.endswith("_bias") else "weight"
        stacked: NDArray[np.generic] = weights.pop(name)
        for number, own in enumerate(stacked):
            weights[f"{before}.experts.{number}.{part.removesuffix('_bias')}.{kind}"] = own
