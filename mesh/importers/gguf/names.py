"""The architectures of GGUF files, a row each: what their metadata and the names of their tensors are in config.json.

To add one: a row of ARCHITECTURES, with the model type whose decoder or encoder it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BLOCK = {  # of a layer, by the name in blk.N
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
SETTINGS = {  # by the key behind the architecture's name
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
WINDOW = {"attention.sliding_window": "sliding_window"}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
UNREAD = (  # what says nothing that a model computes by, or what other keys say
    "attention.value_length", "expert_feed_forward_length", "rope.dimension_count", "rope.scaling.factor",
    "rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.scaling.type", "tensor_data_layout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Experts:
    """The places of the weights of a mixture, and the keys of its settings."""

    router: str
    expert: str
    parts: Mapping[str, str]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model type, and that of its mixtures of experts; what its layers and settings have beside the common ones.

    `turned` queries and keys lie in pairs that are neighbours, where ours are half a head apart.  `known` are settings
    that are the same in all its files.  `shifted` norms have 1 in their factors, which ours add.  What does not decode,
    an encoder, has nothing in common with decoders: all its names are in `block`, `top` and `settings`.
    """

    model_type: str
    block: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, object] = field(default_factory=dict)
    turned: bool = False
    shifted: bool = False
    mixture: str = ""
    experts: Experts | None = None
    decodes: bool = True
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    layers: str = "model.layers"

    @property
    def names(self) -> Mapping[str, str]:
        """What the parts of a layer are called."""
        return {**BLOCK, **self.block} if self.decodes else self.block

    @property
    def keys(self) -> Mapping[str, str]:
        """What the settings are called."""
        return {**SETTINGS, **self.settings} if self.decodes else self.settings


QWEN_EXPERTS = Experts(
    "mlp.gate", "mlp.experts.{}",
    {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"},
    {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
     "expert_feed_forward_length": "moe_intermediate_size"},
)  # fmt: skip
MIXTRAL_EXPERTS = Experts(
    "block_sparse_moe.gate", "block_sparse_moe.experts.{}",
    {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"},
    {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
)  # fmt: skip
GEMMA_BLOCK = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
BERT_BLOCK = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
BERT_TOP = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
BERT_SETTINGS = {
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
}
POOLING = {1: "mean", 2: "first", 3: "last", 4: "rank"}  # what pooling_type says; 0 that a text has no embedding
ENCODER = ("attention.causal", "pooling_type")  # what encoders tell beside their settings
ARCHITECTURES: dict[str, Architecture] = {
    "bert": Architecture(
        "bert", BERT_BLOCK, BERT_SETTINGS, {"hidden_act": "gelu"}, decodes=False, top=BERT_TOP, layers="encoder.layer"
    ),
    "gemma": Architecture("gemma", shifted=True),
    "gemma2": Architecture("gemma2", GEMMA_BLOCK, {**WINDOW, **CAPS}, shifted=True),
    "gemma3": Architecture("gemma3_text", GEMMA_BLOCK, {**WINDOW, **CAPS}, shifted=True),
    "llama": Architecture("llama", turned=True, mixture="mixtral", experts=MIXTRAL_EXPERTS),
    "phi3": Architecture(
        "phi3", {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        {**WINDOW, "rope.scaling.original_context_length": "original_max_position_embeddings"},
    ),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture(
        "qwen3_moe", experts=QWEN_EXPERTS, mixture="qwen3_moe", known={"norm_topk_prob": True}
    ),
}  # fmt: skip
