"""Checkpoints: a folder of them, each a safetensors file and a manifest, which is written last.

A checkpoint without a manifest, or whose bytes are not those that its manifest names, is none: the one before it is
taken.  What is in it says nothing of workers, so any number of them can go on with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, StorageError
from wire.system.atomic_files import Disk

from .. import tree
from ..models.safetensors import load_safetensors, safetensors_parts
from ..util.annotation_checks import checked
from ..util.argument_checks import integer
from .data import Cursor

log = logging.getLogger("graph_mesh.training")
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`state` by path; `about` is what else its maker noted."""

    step: int
    cursor: Cursor
    state: Mapping[str, NDArray[Any]]
    about: Mapping[str, Any]


class Checkpoints:
    """Those in `folder`, of which the `keep` that were saved last stay, whatever their steps: another run of training
    may have come further there.  `step` is that of the one which was saved or loaded last by this object."""

    def __init__(self, folder: str | Path, keep: int = 3, disk: Disk | None = None) -> None:
        integer(keep, "keep: how many checkpoints stay", 1)
        if not isinstance(folder, str | PathLike):
            raise InputError(f"checkpoints are in a folder, not in {folder!r}")
        self.folder, self._keep, self._disk = Path(folder), keep, disk or Disk()
        self.step: int | None = None

    def __repr__(self) -> str:
        last = "nothing saved or loaded yet" if self.step is None else f"step {self.step}"
        return f"<Checkpoints: in {self.folder}, {last}>"

    @checked
    def save(self, step: int, cursor: Cursor, state: Any, about: Mapping[str, Any]) -> Path:
        """Write one, whole or not at all; the path of its manifest.  StorageError if the disk refuses."""
        leaves, _ = tree.flatten_with_paths(state)
        arrays = {path: np.asarray(leaf) for path, leaf in leaves}
        parts = safetensors_parts(arrays)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        manifest = {
            "format": FORMAT,
            "step": step,
            "saved": 1 + max((saved for saved, _ in self._saved()), default=0),
            "cursor": asdict(cursor),
            "about": dict(about),
            "sha256": digest.hexdigest(),
            "tensors": {name: [str(each.dtype), list(each.shape)] for name, each in arrays.items()},
        }
        data, path = self._paths(step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._disk.write_whole(data, parts)
            self._disk.write_whole(path, [json.dumps(manifest, indent=1).encode()])
        except OSError as error:
            raise StorageError(f"a checkpoint could not be written to {self.folder}", cause=str(error)) from error
        self.step = step
        self._tidy()
        return path

    def steps(self) -> list[int]:
        """Of which steps there are manifests, the one that was saved last first."""
        return [step for _, step in sorted(self._saved(), reverse=True)]

    def latest(self) -> Checkpoint | None:
        """The newest whole one, None if there is none; those that are damaged are passed over with a warning."""
        for step in self.steps():
            try:
                return self.load(step)
            except InputError as error:
                log.warning("a checkpoint is passed over: %s", error)
        return None

    @checked
    def load(self, step: int) -> Checkpoint:
        """That of a step; InputError if it is not there, or not whole."""
        data, path = self._paths(step)
        try:
            manifest = json.loads(path.read_bytes())
            found = hashlib.sha256(data.read_bytes()).hexdigest()
            cursor = Cursor(**manifest["cursor"])
            wanted, about, tensors = manifest["sha256"], manifest["about"], manifest["tensors"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is no checkpoint", cause=f"{type(error).__name__}: {error}") from error
        if manifest.get("format") != FORMAT or found != wanted:
            raise InputError(f"{data} is not what {path.name} says")
        state = load_safetensors(data, mmap=False)
        if set(state) != set(tensors):
            raise InputError(f"{data} has other tensors than {path.name} says")
        self.step = step
        return Checkpoint(step, cursor, state, about)

    def _saved(self) -> list[tuple[int, int]]:
        """The place of every manifest in the order of saving, and its step; 0 for one that does not say."""
        found = []
        for path in self.folder.glob("step-*.json"):
            name = path.stem.removeprefix("step-")
            if name.isdigit():
                try:
                    saved = int(json.loads(path.read_bytes())["saved"])
                except (OSError, ValueError, KeyError, TypeError):  # damaged, or of a version that did not say
                    saved = 0
                found.append((saved, int(name)))
        return found

    def _paths(self, step: int) -> tuple[Path, Path]:
        stem = self.folder / f"step-{step:010}"
        return stem.with_suffix(".safetensors"), stem.with_suffix(".json")

    def _tidy(self) -> None:
        """Manifests go first: what has none is rubbish, and is looked for here."""
        steps = self.steps()
        for step in steps[self._keep :]:
            for path in reversed(self._paths(step)):
                with contextlib.suppress(OSError):
                    path.unlink()
        whole = {self._paths(step)[0] for step in steps[: self._keep]}
        for path in self.folder.glob("step-*.safetensors*"):
            if path not in whole:
                with contextlib.suppress(OSError):
                    path.unlink()


def filled(template: Any, state: Mapping[str, NDArray[Any]]) -> Any:
    """A tree like `template` with the tensors of a checkpoint; InputError naming what differs."""
    leaves, structure = tree.flatten_with_paths(template)
    found = []
    for path, leaf in leaves:
        own = np.asarray(leaf)
        if path not in state or state[path].shape != own.shape or state[path].dtype != own.dtype:
            there = f"{state[path].dtype}{list(state[path].shape)}" if path in state else "nothing"
            raise InputError(
                f"the checkpoint has {there} for {path!r}, and {own.dtype}{list(own.shape)} is wanted",
                next_step="Resume with the params, optimiser and precision that it was made with, or elsewhere",
            )
        found.append(state[path])
    return tree.unflatten(structure, found)
