"""Encoders of a Hugging Face folder as GGUF files, as llama.cpp's converter writes them: tensors by the names that the
package `gguf` has for them, pieces of words without ##, and others behind a mark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from safetensors.numpy import save_file
from support.cases.gguf_tokenizers import write_value

from mesh.models.safetensors import load_safetensors

MARK = "\u2581"
IDS = {"unknown": "[UNK]", "cls": "[CLS]", "seperator": "[SEP]", "padding": "[PAD]", "mask": "[MASK]"}
UNWRITTEN = ("pooler.", "embeddings.position_ids", "cls.")  # by the converter


def small_folder(path: Path, folder: Path) -> Path:
    """A part of the encoder of a folder: one layer, 32 of the width, and 64 of the inner width."""
    path.mkdir()
    config = json.loads((folder / "config.json").read_text())
    sizes = {config["hidden_size"]: 32, config["intermediate_size"]: 64}
    config |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").symlink_to(folder / "tokenizer.json")
    weights = load_safetensors(folder / "model.safetensors")
    layers = [name for name in weights if ".layer." in name and ".layer.0." not in name]
    parts = {
        name: np.ascontiguousarray(array[tuple(slice(sizes.get(size, size)) for size in array.shape)])
        for name, array in weights.items() if name not in layers
    }  # fmt: skip
    save_file(parts, path / "model.safetensors")
    return path


def write_encoder(path: Path, folder: Path, kind: str = "F32", *, old: bool = False, **more: Any) -> None:
    """The encoder of a folder, its matrices of this kind, or F32 where rows are no whole blocks.  An `old` converter
    left pieces in brackets unmarked.  `more` metadata are added, or left out where they are None."""
    config = json.loads((folder / "config.json").read_text())
    file = gguf.GGUFWriter(str(path), "bert")
    told: dict[str, Any] = {
        "bert.block_count": config["num_hidden_layers"], "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"], "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": config["layer_norm_eps"], "bert.attention.causal": False,
        "bert.pooling_type": 1, "tokenizer.ggml.token_type_count": config["type_vocab_size"],
    }  # fmt: skip
    read = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    numbers = read["model"]["vocab"]
    told |= {f"tokenizer.ggml.{name}_token_id": numbers[token] for name, token in IDS.items()}
    for key, value in (told | {key.replace("__", "."): value for key, value in more.items()}).items():
        write_value(file, key, value)
    special = {each["content"] for each in read["added_tokens"]}
    tokens = sorted(numbers, key=numbers.__getitem__)
    file.add_tokenizer_model("bert")
    file.add_token_list([_written(token, token in special, old) for token in tokens])
    file.add_token_types([3 if token in special else 1 for token in tokens])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, array in load_safetensors(folder / "model.safetensors").items():
        name = name.removeprefix("bert.")
        if name.startswith(UNWRITTEN):
            continue
        stored = kind if array.ndim == 2 and array.shape[1] % 32 == 0 and "LayerNorm" not in name else "F32"
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert to is not None, name
        file.add_tensor(to, gguf.quants.quantize(array.astype("float32"), Type[stored]), raw_dtype=Type[stored])
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _written(token: str, special: bool, old: bool) -> str:
    if special or (old and token.startswith("[") and token.endswith("]")):
        return token
    return token[2:] if token.startswith("##") else MARK + token
