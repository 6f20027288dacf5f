"""GGUF files: the models of llama.cpp, whose weights stay packed in blocks.

    model = mesh.load("model-Q4_K_M.gguf")

The metadata become the settings of a Hugging Face model type (`names.py`), whose decoder computes it; blocks become the
parts of packed matrices, without rounding (`blocks.py`).  What would be left unsaid is refused by name.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, Unsupported

from ...models.decoder import EncoderMetadata, TextMetadata
from ...models.model import Model
from ..huggingface import KINDS, made
from ..huggingface.decoders import kind_with
from ..huggingface.weights import Arrays
from .blocks import packed, plain
from .file import File, Tensor, read
from .names import ARCHITECTURES, ENCODER, POOLING, UNREAD, Architecture, Experts
from .tokenizer import end_tokens, special_tokens, templates, tokenizer_json

MANY_LAYERS = {
    "gemma2": 46,
    "gemma3_text": 62,
}  # of the largest ones, whose queries are scaled by the part of the width
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


def load(path: Path) -> Model:
    """The model in the file.

    InputError if it is missing, cut off or damaged, or its tensors are not those that its metadata ask for; Unsupported
    naming an architecture, a setting, a tensor or a type of tensors that is not known.
    """
    file = read(path)
    name = file.metadata.get("general.architecture")
    row = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if row is None:
        raise Unsupported(
            f"{path} holds a model of the architecture {name!r:.80}",
            next_step=f"Known: {', '.join(ARCHITECTURES)}. Load the model's Hugging Face folder",
        )
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise Unsupported(
            f"{path} is one of {file.metadata['split.count']} files", next_step="Merge them: gguf-split --merge"
        )
    experts = row.experts if file.metadata.get(f"{name}.expert_count") else None
    settings = _settings(file, str(name), row, experts)
    kind = (
        kind_with(settings["model_type"], **({"norm": "rms_wide"} if row.shifted else {}))
        if row.decodes
        else KINDS[settings["model_type"]]
    )
    weights = _weights(file, row, experts, settings)
    title = file.metadata.get("general.name")
    model = made(kind, settings, weights, path, path.parent, title if isinstance(title, str) else path.stem, mixed=True)
    metadata = TextMetadata(path, str(name), partial(_tokenizer, path), partial(_template, path))
    if model.text is not None:
        model.text = replace(model.text, metadata=metadata)
    else:
        model.encoder = EncoderMetadata(metadata, _pooling(file, str(name)))
    return model


def _tokenizer(path: Path) -> str:
    """The tokenizer.json of the file, read anew: its lists take more memory than they are worth keeping."""
    return tokenizer_json(read(path))


def _template(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The chat templates and special tokens of the file."""
    file = read(path)
    found = templates(file)
    return found, special_tokens(file) if found else {}


# -- metadata


def _settings(file: File, name: str, row: Architecture, experts: Experts | None) -> dict[str, Any]:
    """A config.json of the metadata."""
    keys = {**row.keys, **(experts.settings if experts else {})}
    own = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items() if key.startswith(f"{name}.")}
    beside = (*UNREAD, "expert_count") if row.decodes else ENCODER
    strange = sorted(own.keys() - keys.keys() - set(beside))
    if strange:
        listed = ", ".join(f"{name}.{key} = {own[key]!r:.60}" for key in strange[:4])
        raise Unsupported(
            f"{file.path} has metadata that are not known, and may change what it computes: {listed}",
            next_step="Load the model's Hugging Face folder",
        )
    settings: dict[str, Any] = {"model_type": row.mixture if experts else row.model_type, **row.known}
    settings |= {keys[key]: value for key, value in own.items() if key in keys}
    for key, setting in settings.items():
        if isinstance(setting, list):
            if len(set(map(str, setting))) > 1:
                raise Unsupported(f"{file.path}: {key} differs between layers: {setting!r:.80}")
            settings[key] = setting[0] if setting else None
    for key in ("num_attention_heads", "num_key_value_heads", "hidden_size", "num_hidden_layers", "head_dim"):
        if key in settings and (type(settings[key]) is not int or settings[key] < 1):
            raise InputError(f"{file.path}: {key} is a positive integer, got {settings[key]!r:.60}")
        if key not in settings and key not in ("num_key_value_heads", "head_dim"):
            raise InputError(f"{file.path} does not tell {name}.{_key_of(key, row)}")
    settings["vocab_size"] = _rows(file, "token_embd.weight")
    settings["dtype"] = "float32"  # whatever the weights are
    return settings | (_of_decoder(file, own, settings) if row.decodes else _of_encoder(file, name, own))


def _of_encoder(file: File, name: str, own: dict[str, Any]) -> dict[str, Any]:
    """The settings that follow from others and from the tensors."""
    if own.get("attention.causal", False) is not False:
        raise Unsupported(f"{file.path}: {name}.attention.causal is {own['attention.causal']!r:.60}, in an encoder")
    if "context_length" not in own:
        raise InputError(f"{file.path} does not tell {name}.context_length")
    if own["context_length"] != (rows := _rows(file, "position_embd.weight")):
        raise InputError(
            f"{file.path}: {name}.context_length is {own['context_length']!r:.60}, and there are {rows} positions"
        )
    return {"type_vocab_size": _rows(file, "token_types.weight")}


def _pooling(file: File, name: str) -> str:
    """How the embedding of a text is made of those of its tokens; "" where the file does not say."""
    kind = file.metadata.get(f"{name}.pooling_type", 0)
    if kind == 0:
        return ""
    known = POOLING.get(kind) if type(kind) is int else None
    return known or f"pooling_type {kind!r:.60}"


def _of_decoder(file: File, own: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that follow from others and from the tensors."""
    settings.setdefault("num_key_value_heads", settings["num_attention_heads"])
    size = settings.setdefault("head_dim", settings["hidden_size"] // settings["num_attention_heads"])
    settings["tie_word_embeddings"] = "output.weight" not in file.tensors
    settings["eos_token_id"] = end_tokens(file)
    if settings["model_type"] == "llama":
        settings["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if settings["model_type"] in MANY_LAYERS:
        largest = settings["num_hidden_layers"] == MANY_LAYERS[settings["model_type"]]
        part = settings["hidden_size"] // settings["num_attention_heads"]
        settings["query_pre_attn_scalar"] = part if largest else size
    return settings | _rope(file, own, settings, size)


def _rope(file: File, own: dict[str, Any], settings: dict[str, Any], size: int) -> dict[str, Any]:
    """The settings of rotary positions."""
    rope: dict[str, Any] = {}
    kind, factor = own.get("rope.scaling.type", "none"), own.get("rope.scaling.factor")
    if kind in ("linear", "yarn") and factor is not None:
        rope = {"rope_type": kind, "factor": factor}
        if kind == "yarn" and "rope.scaling.original_context_length" in own:
            rope["original_max_position_embeddings"] = own["rope.scaling.original_context_length"]
    elif kind not in ("none", "longrope"):
        raise Unsupported(
            f"{file.path}: rope.scaling.type = {kind!r:.60} is not supported", next_step="Known: linear, yarn"
        )
    factors = [_factors(file, name) for name in ROPE_FACTORS if name in file.tensors]
    if factors:  # one for each pair; as llama3 has them, or one list for short texts and one for long ones
        rope = {"rope_type": "longrope", "short_factor": factors[0], "long_factor": factors[-1]}
        if len(factors) == 1:
            rope |= {"attention_factor": 1.0}
    turned = own.get("rope.dimension_count", size)
    if turned != size:
        if settings["model_type"] != "phi3":
            raise Unsupported(f"{file.path}: rope.dimension_count = {turned!r:.60}, and a head has {size}")
        if type(turned) is not int or not 0 < turned < size:
            raise InputError(f"{file.path}: rope.dimension_count is an integer below {size}, got {turned!r:.60}")
        settings["partial_rotary_factor"] = turned / size
    return {"rope_scaling": rope} if rope else {}


def _factors(file: File, name: str) -> list[float]:
    tensor = file.tensors[name]
    if tensor.block.name != "F32":
        raise InputError(f"{file.path}: {name!r} is {tensor.block.name}, and should be F32")
    return [float(value) for value in plain(tensor.block, tensor.shape, tensor.data).reshape(-1)]


def _key_of(setting: str, row: Architecture) -> str:
    return next(key for key, other in row.keys.items() if other == setting)


# -- tensors


def _weights(file: File, row: Architecture, experts: Experts | None, settings: dict[str, Any]) -> Arrays:
    """The weights by the names that transformers gives them."""
    weights: Arrays = {}
    strange = []
    for name, tensor in file.tensors.items():
        if name in ROPE_FACTORS:
            continue
        number, part, kind = _apart(name)
        if experts is not None and part in experts.parts:
            _add_experts(weights, f"{row.layers}.{number}.{experts.expert}.{experts.parts[part]}.{kind}", tensor, file)
            continue
        table = {**row.names, **({"ffn_gate_inp": experts.router} if experts else {})} if number else row.top
        if part not in table:
            strange.append(name)
            continue
        before = f"{row.layers}.{number}." if number else ""
        _add(weights, f"{before}{table[part]}.{kind}", tensor, file)
    if strange:
        raise Unsupported(
            f"{file.path} has tensors that a model of its architecture does not have ({len(strange)}): "
            f"{', '.join(strange[:4])}",
            next_step="Load the model's Hugging Face folder",
        )
    return _turned_back(weights, settings) if row.turned else weights


def _apart(name: str) -> tuple[str, str, str]:
    """ "blk.7.attn_q.weight": the number of the layer, the part and the kind; "" for what is in no layer."""
    before, _, kind = name.rpartition(".")
    top, _, rest = before.partition(".")
    number, _, part = rest.partition(".")
    return (number, part, kind) if top == "blk" and number.isdecimal() else ("", before, kind)


def _add(weights: Arrays, name: str, tensor: Tensor, file: File) -> None:
    if not tensor.block.bits:
        weights[name] = plain(tensor.block, tensor.shape, tensor.data)
        return
    if len(tensor.shape) != 2:
        raise InputError(f"{file.path}: a tensor of {tensor.block.name} is a matrix, got {tensor.shape} for {name}")
    weights |= {f"{name}.{part}": array for part, array in packed(tensor.block, tensor.shape, tensor.data).items()}


def _add_experts(weights: Arrays, name: str, tensor: Tensor, file: File) -> None:
    """Add the experts of a layer, which lie in one tensor, one after the other."""
    if len(tensor.shape) != 3:
        raise InputError(f"{file.path}: experts are (experts, out, in), got {tensor.shape} for {name}")
    each_bytes = len(tensor.data) // max(tensor.shape[0], 1)
    for number in range(tensor.shape[0]):
        own = Tensor(tensor.block, tensor.shape[1:], tensor.data[number * each_bytes : (number + 1) * each_bytes])
        _add(weights, name.format(number), own, file)


def _turned_back(weights: Arrays, settings: dict[str, Any]) -> Arrays:
    """Queries and keys whose pairs are half a head apart, as rotary positions take them here."""
    heads = {"q_proj": settings["num_attention_heads"], "k_proj": settings["num_key_value_heads"]}
    return {
        name: _in_halves(array, heads[part], name.rpartition(".")[2]) if (part := _projection(name)) else array
        for name, array in weights.items()
    }


def _projection(name: str) -> str:
    return next((part for part in ("q_proj", "k_proj") if f".self_attn.{part}." in name), "")


def _in_halves(array: NDArray[Any], heads: int, kind: str) -> NDArray[Any]:
    """The outputs in another order; they are the first axis of a plain weight, and the last one of a packed part."""
    axis = 0 if kind in ("weight", "bias") else 1
    outputs = array.shape[axis]
    if outputs % (2 * heads):
        return array  # its shape is refused where the weight is read
    order = np.arange(outputs).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    turned = np.take(array, order, axis=axis)
    turned.flags.writeable = False
    return turned


def _rows(file: File, name: str) -> int:
    """The rows of a table."""
    if name not in file.tensors:
        raise InputError(f"{file.path} has no tensor {name!r}", next_step="Is it a whole model? Download it again")
    shape = file.tensors[name].shape
    return shape[0] if shape else 0
