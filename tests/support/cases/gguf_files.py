"""Small random models as GGUF files, written by the package `gguf`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from numpy.typing import NDArray

IDS = np.random.default_rng(1).integers(3, 48, (2, 12)).astype(np.int64)
WIDE_HEADS = {
    "width": 32,
    "inner": 32,
    "heads": 2,
    "kv_heads": 1,
    "size": 256,
}  # as transformers takes them for granted
GOLDEN: dict[str, dict[str, Any]] = {
    "llama-Q4_0": {"architecture": "llama", "kind": "Q4_0"},
    "qwen2-Q5_1": {"architecture": "qwen2", "kind": "Q5_1"},
    "gemma2-Q8_0": {"architecture": "gemma2", "kind": "Q8_0", **WIDE_HEADS},
    "gemma3-Q8_0": {"architecture": "gemma3", "kind": "Q8_0", **WIDE_HEADS},
}
HALVES = {  # where a block has its float16s
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,),
}  # fmt: skip


def random_blocks(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Blocks of any bits, whose float16s are about 0.003: (*shape, but bytes for the last axis)."""
    weights, size_bytes = gguf.GGML_QUANT_SIZES[Type[kind]]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // weights, size_bytes), np.uint8)
    for place in HALVES[kind]:
        halves = (0.003 * rng.standard_normal((len(blocks), 1))).astype(np.float16)
        blocks[:, place : place + 2] = halves.view(np.uint8)
    return blocks.reshape(*shape[:-1], shape[-1] // weights * size_bytes)


def write_model(
    path: Path, architecture: str, kind: str, *, width: int = 64, inner: int = 96, layers: int = 2, heads: int = 4,
    kv_heads: int = 2, size: int = 0, words: int = 48, experts: int = 0, seed: int = 0, positions: int = 64,
    vocabulary: Callable[[gguf.GGUFWriter], None] | None = None,
) -> None:  # fmt: skip
    """A model whose matrices are of this kind: F32, F16, BF16, or blocks; `vocabulary` writes its tokenizer."""
    rng, size = np.random.default_rng(seed), size or width // heads
    file = gguf.GGUFWriter(str(path), architecture)
    file.add_block_count(layers)
    file.add_context_length(positions)
    file.add_embedding_length(width)
    file.add_feed_forward_length(inner)
    file.add_head_count(heads)
    file.add_head_count_kv(kv_heads)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(1000.0)
    file.add_vocab_size(words)
    if architecture == "llama":
        file.add_rope_dimension_count(size)
    else:
        file.add_key_length(size)
        file.add_value_length(size)
    if architecture in ("gemma2", "gemma3"):
        file.add_sliding_window(5)
    if architecture == "gemma2":
        file.add_attn_logit_softcapping(50.0)
        file.add_final_logit_softcapping(30.0)
    if experts:
        file.add_expert_count(experts)
        file.add_expert_used_count(2)
    if architecture == "qwen3moe":
        file.add_expert_feed_forward_length(inner)
    (vocabulary or partial(_letters, words))(file)

    def matrix(name: str, *shape: int, plain: bool = False) -> None:
        if kind in HALVES and not plain:
            file.add_tensor(name, random_blocks(rng, kind, shape), raw_dtype=Type[kind])
            return
        drawn = (rng.standard_normal(shape) * 0.3).astype(np.float32)
        stored = "F32" if plain else kind
        file.add_tensor(name, gguf.quants.quantize(drawn, Type[stored]), raw_dtype=Type[stored])

    def vector(name: str, count: int, mean: float = 1.0) -> None:
        file.add_tensor(name, (mean + 0.1 * rng.standard_normal(count)).astype(np.float32))

    matrix("token_embd.weight", words, width)
    vector("output_norm.weight", width)
    if not architecture.startswith("gemma"):
        matrix("output.weight", words, width)
    for number in range(layers):
        at = f"blk.{number}."
        vector(f"{at}attn_norm.weight", width)
        vector(f"{at}ffn_norm.weight", width)
        if architecture == "phi3":
            matrix(f"{at}attn_qkv.weight", (heads + 2 * kv_heads) * size, width)
        else:
            for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                matrix(f"{at}attn_{part}.weight", count * size, width)
                if architecture == "qwen2":
                    vector(f"{at}attn_{part}.bias", count * size, 0.0)
        if architecture in ("qwen3", "qwen3moe", "gemma3"):
            vector(f"{at}attn_q_norm.weight", size)
            vector(f"{at}attn_k_norm.weight", size)
        if architecture in ("gemma2", "gemma3"):
            vector(f"{at}post_attention_norm.weight", width)
            vector(f"{at}post_ffw_norm.weight", width)
        matrix(f"{at}attn_output.weight", width, heads * size)
        if experts:
            matrix(f"{at}ffn_gate_inp.weight", experts, width, plain=True)
            matrix(f"{at}ffn_gate_exps.weight", experts, inner, width)
            matrix(f"{at}ffn_up_exps.weight", experts, inner, width)
            matrix(f"{at}ffn_down_exps.weight", experts, width, inner)
            continue
        if architecture == "phi3":
            matrix(f"{at}ffn_up.weight", 2 * inner, width)
        else:
            matrix(f"{at}ffn_gate.weight", inner, width)
            matrix(f"{at}ffn_up.weight", inner, width)
        matrix(f"{at}ffn_down.weight", width, inner)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _letters(words: int, file: gguf.GGUFWriter) -> None:
    """A tokenizer of so many letters."""
    file.add_eos_token_id(2)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list([chr(0x100 + place) for place in range(words)])
    file.add_token_types([1] * words)
    file.add_token_merges([])


def dequantised(path: Path, out: Path) -> None:
    """The same file with every tensor as the package dequantises it, in F32."""
    old = gguf.GGUFReader(str(path))
    new = gguf.GGUFWriter(str(out), old.fields["general.architecture"].contents())
    for field in old.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        new.add_key_value(
            field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    for tensor in old.tensors:
        new.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    new.write_header_to_file()
    new.write_kv_data_to_file()
    new.write_tensors_to_file()
    new.close()
