"""Makes tests/golden/huggingface: tiny models of every family with random weights, and what transformers computes.

python tests/golden/make_huggingface_reference.py        needs torch and transformers, which the tests do not
"""

from __future__ import annotations

import json
import shutil
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
T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 40}
BERT = {**COMMON, "max_position_embeddings": 32}
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
}
SHARDED = "llama"  # its weights in several files
OUTPUTS = ("last_hidden_state", "pooler_output", "logits")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for place, (name, (kind, config, settings)) in enumerate(MODELS.items()):
        torch.manual_seed(place)
        model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
        with torch.no_grad():
            for weight in model.parameters():  # the usual tiny deviations would leave every attention even
                if weight.dim() > 1:
                    weight.normal_(0, 0.3)
                else:
                    weight.add_(torch.randn_like(weight) * 0.1)
        folder = FOLDER / name
        model.save_pretrained(folder, max_shard_size="20KB" if name == SHARDED else "5GB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        rng = np.random.default_rng(place)
        if name == "vit":
            inputs = {"pixel_values": rng.normal(size=(2, 3, 8, 8)).astype(np.float32)}
        else:
            ids = rng.integers(2, 50, (2, 12)).astype(np.int32)
            mask = np.ones((2, 12), np.int32)
            mask[1, 9:] = 0
            ids[1, 9:] = 1
            inputs = {"input_ids": ids, "attention_mask": mask}
        with torch.no_grad():
            given = {key: torch.from_numpy(value).long() if value.dtype == np.int32 else torch.from_numpy(value)
                     for key, value in inputs.items()}  # fmt: skip
            found = model(**given)
        outputs = {key: found[key].numpy() for key in OUTPUTS if key in found and found[key] is not None}
        np.savez(folder / "reference.npz", **inputs, **outputs)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (FOLDER / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main()
