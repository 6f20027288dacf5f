"""Hugging Face folders: config.json, safetensors (one file, or several with an index) and what a family makes of them.

    model = mesh.load("path/to/folder")
    logits = model(input_ids=ids)

A family is a file here and a row of FAMILIES: a function from the configuration to the inputs, the outputs and the pure
function of a model, over weights by the names that the files give them.  Weights stay mapped files; nothing is copied
and no code of the folder is run.  The architectures are those of the `transformers` library, whose results are the
reference of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from wire.errors import InputError, Unsupported

from ...decoder import Text
from ...model import Model
from ...safetensors import load_safetensors
from . import bert, distilbert, gpt2, llama, t5, vit
from .config import Config, Family, require_known_heads

FAMILIES: dict[str, Callable[[Config], Family]] = {
    "bert": bert.family,
    "distilbert": distilbert.family,
    "gpt2": gpt2.family,
    "llama": llama.family,
    "mistral": llama.family,
    "qwen2": llama.family,
    "qwen3": llama.family,
    "roberta": bert.family,
    "t5": t5.family,
    "vit": vit.family,
    "xlm-roberta": bert.family,
}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def load(folder: Path) -> Model:
    """The model in `folder`.

    InputError if a file is missing or damaged, Unsupported naming a model type, or a setting of it, that is not known.
    """
    settings = read_json(folder / "config.json")
    weights = load_weights(folder)
    config = Config(settings, {name: array.shape for name, array in weights.items()}, folder / "config.json")
    config.refuse("quantization_config", None)
    make = FAMILIES.get(config.model_type)
    if make is None:
        raise Unsupported(
            f"{folder} holds a model of the type {config.model_type!r}",
            next_step=f"Known: {', '.join(FAMILIES)}. Export it to ONNX, or use mesh.from_torch",
        )
    family = make(config)
    require_known_heads(family, config, folder)
    name = str(config.get("_name_or_path", "") or folder.resolve().name)
    text = Text(family.decoder, folder, _ends(config, folder)) if family.decoder else None
    return Model(name, family.function, family.inputs, family.outputs, weights, text)


def _ends(config: Config, folder: Path) -> tuple[int, ...]:
    """The tokens that end a text: generation_config.json says so, or config.json."""
    file = folder / "generation_config.json"
    told = read_json(file).get("eos_token_id") if file.exists() else None
    found = config.get("eos_token_id") if told is None else told
    return tuple(int(each) for each in (found if isinstance(found, list) else [found]) if isinstance(each, int))


def load_weights(folder: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of the folder by name, mapped."""
    single, index = folder / WEIGHTS, folder / INDEX
    if single.exists():
        return load_safetensors(single)
    if not index.exists():
        raise InputError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}",
            next_step="Save the model with save_pretrained(folder, safe_serialization=True)",
        )
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise InputError(f"{index} is damaged: it has no weight_map")
    weights: dict[str, NDArray[Any]] = {}
    for file in sorted(set(found.values())):
        if Path(file).name != file:
            raise InputError(f"{index} names {file!r}, which is not a file beside it")
        weights.update(load_safetensors(folder / file))
    missing = sorted(found.keys() - weights.keys())
    if missing:
        raise InputError(
            f"{index} names {missing[0]!r}, which is in none of its files", cause=f"{len(missing)} missing"
        )
    return weights


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{file} does not exist", next_step="Give the folder of a saved model") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as JSON", cause=str(error)[:200]) from None
    if not isinstance(found, dict):
        raise InputError(f"{file} holds no JSON object")
    return found


__all__ = ["FAMILIES", "load", "load_weights", "read_json"]
