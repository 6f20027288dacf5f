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

from wire.errors import Unsupported

from ...models.decoder import Text
from ...models.model import Model
from ...util.units import counted
from . import bert, distilbert, gpt2, llama, t5, vit
from .config import Config
from .family import Family, Kind
from .weights import Arrays, cast, left_out, load_weights, read_by, read_json

KINDS: dict[str, Kind] = {
    "bert": bert.BERT,
    "distilbert": distilbert.DISTILBERT,
    "gpt2": gpt2.GPT2,
    "llama": llama.LLAMA,
    "mistral": llama.MISTRAL,
    "qwen2": llama.QWEN2,
    "qwen3": llama.QWEN3,
    "roberta": bert.ROBERTA,
    "t5": t5.T5,
    "vit": vit.VIT,
    "xlm-roberta": bert.XLM_ROBERTA,
}
ELSE = "Export the model to ONNX, or use mesh.from_torch"


def load(folder: Path) -> Model:
    """The model in `folder`.

    InputError if a file is missing or damaged, or the weights are not those that the settings ask for; Unsupported
    naming a model type, a class, a setting or a tensor that is not known.
    """
    file = folder / "config.json"
    settings = read_json(file)
    model_type = settings.get("model_type")
    kind = KINDS.get(model_type) if isinstance(model_type, str) else None
    if kind is None:
        known = f"Known: {', '.join(KINDS)}"
        raise Unsupported(f"{folder} holds a model of the type {model_type!r}", next_step=f"{known}. {ELSE}")
    config = Config(settings, kind.keys, file)
    if config.architecture and config.architecture not in kind.architectures:
        raise config.unknown("architectures", settings["architectures"], kind.architectures)
    weights = cast(load_weights(folder), config)
    family = kind.make(config, weights)
    read = _account(kind, family, weights, folder)
    name = str(settings.get("_name_or_path") or folder.resolve().name)
    text = Text(family.decoder, folder, _ends(config, folder)) if family.decoder else None
    return Model(name, family.function, family.inputs, family.outputs, read, text)


def _account(kind: Kind, family: Family, weights: Arrays, folder: Path) -> Arrays:
    """The weights that the model reads; Unsupported naming others, but for those that are known to be none."""
    read = read_by(family.function, family.inputs, weights)
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
    own_ends = read_json(file).get("eos_token_id") if file.exists() else None
    ends = config["eos_token_id"] if own_ends is None else own_ends
    return tuple(int(end) for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int))


__all__ = ["KINDS", "load", "load_weights", "read_json"]
