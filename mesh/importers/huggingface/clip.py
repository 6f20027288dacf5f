"""CLIP: a tower for texts and one for images, whose results lie close together where they fit.

Radford et al., 2021 (arXiv 2103.00020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wire.errors import InputError

from ... import numpy as mnp
from ...core.array import Array, apply
from ...models.model import InputSpec, Value
from .config import Config
from .family import IDS, MASK, PIXELS, Family, Kind, both, causal_mask, check_length, key_mask, prefix_of
from .keys import COMMON, TRAINING, Key, Only, Same, Used
from .tower import Tower, tower_layer
from .weights import Arrays, Weights

Outputs = tuple[Array, Array]
"""The last hidden state (batch, n, width), and what is said of the whole (batch, width)."""
Side = Callable[[Weights, Mapping[str, Value]], Outputs]
NORMS, MAPS = ("layer_norm1", "layer_norm2"), ("mlp.fc1", "mlp.fc2")
END_OF_OLD_FILES = 2  # an eos_token_id that was wrong: the text ends at its greatest token
WIDTH = "projection_dim"


def text_side(config: Config, sizes: dict[str, int]) -> Side:
    """The tower that takes tokens; `sizes` are for its weights alone."""
    layers, tower = _tower(config, sizes)
    sizes |= config.sizes("vocab_size", "max_position_embeddings")
    end = config.integer("eos_token_id", least=0)

    def side(params: Weights, inputs: Mapping[str, Value]) -> Outputs:
        ids = mnp.asarray(inputs[IDS.name])
        length = ids.shape[1]
        check_length(length, sizes["max_position_embeddings"])
        near = params.at("embeddings")
        x = near.embedding("token_embedding", ids, "vocab_size", "hidden_size")
        positions = mnp.arange(length)[None]
        x = x + near.embedding("position_embedding", positions, "max_position_embeddings", "hidden_size")
        mask = both(causal_mask(length), key_mask(inputs))
        for number in range(layers):
            x = tower_layer(tower, params.at(f"encoder.layers.{number}"), x, mask)
        x = params.layer_norm("final_layer_norm", x, tower.eps)
        marks = ids if end == END_OF_OLD_FILES else mnp.astype(ids == end, mnp.int32)
        last = mnp.astype(mnp.argmax(marks, axis=1), mnp.int32)
        return x, apply("gather", x, last[:, None], axis=1, batch_dims=1)[:, 0]

    return side


def image_side(config: Config, sizes: dict[str, int]) -> Side:
    """The tower that takes pixels; `sizes` are for its weights alone."""
    layers, tower = _tower(config, sizes)
    image, patch = config.integer("image_size"), config.integer("patch_size")
    tiles = image // patch
    if not tiles:
        raise InputError(f"{config.file}: patch_size = {patch} is more than image_size = {image}")
    sizes |= config.sizes("num_channels", "patch_size") | {"patches + 1": tiles * tiles + 1}

    def side(params: Weights, inputs: Mapping[str, Value]) -> Outputs:
        pixels = mnp.asarray(inputs[PIXELS.name])
        batch, channels, height, width = pixels.shape
        if (height, width) != (image, image):
            raise InputError(f"this model takes images of {image} by {image}, got {height} by {width}")
        pixels = pixels[:, :, : tiles * patch, : tiles * patch]  # a convolution leaves out what fills no patch
        parts = mnp.reshape(pixels, (batch, channels, tiles, patch, tiles, patch))
        parts = mnp.reshape(
            mnp.permute_dims(parts, (0, 2, 4, 1, 3, 5)), (batch, tiles * tiles, channels * patch * patch)
        )
        near = params.at("embeddings")
        kernel = near("patch_embedding.weight", "hidden_size", "num_channels", "patch_size", "patch_size")
        x = mnp.astype(parts, kernel.dtype) @ mnp.reshape(kernel, (kernel.shape[0], -1)).T
        first = mnp.broadcast_to(near("class_embedding", "hidden_size"), (batch, 1, x.shape[-1]))
        x = mnp.concat([first, x], axis=1) + near("position_embedding.weight", "patches + 1", "hidden_size")
        x = params.layer_norm("pre_layrnorm", x, tower.eps)  # as the files spell it
        for number in range(layers):
            x = tower_layer(tower, params.at(f"encoder.layers.{number}"), x)
        return x, params.layer_norm("post_layernorm", x[:, 0], tower.eps)

    return side


def _tower(config: Config, sizes: dict[str, int]) -> tuple[int, Tower]:
    heads = config.heads("num_attention_heads", "hidden_size")
    sizes |= config.sizes("hidden_size", "intermediate_size")
    eps, act = config.number("layer_norm_eps"), config.activation("hidden_act")
    return config.integer("num_hidden_layers"), Tower(heads, "hidden_size", "intermediate_size", eps, act, NORMS, MAPS)


def clip(config: Config, weights: Arrays) -> Family:
    """Both towers, and how well each text fits each image."""
    texts, images = (
        config.nested(key, keys) for key, keys in (("text_config", TEXT_KEYS), ("vision_config", IMAGE_KEYS))
    )
    text_sizes, image_sizes = config.sizes(WIDTH), config.sizes(WIDTH)
    text, image = text_side(texts, text_sizes), image_side(images, image_sizes)
    prefix_of(weights, config, "logit_scale", "")

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        own = Weights(params, {})
        sides = []
        for side, sizes, name, projection in (
            (text, text_sizes, "text_model.", "text_projection"),
            (image, image_sizes, "vision_model.", "visual_projection"),
        ):  # fmt: skip
            _, pooled = side(Weights(params, sizes, name), inputs)
            projected = Weights(params, sizes).linear(projection, pooled, WIDTH, bias=False)
            sides.append(projected / mnp.sqrt(mnp.sum(projected * projected, axis=-1, keepdims=True)))
        fit = (sides[0] @ sides[1].T) * mnp.exp(own("logit_scale"))
        return {"logits_per_image": fit.T, "logits_per_text": fit, "text_embeds": sides[0], "image_embeds": sides[1]}

    names = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
    ids = [InputSpec(spec.name, spec.dtype, ("texts", "length"), optional=spec.optional) for spec in (IDS, MASK)]
    return Family((ids[0], _pixels(images), ids[1]), names, function)


def clip_text(config: Config, weights: Arrays) -> Family:
    """The tower for texts, with its projection where that is there."""
    sizes: dict[str, int] = {}
    return _one_side(
        config, weights, text_side(config, sizes), sizes, "embeddings.token_embedding.weight",
        ("text_model.", ""), "text_projection", "text_embeds", (IDS, MASK),
    )  # fmt: skip


def clip_image(config: Config, weights: Arrays) -> Family:
    """The tower for images, with its projection where that is there."""
    sizes: dict[str, int] = {}
    return _one_side(
        config, weights, image_side(config, sizes), sizes, "embeddings.class_embedding",
        ("vision_model.", ""), "visual_projection", "image_embeds", (_pixels(config),),
    )  # fmt: skip


def _one_side(
    config: Config, weights: Arrays, side: Side, sizes: dict[str, int], known: str, prefixes: tuple[str, ...],
    projection: str, output: str, inputs: tuple[InputSpec, ...],
) -> Family:  # fmt: skip
    prefix = prefix_of(weights, config, known, *prefixes)
    projected = f"{projection}.weight" in weights
    sizes |= config.sizes(WIDTH)

    def function(params: Mapping[str, Array], given: Mapping[str, Value]) -> dict[str, Array]:
        hidden, pooled = side(Weights(params, sizes, prefix), given)
        results = {"last_hidden_state": hidden, "pooler_output": pooled}
        if projected:
            results[output] = Weights(params, sizes).linear(projection, pooled, WIDTH, bias=False)
        return results

    outputs = "last_hidden_state", "pooler_output", *((output,) if projected else ())
    return Family(inputs, outputs, function, positions_max=sizes.get("max_position_embeddings"))


def _pixels(config: Config) -> InputSpec:
    size = config.integer("image_size")
    return InputSpec(PIXELS.name, PIXELS.dtype, ("images", config.integer("num_channels"), size, size))


KEYS: dict[str, Key] = {
    **COMMON,
    "logit_scale_init_value": Same("weights are drawn by it, and then read from the files"),
    "projection_dim": Used(512),
    "text_config": Used(None),
    "text_config_dict": Only((None,)),
    "vision_config": Used(None),
    "vision_config_dict": Only((None,)),
}
SIDE_KEYS: dict[str, Key] = {
    **COMMON,
    "attention_dropout": TRAINING,
    "dropout": TRAINING,
    "hidden_act": Used("quick_gelu"),
    "hidden_size": Used(512),
    "intermediate_size": Used(2048),
    "layer_norm_eps": Used(1e-5),
    "num_hidden_layers": Used(12),
    "projection_dim": Used(512),
}
TEXT_KEYS: dict[str, Key] = {
    **SIDE_KEYS,
    "eos_token_id": Used(49407),
    "max_position_embeddings": Used(77),
    "num_attention_heads": Used(8),
    "vocab_size": Used(49408),
}
IMAGE_KEYS: dict[str, Key] = {
    **SIDE_KEYS,
    "hidden_size": Used(768),
    "image_size": Used(224),
    "intermediate_size": Used(3072),
    "num_attention_heads": Used(12),
    "num_channels": Used(3),
    "patch_size": Used(32),
}
LEFT = {r"embeddings\.position_ids$": "numbers that are known: a count"}
MODEL = Kind(KEYS, ("CLIPModel",), clip, LEFT)
TEXT = Kind(TEXT_KEYS, ("CLIPTextModel", "CLIPTextModelWithProjection"), clip_text, LEFT)
IMAGE = Kind(IMAGE_KEYS, ("CLIPVisionModel", "CLIPVisionModelWithProjection"), clip_image, LEFT)
CLIP: dict[str, Kind] = {"clip": MODEL, "clip_text_model": TEXT, "clip_vision_model": IMAGE}
