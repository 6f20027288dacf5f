"""Small language models for tests of generation: random weights, and a tokenizer whose tokens are bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

import mesh
from mesh.models.safetensors import save_safetensors

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
MODELS = GOLDEN / "huggingface"


def golden_model(name: str) -> mesh.Model:
    return mesh.load(MODELS / name)


def gpt2_folder(
    folder: Path, *, vocabulary: int = 256, width: int = 32, layers: int = 3, heads: int = 4, positions: int = 256,
    seed: int = 0,
) -> Path:  # fmt: skip
    """A GPT-2 of random weights in a folder."""
    rng = np.random.default_rng(seed)

    def made(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.25, shape).astype(np.float32)

    weights = {"wte.weight": made(vocabulary, width), "wpe.weight": made(positions, width)}
    for number in range(layers):
        for name, into, out in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            weights |= {f"h.{number}.{name}.weight": made(into, out), f"h.{number}.{name}.bias": made(out)}
        for name in ("ln_1", "ln_2"):
            weights |= {f"h.{number}.{name}.weight": 1 + made(width), f"h.{number}.{name}.bias": made(width)}
    weights |= {"ln_f.weight": 1 + made(width), "ln_f.bias": made(width)}
    folder.mkdir(parents=True, exist_ok=True)
    save_safetensors({f"transformer.{name}": array for name, array in weights.items()}, folder / "model.safetensors")
    settings = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocabulary, "n_embd": width,
        "n_layer": layers, "n_head": heads, "n_positions": positions,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def with_bytes(source: Path, folder: Path) -> Path:
    """A copy of a model's folder with a tokenizer that has a token for every byte, and none for more."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    shutil.copytree(source, folder, dirs_exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = tokenizers.Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    own.save(str(folder / "tokenizer.json"))
    return folder
