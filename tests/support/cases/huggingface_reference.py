"""What transformers makes of a case: the shapes of its weights, its outputs, or that it refuses."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open

from . import huggingface_cases as cases
from .huggingface_cases import Case

OUTPUTS = (
    "last_hidden_state", "pooler_output", "logits", "prediction_logits", "seq_relationship_logits", "start_logits",
    "end_logits",
)  # fmt: skip
RENAMED = {"prediction_logits": "logits"}
transformers.utils.logging.set_verbosity(logging.CRITICAL)
transformers.utils.logging.disable_progress_bar()


@cache
def _shapes(model_type: str, architecture: str, settings: str) -> dict[str, tuple[int, ...]]:
    options = json.loads(settings)
    kind = getattr(transformers, architecture)
    model = kind(kind.config_class(**{key: options[key] for key in options if key != "model_type"}))
    with tempfile.TemporaryDirectory() as folder:
        model.to(torch.float32).save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def shapes_of(case: Case) -> dict[str, tuple[int, ...]] | None:
    """The weights that save_pretrained writes for the settings; None if transformers makes no model of them."""
    origin = case.origin
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _shapes(origin.model_type, origin.architecture, json.dumps(origin.settings))
    except Exception:
        return None


def outputs_of(folder: Path, case: Case) -> dict[str, np.ndarray] | str:
    """The outputs f32 by our names, or why there are none: an error, or weights that transformers would draw."""
    kind = getattr(transformers, case.architecture)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            model, loading_info = kind.from_pretrained(folder, output_loading_info=True)
            strange = {
                what: sorted(map(str, loading_info[what]))
                for what in ("missing_keys", "mismatched_keys")
                if loading_info[what]
            }
            if strange:
                return f"weights that are drawn: {strange}"
            model.config._experts_implementation = "eager"  # the others need sizes that are multiples of 16 bytes
            model.config.return_dict = True  # whose absence changes the form alone
            given = cases.inputs(case.settings)
            tensors = {name: torch.from_numpy(array) for name, array in given.items()}
            found: Any = model.eval()(**{name: each.long() if each.dtype == torch.int32 else each
                                         for name, each in tensors.items()}, return_dict=True)  # fmt: skip
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    made = {RENAMED.get(name, name): found[name].float().numpy() for name in OUTPUTS if found.get(name) is not None}
    if case.architecture.endswith("ForNextSentencePrediction"):
        made = {"seq_relationship_logits": made["logits"]}
    return made
