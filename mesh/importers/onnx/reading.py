"""Reading: from a .onnx file or a ModelProto to a Program; the door to the package `onnx`.

Large weights are mapped into memory, not read, whether they lie in the model's file or in others beside it.  Each file
is mapped as a whole, once, and is not open any more.  In a ModelProto weights are copies of its bytes.  A path that a
model names never leaves its folder; a link there, as caches of downloads have them, leads where it leads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import ConfigError, InputError
from wire.ir.dtypes import BY_NAME

from ...util.file_bytes import file_bytes, unreadable
from .program import DOMAIN, ELEMENT_TYPES, Declared, Graph, Node, Program, element_name
from .weight_stripping import MAPPED_BYTES_MIN, slim_bytes

Unreadable = list[tuple[str, str, str, int, str]]


def package() -> ModuleType:
    """The package `onnx`; ConfigError that names the extra where it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(
            "reading ONNX models needs the package onnx", next_step="pip install 'graph-mesh[onnx]'"
        ) from error
    module: ModuleType = onnx
    return module


def read(source: Any, mapped_bytes_min: int = MAPPED_BYTES_MIN, follow_links: bool = False) -> Program:
    """The Program of a path, or of a ModelProto; InputError if it is not a model.  Weights in a file stay there if they
    have `mapped_bytes_min`."""
    onnx = package()
    if isinstance(source, onnx.ModelProto):
        return Reader(source).program()
    path = Path(source)
    if not path.is_file():
        raise InputError(f"there is no model {path}")
    try:
        model = onnx.ModelProto.FromString(slim_bytes(path, onnx, mapped_bytes_min))
    except OSError as error:
        raise unreadable(path, "an ONNX model", error) from error
    except Exception as error:  # protobuf has errors of its own
        raise InputError(f"{path} is not an ONNX model", op=str(path)) from error
    return Reader(model, path, follow_links).program()


class Reader:
    """One model being read, of the file `path` if it has one; `problems` gathers what cannot be represented."""

    def __init__(self, model: Any, path: Path | None = None, follow_links: bool = False) -> None:
        self._model = model
        self._follow_links = follow_links
        self._path = path
        self._files: dict[Path, NDArray[np.uint8]] = {}  # each is mapped once
        self.problems: Unreadable = []

    def program(self) -> Program:
        model = self._model
        if not model.HasField("graph"):
            raise InputError(f"{self._path or 'the object'} is no ONNX model: it has no graph")
        versions = {domain(opset.domain): opset.version for opset in model.opset_import}
        functions = {(domain(f.domain), f.name, getattr(f, "overload", "")): f for f in model.functions}
        graph = self.graph(model.graph, versions)
        return Program(graph, versions, functions, tuple(dict.fromkeys(self.problems)))

    def graph(self, proto: Any, versions: Mapping[str, int]) -> Graph:
        initialisers = self._initialisers(proto)
        nodes = [self.node(node, versions) for node in proto.node]
        initialisers.update({node.outputs[0]: node.attributes["value"] for node in nodes if _is_tensor(node)})
        return Graph(
            proto.name,
            tuple([node for node in nodes if not _is_tensor(node)]),
            tuple([declared(value) for value in proto.input]),
            tuple([declared(value) for value in proto.output]),
            initialisers,
            tuple([declared(value) for value in proto.value_info]),
        )

    def _initialisers(self, proto: Any) -> dict[str, NDArray[Any]]:
        values = {tensor.name: self._tensor(tensor, f"initialiser {tensor.name}") for tensor in proto.initializer}
        values.update({sparse.values.name: self._sparse(sparse) for sparse in proto.sparse_initializer})
        return {name: value for name, value in values.items() if value is not None}

    def node(self, proto: Any, versions: Mapping[str, int]) -> Node:
        """A node of the model as plain data; `versions` are the opsets that the model imports, by domain."""
        at = domain(proto.domain)
        label = proto.name or next(iter(proto.output), "?")
        attributes = {part.name: self._attribute(part, versions, label, proto) for part in proto.attribute}
        return Node(
            proto.op_type,
            at,
            versions.get(at, 1),
            proto.name,
            tuple(proto.input),
            tuple(proto.output),
            attributes,
            proto,
        )

    def _attribute(self, proto: Any, versions: Mapping[str, int], label: str, node: Any) -> Any:
        kind = package().AttributeProto.AttributeType.Name(proto.type)
        if kind == "GRAPH":
            return self.graph(proto.g, versions)
        if kind == "TENSOR":
            return self._tensor(proto.t, label, node, versions)
        if kind == "SPARSE_TENSOR":
            return self._sparse(proto.sparse_tensor, label)
        if kind in _SCALARS:
            return _SCALARS[kind](proto)
        at = domain(node.domain)
        self.problems.append((label, node.op_type, at, versions.get(at, 1), f"an attribute of kind {kind.lower()}"))
        return None

    def _tensor(
        self, proto: Any, label: str, node: Any = None, versions: Mapping[str, int] | None = None
    ) -> NDArray[Any] | None:
        dtype = ELEMENT_TYPES.get(proto.data_type, ("", None))[1]
        if dtype not in BY_NAME:
            op = node.op_type if node is not None else "initialiser"
            at = domain(node.domain) if node is not None else DOMAIN
            version = (versions or {}).get(at, 0)
            self.problems.append((label, op, at, version, f"a tensor of {element_name(proto.data_type)}"))
            return None
        if proto.data_location == package().TensorProto.EXTERNAL:
            return self._external(proto, BY_NAME[dtype].numpy)
        return _array(proto)

    def _external(self, proto: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        where = {entry.key: entry.value for entry in proto.external_data}
        if self._path is None:
            raise InputError(
                f"the weights {proto.name!r} lie in the file {where.get('location')!r}",
                next_step="Load the model by its path, so that files beside it are found",
            )
        location = where.get("location")
        if location is None or "\0" in location:
            raise InputError(f"the weights {proto.name!r} lie in {location!r:.100}, which is no name of a file")
        path = self._file(proto.name, location)
        shape, offset = tuple(proto.dims), _size(where.get("offset", "0"))
        expected = math.prod(shape) * dtype.itemsize
        length = _size(where.get("length", str(expected)))
        if offset is None or length != expected or min(shape, default=0) < 0:
            listed = ", ".join(f"{key} {value}" for key, value in where.items())
            raise InputError(f"the weights {proto.name!r} of shape {list(shape)} are {expected} bytes, not {listed}")
        if not os.path.isfile(path):  # of a name that is too long, too
            raise InputError(f"the weights {proto.name!r} lie in {path!s:.300}, which does not exist")
        if expected == 0:
            return np.zeros(shape, dtype)
        if path not in self._files:
            self._files[path] = file_bytes(path, "a file of weights")
        data = self._files[path]
        if data.size < offset + expected:
            raise InputError(f"the weights {proto.name!r} need {expected} bytes at {offset} of {path}, which has fewer")
        return data[offset : offset + expected].view(dtype).reshape(shape)

    def _file(self, name: str, location: str) -> Path:
        """The file that a model says its weights lie in; its own is called "" (`weight_stripping.py`)."""
        assert self._path is not None
        if not location:
            return self._path
        path = Path(os.path.normpath(location))
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"the weights {name!r} lie outside of the model's folder: {location}")
        folder = os.path.realpath(self._path.parent)
        if not self._follow_links and os.path.realpath(os.path.join(folder, path)) != os.path.join(folder, path):
            raise InputError(
                f"the weights {name!r} lie in {self._path.parent / path}, which is a symbolic link",
                next_step="If you trust the model's folder, load it with follow_links=True",
            )
        return self._path.parent / path

    def _sparse(self, proto: Any, label: str = "") -> NDArray[Any] | None:
        values = self._tensor(proto.values, label)
        if values is None:
            return None
        indices = _array(proto.indices)
        try:
            dense = np.zeros(tuple(proto.dims), values.dtype)
            places = np.ravel_multi_index((indices,) if indices.ndim == 1 else tuple(indices.T),
                                          (dense.size,) if indices.ndim == 1 else dense.shape)  # fmt: skip
            if places.shape != values.shape:
                raise ValueError(f"{values.shape} values at {places.shape} places")
            dense.reshape(-1)[places] = values
        except (ValueError, TypeError, MemoryError) as error:
            raise InputError(f"the sparse weights {proto.values.name!r} are damaged", cause=str(error)) from error
        return dense


def _array(proto: Any) -> NDArray[Any]:
    try:
        if min(proto.dims, default=0) < 0:
            raise ValueError(f"a shape of {list(proto.dims)}")
        array: NDArray[Any] = package().numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise InputError(f"the weights {proto.name!r} are damaged", cause=str(error)) from error
    return array


_SCALARS: dict[str, Any] = {
    "FLOAT": lambda proto: proto.f,
    "INT": lambda proto: proto.i,
    "STRING": lambda proto: proto.s.decode(errors="replace"),
    "FLOATS": lambda proto: tuple(proto.floats),
    "INTS": lambda proto: tuple(proto.ints),
    "STRINGS": lambda proto: tuple([text.decode(errors="replace") for text in proto.strings]),
    "UNDEFINED": lambda proto: None,
}


def _size(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def domain(name: str) -> str:
    """A domain's one spelling."""
    return DOMAIN if name == "ai.onnx" else name


def _is_tensor(node: Node) -> bool:
    """Whether a node is an initialiser by another name."""
    known = isinstance(node.attributes.get("value"), np.ndarray)
    return known and node.op == "Constant" and node.domain == DOMAIN and len(node.outputs) == 1


def declared(value: Any) -> Declared:
    """What a ValueInfoProto says."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Declared(value.name, _KINDS.get(kind, "nothing that is known"), None)
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return Declared(value.name, tensor.elem_type, None)
    return Declared(value.name, tensor.elem_type, tuple(_dimensions(tensor.shape.dim)))


_KINDS = {
    None: "untyped",
    "sequence_type": "a sequence",
    "optional_type": "an optional",
    "map_type": "a map",
    "sparse_tensor_type": "a sparse tensor",
}


def _dimensions(dims: Iterable[Any]) -> Iterable[int | str | None]:
    for dim in dims:
        kind = dim.WhichOneof("value")
        known = kind == "dim_value" and dim.dim_value >= 0  # some exporters write -1 for a free one
        yield dim.dim_value if known else (dim.dim_param or None) if kind == "dim_param" else None
