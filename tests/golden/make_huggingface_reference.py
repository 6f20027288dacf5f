"""Makes tests/golden/huggingface: tiny models of every family with random weights, and what transformers computes.

python tests/golden/make_huggingface_reference.py [NAME ...]        needs torch and transformers, which the tests do not

All of them, or those that are named.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).with_name("huggingface")
COMMON = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
LLAMA = {**COMMON, "num_key_value_heads": 2, "max_position_embeddings": 32}
DECODER = {**LLAMA, "max_position_embeddings": 64, "eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0}
ALONE = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}
GEMMA = {**DECODER, "head_dim": 8, "num_hidden_layers": 3, "tie_word_embeddings": False}  # tied, it repeats itself
SLIDING = {"sliding_window": 5}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 12, "num_experts": 5}
OPT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 40,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "bos_token_id": 0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
    "rope_theta": 150000.0,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.5, 2.0, 3.0],
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
}
T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 40}
BERT = {**COMMON, "max_position_embeddings": 32}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "vocab_size": 50,
    "num_mel_bins": 6,
    "max_source_positions": 10,
    "max_target_positions": 8,
    "pad_token_id": 1,
    "eos_token_id": 1,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
}
TEXTS = {**COMMON, "max_position_embeddings": 32, "eos_token_id": 3, "bos_token_id": 0, "pad_token_id": 1}
VISION = {**COMMON, "image_size": 8, "patch_size": 4, "num_channels": 3}
del VISION["vocab_size"]
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 500000.0,
}  # fmt: skip

# name -> class, its configuration
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", BERT),
    "bert-masked-lm": ("BertForMaskedLM", "BertConfig", BERT),
    "bert-classifier": ("BertForSequenceClassification", "BertConfig", {**BERT, "num_labels": 3}),
    "roberta": ("RobertaModel", "RobertaConfig", {**BERT, "pad_token_id": 1}),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 32},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "llama3": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
    "qwen2-windows": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 16}),
    "vit": ("ViTForImageClassification", "ViTConfig", {**VISION, "num_labels": 3}),
    "t5": ("T5EncoderModel", "T5Config", T5),
    "t5-gated": ("T5EncoderModel", "T5Config", {**T5, "feed_forward_proj": "gated-gelu"}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", GEMMA),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**GEMMA, **SLIDING, "query_pre_attn_scalar": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **GEMMA,
            **SLIDING,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**DECODER, "sliding_window": 9}),
    "phi3-long": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {**DECODER, "original_max_position_embeddings": 48, "rope_parameters": LONG},
    ),
    "phi3-longer": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {**DECODER, "original_max_position_embeddings": 10, "rope_parameters": LONG},
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**DECODER, **EXPERTS, "shared_expert_intermediate_size": 20, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**DECODER, **EXPERTS, "head_dim": 8, "norm_topk_prob": True},
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**ALONE, "rotary_pct": 0.25}),
    "gpt-neox-serial": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**ALONE, "rotary_pct": 0.5, "use_parallel_residual": False},
    ),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT),
    "opt-norms-after": (
        "OPTForCausalLM",
        "OPTConfig",
        {**OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 50, "hidden_size": 36, "n_layer": 2, "n_head": 6, "eos_token_id": 2, "bos_token_id": 0},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **DECODER,
            **SLIDING,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": YARN,
        },
    ),
    "whisper": ("WhisperModel", "WhisperConfig", WHISPER),
    "clip": ("CLIPModel", "CLIPConfig", {"text_config": TEXTS, "vision_config": VISION, "projection_dim": 16}),
    "clip-text": ("CLIPTextModelWithProjection", "CLIPTextConfig", {**TEXTS, "projection_dim": 16, "eos_token_id": 2}),
    "clip-image": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", {**VISION, "projection_dim": 16}),
}
SHARDED = "llama"  # its weights in several files
OUTPUTS = (
    "last_hidden_state", "pooler_output", "logits", "logits_per_image", "logits_per_text", "text_embeds",
    "image_embeds",
)  # fmt: skip


def inputs_of(name: str, place: int) -> dict[str, np.ndarray]:
    rng, other = np.random.default_rng(place), np.random.default_rng(place)
    if name == "whisper":
        return {"input_features": other.normal(size=(2, 6, 20)).astype(np.float32)}
    pixels = {"pixel_values": other.normal(size=(2, 3, 8, 8)).astype(np.float32)}
    if name in ("vit", "clip-image"):
        return pixels
    ids = rng.integers(2, 50, (2, 12)).astype(np.int32)
    mask = np.ones((2, 12), np.int32)
    mask[1, 9:] = 0
    ids[1, 9:] = 1
    if name.startswith("clip"):
        ids[0, 10], ids[1, 8] = 3, 3
    return {**(pixels if name == "clip" else {}), "input_ids": ids, "attention_mask": mask}


def main() -> None:
    wanted = sys.argv[1:]
    if not wanted:
        shutil.rmtree(FOLDER, ignore_errors=True)
    for place, (name, (kind, config, settings)) in enumerate(MODELS.items()):
        if wanted and name not in wanted:
            continue
        torch.manual_seed(place)
        model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
        with torch.no_grad():
            for weight in model.parameters():  # the usual tiny deviations would leave every attention even
                if weight.dim() > 1:
                    weight.normal_(0, 0.3)
                else:
                    weight.add_(torch.randn_like(weight) * 0.1)
        folder = FOLDER / name
        kept = {key: value for key, value in model.state_dict().items() if key.startswith("encoder.")}
        only = {"state_dict": kept} if name == "whisper" else {}
        model.save_pretrained(folder, max_shard_size="20KB" if name == SHARDED else "5GB", **only)
        (folder / "generation_config.json").unlink(missing_ok=True)
        inputs = inputs_of(name, place)
        with torch.no_grad():
            given = {key: torch.from_numpy(value).long() if value.dtype == np.int32 else torch.from_numpy(value)
                     for key, value in inputs.items()}  # fmt: skip
            found = (model.encoder if name == "whisper" else model)(**given)
        outputs = {key: found[key].numpy() for key in OUTPUTS if key in found and found[key] is not None}
        np.savez(folder / "reference.npz", **inputs, **outputs)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (FOLDER / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main()
