"""DistilBERT.  Sanh et al., 2019 (arXiv 1910.01108)."""

from __future__ import annotations

from collections.abc import Mapping

from ... import numpy as mnp
from ...array import Array
from ...model import Value
from ...nn import embedding, relu
from ...nn.attention import join_heads, scaled_dot_product_attention, split_heads
from .config import IDS, MASK, Config, Family, Weights, check_length, key_mask

EPS = 1e-12


def family(config: Config) -> Family:
    """The encoder, and the head whose weights are there."""
    layers, heads = config.integer("n_layers"), config.integer("n_heads")
    act = config.activation("activation", "gelu")
    prefix = config.prefix("embeddings.word_embeddings.weight", "dim", "distilbert.", "")
    head = next((name for name in HEADS if name in config.weights), None)
    outputs = ("last_hidden_state",) if head is None else ("last_hidden_state", "logits")

    def layer(weights: Weights, x: Array, mask: Array | None) -> Array:
        own = weights.at("attention")
        q, k, v = (split_heads(own.linear(name, x), heads) for name in ("q_lin", "k_lin", "v_lin"))
        looked = own.linear("out_lin", join_heads(scaled_dot_product_attention(q, k, v, mask)))
        x = weights.layer_norm("sa_layer_norm", looked + x, EPS)
        wide = weights.linear("ffn.lin2", act(weights.linear("ffn.lin1", x)))
        return weights.layer_norm("output_layer_norm", wide + x, EPS)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids, mask, weights = inputs[IDS.name], key_mask(inputs), Weights(params, prefix)
        own = weights.at("embeddings")
        x = embedding(ids, own("word_embeddings.weight"))
        check_length(ids.shape[1], own("position_embeddings.weight"))
        x = own.layer_norm("LayerNorm", x + own("position_embeddings.weight")[: ids.shape[1]], EPS)
        for number in range(layers):
            x = layer(weights.at(f"transformer.layer.{number}"), x, mask)
        found = {"last_hidden_state": x}
        top = Weights(params)
        if head == "vocab_projector.bias":
            y = top.layer_norm("vocab_layer_norm", act(top.linear("vocab_transform", x)), EPS)
            tied = "vocab_projector.weight" not in top
            table = weights("embeddings.word_embeddings.weight") if tied else top("vocab_projector.weight")
            found["logits"] = y @ mnp.matrix_transpose(table) + top("vocab_projector.bias")
        elif head == "pre_classifier.weight":
            found["logits"] = top.linear("classifier", relu(top.linear("pre_classifier", x[:, 0])))
        elif head is not None:
            found["logits"] = top.linear("classifier", x)
        return found

    return Family((IDS, MASK), outputs, function, prefix, HEADS.get(head or "", ()))


HEADS = {  # by the weight that shows that it is there: what its weights are called
    "vocab_projector.bias": ("vocab_projector.", "vocab_transform.", "vocab_layer_norm."),
    "pre_classifier.weight": ("pre_classifier.", "classifier."),
    "classifier.weight": ("classifier.",),
}
