"""Llama, Mistral, Qwen2 and Qwen3: decoders with rotary positions, grouped-query attention and gated MLPs.

Touvron et al., 2023 (arXiv 2302.13971); Jiang et al., 2023 (arXiv 2310.06825); Yang et al., 2024 (arXiv 2407.10671).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError

from ... import numpy as mnp
from ...core.array import Array
from ...models.decoder import Attend, Decoder, Params, whole
from ...models.model import Value
from ...nn.attention import join_heads, split_heads
from .config import Config
from .family import IDS, MASK, Family, Kind, both, causal_mask, is_causal, key_mask, prefix_of, tied
from .keys import COMMON, SPEED, TRAINING, UNREAD, Key, Only, Used
from .weights import Arrays, Weights

Windows = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Form:
    """What differs between families.

    It is which layers have biases (a key says so, or it is known), whether queries and keys are normed, and how far
    each layer looks back.
    """

    qkv_bias: str | bool
    out_bias: str | bool
    mlp_bias: str | bool
    normed: bool
    windows: Callable[[Config, int], Windows]


def llama(config: Config, weights: Arrays) -> Family:
    """The decoder, with logits where it is a language model."""
    form = FORMS[config.model_type]
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    shared = config.integer("num_key_value_heads", heads)
    if heads % shared:
        raise InputError(
            f"{config.file}: num_attention_heads = {heads} is no multiple of num_key_value_heads = {shared}"
        )
    sizes = config.sizes("vocab_size", "hidden_size", "intermediate_size")
    size = config.integer("head_dim", sizes["hidden_size"] // heads)
    sizes |= {QUERIES: heads * size, SHARED: shared * size}
    eps, act = config.number("rms_norm_eps"), config.activation("hidden_act")
    rates, windows = rotary_rates(config, size), form.windows(config, layers)
    qkv_bias, out_bias, mlp_bias = (
        config.flag(flag) if isinstance(flag, str) else flag for flag in (form.qkv_bias, form.out_bias, form.mlp_bias)
    )
    prefix = prefix_of(weights, config, "norm.weight", "model.", "")
    causal = is_causal(config, weights, prefix)
    table = tied(config, weights, "lm_head.weight", f"{prefix}embed_tokens.weight") if causal else ""

    def attention(own: Weights, number: int, x: Array, positions: Array, attend: Attend) -> Array:
        q = split_heads(own.linear("q_proj", x, QUERIES, bias=qkv_bias), heads)
        k, v = (split_heads(own.linear(name, x, SHARED, bias=qkv_bias), shared) for name in ("k_proj", "v_proj"))
        if form.normed:
            q, k = own.rms_norm("q_norm", q, eps), own.rms_norm("k_norm", k, eps)
        turned = rotary(positions, rates)
        looked = attend(number, rotated(q, turned), rotated(k, turned), v, size**-0.5)
        return own.linear("o_proj", join_heads(looked), "hidden_size", bias=out_bias)

    def embed(params: Params, ids: Array, positions: Array) -> Array:
        return Weights(params, sizes, prefix).embedding("embed_tokens", ids, "vocab_size", "hidden_size")

    def layer(params: Params, number: int, x: Array, positions: Array, attend: Attend) -> Array:
        own = Weights(params, sizes, f"{prefix}layers.{number}.")
        normed = own.rms_norm("input_layernorm", x, eps)
        x = x + attention(own.at("self_attn"), number, normed, positions, attend)
        y, near = own.rms_norm("post_attention_layernorm", x, eps), own.at("mlp")
        gate, up = (near.linear(name, y, "intermediate_size", bias=mlp_bias) for name in ("gate_proj", "up_proj"))
        return x + near.linear("down_proj", act(gate) * up, "hidden_size", bias=mlp_bias)

    def normed(params: Params, x: Array) -> Array:
        return Weights(params, sizes, prefix).rms_norm("norm", x, eps)

    def head(params: Params, x: Array) -> Array:
        return normed(params, x) @ Weights(params, sizes)(table, "vocab_size", "hidden_size").T

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids, keys = inputs[IDS.name], key_mask(inputs)
        length = ids.shape[1]
        masks = {window: both(causal_mask(length, window), keys) for window in dict.fromkeys(windows)}
        attend, positions = whole(masks, windows), mnp.arange(length)[None]
        x = embed(params, mnp.asarray(ids), positions)
        for number in range(layers):
            x = layer(params, number, x, positions, attend)
        return {"logits": head(params, x)} if causal else {"last_hidden_state": normed(params, x)}

    positions_max = config.integer("max_position_embeddings")
    decoder = Decoder(embed, layer, head, windows, shared, size, positions_max, f"{prefix}embed_tokens.weight")
    outputs = ("logits",) if causal else ("last_hidden_state",)
    return Family((IDS, MASK), outputs, function, decoder if causal else None)


QUERIES, SHARED = "num_attention_heads * head_dim", "num_key_value_heads * head_dim"


def _no_windows(config: Config, layers: int) -> Windows:
    return (None,) * layers


def _same_windows(config: Config, layers: int) -> Windows:
    """Mistral: every layer alike."""
    return (_window(config),) * layers


def _window(config: Config) -> int | None:
    return None if config["sliding_window"] is None else config.integer("sliding_window")


def _windows_by_layer(config: Config, layers: int) -> Windows:
    """Qwen: layers say of what kind they are; else those from `max_window_layers` on look back so far, if any do."""
    window = _window(config) if config.flag("use_sliding_window") else None
    kinds, first = config["layer_types"], config.integer("max_window_layers", least=0)
    if kinds is None:
        return tuple([None if number < first else window for number in range(layers)])
    by_kind = {"full_attention": None, "sliding_attention": window}
    if not isinstance(kinds, list) or len(kinds) != layers or not by_kind.keys() >= set(kinds):
        raise config.unknown("layer_types", kinds, [f"a list of {layers}, of these: {', '.join(by_kind)}"])
    if window is None and "sliding_attention" in kinds:
        raise InputError(
            f"{config.file}: layer_types has sliding_attention, and use_sliding_window is false, or no window is told",
            next_step="Set use_sliding_window and sliding_window, or write full_attention",
        )
    return tuple([by_kind[kind] for kind in kinds])


# -- rotary positions: Su et al., 2021 (arXiv 2104.09864) --------------------------------------------------


def rotary_rates(config: Config, size: int) -> NDArray[np.float32]:
    """Radians per position of each pair, f32 (size / 2,)."""
    key, scaling = "rope_scaling", config["rope_scaling"]
    if not scaling:
        key, scaling = "rope_parameters", config["rope_parameters"] or {}
    if not isinstance(scaling, Mapping):
        raise InputError(f"{config.file}: {key} is an object, got {scaling!r:.60}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SCALINGS:
        raise config.unknown(f"{key}.rope_type", kind, SCALINGS)
    names, scaled = SCALINGS[kind]
    strange = sorted(scaling.keys() - {"rope_type", "type", "rope_theta", *names})
    if strange:
        known = [f"{', '.join(names) or 'none'} of rope_type {kind!r}"]
        raise config.unknown(f"{key}.{strange[0]}", scaling[strange[0]], known)
    settings = {"rope_theta": config.number("rope_theta"), **scaling}
    if "original_max_position_embeddings" in names:
        settings.setdefault("original_max_position_embeddings", config.integer("max_position_embeddings"))
    numbers = {}
    for name in ("rope_theta", *names):
        value = settings.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise InputError(f"{config.file}: {key}.{name} is a positive number, got {value!r}")
        numbers[name] = float(value)
    rates = numbers["rope_theta"] ** -(np.arange(0, size, 2) / size)
    return np.asarray(scaled(rates, numbers), np.float32)


def _llama3(rates: NDArray[np.float64], scaling: Mapping[str, float]) -> NDArray[np.float64]:
    """Slow pairs are slowed by `factor`, quick ones stay, those between are mixed."""
    waves = 2 * math.pi / rates
    old, low, high = (
        scaling["original_max_position_embeddings"],
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
    )
    mix = np.clip((old / waves - low) / (high - low), 0, 1)
    return (1 - mix) * rates / scaling["factor"] + mix * rates


Scaling = Callable[[NDArray[np.float64], Mapping[str, float]], NDArray[np.float64]]
SCALINGS: dict[str, tuple[tuple[str, ...], Scaling]] = {  # the settings of each kind, and what it makes of the rates
    "default": ((), lambda rates, given: rates),
    "linear": (("factor",), lambda rates, given: rates / given["factor"]),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), _llama3),
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


# -- model types

FORMS = {
    "llama": _Form("attention_bias", "attention_bias", "mlp_bias", False, _no_windows),
    "mistral": _Form(False, False, False, False, _same_windows),
    "qwen2": _Form(True, False, False, False, _windows_by_layer),
    "qwen3": _Form("attention_bias", "attention_bias", False, True, _windows_by_layer),
}
KEYS: dict[str, Key] = {
    **COMMON,
    "attention_dropout": TRAINING,
    "hidden_act": Used("silu"),
    "hidden_size": Used(4096),
    "max_position_embeddings": Used(2048),
    "num_attention_heads": Used(32),
    "num_hidden_layers": Used(32),
    "num_key_value_heads": Used(None),
    "partial_rotary_factor": Only((1.0,)),
    "rms_norm_eps": Used(1e-6),
    "rope_parameters": Used(None),
    "rope_scaling": Used(None),
    "rope_theta": Used(10_000.0),
    "tie_word_embeddings": Used(False),
}
LLAMA_KEYS: dict[str, Key] = {
    **KEYS,
    "attention_bias": Used(False),
    "eos_token_id": Used(2),
    "head_dim": Used(None),
    "intermediate_size": Used(11008),
    "is_llama_config": UNREAD,
    "mlp_bias": Used(False),
    "pretraining_tp": SPEED,
    "rope_interleaved": Only((False,)),
    "vocab_size": Used(32000),
}
MISTRAL_KEYS: dict[str, Key] = {
    **KEYS,
    "eos_token_id": Used(2),
    "head_dim": Used(None),
    "intermediate_size": Used(14336),
    "max_position_embeddings": Used(131072),
    "num_key_value_heads": Used(8),
    "sliding_window": Used(4096),
    "vocab_size": Used(32000),
}
QWEN2_KEYS: dict[str, Key] = {
    **KEYS,
    "head_dim": Used(None),
    "intermediate_size": Used(22016),
    "layer_types": Used(None),
    "max_position_embeddings": Used(32768),
    "max_window_layers": Used(28),
    "num_key_value_heads": Used(32),
    "sliding_window": Used(4096),
    "use_mrope": Only((False,)),
    "use_sliding_window": Used(False),
    "vocab_size": Used(151936),
}
QWEN3_KEYS: dict[str, Key] = {**QWEN2_KEYS, "attention_bias": Used(False), "head_dim": Used(128)}
LEFT = {r"rotary_emb\.inv_freq$": "it is computed from rope_theta"}


def _kind(name: str, keys: dict[str, Key]) -> Kind:
    return Kind(keys, (f"{name}Model", f"{name}ForCausalLM"), llama, LEFT)


LLAMA, MISTRAL = _kind("Llama", LLAMA_KEYS), _kind("Mistral", MISTRAL_KEYS)
QWEN2, QWEN3 = _kind("Qwen2", QWEN2_KEYS), _kind("Qwen3", QWEN3_KEYS)
