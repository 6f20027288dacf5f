"""GPT-2: a decoder with learned positions.  Radford et al., 2019."""

from __future__ import annotations

from collections.abc import Mapping

from ... import numpy as mnp
from ...core.array import Array
from ...models.decoder import Attend, Decoder, Params, whole
from ...models.model import Value
from ...nn.attention import join_heads, split_heads
from .config import Config
from .family import IDS, MASK, Family, Kind, both, causal_mask, check_length, is_causal, key_mask, prefix_of, tied
from .keys import COMMON, FORM, SPEED, TRAINING, Key, Only, Same, Used
from .weights import Arrays, Weights


def gpt2(config: Config, weights: Arrays) -> Family:
    """The decoder, with logits where it is a language model."""
    layers, heads = config.integer("n_layer"), config.heads("n_head", "n_embd")
    eps, act = config.number("layer_norm_epsilon"), config.activation("activation_function")
    scaled, by_layer = config.flag("scale_attn_weights"), config.flag("scale_attn_by_inverse_layer_idx")
    sizes = config.sizes("vocab_size", "n_positions", "n_embd")
    width, size = sizes["n_embd"], sizes["n_embd"] // heads
    sizes |= {"3 * n_embd": 3 * width, "n_inner": config.integer("n_inner", 4 * width)}
    prefix = prefix_of(weights, config, "ln_f.weight", "transformer.", "")
    causal = is_causal(config, weights, prefix)
    table = tied(config, weights, "lm_head.weight", f"{prefix}wte.weight") if causal else ""

    def project(own: Weights, name: str, x: Array, out: str) -> Array:
        """Weights lie (in, out) here, unlike everywhere else."""
        return x @ own(f"{name}.weight", x.shape[-1], out) + own(f"{name}.bias", out)

    def embed(params: Params, ids: Array, positions: Array) -> Array:
        own = Weights(params, sizes, prefix)
        x = own.embedding("wte", ids, "vocab_size", "n_embd")
        return x + own.embedding("wpe", positions, "n_positions", "n_embd")

    def layer(params: Params, number: int, x: Array, positions: Array, attend: Attend) -> Array:
        own = Weights(params, sizes, f"{prefix}h.{number}.")
        scale = (size**-0.5 if scaled else 1.0) / (number + 1 if by_layer else 1)
        qkv = project(own, "attn.c_attn", own.layer_norm("ln_1", x, eps), "3 * n_embd")
        q, k, v = (split_heads(qkv[..., place * width : (place + 1) * width], heads) for place in range(3))
        x = x + project(own, "attn.c_proj", join_heads(attend(number, q, k, v, scale)), "n_embd")
        wide = act(project(own, "mlp.c_fc", own.layer_norm("ln_2", x, eps), "n_inner"))
        return x + project(own, "mlp.c_proj", wide, "n_embd")

    def normed(params: Params, x: Array) -> Array:
        return Weights(params, sizes, prefix).layer_norm("ln_f", x, eps)

    def head(params: Params, x: Array) -> Array:
        return normed(params, x) @ Weights(params, sizes)(table, "vocab_size", "n_embd").T

    windows = (None,) * layers

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        ids = inputs[IDS.name]
        length = ids.shape[1]
        check_length(length, sizes["n_positions"])
        attend = whole({None: both(causal_mask(length), key_mask(inputs))}, windows)
        positions = mnp.arange(length)[None]
        x = embed(params, mnp.asarray(ids), positions)
        for number in range(layers):
            x = layer(params, number, x, positions, attend)
        return {"logits": head(params, x)} if causal else {"last_hidden_state": normed(params, x)}

    decoder = Decoder(embed, layer, head, windows, heads, size, sizes["n_positions"], f"{prefix}wte.weight")
    outputs = ("logits",) if causal else ("last_hidden_state",)
    return Family((IDS, MASK), outputs, function, decoder if causal else None)


KEYS: dict[str, Key] = {
    **COMMON,
    "activation_function": Used("gelu_new"),
    "add_cross_attention": Only((False,)),
    "attn_pdrop": TRAINING,
    "embd_pdrop": TRAINING,
    "eos_token_id": Used(50256),
    "layer_norm_epsilon": Used(1e-5),
    "n_ctx": Same("no model code of transformers reads it; n_positions says it"),
    "n_embd": Used(768),
    "n_head": Used(12),
    "n_inner": Used(None),
    "n_layer": Used(12),
    "n_positions": Used(1024),
    "predict_special_tokens": FORM,
    "reorder_and_upcast_attn": SPEED,
    "resid_pdrop": TRAINING,
    "scale_attn_by_inverse_layer_idx": Used(False),
    "scale_attn_weights": Used(True),
    **dict.fromkeys(
        ("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
        Same("only the head of GPT2DoubleHeadsModel reads it"),
    ),
    "tie_word_embeddings": Used(True),
    "vocab_size": Used(50257),
}
LEFT = {r"\.attn\.(masked_)?bias$": "the causal mask, which is known"}
GPT2 = Kind(KEYS, ("GPT2Model", "GPT2LMHeadModel"), gpt2, LEFT)
