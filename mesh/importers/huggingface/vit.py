"""ViT: an encoder of image patches.  Dosovitskiy et al., 2020 (arXiv 2010.11929)."""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import InputError

from ... import numpy as mnp
from ...core.array import Array
from ...models.model import InputSpec, Value
from ...nn.attention import join_heads, scaled_dot_product_attention, split_heads
from .bert import LABELS
from .config import Config
from .family import PIXELS, Family, Head, Kind, Top, architectures, heads_of, prefix_of
from .keys import COMMON, TRAINING, Key, Same, Used
from .weights import Arrays, Weights


def vit(config: Config, weights: Arrays) -> Family:
    """The encoder, and the classifier where its weights are there."""
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    eps, act, pooler_act = (
        config.number("layer_norm_eps"),
        config.activation("hidden_act"),
        config.activation("pooler_act"),
    )
    image, patch, qkv_bias = _pair(config, "image_size"), _pair(config, "patch_size"), config.flag("qkv_bias")
    rows, columns = image[0] // patch[0], image[1] // patch[1]
    if not rows or not columns:
        raise InputError(f"{config.file}: patch_size = {config['patch_size']} is more than {config['image_size']}")
    sizes = config.sizes("hidden_size", "intermediate_size", "num_channels")
    sizes |= {"patches + 1": rows * columns + 1, LABELS: config.labels}
    sizes |= {HEADS_WIDTH: sizes["hidden_size"] // heads * heads, "patch height": patch[0], "patch width": patch[1]}
    sizes |= {"pooler_output_size": config.integer("pooler_output_size", sizes["hidden_size"])}
    prefix = prefix_of(weights, config, "embeddings.cls_token", "vit.", "")
    pooled = ("pooler_output",) if prefix + "pooler.dense.weight" in weights else ()
    base = ("last_hidden_state", *pooled)
    tops = heads_of(HEADS, "ViT", config, weights, prefix, base)

    def embedded(params: Weights, pixels: Array) -> Array:
        batch, channels, height, width = pixels.shape
        if (height, width) != image:
            raise InputError(f"this model takes images of {image[0]} by {image[1]}, got {height} by {width}")
        pixels = pixels[:, :, : rows * patch[0], : columns * patch[1]]  # a convolution leaves out what fills no patch
        tiles = mnp.reshape(pixels, (batch, channels, rows, patch[0], columns, patch[1]))
        tiles = mnp.reshape(
            mnp.permute_dims(tiles, (0, 2, 4, 1, 3, 5)), (batch, rows * columns, channels * patch[0] * patch[1])
        )
        near = params.at("patch_embeddings.projection")
        kernel = near("weight", "hidden_size", "num_channels", "patch height", "patch width")
        tiles = mnp.astype(tiles, kernel.dtype)
        x = tiles @ mnp.reshape(kernel, (kernel.shape[0], -1)).T + near("bias", "hidden_size")
        first = mnp.broadcast_to(params("cls_token", 1, 1, "hidden_size"), (batch, 1, x.shape[-1]))
        return mnp.concat([first, x], axis=1) + params("position_embeddings", 1, "patches + 1", "hidden_size")

    def layer(params: Weights, x: Array) -> Array:
        near, y = params.at("attention.attention"), params.layer_norm("layernorm_before", x, eps)
        q, k, v = (
            split_heads(near.linear(name, y, HEADS_WIDTH, bias=qkv_bias), heads) for name in ("query", "key", "value")
        )
        looked = join_heads(scaled_dot_product_attention(q, k, v))
        x = x + params.linear("attention.output.dense", looked, "hidden_size")
        y = params.layer_norm("layernorm_after", x, eps)
        wide = act(params.linear("intermediate.dense", y, "intermediate_size"))
        return x + params.linear("output.dense", wide, "hidden_size")

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        own, top = Weights(params, sizes, prefix), Weights(params, sizes)
        x = embedded(own.at("embeddings"), mnp.asarray(inputs[PIXELS.name]))
        for number in range(layers):
            x = layer(own.at(f"encoder.layer.{number}"), x)
        x = own.layer_norm("layernorm", x, eps)
        results = {"last_hidden_state": x}
        if pooled:
            results["pooler_output"] = pooler_act(own.linear("pooler.dense", x[:, 0], "pooler_output_size"))
        return results | {output: head(top, results) for output, head in tops.items()}

    pixels = InputSpec(PIXELS.name, PIXELS.dtype, ("batch", sizes["num_channels"], *image))
    return Family((pixels,), (*base, *tops), function)


HEADS_WIDTH = "num_attention_heads * size of a head"


def _pair(config: Config, key: str) -> tuple[int, int]:
    """Height and width: a list of both, or a number for both."""
    value = config[key]
    if not isinstance(value, list):
        return (config.integer(key),) * 2
    if len(value) != 2 or not all(type(size) is int and size > 0 for size in value):
        raise InputError(f"{config.file}: {key} is a positive integer, or a list of two, got {value!r:.60}")
    return value[0], value[1]


def _classifier(config: Config, weights: Arrays, prefix: str) -> Top:
    return lambda top, results: top.linear("classifier", results["last_hidden_state"][:, 0], LABELS)


HEADS = (Head("logits", "classifier.weight", ("ForImageClassification",), _classifier),)
KEYS: dict[str, Key] = {
    **COMMON,
    "attention_probs_dropout_prob": TRAINING,
    "encoder_stride": Same("only the head of ViTForMaskedImageModeling reads it"),
    "hidden_act": Used("gelu"),
    "hidden_dropout_prob": TRAINING,
    "hidden_size": Used(768),
    "image_size": Used(224),
    "intermediate_size": Used(3072),
    "layer_norm_eps": Used(1e-12),
    "num_attention_heads": Used(12),
    "num_channels": Used(3),
    "num_hidden_layers": Used(12),
    "patch_size": Used(16),
    "pooler_act": Used("tanh"),
    "pooler_output_size": Used(None),
    "qkv_bias": Used(True),
}
VIT = Kind(KEYS, architectures("ViT", HEADS), vit)
