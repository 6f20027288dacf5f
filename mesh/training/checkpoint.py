"""Checkpoints: a folder of them, each a safetensors file and a manifest, which is written last.

A checkpoint without a manifest, or whose bytes are not those that its manifest names, is none: the one before it is
taken.  What is in it says nothing of workers, so any number of them can go on with it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, StorageError
from wire.system.atomic_files import Disk
from wire.system.steady_log import steady_logger

from .. import tree
from ..models.safetensors import load_safetensors, safetensors_parts
from ..util.annotation_checks import checked
from ..util.argument_checks import integer
from ..util.json_file import read_object
from .data import Cursor

log = steady_logger("graph_mesh.training")
FORMAT = 1
_NO_FOLDER = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.ENOENT})  # nothing can be in such a one
_NO_FILE = _NO_FOLDER | {errno.EISDIR}
_UNREAD = sys.maxsize  # the place in the order of saving of a manifest that cannot be read: it may be the last one
_MANIFEST = re.compile(r"step-(?P<step>\d{1,18})\.json", re.ASCII)
_KINDS = {"format": int, "sha256": str, "cursor": dict, "about": dict, "tensors": dict}  # of what a manifest says


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was loaded.

    Parameters
    ----------
    step : int
        The number of steps that were made.
    cursor : Cursor
        The epoch, and the number of its batches that are done.
    state : mapping of str to ndarray
        Tensors by their paths.
    about : mapping
        What else its maker noted.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from mesh.training import Checkpoints
    >>> from mesh.training.data import Cursor
    >>> with TemporaryDirectory() as folder:
    ...     path = Checkpoints(folder).save(3, Cursor(1, 0), {"w": np.ones(2)}, {"seed": 0})
    ...     checkpoint = Checkpoints(folder).latest()
    >>> checkpoint.step, checkpoint.cursor.epoch, checkpoint.state["w"]
    (3, 1, array([1., 1.]))
    """

    step: int
    cursor: Cursor
    state: Mapping[str, NDArray[Any]]
    about: Mapping[str, Any]


class Checkpoints:
    """A folder of checkpoints, each a safetensors file and a manifest.

    `step` is that of the checkpoint which was saved or loaded last by this object, None before.

    Parameters
    ----------
    folder : str or Path
        The folder; it need not exist.
    keep : int, optional
        How many stay: those that were saved last, whatever their steps.
    disk : Disk, optional
        How files are written; for tests.

    Raises
    ------
    InputError
        If `keep` is no int from 1, or the folder is no path.

    Notes
    -----
    A manifest is written last and names the hash of the tensors.  A checkpoint without a manifest, or with other bytes,
    is
    none.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from mesh.training import Checkpoints
    >>> from mesh.training.data import Cursor
    >>> with TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(folder, keep=2)
    ...     for step in (1, 2, 3):
    ...         path = checkpoints.save(step, Cursor(0, step), {"w": np.ones(2)}, {})
    ...     print(checkpoints.steps(), checkpoints.latest().step, checkpoints.load(2).step)
    [3, 2] 3 2
    """

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
        """Write a checkpoint, whole or not at all, and delete those that do not stay.

        Parameters
        ----------
        step : int
            The number of steps that were made.
        cursor : Cursor
            Where in the data they ended.
        state : pytree of array_like
            The tensors.
        about : mapping
            What else to note, of JSON's kinds.

        Returns
        -------
        Path
            The manifest.

        Raises
        ------
        InputError
            If what is noted is not of JSON's kinds.
        StorageError
            If the disk refuses.
        """
        leaves, _ = tree.flatten_with_paths(state)
        arrays = {path: np.asarray(leaf) for path, leaf in leaves}
        parts = safetensors_parts(arrays)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        manifest = {
            "format": FORMAT,
            "step": step,
            "saved": 1 + max((saved for saved, _ in self._saved() if saved != _UNREAD), default=0),
            "cursor": asdict(cursor),
            "about": dict(about),
            "sha256": digest.hexdigest(),
            "tensors": {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()},
        }
        try:
            text = json.dumps(manifest, indent=1).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError("what a checkpoint notes is of JSON's kinds", cause=str(error)) from None
        data, path = self._paths(step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._disk.write_whole(data, parts)
            self._disk.write_whole(path, [text])
        except (OSError, ValueError) as error:  # ValueError: a path with a null
            raise StorageError(f"a checkpoint could not be written to {self.folder}", cause=str(error)) from error
        self.step = step
        self._tidy()
        return path

    def steps(self) -> list[int]:
        """List the steps of which there are manifests.

        Returns
        -------
        list of int
            The steps; the one that was saved last comes first.
        """
        return [step for _, step in sorted(self._saved(), reverse=True)]

    def latest(self) -> Checkpoint | None:
        """Load the newest checkpoint that is whole, and warn of those before it that are damaged or cannot be read.

        Returns
        -------
        Checkpoint or None
            The checkpoint, None if there is none.

        Raises
        ------
        StorageError
            If there are some that cannot be read, and none that is whole.
        """
        unread: StorageError | None = None
        for step in self.steps():
            try:
                return self.load(step)
            except (InputError, StorageError) as error:
                unread = error if isinstance(error, StorageError) else unread
                log.warning("a checkpoint is passed over: %s", error)
        if unread is not None:  # a run that begins anew would replace it
            raise unread
        return None

    @checked
    def load(self, step: int) -> Checkpoint:
        """Load the checkpoint of a step.

        Parameters
        ----------
        step : int
            The step.

        Returns
        -------
        Checkpoint
            The checkpoint.

        Raises
        ------
        InputError
            If it is not there, or is damaged.
        StorageError
            If its files are there and cannot be read.
        """
        data, path = self._paths(step)
        try:
            manifest = read_object(path)
            for name, kind in _KINDS.items():
                if not isinstance(manifest.get(name), kind):
                    raise InputError(f"its {name!r} is {manifest.get(name)!r:.60}")
            digest = hashlib.sha256(data.read_bytes()).hexdigest()
            cursor = Cursor(**manifest["cursor"])
            if not (type(cursor.epoch) is type(cursor.batch) is int and min(cursor.epoch, cursor.batch) >= 0):
                raise InputError(f"its place in the data is {cursor!r:.60}")
        except (OSError, TypeError, InputError) as error:
            if _is_refused(error):
                raise StorageError(
                    f"the checkpoint {path} cannot be read",
                    cause=str(error.__cause__ or error),
                    next_step="Make its two files yours, or move them away if they are lost",
                ) from error
            raise InputError(f"{path} is no checkpoint", cause=getattr(error, "message", str(error))) from error
        if manifest["format"] != FORMAT or digest != manifest["sha256"]:
            raise InputError(f"{data} is not what {path.name} says")
        state = load_safetensors(data, mmap=False)
        if set(state) != set(manifest["tensors"]):
            raise InputError(f"{data} has other tensors than {path.name} says")
        self.step = step
        return Checkpoint(step, cursor, state, manifest["about"])

    def _saved(self) -> list[tuple[int, int]]:
        """The place of every manifest in the order of saving, and its step; 0 for one that does not say.  StorageError
        for a folder that may have some and cannot be read: nobody is to begin anew for that."""
        places = []
        try:
            for path in self.folder.glob("step-*.json"):
                named = _MANIFEST.fullmatch(path.name)
                if named is not None:
                    places.append((_saved_in(path), int(named["step"])))
        except ValueError:  # a path with a null: nothing can be saved there
            return []
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise StorageError(f"the checkpoints in {self.folder} cannot be read", cause=str(error)) from error
        return places

    def _paths(self, step: int) -> tuple[Path, Path]:
        stem = self.folder / f"step-{step:010}"
        return stem.with_suffix(".safetensors"), stem.with_suffix(".json")

    def _tidy(self) -> None:
        """Delete what does not stay.  Manifests go first: files without one are rubbish, and are looked for here.
        Checkpoints that the system does not read stay: nobody knows when they were saved."""
        saved = sorted(self._saved(), reverse=True)
        unread = [step for place, step in saved if place == _UNREAD]
        steps = [step for place, step in saved if place != _UNREAD]
        for step in steps[self._keep :]:
            for path in reversed(self._paths(step)):
                with contextlib.suppress(OSError):
                    path.unlink()
        complete = {self._paths(step)[0] for step in (*steps[: self._keep], *unread)}
        for path in self.folder.glob("step-*.safetensors*"):
            if path not in complete:
                with contextlib.suppress(OSError):
                    path.unlink()


def _is_refused(error: Exception) -> bool:
    """Whether an error says that the system does not read a file that is there."""
    fault = error.__cause__ or error
    return isinstance(fault, OSError) and fault.errno not in _NO_FILE


def _saved_in(manifest: Path) -> int:
    """The place of a manifest in the order of saving; 0 for one that is damaged, or of a version that did not say."""
    try:
        saved = read_object(manifest).get("saved")
    except InputError as error:
        return _UNREAD if _is_refused(error) else 0
    return saved if type(saved) is int else 0


def filled(template: Any, state: Mapping[str, NDArray[Any]]) -> Any:
    """A tree like `template` with the tensors of a checkpoint; InputError naming what differs."""
    leaves, structure = tree.flatten_with_paths(template)
    tensors = []
    for path, leaf in leaves:
        own = np.asarray(leaf)
        if path not in state or state[path].shape != own.shape or state[path].dtype != own.dtype:
            there = f"{state[path].dtype}{list(state[path].shape)}" if path in state else "nothing"
            raise InputError(
                f"the checkpoint has {there} for {path!r}, and {own.dtype}{list(own.shape)} is wanted",
                next_step="Resume with the params, optimiser and precision that it was made with, or elsewhere",
            )
        tensors.append(state[path])
    return tree.unflatten(structure, tensors)
