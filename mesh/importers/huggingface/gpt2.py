"""GPT-2: a decoder with learned positions.  Radford et al., 2019."""

from __future__ import annotations

from collections.abc import Mapping

from ... import numpy as mnp
from ...array import Array
from ...decoder import Attend, Decoder, Params, whole
from ...model import Value
from ...nn import embedding
from ...nn.attention import join_heads, split_heads
from .config import IDS, MASK, Config, Family, Weights, both, causal_mask, check_length, key_mask


def family(config: Config) -> Family:
    """The decoder, with logits where it is a language model."""
    layers, heads = config.integer("n_layer"), config.integer("n_head")
    eps, act = config.number("layer_norm_epsilon", 1e-5), config.activation("activation_function", "gelu_new")
    config.refuse("add_cross_attention", False)
    scaled, by_layer = bool(config.get("scale_attn_weights", True)), bool(config.get("scale_attn_by_inverse_layer_idx"))
    size = config.integer("n_embd") // heads
    prefix = config.prefix("wte.weight", "n_embd", "transformer.", "")
    causal = config.is_causal or prefix == "transformer."

    def project(weights: Weights, name: str, x: Array) -> Array:
        """Weights lie (in, out) here, unlike everywhere else."""
        return x @ weights(f"{name}.weight") + weights(f"{name}.bias")

    def embed(params: Params, ids: Array, positions: Array) -> Array:
        weights = Weights(params, prefix)
        return embedding(ids, weights("wte.weight")) + embedding(positions, weights("wpe.weight"))

    def layer(params: Params, number: int, x: Array, positions: Array, attend: Attend) -> Array:
        weights = Weights(params, f"{prefix}h.{number}.")
        scale = (size**-0.5 if scaled else 1.0) / (number + 1 if by_layer else 1)
        width = x.shape[-1]
        qkv = project(weights, "attn.c_attn", weights.layer_norm("ln_1", x, eps))
        q, k, v = (split_heads(qkv[..., place * width : (place + 1) * width], heads) for place in range(3))
        x = x + project(weights, "attn.c_proj", join_heads(attend(number, q, k, v, scale)))
        wide = act(project(weights, "mlp.c_fc", weights.layer_norm("ln_2", x, eps)))
        return x + project(weights, "mlp.c_proj", wide)

    def normed(params: Params, x: Array) -> Array:
        return Weights(params, prefix).layer_norm("ln_f", x, eps)

    def head(params: Params, x: Array) -> Array:
        return normed(params, x) @ params.get("lm_head.weight", Weights(params, prefix)("wte.weight")).T

    windows = (None,) * layers

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids = inputs[IDS.name]
        length = ids.shape[1]
        check_length(length, Weights(params, prefix)("wpe.weight"))
        attend = whole({None: both(causal_mask(length), key_mask(inputs))}, windows)
        positions = mnp.arange(length)[None]
        x = embed(params, mnp.asarray(ids), positions)
        for number in range(layers):
            x = layer(params, number, x, positions, attend)
        return {"logits": head(params, x)} if causal else {"last_hidden_state": normed(params, x)}

    decoder = Decoder(
        embed, layer, head, windows, heads, size, config.weights[f"{prefix}wpe.weight"][0], f"{prefix}wte.weight"
    )
    outputs = ("logits",) if causal else ("last_hidden_state",)
    return Family((IDS, MASK), outputs, function, prefix, ("lm_head.",), decoder if causal else None)
