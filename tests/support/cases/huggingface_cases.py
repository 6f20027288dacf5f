"""Small models of every family, with each key of their config.json changed alone: what the sweep is made of.

A case is a config.json and the weights beside it.  Weights are drawn by their names from a fixed generator, so that no
file of them is kept: `fill` gives the same values wherever it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from mesh.models.safetensors import save_safetensors

Shapes = Mapping[str, tuple[int, ...]]
ENCODER = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
    "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 0.01, "hidden_act": "gelu",
    "id2label": {"0": "A", "1": "B", "2": "C"}, "pad_token_id": 1, "tie_word_embeddings": True,
}  # fmt: skip
DECODER = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 20, "max_position_embeddings": 32, "rms_norm_eps": 0.01, "hidden_act": "silu",
    "rope_theta": 100.0, "tie_word_embeddings": False,
}  # fmt: skip
ALONE = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}
GEMMA = {
    **{key: value for key, value in DECODER.items() if key != "hidden_act"}, "head_dim": 4, "sliding_window": 3,
    "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
BASES: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "roberta": ENCODER,
    "xlm-roberta": ENCODER,
    "distilbert": {
        "vocab_size": 20, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 20, "max_position_embeddings": 16,
        "activation": "gelu", "id2label": {"0": "A", "1": "B", "2": "C"}, "tie_word_embeddings": True,
    },
    "gpt2": {
        "vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16, "layer_norm_epsilon": 0.01,
        "activation_function": "gelu_new", "tie_word_embeddings": True,
    },
    "llama": {**DECODER, "attention_bias": False, "mlp_bias": False},
    "mistral": {**DECODER, "sliding_window": 3},
    "qwen2": {**DECODER, **WINDOWS},
    "qwen3": {**DECODER, **WINDOWS, "head_dim": 4},
    "gemma": {**DECODER, "head_dim": 4, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": GEMMA,
    "gemma3_text": {**GEMMA, "sliding_window_pattern": 2, "rope_local_base_freq": 10.0},
    "phi3": {**DECODER, "pad_token_id": 1, "sliding_window": 3},
    "mixtral": {  # with another eps a token's experts nearly tie, and bfloat16 may choose either
        **DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3, "rms_norm_eps": 0.02,
    },
    "qwen2_moe": {**DECODER, **WINDOWS, **EXPERTS, "shared_expert_intermediate_size": 8, "norm_topk_prob": True},
    "qwen3_moe": {**DECODER, "use_sliding_window": True, "sliding_window": 3, **EXPERTS, "head_dim": 4},
    "gpt_neox": {**{key: value for key, value in ALONE.items() if key not in ("rms_norm_eps", "rope_theta")},
                 "layer_norm_eps": 0.01, "rotary_emb_base": 100.0, "rotary_pct": 0.5},
    "gpt_oss": {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3, "head_dim": 4,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "opt": {
        "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 20,
        "max_position_embeddings": 32, "activation_function": "relu", "pad_token_id": 1, "tie_word_embeddings": False,
    },
    "bloom": {
        "vocab_size": 20, "hidden_size": 24, "n_layer": 2, "n_head": 6, "layer_norm_epsilon": 0.01,
        "tie_word_embeddings": False,
    },
    "t5": {
        "vocab_size": 20, "d_model": 16, "d_kv": 4, "num_heads": 4, "num_layers": 2, "d_ff": 20,
        "layer_norm_epsilon": 0.01, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 5,
        "feed_forward_proj": "relu",
    },
    "vit": {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
        "hidden_act": "gelu", "layer_norm_eps": 0.01, "image_size": 8, "patch_size": 4, "num_channels": 3,
        "qkv_bias": True, "pooler_act": "tanh", "id2label": {"0": "A", "1": "B", "2": "C"},
    },
}  # fmt: skip
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "bert": ("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction",
             "BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering"),
    "roberta": ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification",
                "RobertaForTokenClassification", "RobertaForQuestionAnswering"),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification",
                    "XLMRobertaForTokenClassification", "XLMRobertaForQuestionAnswering"),
    "distilbert": ("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification",
                   "DistilBertForTokenClassification", "DistilBertForQuestionAnswering"),
    "gpt2": ("GPT2Model", "GPT2LMHeadModel"),
    "llama": ("LlamaModel", "LlamaForCausalLM"),
    "mistral": ("MistralModel", "MistralForCausalLM"),
    "qwen2": ("Qwen2Model", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Model", "Qwen3ForCausalLM"),
    "bloom": ("BloomModel", "BloomForCausalLM"),
    "gemma": ("GemmaModel", "GemmaForCausalLM"),
    "gemma2": ("Gemma2Model", "Gemma2ForCausalLM"),
    "gemma3_text": ("Gemma3TextModel", "Gemma3ForCausalLM"),
    "gpt_neox": ("GPTNeoXModel", "GPTNeoXForCausalLM"),
    "gpt_oss": ("GptOssModel", "GptOssForCausalLM"),
    "mixtral": ("MixtralModel", "MixtralForCausalLM"),
    "opt": ("OPTModel", "OPTForCausalLM"),
    "phi3": ("Phi3Model", "Phi3ForCausalLM"),
    "qwen2_moe": ("Qwen2MoeModel", "Qwen2MoeForCausalLM"),
    "qwen3_moe": ("Qwen3MoeModel", "Qwen3MoeForCausalLM"),
    "t5": ("T5EncoderModel",),
    "vit": ("ViTModel", "ViTForImageClassification"),
}  # fmt: skip
MAIN = {  # the class with which every key is tried; the others try those that change something
    "bert": "BertForPreTraining", "roberta": "RobertaForMaskedLM", "xlm-roberta": "XLMRobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "t5": "T5EncoderModel", "vit": "ViTModel", "bloom": "BloomForCausalLM", "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM", "mixtral": "MixtralForCausalLM", "opt": "OPTForCausalLM",
    "phi3": "Phi3ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
}  # fmt: skip
ACTIVATIONS = (
    "relu", "gelu_10", "gelu_fast", "gelu", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "laplace", "leaky_relu",
    "linear", "mish", "quick_gelu", "relu2", "relu6", "sigmoid", "silu", "swish", "tanh", "no_such_activation",
)  # fmt: skip
SOME = ("relu", "quick_gelu", "gelu_new", "laplace", "no_such_activation")
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
ROPES = (
    {"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 4.0}, LLAMA3,
    {key: value for key, value in LLAMA3.items() if not key.startswith("original")},
    {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "default", "rope_theta": 50.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}, {"rope_type": "linear"},
    {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, {"rope_type": "no_such_type"},
)  # fmt: skip
LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.2], "long_factor": [2.0, 3.0]}
LONG_ROPES = (LONG_ROPE, {**LONG_ROPE, "long_factor": [2.0]}, {"rope_type": "linear", "factor": 2.0})
NESTED_ROPES = (
    {"full_attention": {"rope_type": "linear", "factor": 2.0}},
    {"sliding_attention": {"rope_theta": 50.0}, "full_attention": {"rope_theta": 20.0}},
)
SLIDING, FULL = "sliding_attention", "full_attention"

# Values for a key; of a family with its own row "family.key" these.  What families share is tried with one of them.
VALUES: dict[str, tuple[Any, ...]] = {
    "activation": SOME, "activation_function": SOME, "hidden_act": SOME, "bert.hidden_act": ACTIVATIONS,
    "add_cross_attention": (True,), "architectures": (["NoSuchClass"],), "attention_bias": (True,),
    "auto_map": ({"AutoModel": "modeling.Own"},), "chunk_size_feed_forward": (2,), "d_ff": (24,), "d_kv": (8,),
    "d_model": (24,), "dim": (24,), "dtype": ("bfloat16", "float16", "float32"), "eos_token_id": (3, [3, 4]),
    "feed_forward_proj": (*ACTIVATIONS, "gated-gelu", "gated-silu", "gated-relu", "gated-quick_gelu", "relu-gated"),
    "gradient_checkpointing": (True,), "head_dim": (8,), "hidden_dim": (24,), "hidden_size": (24, 18),
    "id2label": ({"0": "A"}, {str(place): str(place) for place in range(5)}), "image_size": (12, 10, [8, 12]),
    "intermediate_size": (24,), "is_decoder": (True,), "is_encoder_decoder": (True,),
    "label2id": ({"A": 1, "B": 0, "C": 2},), "layer_norm_eps": (0.5,), "layer_norm_epsilon": (0.5,),
    "layer_types": ([FULL, FULL], [SLIDING, FULL], [FULL, SLIDING], [FULL], ["no_such_type", FULL]),
    "max_position_embeddings": (18,), "max_window_layers": (0, 2), "mlp_bias": (True,), "n_embd": (24,),
    "n_head": (2,), "n_heads": (2,), "n_inner": (24,), "n_layer": (1, 3), "n_layers": (1, 3), "n_positions": (18,),
    "num_attention_heads": (2, 8), "num_channels": (1,), "num_decoder_layers": (1,), "num_heads": (2,),
    "num_hidden_layers": (1, 3), "num_key_value_heads": (1, 4, None), "num_labels": (5,), "num_layers": (1, 3),
    "output_hidden_states": (True,), "pad_token_id": (0, 2), "partial_rotary_factor": (0.5,), "patch_size": (2, 3),
    "per_layer_config": ({"0": {"intermediate_size": 12}},), "pooler_act": SOME, "pooler_output_size": (12,),
    "position_embedding_type": ("relative_key",), "pretraining_tp": (2,), "problem_type": ("regression",),
    "pruned_heads": ({"0": [1]},), "qkv_bias": (False,), "quantization_config": ({"quant_method": "gptq", "bits": 4},),
    "relative_attention_max_distance": (3, 20), "relative_attention_num_buckets": (4,),
    "reorder_and_upcast_attn": (True,),
    "rms_norm_eps": (0.5,), "rope_parameters": ROPES[:2],
    "rope_scaling": ROPES[:2], "llama.rope_parameters": ROPES, "llama.rope_scaling": ROPES, "rope_theta": (10.0,),
    "scale_attn_by_inverse_layer_idx": (True,), "scale_attn_weights": (False,), "sinusoidal_pos_embds": (True,),
    "sliding_window": (2, None), "summary_type": ("mean",), "tie_word_embeddings": (False, True),
    "torch_dtype": ("bfloat16",), "type_vocab_size": (1, 3), "use_sliding_window": (False,), "vocab_size": (24,),
    "no_such_key": (1,),
    "transformers_version": ("4.0.0",), "use_cache": (False,), "return_dict": (False,), "is_gated_act": (True,),
    "dense_act_fn": ("gelu",), "tie_encoder_decoder": (True,), "hidden_dropout_prob": (0.7,), "_name_or_path": ("x",),
    "attention_probs_dropout_prob": (0.7,), "attention_dropout": (0.7,), "initializer_range": (0.5,),
    "initializer_factor": (2.0,), "classifier_dropout": (0.7,), "dropout": (0.7,), "qa_dropout": (0.7,),
    "seq_classif_dropout": (0.7,), "attn_pdrop": (0.7,), "embd_pdrop": (0.7,), "resid_pdrop": (0.7,),
    "dropout_rate": (0.7,), "encoder_stride": (2,), "bos_token_id": (2,), "summary_activation": ("tanh",),
    "summary_first_dropout": (0.7,), "summary_proj_to_labels": (False,), "summary_use_proj": (False,),
    "output_attentions": (True,), "tie_last_hidden_states": (True,), "repetition_penalty": (2.0,), "n_ctx": (8,),
    "max_length": (5,), "_num_labels": (3,), "mask_token_id": (4,), "tie_weights_": (False,), "pooler_type": ("mean",),
    "_remove_final_layer_norm": (True,), "apply_residual_connection_post_layernorm": (True,),
    "attn_logit_softcapping": (None, 5.0), "decoder_sparse_step": (2,), "do_layer_norm_before": (False,),
    "enable_bias": (False,), "ffn_dim": (24,), "final_logit_softcapping": (None, 5.0), "hidden_activation": SOME,
    "layer_norm_elementwise_affine": (False,), "layerdrop": (0.7,), "mlp_only_layers": ([0],),
    "moe_intermediate_size": (8,), "norm_topk_prob": (False, True), "num_experts": (3,), "num_experts_per_tok": (1, 5),
    "num_local_experts": (3,), "original_max_position_embeddings": (4,), "output_router_logits": (True,),
    "phi3.partial_rotary_factor": (0.5, 2.0), "phi3.rope_parameters": LONG_ROPES, "phi3.rope_scaling": LONG_ROPES,
    "query_pre_attn_scalar": (4,), "rope_local_base_freq": (100.0,), "rotary_emb_base": (10.0,),
    "rotary_pct": (1.0,), "gemma3_text.rope_parameters": NESTED_ROPES, "router_jitter_noise": (0.7,),
    "shared_expert_intermediate_size": (12,), "sliding_window_pattern": (3,), "slow_but_exact": (True,),
    "swiglu_alpha": (1.0,), "swiglu_limit": (0.5,), "use_bidirectional_attention": (True,),
    "use_parallel_residual": (False,), "word_embed_proj_dim": (8,), "gpt_neox.attention_bias": (False,),
    "gpt_oss.attention_bias": (False,), "gpt_neox.is_decoder": (True,),
    "cross_attention_hidden_size": (8,), "use_mrope": (True,), "rope_interleaved": (True,),
}  # fmt: skip
UNKNOWN = ("no_such_key", "embedding_size", "hidden_size", "head_dim", "sliding_window", "layer_types")
"""Tried with every family: keys that it may not know, but others do."""


@dataclass(frozen=True, slots=True)
class Case:
    """One folder.  `made`: the weights are those of the changed settings; else they are those of the unchanged."""

    model_type: str
    architecture: str
    key: str = ""
    value: Any = None
    made: bool = False
    absent: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """config.json."""
        return self._settings({} if self.absent or not self.key else {self.key: self.value})

    @property
    def origin(self) -> Case:
        """The case whose settings the weights are made for."""
        return self if self.made else Case(self.model_type, self.architecture)

    @property
    def unmade(self) -> Case:
        """The same settings with the weights of the unchanged ones."""
        return replace(self, made=False)

    def _settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        base = {"model_type": self.model_type, "architectures": [self.architecture], **BASES[self.model_type]}
        if self.architecture.endswith("ForQuestionAnswering"):  # which has two labels, as many as nobody tells of
            del base["id2label"]
        return {key: value for key, value in {**base, **changes}.items() if not (self.absent and key == self.key)}

    def __str__(self) -> str:
        how = "absent" if self.absent else f"{json.dumps(self.value)} {'made' if self.made else 'told'}"
        return f"{self.architecture} {self.key} {how}" if self.key else self.architecture


def cases(model_type: str, keys: Mapping[str, str]) -> Iterator[Case]:
    """The cases of a family whose table says "used", "only" or "same" of its keys, and those of keys that it lacks."""
    base = BASES[model_type]
    for architecture in ARCHITECTURES[model_type]:
        yield Case(model_type, architecture)
        main = architecture == MAIN[model_type]
        for key in dict.fromkeys([*keys, *UNKNOWN]):
            said = keys.get(key, "unknown")
            if key == "model_type" or not (main or said == "used"):
                continue
            values = VALUES.get(f"{model_type}.{key}", VALUES.get(key, ()))
            for value in values if main else values[: 1 if key != "architectures" else 0]:
                yield Case(model_type, architecture, key, value)
                if said != "same":
                    yield Case(model_type, architecture, key, value, made=True)
            if key in base and main:
                yield Case(model_type, architecture, key, absent=True)


def fill(shapes: Shapes) -> dict[str, np.ndarray]:
    """Weights f32 of these shapes, by their names alone: exact on every machine."""
    return {name: _drawn(name, shape) for name, shape in shapes.items()}


@cache
def _drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    drawn = np.random.RandomState(crc32(name.encode())).uniform(-0.5, 0.5, shape)
    scale = 1.0 if name.endswith("bias") or len(shape) == 1 else 1.5
    one = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0  # of a normalisation
    made = np.asarray(one + scale * drawn, np.float32)
    made.flags.writeable = False  # all cases share it
    return made


def inputs(settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What the models are asked."""
    draw = np.random.RandomState(7)
    if settings["model_type"] == "vit":
        size = settings.get("image_size", 224)
        high, wide = size if isinstance(size, list) else (size, size)
        shape = (2, settings.get("num_channels", 3), high, wide)
        return {"pixel_values": np.asarray(draw.uniform(-1, 1, shape), np.float32)}
    ids = draw.randint(3, 20, (2, 6)).astype(np.int32)
    mask = np.ones((2, 6), np.int32)
    mask[1, 5:], ids[1, 5:] = 0, 1  # where a window of 2 still sees a token
    return {"input_ids": ids, "attention_mask": mask}


def write(case: Case, shapes: Shapes, folder: Path) -> Path:
    """The case's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.settings))
    save_safetensors(fill(shapes), folder / "model.safetensors")
    return folder
