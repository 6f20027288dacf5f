"""What families are made of: the configuration with its checks, scopes of weights, and the functions they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wire.dtypes import BOOL, F32, I32
from wire.errors import InputError, Unsupported

from ... import nn
from ... import numpy as mnp
from ...array import Array
from ...decoder import Decoder
from ...model import Function, InputSpec


@dataclass(frozen=True, slots=True)
class Family:
    """A model of a family: its inputs and outputs, and the function between them.

    The base model's weights are called `prefix` and more; of what else there is, those under `heads` are read.
    """

    inputs: Sequence[InputSpec]
    outputs: Sequence[str]
    function: Function
    prefix: str = ""
    heads: Sequence[str] = ()
    decoder: Decoder | None = None  # of one that generates text


class Config:
    """config.json and the shapes of the weights; what is missing or of the wrong kind is an error naming the key."""

    def __init__(self, values: Mapping[str, Any], weights: Mapping[str, tuple[int, ...]], file: Path) -> None:
        self._values = values
        self._file = file
        self.weights = weights
        self.model_type = str(values.get("model_type", ""))

    @property
    def is_causal(self) -> bool:
        """Whether it is a language model, by its own word or its head: GPT-2's own files have no head and no prefix."""
        told = [str(name) for name in self.get("architectures", ())]
        return "lm_head.weight" in self.weights or any(name.endswith(("LMHeadModel", "ForCausalLM")) for name in told)

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, or the default where there is none or null."""
        found = self._values.get(key)
        return default if found is None else found

    def integer(self, key: str, default: int | None = None) -> int:
        found = self.get(key, default)
        if type(found) is not int or found < 1:
            raise InputError(f"{self._file}: {key} is a positive integer, got {found!r}")
        return found

    def number(self, key: str, default: float) -> float:
        found = self.get(key, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise InputError(f"{self._file}: {key} is a number, got {found!r}")
        return float(found)

    def activation(self, key: str, default: str) -> Callable[[Array], Array]:
        name = self.get(key, default)
        if name not in ACTIVATIONS:
            raise self.unknown(key, name, ACTIVATIONS)
        return ACTIVATIONS[name]

    def refuse(self, key: str, *allowed: Any) -> None:
        """Unsupported if the setting is none of `allowed`; the first of them stands for its absence."""
        found = self.get(key, allowed[0])
        if found not in allowed:
            raise self.unknown(key, found, allowed)

    def unknown(self, key: str, found: Any, known: Any) -> Unsupported:
        return Unsupported(
            f"{self._file}: {key} = {found!r} is not supported", next_step=f"Known: {', '.join(map(str, known))}"
        )

    def prefix(self, known: str, width: str, *candidates: str) -> str:
        """What stands before the names of the weights: models with a head have them under the base model's name.

        The setting `width` is the last dimension of the weight `known`; InputError if it is not.
        """
        for candidate in candidates:
            shape = self.weights.get(candidate + known)
            if shape is not None:
                if shape[-1:] != (self.integer(width),):
                    raise InputError(
                        f"{self._file}: {width} = {self.get(width)}, but {candidate + known} is {list(shape)}"
                    )
                return candidate
        raise InputError(
            f"{self._file}: the files beside it have no weight {known!r}", next_step="Is it another model?"
        )


def require_known_heads(family: Family, config: Config, folder: Path) -> None:
    """Unsupported naming the weights of a head that the family does not have: its results would be another model's."""
    own = (family.prefix, *family.heads)
    others = sorted(name for name in config.weights if not name.startswith(own)) if family.prefix else []
    if others:
        raise Unsupported(
            f"{folder} has a head that is not known: {', '.join(others[:4])}",
            next_step="Export the model to ONNX, use mesh.from_torch, or save the base model alone",
        )


def check_length(length: int, positions: Array) -> None:
    """InputError for more tokens than there are learned positions."""
    if length > positions.shape[0]:
        raise InputError(f"the model has {positions.shape[0]} positions, got {length} tokens")


class Weights:
    """The weights below a prefix: w("dense.weight"), w.linear("dense", x)."""

    __slots__ = ("_params", "_prefix")

    def __init__(self, params: Mapping[str, Array], prefix: str = "") -> None:
        self._params = params
        self._prefix = prefix

    def at(self, path: str) -> Weights:
        """Those below `path`."""
        return Weights(self._params, f"{self._prefix}{path}.")

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._params

    def __call__(self, name: str) -> Array:
        found = self._params.get(self._prefix + name)
        if found is None:
            raise InputError(f"the files have no weight {self._prefix + name!r}")
        return found

    def linear(self, name: str, x: Array) -> Array:
        """x @ weight.T + bias, the bias where there is one."""
        bias = f"{name}.bias"
        return nn.linear(x, self(f"{name}.weight"), self(bias) if bias in self else None)

    def layer_norm(self, name: str, x: Array, eps: float) -> Array:
        return nn.layer_norm(x, self(f"{name}.weight"), self(f"{name}.bias"), eps=eps)

    def rms_norm(self, name: str, x: Array, eps: float) -> Array:
        """x over its root mean square, scaled.  Zhang and Sennrich, 2019 (arXiv 1910.07467)."""
        return x * (1 / mnp.sqrt(mnp.mean(x * x, axis=-1, keepdims=True) + eps)) * self(f"{name}.weight")


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": nn.gelu,
    "gelu_new": lambda x: nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: nn.gelu(x, approximate=True),
    "gelu_fast": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
    "tanh": mnp.tanh,
}

IDS = InputSpec("input_ids", I32, ("batch", "length"))
MASK = InputSpec("attention_mask", I32, ("batch", "length"), optional=True)
TYPES = InputSpec("token_type_ids", I32, ("batch", "length"), optional=True)
PIXELS = InputSpec("pixel_values", F32, ("batch", "channels", "height", "width"))


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
    """Where both masks are true; None is true everywhere."""
    if left is None or right is None:
        return right if left is None else left
    return left & right
