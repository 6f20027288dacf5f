"""A small Llama of random weights in a folder, with a real tokenizer and a chat template, as servers are given one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from mesh.models.safetensors import save_safetensors

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 512


def tokenizer_file(path: Path) -> None:
    """A byte-level BPE of 512 tokens, trained on this project's own words."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    own = tokenizers.Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    text = (GOLDEN / "chat_rendered.json").read_text("utf-8")
    own.train_from_iterator(text.splitlines(), trainer)
    assert own.get_vocab_size() == VOCABULARY
    own.save(str(path))


def llama_folder(
    folder: Path, *, template: str = "qwen2.5", width: int = 64, layers: int = 2, heads: int = 4, kv_heads: int = 2,
    positions: int = 2048, seed: int = 0,
) -> Path:  # fmt: skip
    """A Llama of random weights; its template is one of tests/golden/chat_templates, "" for none."""
    rng, hidden = np.random.default_rng(seed), 2 * width
    size = width // heads

    def made(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.2, shape).astype(np.float32)

    weights = {"model.embed_tokens.weight": made(VOCABULARY, width), "lm_head.weight": made(VOCABULARY, width)}
    weights["model.norm.weight"] = 1 + made(width)
    for number in range(layers):
        start = f"model.layers.{number}"
        shapes = {
            "self_attn.q_proj": (heads * size, width), "self_attn.k_proj": (kv_heads * size, width),
            "self_attn.v_proj": (kv_heads * size, width), "self_attn.o_proj": (width, heads * size),
            "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width), "mlp.down_proj": (width, hidden),
        }  # fmt: skip
        weights |= {f"{start}.{name}.weight": made(*shape) for name, shape in shapes.items()}
        weights |= {
            f"{start}.{name}.weight": 1 + made(width) for name in ("input_layernorm", "post_attention_layernorm")
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_safetensors(weights, folder / "model.safetensors")
    settings = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": width,
        "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": positions, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 0, "bos_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    names = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    if template:
        source = (GOLDEN / "chat_templates" / f"{template}.jinja").read_text("utf-8")
        (folder / "chat_template.jinja").write_text(source, "utf-8")
    tokenizer_file(folder / "tokenizer.json")
    return folder
