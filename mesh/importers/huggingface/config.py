"""Config: a config.json whose every key is accounted for, with the checks of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from sys import float_info
from typing import Any

from wire.errors import InputError, Unsupported
from wire.ir.dtypes import BF16, F16, F32, F64, DType

from ... import nn
from ... import numpy as mnp
from ...core.array import Array
from .keys import Key, Only, Used

OTHERWISE = "Remove it from the file if the model computes the same without it; else use mesh.from_torch"
DTYPES: dict[str, DType] = {"float32": F32, "float16": F16, "bfloat16": BF16, "float64": F64}
SIZE_MAX = (1 << 31) - 1  # of an axis, a layer's number or a token: arrays are counted in i32
_REQUIRED = object()


class Config:
    """The settings of a model by a table of keys; what is absent has the default that transformers gives it.

    Unsupported naming every key that is in no table, or has a value that is not known.
    """

    def __init__(self, values: Mapping[str, Any], keys: Mapping[str, Key], file: Path) -> None:
        self._values = values
        self._keys = keys
        self.file = file
        self.read: set[str] = set()  # the keys that were asked for
        for key, value in values.items():
            row = keys.get(key)
            if isinstance(row, Only) and value is not None and not _is_one_of(value, row.allowed):
                raise self.unknown(key, value, row.allowed)
        strange = [f"{key} = {values[key]!r:.60}" for key in sorted(values.keys() - keys.keys())
                   if values[key] is not None]  # fmt: skip
        if strange:
            raise Unsupported(
                f"{file} has settings that are not known for a {values.get('model_type')!r} model, and may change "
                f"what it computes: {', '.join(strange)}", next_step=OTHERWISE,
            )  # fmt: skip

    @property
    def model_type(self) -> str:
        return str(self["model_type"])

    def __getitem__(self, key: str) -> Any:
        row = self._keys[key]
        assert isinstance(row, Used), f"{key} is read, and the table of keys says otherwise"
        self.read.add(key)
        return self._values.get(key, row.default)

    def nested(self, key: str, keys: Mapping[str, Key]) -> Config:
        """The settings in a setting, by a table of their own."""
        values = self[key] or {}
        if not isinstance(values, Mapping):
            raise InputError(f"{self.file}: {key} is an object, got {values!r:.60}")
        return Config(values, keys, self.file)

    def knows(self, key: str) -> bool:
        """Whether the table of keys has it as one that is used."""
        return isinstance(self._keys.get(key), Used)

    def integer(self, key: str, instead: Any = _REQUIRED, least: int = 1) -> int:
        """An integer, positive or from `least` on, up to SIZE_MAX; `instead` of null."""
        value = self[key]
        if value is None and instead is not _REQUIRED:
            value = instead
        if type(value) is not int or not least <= value <= SIZE_MAX:
            kind = "a positive integer" if least else "an integer, 0 or more"
            most = f", and {SIZE_MAX} at most" if type(value) is int and value > SIZE_MAX else ""
            raise InputError(f"{self.file}: {key} is {kind}{most}, got {value!r:.60}")
        return value

    def number(self, key: str) -> float:
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= float_info.max:
            raise InputError(f"{self.file}: {key} is a finite number, got {value!r:.60}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self[key]
        if not isinstance(value, bool):
            raise InputError(f"{self.file}: {key} is true or false, got {value!r}")
        return value

    def activation(self, key: str) -> Callable[[Array], Array]:
        name = self[key]
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.unknown(key, name, ACTIVATIONS)
        return ACTIVATIONS[name]

    def heads(self, key: str, width: str) -> int:
        """A number of heads that divides the setting `width`."""
        heads = self.integer(key)
        if self.integer(width) % heads:
            raise InputError(f"{self.file}: {width} = {self[width]} is no multiple of {key} = {heads}")
        return heads

    def sizes(self, *keys: str) -> dict[str, int]:
        """Positive integers by their keys, from which the shapes of weights follow."""
        return {key: self.integer(key) for key in keys}

    @property
    def architecture(self) -> str:
        """The class of transformers that wrote the files, "" where the file names none."""
        names = self["architectures"]
        if names is None or names == []:
            return ""
        if not isinstance(names, list) or not isinstance(names[0], str):
            raise InputError(f"{self.file}: architectures is a list of names, got {names!r:.60}")
        return names[0]

    @property
    def labels(self) -> int:
        """How many classes a classifier tells apart."""
        names = self["id2label"]
        if self["num_labels"] is not None or names is None:  # which is stronger than the names
            return self.integer("num_labels", 2)
        if not isinstance(names, Mapping) or not names:
            raise InputError(f"{self.file}: id2label is a name by number, got {names!r:.60}")
        return len(names)

    @property
    def dtype(self) -> DType | None:
        """What the weights are computed in; None where nothing says so."""
        old, new = self["torch_dtype"], self["dtype"]
        key, value = ("torch_dtype", old) if new is None else ("dtype", new)
        if value is None:
            return None
        name = str(value).removeprefix("torch.")
        if name not in DTYPES:
            raise self.unknown(key, value, DTYPES)
        return DTYPES[name]

    def unknown(self, key: str, value: Any, known: Any) -> Unsupported:
        return Unsupported(
            f"{self.file}: {key} = {value!r:.80} is not supported",
            next_step=f"Known: {', '.join(map(str, known))}; or use mesh.from_torch",
        )


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether it is allowed, true being no 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": nn.gelu,
    "gelu_10": lambda x: mnp.clip(nn.gelu(x), -10, 10),
    "gelu_new": lambda x: nn.gelu(x, approximate=True),
    "gelu_fast": lambda x: nn.gelu(x, approximate=True),
    "gelu_python": nn.gelu,
    "gelu_pytorch_tanh": lambda x: nn.gelu(x, approximate=True),
    "leaky_relu": nn.leaky_relu,
    "linear": lambda x: x,
    "mish": nn.mish,
    "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
    "relu": nn.relu,
    "relu2": lambda x: mnp.square(nn.relu(x)),
    "relu6": nn.relu6,
    "sigmoid": nn.sigmoid,
    "silu": nn.silu,
    "swish": nn.silu,
    "tanh": mnp.tanh,
}
