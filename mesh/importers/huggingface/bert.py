"""BERT and RoBERTa: encoders with absolute positions.  Devlin et al., 2018 (arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ... import numpy as mnp
from ...array import Array
from ...model import Value
from ...nn import embedding
from ...nn.attention import join_heads, scaled_dot_product_attention, split_heads
from .config import IDS, MASK, TYPES, Config, Family, Weights, check_length, key_mask

Found = Mapping[str, Array]
Activation = Callable[[Array], Array]
Head = Callable[[Weights, Weights, Found, Activation, float], Array]


def family(config: Config) -> Family:
    """The encoder, and the head whose weights are there."""
    config.refuse("position_embedding_type", "absolute")
    config.refuse("is_decoder", False)
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    eps, act = config.number("layer_norm_eps", 1e-12), config.activation("hidden_act", "gelu")
    prefix = config.prefix("embeddings.word_embeddings.weight", "hidden_size", "bert.", "roberta.", "")
    # RoBERTa counts positions from behind the padding token's id, and padding tokens have that very position.
    padding = config.integer("pad_token_id", 1) if config.model_type != "bert" else None
    outputs = ["last_hidden_state"]
    outputs += [name for name, weight, _ in HEADS if weight in config.weights]
    if prefix + "pooler.dense.weight" in config.weights:
        outputs.insert(1, "pooler_output")

    def embedded(weights: Weights, inputs: Mapping[str, Value]) -> Array:
        ids = inputs[IDS.name]
        types = inputs.get(TYPES.name, mnp.zeros((1, 1), dtype=mnp.int32))
        positions = mnp.arange(ids.shape[1])[None, :] if padding is None else _roberta_positions(ids, padding)
        table = weights("position_embeddings.weight")
        check_length(ids.shape[1] + (0 if padding is None else padding + 1), table)
        x = embedding(ids, weights("word_embeddings.weight")) + embedding(positions, table)
        return weights.layer_norm("LayerNorm", x + embedding(types, weights("token_type_embeddings.weight")), eps)

    def layer(weights: Weights, x: Array, mask: Array | None) -> Array:
        own = weights.at("attention.self")
        q, k, v = (split_heads(own.linear(name, x), heads) for name in ("query", "key", "value"))
        looked = join_heads(scaled_dot_product_attention(q, k, v, mask))
        x = weights.layer_norm("attention.output.LayerNorm", weights.linear("attention.output.dense", looked) + x, eps)
        wide = act(weights.linear("intermediate.dense", x))
        return weights.layer_norm("output.LayerNorm", weights.linear("output.dense", wide) + x, eps)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        weights, mask = Weights(params, prefix), key_mask(inputs)
        x = embedded(weights.at("embeddings"), inputs)
        for number in range(layers):
            x = layer(weights.at(f"encoder.layer.{number}"), x, mask)
        found = {"last_hidden_state": x}
        if "pooler_output" in outputs:
            found["pooler_output"] = mnp.tanh(weights.linear("pooler.dense", x[:, 0]))
        for name, weight, head in HEADS:
            if name in outputs and weight in params:
                found[name] = head(Weights(params), weights, found, act, eps)
        return found

    known = [weight.split(".")[0] + "." for _, weight, _ in HEADS if weight in config.weights]
    return Family((IDS, MASK, TYPES), tuple(dict.fromkeys(outputs)), function, prefix, known)


def _roberta_positions(ids: Value, padding: int) -> Array:
    real = mnp.astype(mnp.asarray(ids) != padding, mnp.int32)
    return mnp.cumulative_sum(real, axis=1) * real + padding


def _masked_lm(top: Weights, base: Weights, found: Found, act: Activation, eps: float) -> Array:
    own = top.at("cls.predictions")
    x = own.layer_norm("transform.LayerNorm", act(own.linear("transform.dense", found["last_hidden_state"])), eps)
    table = own("decoder.weight") if "decoder.weight" in own else base("embeddings.word_embeddings.weight")
    return x @ table.T + own("bias")


def _roberta_lm(top: Weights, base: Weights, found: Found, act: Activation, eps: float) -> Array:
    own = top.at("lm_head")
    x = own.layer_norm("layer_norm", act(own.linear("dense", found["last_hidden_state"])), eps)
    table = own("decoder.weight") if "decoder.weight" in own else base("embeddings.word_embeddings.weight")
    return x @ table.T + own("bias")


def _classifier(top: Weights, base: Weights, found: Found, act: Activation, eps: float) -> Array:
    return top.linear("classifier", found.get("pooler_output", found["last_hidden_state"]))


def _roberta_classifier(top: Weights, base: Weights, found: Found, act: Activation, eps: float) -> Array:
    own = top.at("classifier")
    return own.linear("out_proj", mnp.tanh(own.linear("dense", found["last_hidden_state"][:, 0])))


# A head by the weight that shows that it is there.
HEADS: tuple[tuple[str, str, Head], ...] = (
    ("logits", "cls.predictions.bias", _masked_lm),
    ("logits", "lm_head.bias", _roberta_lm),
    ("logits", "classifier.weight", _classifier),
    ("logits", "classifier.out_proj.weight", _roberta_classifier),
)
