"""Llama, Mistral, Qwen2 and Qwen3: decoders with rotary positions, grouped-query attention and gated MLPs.

Touvron et al., 2023 (arXiv 2302.13971); Jiang et al., 2023 (arXiv 2310.06825); Yang et al., 2024 (arXiv 2407.10671).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ... import numpy as mnp
from ...array import Array
from ...decoder import Attend, Decoder, Params, whole
from ...model import Value
from ...nn import embedding
from ...nn.attention import join_heads, split_heads
from .config import IDS, MASK, Config, Family, Weights, both, causal_mask, key_mask


def family(config: Config) -> Family:
    """The decoder, with logits where it is a language model."""
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    shared = config.integer("num_key_value_heads", heads)
    size = config.integer("head_dim", config.integer("hidden_size") // heads)
    config.refuse("partial_rotary_factor", 1.0)
    eps, act = config.number("rms_norm_eps", 1e-6), config.activation("hidden_act", "silu")
    rates = rotary_rates(config, size)
    windows = tuple([_window(config, number) for number in range(layers)])
    prefix = config.prefix("embed_tokens.weight", "hidden_size", "model.", "")
    causal = config.is_causal or prefix == "model."

    def attention(weights: Weights, number: int, x: Array, positions: Array, attend: Attend) -> Array:
        q, k = split_heads(weights.linear("q_proj", x), heads), split_heads(weights.linear("k_proj", x), shared)
        v = split_heads(weights.linear("v_proj", x), shared)
        if "q_norm.weight" in weights:
            q, k = weights.rms_norm("q_norm", q, eps), weights.rms_norm("k_norm", k, eps)
        turned = rotary(positions, rates)
        looked = attend(number, rotated(q, turned), rotated(k, turned), v, size**-0.5)
        return weights.linear("o_proj", join_heads(looked))

    def embed(params: Params, ids: Array, positions: Array) -> Array:
        return embedding(ids, Weights(params, prefix)("embed_tokens.weight"))

    def layer(params: Params, number: int, x: Array, positions: Array, attend: Attend) -> Array:
        weights = Weights(params, f"{prefix}layers.{number}.")
        normed = weights.rms_norm("input_layernorm", x, eps)
        x = x + attention(weights.at("self_attn"), number, normed, positions, attend)
        y, own = weights.rms_norm("post_attention_layernorm", x, eps), weights.at("mlp")
        return x + own.linear("down_proj", act(own.linear("gate_proj", y)) * own.linear("up_proj", y))

    def normed(params: Params, x: Array) -> Array:
        return Weights(params, prefix).rms_norm("norm", x, eps)

    def head(params: Params, x: Array) -> Array:
        table = params.get("lm_head.weight", Weights(params, prefix)("embed_tokens.weight"))
        return normed(params, x) @ table.T

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids, keys = inputs[IDS.name], key_mask(inputs)
        length = ids.shape[1]
        masks = {window: both(causal_mask(length, window), keys) for window in dict.fromkeys(windows)}
        attend, positions = whole(masks, windows), mnp.arange(length)[None]
        x = embed(params, mnp.asarray(ids), positions)
        for number in range(layers):
            x = layer(params, number, x, positions, attend)
        return {"logits": head(params, x)} if causal else {"last_hidden_state": normed(params, x)}

    decoder = Decoder(
        embed, layer, head, windows, shared, size, config.get("max_position_embeddings"), f"{prefix}embed_tokens.weight"
    )
    outputs = ("logits",) if causal else ("last_hidden_state",)
    return Family((IDS, MASK), outputs, function, prefix, ("lm_head.",), decoder if causal else None)


def _window(config: Config, number: int) -> int | None:
    """How far back a layer looks; None is all the way."""
    kinds = config.get("layer_types")
    window = config.get("sliding_window")
    if window is None or (config.model_type.startswith("qwen") and not config.get("use_sliding_window", False)):
        return None
    if kinds is not None:
        return int(window) if kinds[number] == "sliding_attention" else None
    return None if number < config.get("max_window_layers", 0) and config.model_type.startswith("qwen") else int(window)


# -- rotary positions: Su et al., 2021 (arXiv 2104.09864) --------------------------------------------------


def rotary_rates(config: Config, size: int) -> NDArray[np.float32]:
    """Radians per position of each pair, f32 (size / 2,)."""
    given = config.get("rope_parameters", config.get("rope_scaling", {}))
    base = float(given.get("rope_theta", config.get("rope_theta", 10_000.0)))
    rates = base ** -(np.arange(0, size, 2) / size)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in SCALINGS:
        raise config.unknown("rope_parameters.rope_type", kind, SCALINGS)
    return np.asarray(SCALINGS[kind](rates, given), np.float32)


def _llama3(rates: NDArray[np.float64], given: Mapping[str, float]) -> NDArray[np.float64]:
    """Slow pairs are slowed by `factor`, quick ones stay, those between are mixed."""
    waves = 2 * math.pi / rates
    old, low, high = given["original_max_position_embeddings"], given["low_freq_factor"], given["high_freq_factor"]
    mix = np.clip((old / waves - low) / (high - low), 0, 1)
    return (1 - mix) * rates / given["factor"] + mix * rates


SCALINGS = {
    "default": lambda rates, given: rates,
    "linear": lambda rates, given: rates / given["factor"],
    "llama3": _llama3,
}


def rotary(positions: Array, rates: NDArray[np.float32]) -> tuple[Array, Array]:
    """Cosines and sines of positions (batch, n), each f32 (batch, 1, n, size): alike for all heads."""
    angles = mnp.astype(positions, mnp.float32)[:, None, :, None] * mnp.asarray(rates)
    both_halves = mnp.concat([angles, angles], axis=-1)
    return mnp.cos(both_halves), mnp.sin(both_halves)


def rotated(x: Array, turned: tuple[Array, Array]) -> Array:
    """x (..., length, size) with each pair (i, i + size / 2) turned by its position's angle."""
    cos, sin = (mnp.astype(table, x.dtype) for table in turned)
    half = x.shape[-1] // 2
    return x * cos + mnp.concat([-x[..., half:], x[..., :half]], axis=-1) * sin
