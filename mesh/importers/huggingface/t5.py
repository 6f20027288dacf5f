"""The encoder of T5: relative positions as a bias of the scores.  Raffel et al., 2019 (arXiv 1910.10683)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ... import numpy as mnp
from ...array import Array
from ...model import Value
from ...nn import embedding
from ...nn.attention import join_heads, masked_value, scaled_dot_product_attention, split_heads
from .config import IDS, MASK, Config, Family, Weights, key_mask


def family(config: Config) -> Family:
    """The encoder."""
    layers, heads = config.integer("num_layers"), config.integer("num_heads")
    eps = config.number("layer_norm_epsilon", 1e-6)
    buckets, far = (
        config.integer("relative_attention_num_buckets", 32),
        config.integer("relative_attention_max_distance", 128),
    )
    projection = str(config.get("feed_forward_proj", "relu"))
    gated = projection.startswith("gated-")
    kinds = {"relu": "relu", "gelu": "gelu_new", "silu": "silu"}  # a gated gelu is the approximate one
    kind = projection.removeprefix("gated-")
    if kind not in kinds:
        raise config.unknown("feed_forward_proj", projection, [*kinds, *(f"gated-{name}" for name in kinds)])
    act = config.activation("dense_act_fn", kinds[kind])
    config.prefix("encoder.final_layer_norm.weight", "d_model", "")
    if any(name.startswith("decoder.") for name in config.weights):
        warnings.warn("of this T5 only the encoder is loaded", stacklevel=2)

    def bias(weights: Weights, length: int, mask: Array | None) -> Array:
        """f32 (batch or 1, heads, length, length), added to the scores of every layer."""
        table = weights("block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        found = mnp.permute_dims(mnp.take(table, mnp.asarray(_buckets(length, buckets, far)), axis=0), (2, 0, 1))[None]
        return found if mask is None else mnp.where(mask, found, masked_value(found.type.dtype))

    def layer(weights: Weights, x: Array, added: Array) -> Array:
        own, y = weights.at("layer.0.SelfAttention"), weights.rms_norm("layer.0.layer_norm", x, eps)
        q, k, v = (split_heads(own.linear(name, y), heads) for name in "qkv")
        x = x + own.linear("o", join_heads(scaled_dot_product_attention(q, k, v, added, scale=1.0)))
        own, y = weights.at("layer.1.DenseReluDense"), weights.rms_norm("layer.1.layer_norm", x, eps)
        wide = act(own.linear("wi_0", y)) * own.linear("wi_1", y) if gated else act(own.linear("wi", y))
        return x + own.linear("wo", wide)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids, weights = inputs[IDS.name], Weights(params, "encoder.")
        table = params.get("shared.weight")
        x = embedding(ids, weights("embed_tokens.weight") if table is None else table)
        added = bias(weights, ids.shape[1], key_mask(inputs))
        for number in range(layers):
            x = layer(weights.at(f"block.{number}"), x, added)
        return {"last_hidden_state": weights.rms_norm("final_layer_norm", x, eps)}

    return Family((IDS, MASK), ("last_hidden_state",), function)


def _buckets(length: int, buckets: int, far: int) -> NDArray[np.int32]:
    """Which row of the table serves a query at i and a key at j: near distances one each, far ones by their logarithm,
    in both directions."""
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    half = buckets // 2
    exact = half // 2
    away = np.abs(distance)
    steps = np.log(np.maximum(away, 1) / exact) / math.log(far / exact) * (half - exact)
    coarse = np.minimum(exact + steps.astype(np.int32), half - 1)
    return np.asarray((distance > 0) * half + np.where(away < exact, away, coarse), np.int32)
