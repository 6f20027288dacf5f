"""Hugging Face folders: config.json, safetensors (one file, or several with an index) and what a family makes of them.

    model = mesh.load("path/to/folder")
    logits = model(input_ids=ids)

A family is a file here and a row of KINDS: which settings it knows, and a function from these to the inputs, the
outputs and the pure function of a model, over weights by the names that the files give them.  Nothing is left unsaid:
a setting of config.json that may change the model and is not known, and a tensor that the model does not read, are
errors that name them (`keys.py`, `weights.py`).  Weights stay mapped files; no code of the folder is run.  The
architectures are those of the `transformers` library, whose results are the reference of the tests.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from wire.errors import InputError, Unsupported

from ...models.decoder import Text
from ...models.model import Model
from ...util.json_file import read_object
from ...util.units import counted
from . import bert, clip, decoders, distilbert, t5, vit, whisper
from .config import Config
from .family import Kind
from .quantised import with_packed
from .weights import Arrays, cast, is_packed, left_out, load_weights, noted_by

KINDS: dict[str, Kind] = {
    "bert": bert.BERT,
    "distilbert": distilbert.DISTILBERT,
    **clip.CLIP,
    **decoders.KINDS,
    "roberta": bert.ROBERTA,
    "t5": t5.T5,
    "vit": vit.VIT,
    "whisper": whisper.WHISPER,
    "xlm-roberta": bert.XLM_ROBERTA,
}
ELSE = "Export the model to ONNX, or use mesh.from_torch"
MISSING: dict[str, str] = {  # of model types that are refused: what would have to be written for them
    "cohere": "norms of heads without a bias and scaled logits",
    "cohere2": "layers without positions and scaled logits",
    "deepseek_v2": "latent attention and groups of experts",
    "deepseek_v3": "latent attention and groups of experts",
    "falcon": "its attention with one key for all heads",
    "falcon_mamba": "state-space layers",
    "gemma3": "the tower for images; its language model alone is a gemma3_text model",
    "gemma3n": "per-layer inputs",
    "glm4_moe": "groups of experts",
    "granite": "multipliers of its layers",
    "gptj": "rotary positions of neighbouring pairs",
    "llama4": "layers without positions and its router",
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
    "mllama": "the tower for images",
    "olmo2": "norms behind the layers alone",
    "phi": "its partial rotary positions with biases",
    "phimoe": "its router",
    "qwen2_5_vl": "the tower for images",
    "qwen2_vl": "the tower for images",
    "qwen3_next": "linear attention",
    "qwen3_vl": "the tower for images",
    "rwkv": "its recurrent layers",
    "starcoder2": "norms with a bias beside shared keys",
}


def load(folder: Path) -> Model:
    """The model in `folder`.

    InputError if a file is missing or damaged, or the weights are not those that the settings ask for; Unsupported
    naming a model type, a class, a setting or a tensor that is not known.
    """
    file = folder / "config.json"
    settings = read_object(file)
    model_type = settings.get("model_type")
    kind = KINDS.get(model_type) if isinstance(model_type, str) else None
    if kind is None:
        known = f"Known: {', '.join(KINDS)}"
        missing = MISSING.get(str(model_type))
        why = f" (missing: {missing})" if missing else ""
        raise Unsupported(f"{folder} holds a model of the type {model_type!r}{why}", next_step=f"{known}. {ELSE}")
    weights, quantised = load_weights(folder), settings.pop("quantization_config", None)
    if quantised is not None:
        weights = with_packed(weights, quantised, file)
    return made(kind, settings, weights, file, folder)


def made(
    kind: Kind, settings: dict[str, Any], weights: Arrays, file: Path, folder: Path, name: str = "", mixed: bool = False
) -> Model:
    """The model of these settings and weights.  Errors name `file`; the tokenizer is looked for in `folder`.

    `mixed` weights stay in the dtypes that they have, which may be fewer bits than the model computes in.
    """
    config = Config(_by_one_name(settings, kind, file), kind.keys, file)
    if config.architecture and config.architecture not in kind.architectures:
        raise config.unknown("architectures", settings["architectures"], kind.architectures)
    weights = weights if mixed else cast(weights, config)
    family = kind.make(config, weights)
    noted = noted_by(family.function, family.inputs, weights)
    read = _account(kind, noted.read & weights.keys(), weights, folder)
    packed = {name: array for name, array in read.items() if is_packed(name, read)}
    params = {name: array for name, array in read.items() if name not in packed}
    name = name or str(settings.get("_name_or_path") or folder.resolve().name)
    text = Text(family.decoder, folder, _ends(config, folder)) if family.decoder else None
    model = Model(
        name, family.function, family.inputs, family.outputs, params, text, buffers=packed, matrices=noted.matrices
    )
    model.positions_max = family.decoder.positions_max if family.decoder else family.positions_max
    return model


def _by_one_name(settings: dict[str, Any], kind: Kind, file: Path) -> dict[str, Any]:
    """The settings with one name for each."""
    for other, name in kind.renamed.items():
        if other in settings and name in settings and settings[name] != settings[other]:
            raise InputError(f"{file}: {name} = {settings[name]!r:.60} and {other} = {settings[other]!r:.60} are one")
    return {kind.renamed.get(name, name): value for name, value in settings.items()}


def _account(kind: Kind, read: set[str], weights: Arrays, folder: Path) -> Arrays:
    """The weights that the model reads; Unsupported naming others, but for those that are known to be none."""
    others = weights.keys() - read
    dropped = left_out(others, kind.dropped)
    others -= dropped | left_out(others, kind.left)
    if others:
        names = sorted(others)
        raise Unsupported(
            f"{folder} has weights that a model of these settings does not read ({len(names)}): {', '.join(names[:4])}",
            next_step=f"{ELSE}; or save the model again with save_pretrained, without them",
        )
    if dropped:
        what_is_left = next(what for pattern, what in kind.dropped.items() if left_out(dropped, {pattern: ""}))
        warnings.warn(
            f"of {folder} only the encoder is loaded, not {what_is_left} ({counted(len(dropped), 'weight')})",
            stacklevel=4,
        )
    return {name: array for name, array in weights.items() if name in read}


def _ends(config: Config, folder: Path) -> tuple[int, ...]:
    """The tokens that end a text: generation_config.json says so, or config.json."""
    file = folder / "generation_config.json"
    own_ends = read_object(file).get("eos_token_id") if file.exists() else None
    ends = config["eos_token_id"] if own_ends is None else own_ends
    return tuple(int(end) for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int))


__all__ = ["KINDS", "load", "load_weights"]
