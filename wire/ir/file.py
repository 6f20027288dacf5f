"""`.wire` files: a graph with its large constants and, if wanted, the values of its params.

The container is a safetensors file, so any tool that reads those can list it.  Every entry is a byte vector: `graph` is
the graph's encoding, `const/<address>` a constant's content, `param/<name>` a param's; shapes and dtypes are the
graph's own.  The metadata names the format and each entry's BLAKE2b-256, which reading verifies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import GraphDecodeError, InputError, VersionMismatch
from ..system.replaced_file import replaced_file
from .codec import decode_graph, encode_graph, hash_bytes, tensor_bytes, tensor_from
from .graph import WireGraph
from .types import TensorType

FORMAT = "1"
_GRAPH, _CONST, _PARAM = "graph", "const/", "param/"


def save_graph(graph: WireGraph, path: Path, params: Mapping[str, NDArray[Any]]) -> None:
    """Write `graph`, its large constants and the values in `params` (by name) to `path`, whole or not at all.

    InputError if a value does not fit its param, a constant is not at hand, or the file cannot be written.
    """
    entries = {_GRAPH: np.frombuffer(encode_graph(graph, graph.name), np.uint8)}
    for address, _ in _large_constants(graph):
        if address not in graph.blobs:
            raise InputError(f"the graph's constant {address.hex()[:16]} is not in this process, so it cannot be saved")
        entries[f"{_CONST}{address.hex()}"] = _as_bytes(graph.blobs[address])
    for name, array in params.items():
        _check_param(graph, name, array)
        entries[f"{_PARAM}{name}"] = _as_bytes(array)
    metadata = {name: hash_bytes(tensor_bytes(data)).hex() for name, data in entries.items()}
    try:
        _replace(path, entries, {**metadata, "format": FORMAT})
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {path}", cause=str(error)[:200]) from error


def load_graph(path: str | Path) -> WireGraph:
    """The graph in a `.wire` file, with its large constants.

    InputError if the file is missing or cannot be read, GraphDecodeError if it is damaged or something else,
    VersionMismatch if a later version wrote it.
    """
    entries = _read(path_of(path))
    graph = decode_graph(entries.pop(_GRAPH).tobytes())
    blobs = {}
    for address, kind in _large_constants(graph):
        data = entries.get(f"{_CONST}{address.hex()}")
        if data is None or hash_bytes(tensor_bytes(data)) != address:
            raise GraphDecodeError(f"{path} lacks the constant {address.hex()[:16]}, or it is damaged")
        blobs[address] = tensor_from(data, kind)
    return replace(graph, blobs=blobs)


def load_params(path: str | Path) -> dict[str, NDArray[Any]]:
    """The values saved with the graph, by param name; errors as for `load_graph`."""
    entries = _read(path_of(path))
    types = decode_graph(entries[_GRAPH].tobytes()).param_types
    params = {name.removeprefix(_PARAM): data for name, data in entries.items() if name.startswith(_PARAM)}
    unknown = sorted(params.keys() - types.keys())
    if unknown:
        raise GraphDecodeError(f"{path} has values of params the graph does not have: {', '.join(unknown)}")
    return {name: tensor_from(data, types[name]) for name, data in params.items()}


def _large_constants(graph: WireGraph) -> Iterator[tuple[bytes, TensorType]]:
    for node, kind in zip(graph.nodes, graph.types, strict=True):
        if node.op == "const" and "blob" in node.attrs:
            yield node.attrs["blob"], kind


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(tensor_bytes(array), np.uint8)


def _check_param(graph: WireGraph, name: str, array: NDArray[Any]) -> None:
    wanted = graph.param_types.get(name)
    if wanted is None:
        known = ", ".join(graph.param_types) or "none"
        raise InputError(f"the graph has no param {name!r}", next_step=f"Its params: {known}")
    if (array.shape, array.dtype) != (wanted.shape, wanted.dtype.numpy):
        raise InputError(f"the param {name!r} is {wanted}, got {array.dtype}{list(array.shape)}")


def path_of(path: object) -> Path:
    """Check that a value is a path; InputError if not."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"the path of a file is a text or a Path, not {path!r:.80}")
    return Path(path)


def _replace(path: Path, entries: Mapping[str, NDArray[np.uint8]], metadata: Mapping[str, str]) -> None:
    with replaced_file(path) as writing:
        save_file(dict(entries), writing, dict(metadata))


def _read(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Every entry, verified against the metadata's hashes."""
    if not path.is_file():
        raise InputError(f"there is no file {path}", next_step="Write one with WireGraph.save")
    try:
        with safe_open(path, framework="numpy") as file:
            hashes = _hashes(path, file)
            entries = {name: file.get_tensor(name) for name in hashes}
    except SafetensorError as error:
        raise _foreign(path, cause=str(error)[:200]) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    for name, data in entries.items():
        if hash_bytes(tensor_bytes(data)).hex() != hashes[name]:
            raise GraphDecodeError(f"{path} is damaged: {name} does not match its hash")
    return entries


def _hashes(path: Path, file: Any) -> dict[str, str]:
    """The hash of every entry, from the metadata; nothing is read of a file that holds other kinds of tensors."""
    hashes: dict[str, str] = file.metadata() or {}
    written_format = hashes.pop("format", "")
    if written_format != FORMAT and written_format.isdigit():
        raise VersionMismatch(
            f"{path} has format {written_format}, this version reads {FORMAT}", expected=FORMAT, got=written_format
        )
    if written_format != FORMAT or _GRAPH not in hashes or hashes.keys() != set(file.keys()):
        raise _foreign(path)
    if any(file.get_slice(name).get_dtype() != "U8" for name in hashes):
        raise _foreign(path)
    return hashes


def _foreign(path: Path, cause: str = "") -> GraphDecodeError:
    return GraphDecodeError(f"{path} is not a .wire file", cause=cause, next_step="Write one with WireGraph.save")
