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


Mixture = Callable[[Weights, Array], Array]
"""From a layer's weights and x (batch, n, width) to (batch, n, width)."""


def mixture_of(row: Experts, config: Config, sizes: dict[str, int], act: Activation, width: str) -> Mixture:
    """The mixture by the settings; `sizes` gets those of its weights."""
    count, chosen = config.integer(row.count), config.integer(row.chosen)
    if chosen > count:
        raise InputError(f"{config.file}: {row.chosen} = {chosen} is more than {row.count} = {count}")
    sizes |= config.sizes(row.count, row.inner) | {DOUBLE: 2 * config.integer(row.inner)}
    renormalised = config.flag(row.renormalised) if isinstance(row.renormalised, str) else row.renormalised
    limits = (config.number("swiglu_alpha"), config.number("swiglu_limit")) if row.clamped else (0.0, 0.0)
    if row.shared:
        sizes |= config.sizes(row.shared_inner)

    def expert(own: Weights, x: Array) -> Array:
        if row.clamped:
            both = own.linear("gate_up_proj", x, DOUBLE, transposed=True)
            gate, up = mnp.minimum(both[..., ::2], limits[1]), mnp.clip(both[..., 1::2], -limits[1], limits[1])
            return own.linear("down_proj", (up + 1) * (gate * nn.sigmoid(gate * limits[0])), width, transposed=True)
        return feed_forward(own, row.parts, x, row.inner, width)

    def feed_forward(own: Weights, names: tuple[str, ...], x: Array, inner: str, width: str) -> Array:
        gate, up, down = names
        gated = act(own.linear(gate, x, inner, bias=False)) * own.linear(up, x, inner, bias=False)
        return own.linear(down, gated, width, bias=False)

    def routed(own: Weights, x: Array) -> Array:
        """How much of each expert a token gets, (batch, n, count): 0 of most of them."""
        scores = wide(own.linear(row.router, x, row.count, bias=row.router_bias, rounds=False))
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

    def mixture(own: Weights, x: Array) -> Array:
        parts, total = routed(own, x), mnp.zeros_like(x)
        for number in range(count):
            near, part = own.at(row.expert.format(number)), parts[..., number : number + 1]

            def computed(x: Array, part: Array, total: Array, near: Weights = near) -> Array:
                return total + expert(near, x) * part

            total = cond(mnp.any(part != 0), computed, lambda x, part, total: total, x, part, total)
        if row.shared:
            gate = nn.sigmoid(own.linear(f"{row.shared}_gate", x, 1, bias=False, rounds=False))
            names = tuple([f"{row.shared}.{name}" for name in row.parts])
            total = total + gate * feed_forward(own, names, x, row.shared_inner, width)
        return total

    return mixture


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
