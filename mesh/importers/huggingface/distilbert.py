"""DistilBERT.  Sanh et al., 2019 (arXiv 1910.01108)."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.array import Array
from ...models.model import Value
from ...nn import relu
from ...nn.attention import join_heads, scaled_dot_product_attention, split_heads
from .bert import ANSWERS, LABELS, TOKENS
from .config import Config
from .family import IDS, MASK, Family, Head, Kind, Top, architectures, check_length, heads_of, key_mask, prefix_of, tied
from .keys import COMMON, FIRST_VALUES, TRAINING, Key, Same, Used
from .weights import Arrays, Weights

EPS = 1e-12


def distilbert(config: Config, weights: Arrays) -> Family:
    """The encoder, and the head whose weights are there."""
    layers, heads = config.integer("n_layers"), config.heads("n_heads", "dim")
    act = config.activation("activation")
    prefix = prefix_of(weights, config, "embeddings.LayerNorm.weight", "distilbert.", "")
    sizes = {**config.sizes("vocab_size", "dim", "hidden_dim", "max_position_embeddings"), LABELS: config.labels}
    tops = heads_of(HEADS, "DistilBert", config, weights, prefix, ("last_hidden_state",))

    def layer(params: Weights, x: Array, mask: Array | None) -> Array:
        near = params.at("attention")
        q, k, v = (split_heads(near.linear(name, x, "dim"), heads) for name in ("q_lin", "k_lin", "v_lin"))
        looked = near.linear("out_lin", join_heads(scaled_dot_product_attention(q, k, v, mask)), "dim")
        x = params.layer_norm("sa_layer_norm", looked + x, EPS)
        wide = params.linear("ffn.lin2", act(params.linear("ffn.lin1", x, "hidden_dim")), "dim")
        return params.layer_norm("output_layer_norm", wide + x, EPS)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids, mask, own, top = inputs[IDS.name], key_mask(inputs), Weights(params, sizes, prefix), Weights(params, sizes)
        near, length = own.at("embeddings"), ids.shape[1]
        check_length(length, sizes["max_position_embeddings"])
        x = near.embedding("word_embeddings", ids, "vocab_size", "dim")
        x = x + near("position_embeddings.weight", "max_position_embeddings", "dim")[:length]
        x = near.layer_norm("LayerNorm", x, EPS)
        for number in range(layers):
            x = layer(own.at(f"transformer.layer.{number}"), x, mask)
        results = {"last_hidden_state": x}
        return results | {output: head(top, results) for output, head in tops.items()}

    outputs = "last_hidden_state", *tops
    return Family((IDS, MASK), outputs, function, positions_max=sizes["max_position_embeddings"])


def _masked_lm(config: Config, weights: Arrays, prefix: str) -> Top:
    act = config.activation("activation")
    table = tied(config, weights, "vocab_projector.weight", f"{prefix}embeddings.word_embeddings.weight")

    def head(top: Weights, results: Mapping[str, Array]) -> Array:
        x = act(top.linear("vocab_transform", results["last_hidden_state"], "dim"))
        x = top.layer_norm("vocab_layer_norm", x, EPS)
        return top.logits(table, x, "vocab_size", "dim") + top("vocab_projector.bias", "vocab_size")

    return head


def _classifier(config: Config, weights: Arrays, prefix: str) -> Top:
    def head(top: Weights, results: Mapping[str, Array]) -> Array:
        first = relu(top.linear("pre_classifier", results["last_hidden_state"][:, 0], "dim"))
        return top.linear("classifier", first, LABELS)

    return head


HEADS = (
    Head("logits", "vocab_transform.weight", ("ForMaskedLM",), _masked_lm),
    Head("logits", "pre_classifier.weight", ("ForSequenceClassification",), _classifier),
    TOKENS,
    *ANSWERS,
)
KEYS: dict[str, Key] = {
    **COMMON,
    "activation": Used("gelu"),
    "attention_dropout": TRAINING,
    "dim": Used(768),
    "dropout": TRAINING,
    "hidden_dim": Used(3072),
    "max_position_embeddings": Used(512),
    "n_heads": Used(12),
    "n_layers": Used(6),
    "qa_dropout": TRAINING,
    "seq_classif_dropout": TRAINING,
    "sinusoidal_pos_embds": FIRST_VALUES,
    "tie_weights_": Same("no model code of transformers reads it; tie_word_embeddings says it"),
    "tie_word_embeddings": Used(True),
    "vocab_size": Used(30522),
}
LEFT = {r"(^|\.)embeddings\.position_ids$": "a count that is known"}
DISTILBERT = Kind(KEYS, architectures("DistilBert", HEADS), distilbert, LEFT)
