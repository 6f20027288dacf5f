"""Weights: the tensors of a folder's files by name, every one of them accounted for.

A family reads weights by name and by the shape that the settings give them.  While a model is loaded, its function is
run once on types alone (`noted_by`), which notes what was read: a tensor that is missing, has another shape, or is left
over is an error naming it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.dtypes import BF16, F16, DType, dtype_of
from wire.ir.types import TensorType

from ... import nn
from ... import numpy as mnp
from ...core.array import Array, argument
from ...models.model import Function, InputSpec
from ...models.safetensors import load_safetensors
from ...nn import embedding
from ...nn.packed import PARTS, WORDS, packed_product, packed_rows, parts_of
from ...transforms.composite import composite
from ...util.json_file import read_object
from .config import DTYPES, Config

Arrays = dict[str, NDArray[Any]]
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # in files made of TensorFlow's


class Weights:
    """The weights below a prefix: w("dense.weight", "wide", "hidden_size"), w.linear("dense", x, "wide").

    Shapes are given as names in `sizes`, which errors repeat: keys of the settings, or what is made of them.
    """

    __slots__ = ("_params", "_prefix", "_sizes")

    def __init__(self, params: Mapping[str, Array], sizes: Mapping[str, int], prefix: str = "") -> None:
        self._params = params
        self._sizes = sizes
        self._prefix = prefix

    def at(self, path: str) -> Weights:
        """The weights below `path`."""
        return Weights(self._params, self._sizes, f"{self._prefix}{path}.")

    def __call__(self, name: str, *shape: str | int) -> Array:
        tensor = self._params.get(self._prefix + name)
        if tensor is None:
            raise InputError(
                f"the files have no weight {self._prefix + name!r}, which config.json asks for",
                next_step="Save the model again with save_pretrained, or mend config.json",
            )
        wanted = tuple([self._sizes[dim] if isinstance(dim, str) else dim for dim in shape])
        if tensor.shape != wanted:
            expected = ", ".join(f"{dim} = {self._sizes[dim]}" if isinstance(dim, str) else str(dim) for dim in shape)
            raise InputError(
                f"{self._prefix + name} is {list(tensor.shape)} in the files, and [{expected}] by config.json",
                next_step="Mend config.json, or save the model again with save_pretrained",
            )
        return tensor

    def linear(
        self, name: str, x: Array, out: str | int, *, bias: bool = True, transposed: bool = False, rounds: bool = True
    ) -> Array:
        """x (..., n) @ weight (out, n).T + bias (out,); `transposed` weights lie (n, out).

        `rounds` says whether `mesh.quantise` may round the weight: a router's scores decide, and are not averaged.
        """
        packed = parts_of(self._params, f"{self._prefix}{name}.weight")
        if packed is not None:
            product = self._product(f"{name}.weight", packed, x, out)
        elif transposed:
            product = x @ self(f"{name}.weight", x.shape[-1], out)
        else:
            product = _by_rows(x, self(f"{name}.weight", out, x.shape[-1]))
        if rounds:
            self._note(f"{name}.weight", "transposed" if transposed else "matrix")
        return product + self(f"{name}.bias", out) if bias else product

    def logits(self, name: str, x: Array, rows: str, width: str) -> Array:
        """x (..., width) by every row of a table of tokens."""
        packed = parts_of(self._params, self._prefix + name)
        if packed is not None:
            return self._product(name, packed, x, rows)
        self._note(name, "matrix")
        return _by_rows(x, self(name, rows, width))

    def _note(self, name: str, kind: str) -> None:
        """Tell params that note it what this weight is."""
        if isinstance(self._params, Noted) and self._params.matrices.get(self._prefix + name) != "table":
            self._params.matrices[self._prefix + name] = kind

    def _product(self, name: str, packed: dict[str, Array], x: Array, out: str | int) -> Array:
        wanted, outputs = self._sizes[out] if isinstance(out, str) else out, packed[WORDS].shape[1]
        if outputs != wanted:
            raise InputError(f"{self._prefix + name} has {outputs} outputs in the files, and {out} = {wanted}")
        return packed_product(x, packed)

    def embedding(self, name: str, ids: Any, rows: str, width: str) -> Array:
        packed = parts_of(self._params, f"{self._prefix}{name}.weight")
        if packed is not None:
            return packed_rows(packed, mnp.asarray(ids), self._sizes[width])
        self._note(f"{name}.weight", "table")
        return embedding(ids, self(f"{name}.weight", rows, width))

    def layer_norm(self, name: str, x: Array, eps: float) -> Array:
        width = x.shape[-1]
        return nn.layer_norm(x, self(f"{name}.weight", width), self(f"{name}.bias", width), eps=eps)

    def rms_norm(self, name: str, x: Array, eps: float) -> Array:
        return nn.rms_norm(x, self(f"{name}.weight", x.shape[-1]), eps=eps)


def _by_rows(x: Array, weight: Array) -> Array:
    """x (..., in) by the rows of a weight (out, in), which may be of fewer bits than x."""
    if weight.type.dtype is x.type.dtype or weight.type.dtype not in (F16, BF16):
        return nn.linear(x, weight)
    return composite("narrow_product", nn.linear, x, weight)  # whose kernel widens what it loads


class Noted(dict[str, Array]):
    """Params that note which of them were read, and which of these are matrices that may be packed."""

    def __init__(self, params: Mapping[str, Array]) -> None:
        super().__init__(params)
        self.read: set[str] = set()
        self.matrices: dict[str, str] = {}

    def __getitem__(self, name: str) -> Array:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def noted_by(function: Function, inputs: tuple[InputSpec, ...], weights: Arrays) -> Noted:
    """The weights, with those noted that the function reads, by a run on their types with one row of one token."""
    types = {name: TensorType(array.shape, dtype_of(array)) for name, array in weights.items()}
    noted = Noted({name: argument("param", name, kind) for name, kind in types.items()})
    arguments = {}
    for spec in inputs:
        shape = tuple([dim if isinstance(dim, int) else 1 for dim in spec.shape])
        arguments[spec.name] = argument("input", spec.name, TensorType(shape, spec.dtype))
    function(noted, arguments)
    return noted


def load_weights(folder: Path) -> Arrays:
    """Every tensor of the folder by name, mapped."""
    single, index = folder / SINGLE, folder / INDEX
    if single.exists():
        return _renamed(load_safetensors(single))
    if not index.exists():
        raise InputError(
            f"{folder} has neither {SINGLE} nor {INDEX}",
            next_step="Save the model with save_pretrained(folder, safe_serialization=True)",
        )
    file_of = read_object(index).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(file, str) for file in file_of.values()):
        raise InputError(f"{index} is damaged: it has no weight_map")
    weights: Arrays = {}
    for file in sorted(set(file_of.values())):
        if Path(file).name != file:
            raise InputError(f"{index} names {file!r}, which is not a file beside it")
        weights.update(load_safetensors(folder / file))
    missing = sorted(file_of.keys() - weights.keys())
    if missing:
        raise InputError(
            f"{index} names {missing[0]!r}, which is in none of its files", cause=f"{len(missing)} missing"
        )
    return _renamed(weights)


def tie(weights: MutableMapping[str, NDArray[Any]], target: str, source: str) -> None:
    """Make one weight of two that the settings tie; files may hold either or both, and two that differ stay two."""
    if target in weights and (source not in weights or _alike(weights[target], weights[source])):
        weights[source] = weights.pop(target)


def cast(weights: Arrays, config: Config) -> Arrays:
    """The weights in the dtype that the settings tell, as transformers has them; those of another are copied."""
    floats = {
        name: dtype_of(array)
        for name, array in weights.items()
        if dtype_of(array) in DTYPES.values() and not is_packed(name, weights)
    }
    wanted = config.dtype
    if wanted is None and len(set(floats.values())) > 1:
        kinds = ", ".join(sorted({dtype.name for dtype in floats.values()}))
        raise InputError(
            f"the weights beside {config.file} are of several dtypes: {kinds}",
            next_step='Say in config.json which one the model computes in: "dtype": "float32"',
        )
    return {
        name: array if wanted is None or floats.get(name, wanted) is wanted else _narrowed(array, wanted)
        for name, array in weights.items()
    }


def is_packed(name: str, weights: Collection[str]) -> bool:
    """Whether it is a part of a packed weight."""
    weight, _, part = name.rpartition(".")
    return part in PARTS and f"{weight}.{WORDS}" in weights


def left_out(names: set[str], known: Mapping[str, str]) -> set[str]:
    """The tensors that are no weights, by a table of patterns with the reason."""
    return {name for name in names if any(re.search(pattern, name) for pattern in known)}


def _renamed(weights: Arrays) -> Arrays:
    """The tensors by the names that transformers gives them."""
    renamed: Arrays = {}
    for name, array in weights.items():
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        if name in renamed:
            raise InputError(f"the files have the weight {name!r} by two names", next_step="Save the model again")
        renamed[name] = array
    return renamed


def _alike(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and bool(np.array_equal(left, right))


def _narrowed(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    narrow = array.astype(dtype.numpy)
    narrow.flags.writeable = False
    return narrow
