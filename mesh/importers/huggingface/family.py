"""Family: what a model type is to the importer, and what the families share: inputs, masks, names of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wire.errors import InputError
from wire.ir.dtypes import BOOL, F32, I32

from ... import numpy as mnp
from ...core.array import Array
from ...models.decoder import Decoder
from ...models.model import Function, InputSpec
from ...util.units import counted
from .config import Config
from .keys import Key
from .weights import Arrays, Weights, tie


@dataclass(frozen=True, slots=True)
class Family:
    """A model of a family: its inputs and outputs, and the function between them."""

    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    function: Function
    decoder: Decoder | None = None  # of one that generates text
    positions_max: int | None = None  # how many tokens it reads, of one that does not; None for any number


@dataclass(frozen=True, slots=True)
class Kind:
    """A model type: the keys of its settings, the classes of transformers that are known, and how a model is made.

    `left` are patterns of tensors that older files hold and that are no weights, with the reason; `dropped` those of
    parts that are not loaded, which a warning names.  `renamed` are other names of keys.
    """

    keys: Mapping[str, Key]
    architectures: tuple[str, ...]
    make: Callable[[Config, Arrays], Family]
    left: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


IDS = InputSpec("input_ids", I32, ("batch", "length"))
MASK = InputSpec("attention_mask", I32, ("batch", "length"), optional=True)
TYPES = InputSpec("token_type_ids", I32, ("batch", "length"), optional=True)
PIXELS = InputSpec("pixel_values", F32, ("batch", "channels", "height", "width"))


def prefix_of(weights: Arrays, config: Config, known: str, *candidates: str) -> str:
    """What stands before the names of the weights: models with a head have them under the base model's name."""
    for candidate in candidates:
        if candidate + known in weights:
            return candidate
    names = ", ".join(sorted(weights)[:3])
    raise InputError(
        f"{config.file} says model_type = {config.model_type!r}, and the files beside it have no weight "
        + " or ".join(repr(start + known) for start in candidates),
        cause=f"they have {counted(len(weights), 'weight')}: {names}, ...",
        next_step="Save the model again with save_pretrained, or mend config.json",
    )


Top = Callable[[Weights, Mapping[str, Array]], Array]
"""From all weights, and the outputs of the base model, to one more output."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head by the weight that shows that it is there; `architectures` are the classes of transformers that have it,
    without the family's name, and `needs` is the output that it reads."""

    output: str
    shown_by: str
    architectures: tuple[str, ...]
    make: Callable[[Config, Arrays, str], Top]
    needs: str = "last_hidden_state"


def heads_of(
    rows: tuple[Head, ...], name: str, config: Config, weights: Arrays, prefix: str, outputs: tuple[str, ...]
) -> dict[str, Top]:
    """The heads that are there by their outputs, after a model with `outputs`.

    Where the same weight shows several, the class that config.json names decides, else their order.  InputError if a
    head of that class is not there.
    """
    ending = config.architecture.removeprefix(name)
    promised = [row for row in rows if ending in row.architectures]
    heads: dict[str, Top] = {}
    for row in promised:
        missing = row.needs not in outputs or row.shown_by not in weights
        if missing:
            raise InputError(
                f"{config.file}: architectures = [{config.architecture!r}], and the files have no weight "
                f"{row.shown_by!r}" + ("" if row.needs in outputs else f", or none for the {row.needs} that it reads"),
                next_step=f'Write "architectures": ["{name}Model"] to load the model without this head',
            )
    for row in [*promised, *rows]:
        if row.output not in heads and row.needs in outputs and row.shown_by in weights:
            heads[row.output] = row.make(config, weights, prefix)
    return heads


def architectures(name: str, rows: tuple[Head, ...]) -> tuple[str, ...]:
    """The classes of transformers that have these heads, and the one without any."""
    return tuple(dict.fromkeys([f"{name}Model", *(name + ending for row in rows for ending in row.architectures)]))


def tied(config: Config, weights: Arrays, target: str, source: str) -> str:
    """The name of the weight that stands for `target`, which the settings may tie to `source`."""
    if config.flag("tie_word_embeddings"):
        tie(weights, target, source)
        return target if target in weights else source
    return target


def check_length(length: int, positions: int) -> None:
    """Raise InputError for more tokens than there are learned positions."""
    if length > positions:
        raise InputError(f"the model has {positions} positions, got {length} tokens")


def key_mask(inputs: Mapping[str, Any]) -> Array | None:
    """bool (batch, 1, 1, length), true where a token stands; None where there is no attention_mask."""
    if MASK.name not in inputs:
        return None
    mask = mnp.astype(inputs[MASK.name], BOOL.numpy)
    return mask[:, None, None, :]


def causal_mask(length: int, window: int | None = None) -> Array:
    """bool (length, length), true where a token may look: at itself and what came before, at most `window` of them."""
    row, column = mnp.arange(length)[:, None], mnp.arange(length)[None, :]
    causal = column <= row
    return causal if window is None or window >= length else causal & (column > row - window)


def both(left: Array | None, right: Array | None) -> Array | None:
    """The mask that is true where both are; None is true everywhere."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def is_causal(config: Config, weights: Arrays, below: bool) -> bool:
    """Whether it is a language model, by its own word, its head, or its names, which are `below` the base model's:
    GPT-2's own files have no head."""
    named = config.architecture.endswith(("LMHeadModel", "ForCausalLM"))
    return named or "lm_head.weight" in weights or below
