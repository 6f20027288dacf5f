"""A Llama of random weights as a folder and as a GGUF file, with a tokenizer of many tokens, for several servers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from numpy.typing import NDArray

from mesh.models.safetensors import save_safetensors

END = "<|end|>"


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of a Llama's config.json."""

    layers: int = 8
    width: int = 512
    heads: int = 8
    kv_heads: int = 4
    inner: int = 1408
    vocabulary: int = 32_000
    positions: int = 2048


def served_llama(folder: Path, size: Size, kind: str = "F32", seed: int = 0) -> Path:
    """The path of a GGUF file whose matrices are F32 or Q8_0, in a folder with config.json, safetensors of float32 and
    tokenizer.json: the same model."""
    folder.mkdir(parents=True)
    weights, words = _weights(size, np.random.default_rng(seed)), _words(size.vocabulary)
    save_safetensors(weights, folder / "model.safetensors")
    settings = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": size.vocabulary,
        "hidden_size": size.width, "intermediate_size": size.inner, "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads, "rms_norm_eps": 1e-5,
        "max_position_embeddings": size.positions, "hidden_act": "silu", "tie_word_embeddings": False,
        "eos_token_id": 0, "bos_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    _write_tokenizer(folder / "tokenizer.json", words)
    _write_gguf(folder / "model.gguf", size, weights, words, Type[kind])
    return folder / "model.gguf"


def _weights(size: Size, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    width, inner, one = size.width, size.inner, size.width // size.heads

    def made(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)

    weights = {
        "model.embed_tokens.weight": made(size.vocabulary, width),
        "lm_head.weight": made(size.vocabulary, width),
    }
    weights["model.norm.weight"] = np.ones(width, np.float32)
    for number in range(size.layers):
        start = f"model.layers.{number}"
        shapes = {
            "self_attn.q_proj": (size.heads * one, width), "self_attn.k_proj": (size.kv_heads * one, width),
            "self_attn.v_proj": (size.kv_heads * one, width), "self_attn.o_proj": (width, size.heads * one),
            "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner),
        }  # fmt: skip
        weights |= {f"{start}.{name}.weight": made(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{start}.{name}.weight"] = np.ones(width, np.float32)
    return weights


def _words(count: int) -> list[str]:
    """An end token, the 256 bytes as tokenizers write them, then pairs and triples of letters."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [letter for letter in letters if letter.isascii()]
    longer = ("".join(each) for each in chain(product(plain, repeat=2), product(plain, repeat=3)))
    words = [END, *letters, *islice(longer, count - 1 - len(letters))]
    assert len(words) == count
    return words


def _merges(words: list[str]) -> list[tuple[str, str]]:
    return [(word[:-1], word[-1]) for word in words[257:]]


def _write_tokenizer(path: Path, words: list[str]) -> None:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    own = tokenizers.Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, _merges(words)))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    own.add_special_tokens([END])
    own.save(str(path))


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
OUTER = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}


def _write_gguf(path: Path, size: Size, weights: dict[str, NDArray[np.float32]], words: list[str], kind: Type) -> None:
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_block_count(size.layers)
    file.add_context_length(size.positions)
    file.add_embedding_length(size.width)
    file.add_feed_forward_length(size.inner)
    file.add_head_count(size.heads)
    file.add_head_count_kv(size.kv_heads)
    file.add_rope_dimension_count(size.width // size.heads)
    file.add_rope_freq_base(10_000.0)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_vocab_size(size.vocabulary)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list(words)
    file.add_token_types([3] + [1] * (len(words) - 1))
    file.add_token_merges([" ".join(pair) for pair in _merges(words)])
    file.add_bos_token_id(0)
    file.add_eos_token_id(0)
    file.add_add_bos_token(False)
    for name, array in weights.items():
        whole, heads = name.removesuffix(".weight"), {"q_proj": size.heads, "k_proj": size.kv_heads}
        turned = heads.get(whole.rpartition(".")[2])
        data = array if turned is None else _by_pairs(array, turned)
        as_kind = kind if array.ndim > 1 else Type.F32
        blocks = gguf.quants.quantize(data, as_kind) if as_kind is not Type.F32 else data
        file.add_tensor(f"{_name(whole)}.weight", blocks, raw_dtype=as_kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _name(name: str) -> str:
    if name in OUTER:
        return OUTER[name]
    _, _, number, rest = name.split(".", 3)
    return f"blk.{number}.{NAMES[rest]}"


def _by_pairs(array: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a head in the order in which GGUF has them: a place and the one that is rotated with it, side by side."""
    by_halves = array.reshape(heads, 2, -1, array.shape[-1])
    return np.ascontiguousarray(by_halves.swapaxes(1, 2).reshape(array.shape))
