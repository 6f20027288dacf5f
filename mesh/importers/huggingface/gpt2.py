"""GPT-2: a decoder with learned positions.  Radford et al., 2019."""

from __future__ import annotations

from collections.abc import Mapping

from ...array import Array
from ...model import Value
from ...nn import embedding
from ...nn.attention import join_heads, scaled_dot_product_attention, split_heads
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

    def layer(weights: Weights, x: Array, mask: Array | None, number: int) -> Array:
        scale = (size**-0.5 if scaled else 1.0) / (number + 1 if by_layer else 1)
        width = x.shape[-1]
        qkv = project(weights, "attn.c_attn", weights.layer_norm("ln_1", x, eps))
        q, k, v = (split_heads(qkv[..., place * width : (place + 1) * width], heads) for place in range(3))
        looked = scaled_dot_product_attention(q, k, v, mask, scale=scale)
        x = x + project(weights, "attn.c_proj", join_heads(looked))
        wide = act(project(weights, "mlp.c_fc", weights.layer_norm("ln_2", x, eps)))
        return x + project(weights, "mlp.c_proj", wide)

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids, weights = inputs[IDS.name], Weights(params, prefix)
        length = ids.shape[1]
        check_length(length, weights("wpe.weight"))
        mask = both(causal_mask(length), key_mask(inputs))
        x = embedding(ids, weights("wte.weight")) + weights("wpe.weight")[:length]
        for number in range(layers):
            x = layer(weights.at(f"h.{number}"), x, mask, number)
        x = weights.layer_norm("ln_f", x, eps)
        if not causal:
            return {"last_hidden_state": x}
        return {"logits": x @ params.get("lm_head.weight", weights("wte.weight")).T}

    return Family((IDS, MASK), ("logits",) if causal else ("last_hidden_state",), function, prefix, ("lm_head.",))
