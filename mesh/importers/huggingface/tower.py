"""The layers that the towers of CLIP and the encoder of Whisper share: normed first, with two linear maps behind."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.array import Array
from ...nn.attention import join_heads, scaled_dot_product_attention, split_heads
from .experts import Activation
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Tower:
    """What its layers are made of: names of weights, and of the sizes of `Weights`."""

    heads: int
    width: str
    inner: str
    eps: float
    act: Activation
    norms: tuple[str, str]
    maps: tuple[str, str]
    key_bias: bool = True


def tower_layer(tower: Tower, params: Weights, x: Array, mask: Array | None = None) -> Array:
    """The next x (batch, n, width)."""
    near, y = params.at("self_attn"), params.layer_norm(tower.norms[0], x, tower.eps)
    q, k, v = (
        split_heads(near.linear(name, y, tower.width, bias=tower.key_bias or name != "k_proj"), tower.heads)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    x = x + near.linear("out_proj", join_heads(scaled_dot_product_attention(q, k, v, mask)), tower.width)
    wide = tower.act(params.linear(tower.maps[0], params.layer_norm(tower.norms[1], x, tower.eps), tower.inner))
    return x + params.linear(tower.maps[1], wide, tower.width)
