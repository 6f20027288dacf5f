"""Safetensors files: named tensors, mapped into memory rather than read.

A file is a little-endian u64 (the header's length), a JSON header {"name": {"dtype", "shape", "data_offsets"}}, and the
tensors' bytes.  Format: https://github.com/huggingface/safetensors (README, "Format").  Written out here because the
reference package copies every tensor to numpy; mapped pages are read when a weight is used, and can be shared.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.dtypes import BF16, BOOL, C64, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType, dtype_of
from wire.system.replaced_file import replaced_file

from ..util.annotation_checks import checked
from ..util.file_bytes import file_bytes

DTYPES: dict[str, DType] = {
    "BOOL": BOOL, "I8": I8, "I16": I16, "I32": I32, "I64": I64, "U8": U8, "U16": U16, "U32": U32, "U64": U64,
    "F16": F16, "BF16": BF16, "F32": F32, "F64": F64, "C64": C64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_BYTES_MAX = 100_000_000  # the format's own limit
AXES_MAX, DIM_MAX = 64, (1 << 63) - 1  # what numpy has
_LENGTH_BYTES = 8
_METADATA = "__metadata__"  # what stands under this name is no tensor


@checked
def load_safetensors(path: str | Path, mmap: bool = True) -> dict[str, NDArray[Any]]:
    """Load the tensors of a safetensors file.

    Parameters
    ----------
    path : str or Path
        The file.
    mmap : bool, optional
        Whether to map the file, so that bytes are read when they are used.

    Returns
    -------
    dict of str to ndarray
        The tensors by name, read-only.

    Raises
    ------
    InputError
        If the file is missing or damaged; it says what is wrong.

    Notes
    -----
    The format: https://github.com/huggingface/safetensors, README, "Format".

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> import mesh
    >>> with TemporaryDirectory() as folder:
    ...     mesh.save_safetensors({"w": np.arange(3.0)}, f"{folder}/model.safetensors")
    ...     print(mesh.load_safetensors(f"{folder}/model.safetensors", mmap=False)["w"])
    [0. 1. 2.]
    """
    file = Path(path)
    data = file_bytes(file, "a safetensors file", mmap)
    header, body = _header(data, file)
    tensors = {name: _tensor(name, entry, body, file) for name, entry in header.items() if name != _METADATA}
    _check_no_gaps(header, body, file)
    return tensors


@checked
def save_safetensors(tensors: Mapping[str, Any], path: str | Path) -> None:
    """Write tensors to a safetensors file, which is replaced as a whole or stays as it was.

    Parameters
    ----------
    tensors : mapping of str to array_like
        The tensors by name.
    path : str or Path
        The file.

    Raises
    ------
    InputError
        If a dtype has no place in the format, or the file cannot be written.

    Notes
    -----
    The format: https://github.com/huggingface/safetensors, README, "Format".

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> import mesh
    >>> with TemporaryDirectory() as folder:
    ...     mesh.save_safetensors({"w": np.arange(3.0)}, f"{folder}/model.safetensors")
    ...     print(mesh.load_safetensors(f"{folder}/model.safetensors", mmap=False)["w"])
    [0. 1. 2.]
    """
    parts = safetensors_parts(tensors)
    try:  # a disk that is full leaves the file that was there
        target = Path(os.path.realpath(path))
        with replaced_file(target) as writing, writing.open("wb") as out:
            out.writelines(parts)
    except (OSError, ValueError) as error:  # ValueError: a name that has a zero in it
        raise InputError(f"cannot write {path}", cause=str(error)[:200]) from error


def safetensors_parts(tensors: Mapping[str, Any]) -> list[bytes]:
    """The bytes of a safetensors file, one piece after the other."""
    arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
    header: dict[str, Any] = {}
    offset = 0
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        dtype = dtype_of(array)
        if name == _METADATA:
            raise InputError(f"no tensor can be called {name!r}: the format has other things there")
        if dtype not in _NAMES:
            raise InputError(
                f"the tensor {name!r} is {dtype}, which safetensors does not have",
                next_step="Write its real and its imaginary part",
            )
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # so that the tensors are aligned
    ordered = (arrays[name] for name in header)
    data = (np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes() for array in ordered)
    return [len(text).to_bytes(_LENGTH_BYTES, "little") + text, *data]


def _array(name: str, tensor: Any) -> NDArray[Any]:
    try:
        return np.asarray(tensor)
    except ValueError as error:  # lists of unequal lengths
        raise InputError(f"the tensor {name!r} is no array", cause=str(error)[:200]) from None


def _header(data: NDArray[np.uint8], file: Path) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    if len(data) < _LENGTH_BYTES or length > min(len(data) - _LENGTH_BYTES, HEADER_BYTES_MAX):
        raise InputError(f"{file} is not a safetensors file, or is cut off: {len(data)} bytes, header of {length}")
    try:
        header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is damaged: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise InputError(f"{file} is damaged: its header is not an object")
    return header, data[_LENGTH_BYTES + length :]


def _tensor(name: str, entry: Any, body: NDArray[np.uint8], file: Path) -> NDArray[Any]:
    if not (isinstance(entry, dict) and _are_counts(entry.get("shape")) and _are_counts(entry.get("data_offsets"))):
        raise InputError(f"{file} is damaged: the entry of {name!r} lacks a dtype, a shape or offsets")
    dtype = DTYPES.get(str(entry.get("dtype")))
    if dtype is None:
        known = f"Known: {', '.join(DTYPES)}"
        raise InputError(f"{file}: {name!r} has the dtype {entry.get('dtype')!r}", next_step=known)
    shape, offsets = entry["shape"], entry["data_offsets"]
    if len(shape) > AXES_MAX or any(dim > DIM_MAX for dim in shape):  # whose product may take for ever
        raise InputError(f"{file} is damaged: {name!r} has the shape {shape[:8]!s:.100}")
    size_bytes = math.prod(shape) * dtype.itemsize
    if len(offsets) != 2 or offsets[1] - offsets[0] != size_bytes or offsets[1] > len(body):
        raise InputError(
            f"{file} is damaged or cut off: {name!r} of shape {tuple(shape)} has {size_bytes} bytes, "
            f"its offsets are {offsets} of {len(body)}"
        )
    try:
        tensor = np.asarray(body[offsets[0] : offsets[1]]).view(dtype.numpy).reshape(shape)
    except (ValueError, OverflowError) as error:  # no bytes, and so a shape of any numbers, or more than 64 dimensions
        raise InputError(f"{file} is damaged: {name!r} has the shape {shape!s:.100}", cause=str(error)) from None
    tensor.flags.writeable = False
    return tensor if tensor.flags.aligned else _aligned(tensor)


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_no_gaps(header: Mapping[str, Any], body: NDArray[np.uint8], file: Path) -> None:
    """The format allows neither overlaps nor holes: either means that something else wrote here."""
    spans = sorted(entry["data_offsets"] for name, entry in header.items() if name != _METADATA)
    end = 0
    for start, stop in spans:
        if start != end:
            raise InputError(
                f"{file} is damaged: bytes {min(start, end)} to {max(start, end)} belong to no tensor or two"
            )
        end = stop
    if end != len(body):
        raise InputError(f"{file} is damaged: {len(body) - end} bytes follow the last tensor")
