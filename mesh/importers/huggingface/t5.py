"""The encoder of T5: relative positions as a bias of the scores.  Raffel et al., 2019 (arXiv 1910.10683)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.dtypes import F16, dtype_of

from ... import numpy as mnp
from ...core.array import Array
from ...models.model import Value
from ...nn import embedding
from ...nn.attention import join_heads, masked_value, scaled_dot_product_attention, split_heads
from .config import ACTIVATIONS, Config
from .family import IDS, MASK, Family, Kind, key_mask, prefix_of
from .keys import COMMON, TRAINING, Key, Only, Same, Used
from .weights import Arrays, Weights, tie

HEADS = "num_heads * d_kv"


def t5(config: Config, weights: Arrays) -> Family:
    """The encoder."""
    layers, heads = config.integer("num_layers"), config.integer("num_heads")
    eps = config.number("layer_norm_epsilon")
    buckets, far = config.integer("relative_attention_num_buckets"), config.integer("relative_attention_max_distance")
    if buckets < 4 or far <= buckets // 4:
        raise InputError(
            f"{config.file}: relative_attention_num_buckets = {buckets} is below 4, or relative_attention_max_distance "
            f"= {far} is no more than a quarter of it"
        )
    sizes = config.sizes("vocab_size", "d_model", "d_ff", "num_heads", "relative_attention_num_buckets")
    sizes |= {HEADS: heads * config.integer("d_kv")}
    gated, act = _feed_forward(config)
    prefix_of(weights, config, "encoder.final_layer_norm.weight", "")
    if dtype_of(weights["encoder.final_layer_norm.weight"]) is F16:  # where transformers leaves some in float32
        raise config.unknown("dtype", "float16", ["float32", "bfloat16"])
    tie(weights, "encoder.embed_tokens.weight", "shared.weight")  # whatever tie_word_embeddings says
    table = "encoder.embed_tokens.weight" if "encoder.embed_tokens.weight" in weights else "shared.weight"

    def bias(params: Weights, length: int, mask: Array | None) -> Array:
        """(batch or 1, heads, length, length), added to the scores of every layer."""
        name = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rows = params(name, "relative_attention_num_buckets", "num_heads")
        nearness = mnp.permute_dims(mnp.take(rows, mnp.asarray(_buckets(length, buckets, far)), axis=0), (2, 0, 1))[
            None
        ]
        return nearness if mask is None else mnp.where(mask, nearness, masked_value(nearness.type.dtype))

    def layer(weights: Weights, x: Array, added: Array) -> Array:
        own, y = weights.at("layer.0.SelfAttention"), weights.rms_norm("layer.0.layer_norm", x, eps)
        q, k, v = (split_heads(own.linear(name, y, HEADS, bias=False), heads) for name in "qkv")
        looked = join_heads(scaled_dot_product_attention(q, k, v, added, scale=1.0))
        x = x + own.linear("o", looked, "d_model", bias=False)
        own, y = weights.at("layer.1.DenseReluDense"), weights.rms_norm("layer.1.layer_norm", x, eps)
        first, *second = (own.linear(name, y, "d_ff", bias=False) for name in (("wi_0", "wi_1") if gated else ("wi",)))
        wide = act(first) * second[0] if gated else act(first)
        return x + own.linear("wo", wide, "d_model", bias=False)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids, own = inputs[IDS.name], Weights(params, sizes, "encoder.")
        x = embedding(ids, Weights(params, sizes)(table, "vocab_size", "d_model"))
        added = bias(own, ids.shape[1], key_mask(inputs))
        for number in range(layers):
            x = layer(own.at(f"block.{number}"), x, added)
        return {"last_hidden_state": own.rms_norm("final_layer_norm", x, eps)}

    return Family((IDS, MASK), ("last_hidden_state",), function)


def _feed_forward(config: Config) -> tuple[bool, Callable[[Array], Array]]:
    """Whether it has a gate, and its activation: two keys say so, which are stronger, or a word for both."""
    projection = config["feed_forward_proj"]
    if not isinstance(projection, str):
        raise config.unknown("feed_forward_proj", projection, ACTIVATIONS)
    kind = "gelu_new" if projection == "gated-gelu" else projection.removeprefix("gated-")
    key = "feed_forward_proj" if config["dense_act_fn"] is None else "dense_act_fn"
    if config["dense_act_fn"] is not None:
        kind = config["dense_act_fn"]
    if not isinstance(kind, str) or kind not in ACTIVATIONS:
        raise config.unknown(key, config[key], [*ACTIVATIONS, "gated- before one of these"])
    gated = projection.startswith("gated-") if config["is_gated_act"] is None else config.flag("is_gated_act")
    return gated, ACTIVATIONS[kind]


def _buckets(length: int, buckets: int, far: int) -> NDArray[np.int32]:
    """The row of the table for a query at i and a key at j.

    Near distances have one each, and far ones go by their logarithm, in both directions.
    """
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    half = buckets // 2
    exact = half // 2
    away = np.abs(distance)
    steps = np.log(np.maximum(away, 1) / exact) / math.log(far / exact) * (half - exact)
    coarse = np.minimum(exact + steps.astype(np.int32), half - 1)
    return np.asarray((distance > 0) * half + np.where(away < exact, away, coarse), np.int32)


DECODER = Same("only the decoder reads it, which is not loaded")
KEYS: dict[str, Key] = {
    **COMMON,
    "classifier_dropout": TRAINING,
    "d_ff": Used(2048),
    "d_kv": Used(64),
    "d_model": Used(512),
    "dense_act_fn": Used(None),
    "dropout_rate": TRAINING,
    "eos_token_id": Used(1),
    "feed_forward_proj": Used("relu"),
    "is_decoder": Only((False,)),
    "is_encoder_decoder": DECODER,
    "is_gated_act": Used(None),
    "layer_norm_epsilon": Used(1e-6),
    "n_positions": Same("positions are relative, and any number of tokens will do"),
    "num_decoder_layers": DECODER,
    "num_heads": Used(8),
    "num_layers": Used(6),
    "relative_attention_max_distance": Used(128),
    "relative_attention_num_buckets": Used(32),
    "scale_decoder_outputs": DECODER,
    "tie_word_embeddings": DECODER,
    "vocab_size": Used(32128),
}
T5 = Kind(
    KEYS, ("T5EncoderModel", "T5Model", "T5ForConditionalGeneration"), t5,
    dropped={r"^decoder\.": "the decoder", r"^lm_head\.weight$": "the head of the decoder"},
)  # fmt: skip
