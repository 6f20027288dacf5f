"""BERT and RoBERTa: encoders with absolute positions.  Devlin et al., 2018 (arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wire.errors import InputError

from ... import nn
from ... import numpy as mnp
from ...core.array import Array
from ...models.model import Value
from ...nn.attention import join_heads, scaled_dot_product_attention, split_heads
from ...numpy.promotion import cast
from .config import Config
from .family import (
    IDS,
    MASK,
    TYPES,
    Family,
    Head,
    Kind,
    Top,
    architectures,
    check_length,
    heads_of,
    key_mask,
    prefix_of,
    tied,
)
from .keys import COMMON, DECODING, TRAINING, UNREAD, Key, Only, Used
from .weights import Arrays, Weights

LABELS = "number of labels"


def bert(config: Config, weights: Arrays) -> Family:
    """The encoder of BERT, and the heads whose weights are there."""
    return _encoder(config, weights, "Bert", ("bert.", ""), BERT_HEADS, None)


def roberta(config: Config, weights: Arrays) -> Family:
    """RoBERTa counts positions from behind the padding token's id, and padding tokens have that very position."""
    name = "XLMRoberta" if config.model_type == "xlm-roberta" else "Roberta"
    return _encoder(config, weights, name, ("roberta.", ""), ROBERTA_HEADS, config.integer("pad_token_id", least=0))


def _encoder(
    config: Config, weights: Arrays, name: str, prefixes: tuple[str, ...], rows: tuple[Head, ...], padding: int | None
) -> Family:
    layers, heads = config.integer("num_hidden_layers"), config.heads("num_attention_heads", "hidden_size")
    eps, act = config.number("layer_norm_eps"), config.activation("hidden_act")
    prefix = prefix_of(weights, config, "embeddings.LayerNorm.weight", *prefixes)
    keys = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size")
    sizes = {**config.sizes(*keys), LABELS: config.labels}
    positions_max = sizes["max_position_embeddings"] - (0 if padding is None else padding + 1)
    pooled = ("pooler_output",) if prefix + "pooler.dense.weight" in weights else ()
    base = ("last_hidden_state", *pooled)
    tops = heads_of(rows, name, config, weights, prefix, base)

    def embedded(params: Weights, inputs: Mapping[str, Value]) -> Array:
        ids = inputs[IDS.name]
        types = inputs.get(TYPES.name, mnp.zeros((1, 1), dtype=mnp.int32))
        positions = mnp.arange(ids.shape[1])[None, :] if padding is None else _roberta_positions(ids, padding)
        check_length(ids.shape[1], positions_max)
        tables = (("word", ids, "vocab_size"), ("position", positions, "max_position_embeddings"),
                  ("token_type", types, "type_vocab_size"))  # fmt: skip
        rows = [params.embedding(f"{name}_embeddings", places, count, "hidden_size") for name, places, count in tables]
        if config.dtype is not None:  # weights of fewer bits stay as they are
            rows = [cast(row, config.dtype) for row in rows]
        return params.layer_norm("LayerNorm", rows[0] + rows[1] + rows[2], eps)

    def layer(params: Weights, x: Array, mask: Array | None) -> Array:
        near = params.at("attention.self")
        q, k, v = (split_heads(near.linear(part, x, "hidden_size"), heads) for part in ("query", "key", "value"))
        looked, near = join_heads(scaled_dot_product_attention(q, k, v, mask)), params.at("attention.output")
        x = near.layer_norm("LayerNorm", near.linear("dense", looked, "hidden_size") + x, eps)
        wide = act(params.linear("intermediate.dense", x, "intermediate_size"))
        return params.layer_norm("output.LayerNorm", params.linear("output.dense", wide, "hidden_size") + x, eps)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        own, top, mask = Weights(params, sizes, prefix), Weights(params, sizes), key_mask(inputs)
        x = embedded(own.at("embeddings"), inputs)
        for number in range(layers):
            x = layer(own.at(f"encoder.layer.{number}"), x, mask)
        results = {"last_hidden_state": x}
        if pooled:
            results["pooler_output"] = mnp.tanh(own.linear("pooler.dense", x[:, 0], "hidden_size"))
        return results | {output: head(top, results) for output, head in tops.items()}

    return Family((IDS, MASK, TYPES), (*base, *tops), function, positions_max=positions_max)


def _roberta_positions(ids: Value, padding: int) -> Array:
    real = mnp.astype(mnp.asarray(ids) != padding, mnp.int32)
    return mnp.cumulative_sum(real, axis=1) * real + padding


# -- heads


def _masked_lm(config: Config, weights: Arrays, prefix: str) -> Top:
    act, eps, own = config.activation("hidden_act"), config.number("layer_norm_eps"), "cls.predictions"
    table = tied(config, weights, f"{own}.decoder.weight", f"{prefix}embeddings.word_embeddings.weight")
    bias = _bias(config, weights, own)

    def head(top: Weights, results: Mapping[str, Array]) -> Array:
        x = act(top.linear(f"{own}.transform.dense", results["last_hidden_state"], "hidden_size"))
        x = top.layer_norm(f"{own}.transform.LayerNorm", x, eps)
        return top.logits(table, x, "vocab_size", "hidden_size") + top(bias, "vocab_size")

    return head


def _bias(config: Config, weights: Arrays, head: str) -> str:
    """The name of a decoder's bias.  An untied decoder has its own; the head's is kept beside, and never added."""
    name = tied(config, weights, f"{head}.decoder.bias", f"{head}.bias")
    if name.endswith("decoder.bias"):
        weights.pop(f"{head}.bias", None)
    return name


def _roberta_lm(config: Config, weights: Arrays, prefix: str) -> Top:
    eps = config.number("layer_norm_eps")
    table = tied(config, weights, "lm_head.decoder.weight", f"{prefix}embeddings.word_embeddings.weight")
    bias = _bias(config, weights, "lm_head")

    def head(top: Weights, results: Mapping[str, Array]) -> Array:
        x = nn.gelu(
            top.linear("lm_head.dense", results["last_hidden_state"], "hidden_size")
        )  # whatever hidden_act says
        x = top.layer_norm("lm_head.layer_norm", x, eps)
        return top.logits(table, x, "vocab_size", "hidden_size") + top(bias, "vocab_size")

    return head


def _next_sentence(config: Config, weights: Arrays, prefix: str) -> Top:
    return lambda top, results: top.linear("cls.seq_relationship", results["pooler_output"], 2)


def _of_pooled(config: Config, weights: Arrays, prefix: str) -> Top:
    return lambda top, results: top.linear("classifier", results["pooler_output"], LABELS)


def _of_tokens(config: Config, weights: Arrays, prefix: str) -> Top:
    return lambda top, results: top.linear("classifier", results["last_hidden_state"], LABELS)


def _roberta_classifier(config: Config, weights: Arrays, prefix: str) -> Top:
    def head(top: Weights, results: Mapping[str, Array]) -> Array:
        own = top.at("classifier")
        first = mnp.tanh(own.linear("dense", results["last_hidden_state"][:, 0], "hidden_size"))
        return own.linear("out_proj", first, LABELS)

    return head


def _answer(place: int) -> Callable[[Config, Arrays, str], Top]:
    """Logits of each token to begin an answer, or to end it: two columns of one layer."""

    def make(config: Config, weights: Arrays, prefix: str) -> Top:
        if config.labels != 2:
            raise InputError(f"{config.file}: a head for question answering has 2 labels, got {config.labels}")
        return lambda top, results: top.linear("qa_outputs", results["last_hidden_state"], LABELS)[..., place]

    return make


ANSWERS = (
    Head("start_logits", "qa_outputs.weight", ("ForQuestionAnswering",), _answer(0)),
    Head("end_logits", "qa_outputs.weight", ("ForQuestionAnswering",), _answer(1)),
)
TOKENS = Head("logits", "classifier.weight", ("ForTokenClassification",), _of_tokens)
BERT_HEADS = (
    Head("logits", "cls.predictions.transform.dense.weight", ("ForMaskedLM", "ForPreTraining"), _masked_lm),
    Head(
        "seq_relationship_logits", "cls.seq_relationship.weight", ("ForPreTraining", "ForNextSentencePrediction"),
        _next_sentence, "pooler_output",
    ),
    Head("logits", "classifier.weight", ("ForSequenceClassification",), _of_pooled, "pooler_output"),
    TOKENS,
    *ANSWERS,
)  # fmt: skip
ROBERTA_HEADS = (
    Head("logits", "lm_head.dense.weight", ("ForMaskedLM",), _roberta_lm),
    Head("logits", "classifier.out_proj.weight", ("ForSequenceClassification",), _roberta_classifier),
    TOKENS,
    *ANSWERS,
)

# -- model types

KEYS: dict[str, Key] = {
    **COMMON,
    **DECODING,
    "attention_probs_dropout_prob": TRAINING,
    "hidden_act": Used("gelu"),
    "hidden_dropout_prob": TRAINING,
    "hidden_size": Used(768),
    "intermediate_size": Used(3072),
    "layer_norm_eps": Used(1e-12),
    "max_position_embeddings": Used(512),
    "num_attention_heads": Used(12),
    "num_hidden_layers": Used(12),
    "position_embedding_type": Only(("absolute",)),
    "tie_word_embeddings": Used(True),
    "type_vocab_size": Used(2),
    "vocab_size": Used(30522),
    **dict.fromkeys(
        ("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
         "pooler_size_per_head", "pooler_type"), UNREAD,
    ),
}  # fmt: skip
LEFT = {r"(^|\.)embeddings\.(position|token_type)_ids$": "numbers that are known: a count, and zeros"}
BERT = Kind(KEYS, architectures("Bert", BERT_HEADS), bert, LEFT)
ROBERTA_KEYS = {**KEYS, "eos_token_id": Used(2), "pad_token_id": Used(1)}
ROBERTA = Kind(
    {**ROBERTA_KEYS, "vocab_size": Used(50265)}, architectures("Roberta", ROBERTA_HEADS), roberta, LEFT
)  # fmt: skip
XLM_ROBERTA = Kind(ROBERTA_KEYS, architectures("XLMRoberta", ROBERTA_HEADS), roberta, LEFT)
