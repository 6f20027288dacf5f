"""ViT: an encoder of image patches.  Dosovitskiy et al., 2020 (arXiv 2010.11929)."""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import InputError

from ... import numpy as mnp
from ...array import Array
from ...model import InputSpec, Value
from ...nn.attention import join_heads, scaled_dot_product_attention, split_heads
from .config import PIXELS, Config, Family, Weights


def family(config: Config) -> Family:
    """The encoder, and the classifier where its weights are there."""
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    eps, act = config.number("layer_norm_eps", 1e-12), config.activation("hidden_act", "gelu")
    patch, image = config.integer("patch_size", 16), config.integer("image_size", 224)
    prefix = config.prefix("embeddings.cls_token", "hidden_size", "vit.", "")
    outputs = ["last_hidden_state"]
    outputs += ["pooler_output"] if prefix + "pooler.dense.weight" in config.weights else []
    outputs += ["logits"] if "classifier.weight" in config.weights else []

    def embedded(weights: Weights, pixels: Array) -> Array:
        batch, channels, height, width = pixels.shape
        if (height, width) != (image, image):
            raise InputError(f"this model takes images of {image} by {image}, got {height} by {width}")
        rows, columns = height // patch, width // patch
        tiles = mnp.reshape(pixels, (batch, channels, rows, patch, columns, patch))
        tiles = mnp.reshape(mnp.permute_dims(tiles, (0, 2, 4, 1, 3, 5)), (batch, rows * columns, -1))
        kernel = weights("patch_embeddings.projection.weight")
        x = tiles @ mnp.reshape(kernel, (kernel.shape[0], -1)).T + weights("patch_embeddings.projection.bias")
        first = mnp.broadcast_to(weights("cls_token"), (batch, 1, x.shape[-1]))
        return mnp.concat([first, x], axis=1) + weights("position_embeddings")

    def layer(weights: Weights, x: Array) -> Array:
        own, y = weights.at("attention.attention"), weights.layer_norm("layernorm_before", x, eps)
        q, k, v = (split_heads(own.linear(name, y), heads) for name in ("query", "key", "value"))
        looked = join_heads(scaled_dot_product_attention(q, k, v))
        x = x + weights.linear("attention.output.dense", looked)
        wide = act(weights.linear("intermediate.dense", weights.layer_norm("layernorm_after", x, eps)))
        return x + weights.linear("output.dense", wide)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        weights = Weights(params, prefix)
        x = embedded(weights.at("embeddings"), mnp.asarray(inputs[PIXELS.name]))
        for number in range(layers):
            x = layer(weights.at(f"encoder.layer.{number}"), x)
        x = weights.layer_norm("layernorm", x, eps)
        found = {"last_hidden_state": x}
        if "pooler_output" in outputs:
            found["pooler_output"] = mnp.tanh(weights.linear("pooler.dense", x[:, 0]))
        if "logits" in outputs:
            found["logits"] = Weights(params).linear("classifier", x[:, 0])
        return found

    pixels = InputSpec(PIXELS.name, PIXELS.dtype, ("batch", config.integer("num_channels", 3), image, image))
    return Family((pixels,), tuple(outputs), function, prefix, ("classifier.",))
