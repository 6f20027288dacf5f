"""Weights that others quantised, as parts of packed matrices (`nn/packed.py`): GPTQ's and AWQ's, without rounding.

Frantar et al., 2022 (arXiv 2210.17323); Lin et al., 2023 (arXiv 2306.00978).  To add a method: a row of METHODS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, Unsupported

from ...nn.packed import WORD_BITS, packed_levels
from .weights import Arrays

Settings = Mapping[str, Any]
SUFFIX = ".qweight"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that each nibble of a word holds


@dataclass(frozen=True, slots=True)
class Method:
    """`allowed` are settings with the values that are known, the first one where a file does not tell; `unread` are
    those that change nothing.  `packed(tensors, settings, name)` gives the parts of a matrix."""

    allowed: Mapping[str, tuple[Any, ...]]
    unread: tuple[str, ...]
    packed: Callable[[Arrays, Settings, str], Arrays]


def with_packed(weights: Arrays, config: Any, file: Path) -> Arrays:
    """The weights with those that a method packed as parts; `config` is quantization_config.

    Raises
    ------
    Unsupported
        If the method is not known, or one of its settings; it names them.
    InputError
        If tensors are missing, or do not fit each other.
    """
    if not isinstance(config, Mapping):
        raise InputError(f"{file}: quantization_config is an object, got {config!r:.60}")
    name = config.get("quant_method")
    method = METHODS.get(name) if isinstance(name, str) else None
    if method is None:
        raise Unsupported(
            f"{file}: quantization_config has the method {name!r:.60}",
            next_step=f"Known: {', '.join(METHODS)}. Or load a GGUF file, or quantise the whole model by mesh.quantise",
        )
    settings: dict[str, Any] = {str(ALIASES.get(key, key)): value for key, value in config.items() if value is not None}
    for key, allowed in method.allowed.items():
        value = settings.setdefault(key, allowed[0])
        if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed):
            raise Unsupported(
                f"{file}: quantization_config.{key} = {value!r:.60} is not supported",
                next_step=f"Known: {', '.join(map(str, allowed))}",
            )
    strange = sorted(settings.keys() - method.allowed.keys() - {"quant_method", "group_size", *method.unread})
    if strange:
        raise Unsupported(f"{file}: quantization_config.{strange[0]} = {settings[strange[0]]!r:.60} is not known")
    if type(settings.get("group_size", -1)) is not int:
        raise InputError(f"{file}: quantization_config.group_size is an integer, got {settings['group_size']!r:.60}")
    matrices = [each.removesuffix(SUFFIX) for each in weights if each.endswith(SUFFIX)]
    if not matrices:
        raise InputError(f"{file} has a quantization_config, and the files beside it have no weight *{SUFFIX}")
    made = dict(weights)
    for matrix in matrices:
        own = {part: made.pop(f"{matrix}.{part}") for part in TENSORS if f"{matrix}.{part}" in made}
        _check(own, settings, matrix, file)
        for part, array in method.packed(own, settings, matrix).items():
            array.flags.writeable = False
            made[f"{matrix}.weight.{part}"] = array
    return made


TENSORS = ("qweight", "qzeros", "scales", "g_idx")
ALIASES = {"w_bit": "bits", "q_group_size": "group_size"}


def _check(own: Arrays, settings: Settings, name: str, file: Path) -> None:
    """Raise InputError if a tensor is missing, or they do not fit each other."""
    missing = [part for part in ("qweight", "qzeros", "scales") if part not in own]
    if missing:
        raise InputError(
            f"the files beside {file} have no weight '{name}.{missing[0]}'", next_step="Download them again"
        )
    per_word = WORD_BITS // settings["bits"]
    by_inputs = settings["quant_method"] == "gptq"
    shapes = {part: array.shape for part, array in own.items()}
    words, scales = shapes["qweight"], shapes["scales"]
    fits = all(array.dtype.kind == "i" and array.dtype.itemsize == 4 for part, array in own.items() if part != "scales")
    fits = fits and len(words) == len(scales) == len(shapes["qzeros"]) == 2 and own["scales"].dtype.kind == "f"
    if fits:
        inputs, outputs = (words[0] * per_word, words[1]) if by_inputs else (words[0], words[1] * per_word)
        group = settings.get("group_size", -1)
        groups = scales[0]
        fits = scales[1] == outputs and shapes["qzeros"] == (groups, outputs // per_word) and groups > 0
        fits = fits and inputs % groups == 0 and (group <= 0 or inputs // groups == min(group, inputs))
        fits = fits and shapes.get("g_idx", (inputs,)) == (inputs,) and inputs % WORD_BITS == 0
    if not fits:
        found = ", ".join(f"{part} {array.dtype.name}{list(array.shape)}" for part, array in own.items())
        raise InputError(f"the tensors of {name} do not fit each other, or its group size: {found}")


def _gptq(own: Arrays, settings: Settings, name: str) -> Arrays:
    bits, groups = settings["bits"], own["scales"].shape[0]
    words = own["qweight"].view(np.uint32)
    zeros = _levels(own["qzeros"].view(np.uint32), bits).reshape(groups, -1)
    if settings["checkpoint_format"] == "gptq":  # which tells one less
        zeros = (zeros + np.uint8(1)) & np.uint8((1 << bits) - 1)
    parts: Arrays = {"words": words, "scales": own["scales"], "zeros": zeros.astype(np.float16)}
    inputs = words.shape[0] * WORD_BITS // bits
    places = own.get("g_idx")
    if places is None or np.array_equal(places, np.arange(inputs) // (inputs // groups)):
        return parts
    order = np.argsort(places, kind="stable").astype(np.int32)  # so that the inputs of a group stand side by side
    if not np.array_equal(places[order], np.arange(inputs) // (inputs // groups)):
        raise InputError(f"{name}.g_idx has groups of unlike sizes, or groups that there are not")
    levels = _levels(np.ascontiguousarray(words.T), bits).reshape(words.shape[1], inputs)
    return {**parts, **packed_levels(levels[:, order], bits), "order": order}


def _awq(own: Arrays, settings: Settings, name: str) -> Arrays:
    inputs, outputs = own["qweight"].shape[0], own["scales"].shape[1]
    back = np.argsort(AWQ_ORDER)
    levels, zeros = (
        _levels(own[part].view(np.uint32), 4).reshape(rows, outputs // 8, 8)[..., back].reshape(rows, outputs)
        for part, rows in (("qweight", inputs), ("qzeros", own["qzeros"].shape[0]))
    )
    return {
        **packed_levels(np.ascontiguousarray(levels.T), 4),
        "scales": own["scales"],
        "zeros": zeros.astype(np.float16),
    }


def _levels(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """(..., n, 32 / bits) of words (..., n)."""
    shifts = np.arange(0, WORD_BITS, bits, dtype=np.uint32)
    return np.asarray(words[..., None] >> shifts & np.uint32((1 << bits) - 1), np.uint8)


METHODS: dict[str, Method] = {
    "awq": Method(
        {"bits": (4,), "version": ("gemm",), "zero_point": (True,)},
        ("backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse", "modules_to_not_convert"),
        _awq,
    ),
    "gptq": Method(
        {"bits": (4, 8, 2), "checkpoint_format": ("gptq", "gptq_v2"), "is_marlin_format": (False,), "dynamic": ({},),
         "lm_head": (False, True), "pack_dtype": ("int32",)},
        ("backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment",
         "damp_percent", "dataset", "desc_act", "disable_exllama", "exllama_config", "max_input_length", "meta",
         "model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block",
         "modules_in_block_to_quantize", "pad_token_id", "quantizer", "static_groups", "sym", "tokenizer",
         "true_sequential", "use_cuda_fp16", "use_exllama"),
        _gptq,
    ),
}  # fmt: skip
