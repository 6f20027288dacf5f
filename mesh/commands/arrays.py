"""Arrays: inputs and outputs of jobs as .npy files, NAME=FILE.npy and DIR/NAME.npy; also text files that verbs
write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, StorageError
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType

STEM_BYTES_MAX = 240  # of a file's name, which has at most 255 bytes with its number and its end


def read_inputs(graph: WireGraph, flags: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of `--input NAME=FILE.npy` flags; InputError unless they are exactly the graph's inputs."""
    arrays = read_some_inputs(graph, flags)
    for name, kind in graph.input_types.items():
        if name not in arrays:
            raise InputError(f"the input {name!r} ({kind}) is missing", next_step=f"Add --input {name}=FILE.npy")
    return arrays


def read_some_inputs(graph: WireGraph, flags: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of `--input` flags, which may be some of the inputs only; InputError for a file that is no such array,
    and for a name that is no input."""
    arrays = read_arrays(flags)
    for name, array in arrays.items():
        if name not in graph.input_types:
            known = ", ".join(f"{key} ({kind})" for key, kind in graph.input_types.items()) or "none"
            raise InputError(f"the graph has no input {name!r}", next_step=f"It takes: {known}")
        arrays[name] = _fitting(name, array, graph.input_types[name])
    return arrays


def read_arrays(flags: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of `--input NAME=FILE.npy` flags, by name, as they are."""
    arrays: dict[str, NDArray[Any]] = {}
    for text in flags:
        name, equals, file = text.partition("=")
        if not equals or not name or not file:
            raise InputError(f"--input {text!r} is not NAME=FILE.npy")
        if name in arrays:
            raise InputError(f"--input {name!r} is given twice")
        arrays[name] = _read(name, Path(file))
    return arrays


def write_outputs(folder: Path, outputs: Mapping[str, NDArray[Any]]) -> dict[str, Path]:
    """Write every output to `folder`, made if it is not there; the file of each."""
    files: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in outputs.items():
            files[name] = _free(folder, name, {file.name.casefold() for file in files.values()})
            np.save(files[name], array, allow_pickle=False)
    except OSError as error:
        again = (
            "The results are kept: once there is room, or for another folder, type mesh-coord result JOB --output DIR"
        )
        raise StorageError(f"cannot write to {folder}", cause=error.strerror or str(error), next_step=again) from None
    return files


def write_text(file: Path, text: str) -> None:
    """Write a text file; InputError if it cannot be made, StorageError where the disk does not take it."""
    try:
        made = file.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {file}", cause=error.strerror or str(error)) from None
    try:
        with made:
            made.write(text)
    except OSError as error:
        raise StorageError(f"cannot write {file}", cause=error.strerror or str(error)) from None


def check_folder(folder: Path) -> None:
    """Check that outputs can be written to `folder`, before a job runs; InputError if not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}", cause=error.strerror or str(error)) from None


def _read(name: str, file: Path) -> NDArray[Any]:
    try:
        loaded: NDArray[Any] = np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"the file for input {name!r} does not exist: {file}") from None
    except (OSError, ValueError, EOFError) as error:
        cause = "" if "pickled" in str(error) else str(error)  # which is numpy's guess at a file that it does not know
        raise InputError(f"{file} (input {name!r}) is not a .npy file", cause=cause) from None
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"{file} (input {name!r}) holds several arrays", next_step="Save one with numpy.save")
    return loaded


def _fitting(name: str, array: NDArray[Any], kind: TensorType) -> NDArray[Any]:
    wanted = kind.dtype.numpy
    if array.dtype.kind == "V" and wanted.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        array = array.view(wanted)  # a .npy file of bf16 does not name its dtype
    if array.shape != kind.shape or array.dtype.newbyteorder("=") != wanted:
        raise InputError(f"the input {name!r} is {array.dtype}{list(array.shape)}, expected {kind}")
    return array.astype(wanted, order="C", copy=False)


def _free(folder: Path, output: str, taken: set[str]) -> Path:
    """A file for an output; names that differ only in what a file system cannot hold, such as capitals, get a number.
    `taken` are the names of files in small letters."""
    stem = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in output) or "output"
    stem = stem.encode()[:STEM_BYTES_MAX].decode("utf-8", "ignore")
    candidates = (folder / f"{stem}{suffix}.npy" for suffix in ("", *(f"-{n}" for n in range(2, len(taken) + 3))))
    return next(file for file in candidates if file.name.casefold() not in taken)
