"""The store of models of this user on this machine: folders and files from a hub, or that a person put there.

    <store>/ORG/NAME            a model; `NAME@REVISION` where a revision was asked for
    <store>/ORG/NAME/.pulled    what a pull has checked: the revision, and every file with its size and checksum

The one user of huggingface-hub.  A download that was cut off continues where it was, also in another process.  Every
file is checked against the checksum that the hub tells.  Files take their places when all have come: until then a model
that was pulled before stays as it was.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wire.deadlines import HUB_ANSWER
from wire.errors import ConfigError, ConnectFailed, InputError, MeshError, StorageError
from wire.system.atomic_files import Disk
from wire.system.file_lock import FileLock
from wire.system.private_folder import data_root
from wire.units import size_text

from ..util.annotation_checks import checked
from ..util.units import parse_size

Report = Callable[[str, int, int, int], None]
"""(file, its bytes that are there, its bytes in all, bytes of the whole model that are there)."""
PULLED = ".pulled"
OWN = ".parts"  # of files that are on their way
DEFAULT_REVISION = "main"
LEFT_FREE = 1 << 30  # bytes of the disk that a pull leaves
SAFETENSORS = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "preprocessor_config.json",
)  # fmt: skip
TEXT = (
    "added_tokens.json", "chat_template*", "merges.txt", "special_tokens_map.json", "tokenizer*", "vocab.json",
    "vocab.txt",
)  # fmt: skip
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAME = re.compile(r"(?P<org>[\w.-]+)/(?P<name>[\w.-]+)(?::(?P<part>[\w.-]+))?", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelName:
    """`ORG/NAME`, or `ORG/NAME:PART` for the one GGUF file of several whose name has this part."""

    org: str
    name: str
    part: str = ""

    @property
    def repository(self) -> str:
        return f"{self.org}/{self.name}"

    def __str__(self) -> str:
        return self.repository + (f":{self.part}" if self.part else "")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store.

    Parameters
    ----------
    name : str
        Its name, `ORG/NAME` or `ORG/NAME@REVISION`.
    revision : str
        The commit that was pulled, "" where somebody put the files there.
    size_bytes : int
        The size of its files.
    folder : Path
        Where it is.
    whole : bool
        Whether all of it is there.

    Examples
    --------
    >>> from pathlib import Path
    >>> import mesh
    >>> mesh.StoredModel("org/name", "", 12, Path("models/org/name"), True).whole
    True
    """

    name: str
    revision: str
    size_bytes: int
    folder: Path
    whole: bool


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a model on the hub; `checksum` is sha256 of large files, and that of a git blob of others."""

    path: str
    size_bytes: int
    checksum: str


def name_of(text: str) -> ModelName | None:
    """The name, None for a text that is none."""
    found = _NAME.fullmatch(text)
    if found is None or not set(found["org"] + found["name"]) - {"."}:
        return None
    if any(part in (".", "..") for part in (found["org"], found["name"])):
        return None
    return ModelName(found["org"], found["name"], found["part"] or "")


def path_of(text: str) -> Path:
    """A text as a path; InputError for one that is empty, or that the system does not take as a path."""
    if not text:  # a path of it would be the folder that this process is in
        raise InputError("no model is named: the text is empty", next_step="Write . for the folder that you are in")
    path = Path(text)
    try:
        path.exists()
    except OSError as error:
        raise InputError(f"{text:.200} cannot be a path here", cause=error.strerror or "") from None
    return path


def located(text: str, report: Report | None = None) -> Path:
    """A path that is there; else what the store has by this name, or the hub, whose download calls `report`.

    Errors are those of `ModelStore.pull`.  A text that is neither a path that is there nor a name is given as a path.
    """
    path = path_of(text).expanduser()
    if path.exists() or name_of(text) is None:
        return path
    store = ModelStore()
    try:
        return store.find(text) or store.pull(text, report=report)
    except MeshError as error:
        error.message = f"there is no folder {text}, and {error.message}"
        raise


def whole_model(folder: Path, part: str = "", advice: str = "Name one of them") -> Path:
    """A folder, or the one GGUF file in it that has this part in its name, where it has no config.json or a part is
    asked for; InputError for several."""
    if not part and (folder / "config.json").exists():
        return folder
    files = sorted(file for file in folder.glob("*.gguf") if part.lower() in file.name.lower())
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:8])
        raise InputError(f"{folder} has {len(files)} GGUF files: {names}", next_step=advice)
    return files[0] if files else folder


class ModelStore:
    """The models of this user on this machine.

    Parameters
    ----------
    folder : str or Path, optional
        Where they are; by default `MESH_MODELS`, else a folder of the user's data (`~/.local/share/graph-mesh/models`
        on Linux).
    limit_bytes : int, optional
        The most that all models may take; by default `MESH_MODELS_MAX`, such as "200GiB", else the disk but for 1 GiB.
    endpoint : str, optional
        The address of the hub; by default `HF_ENDPOINT`, else Hugging Face's.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import mesh
    >>> with TemporaryDirectory() as folder:
    ...     mesh.ModelStore(folder).models()
    []
    """

    @checked
    def __init__(
        self, folder: str | Path | None = None, limit_bytes: int | None = None, endpoint: str | None = None
    ) -> None:
        chosen = folder or os.environ.get("MESH_MODELS")
        self.folder = Path(chosen).expanduser() if chosen else data_root() / "models"
        most = os.environ.get("MESH_MODELS_MAX")
        self.limit_bytes = limit_bytes if limit_bytes is not None or not most else parse_size(most)
        self._endpoint = endpoint or os.environ.get("HF_ENDPOINT")
        self._answer_s = HUB_ANSWER.seconds

    @checked
    def find(self, name: str, revision: str | None = None) -> Path | None:
        """Look for a model in the store, without the network.

        Parameters
        ----------
        name : str
            `ORG/NAME`, or `ORG/NAME:PART`.
        revision : str, optional
            The branch, tag or commit that was pulled.

        Returns
        -------
        Path or None
            Its folder, or its GGUF file; None if it is not there, or a pull of it was cut off.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> import mesh
        >>> with TemporaryDirectory() as folder:
        ...     mesh.ModelStore(folder).find("org/name") is None
        True
        """
        model = _named(name)
        folder = self._place(model, revision)
        if not os.path.isdir(folder):  # of a name that is too long, too
            return None
        notes = _notes(folder)
        if notes is None and (folder / OWN).exists():
            return None  # a pull began and did not end
        if notes is not None and any(
            not (folder / path).is_file() or (folder / path).stat().st_size != file["size_bytes"]
            for path, file in notes["files"].items()
        ):
            return None
        return _what_to_load(folder, model)

    @checked
    def pull(
        self, name: str, *, revision: str | None = None, offline: bool = False, report: Report | None = None
    ) -> Path:
        """Download what is missing of a model, and check it.

        Parameters
        ----------
        name : str
            `ORG/NAME`, or `ORG/NAME:PART` for one GGUF file of several.
        revision : str, optional
            A branch, a tag or a commit.
        offline : bool, optional
            Whether to use only what is in the store, without a download.
        report : callable, optional
            Called with a file's name, its bytes that are there and in all, and the bytes of the model that are there.

        Returns
        -------
        Path
            What `mesh.load` loads: the folder, or the GGUF file.

        Raises
        ------
        InputError
            If there is no such model, revision or file, or it is not in the store and `offline` forbids a download.
        ConfigError
            If huggingface-hub is not installed, or the hub wants a token.
        ConnectFailed
            If the hub does not answer; the error names the folder to put the files in.
        StorageError
            If the disk or the store's limit has no room, a file differs from the hub's checksum, or another process
            pulls the model.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> import mesh
        >>> with TemporaryDirectory() as folder:
        ...     try:
        ...         mesh.ModelStore(folder).pull("org/name", offline=True)
        ...     except mesh.MeshError as error:
        ...         print(error.message)
        org/name is not in the store, and offline=True forbids a download
        """
        model = _named(name)
        folder = self._place(model, revision)
        if offline:
            there = self.find(name, revision)
            if there is None:
                raise InputError(
                    f"{model} is not in the store, and offline=True forbids a download", next_step=_by_hand(folder)
                )
            return there
        hub = _hub()
        with self._translated(hub, model, revision, folder), _alone(folder, str(model)):
            commit, files = self._files(hub, model, revision)
            self._fetch(hub, model, commit, _chosen(model, files), folder, report)
        return _what_to_load(folder, model)

    @checked
    def models(self) -> list[StoredModel]:
        """List the models in the store.

        Returns
        -------
        list of StoredModel
            All of them, by name.
        """
        return sorted(
            (self._stored(folder) for folder in self.folder.glob("*/*") if folder.is_dir() and folder.name[0] != "."),
            key=lambda model: model.name,
        )

    @checked
    def remove(self, name: str) -> int:
        """Delete a model.

        Parameters
        ----------
        name : str
            Its name, as `models` gives it.

        Returns
        -------
        int
            The bytes that are freed.

        Raises
        ------
        InputError
            If there is no such model.
        StorageError
            If another process pulls it.

        Examples
        --------
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import mesh
        >>> with TemporaryDirectory() as folder:
        ...     Path(folder, "org", "name").mkdir(parents=True)
        ...     mesh.ModelStore(folder).remove("org/name")
        0
        """
        for model in self.models():
            if model.name == name:
                with _alone(model.folder, name):
                    shutil.rmtree(model.folder)
                return model.size_bytes
        raise InputError(f"{name!r} is not in the store {self.folder}", next_step="mesh-coord models list shows them")

    def _place(self, model: ModelName, revision: str | None) -> Path:
        suffix = "" if revision in (None, DEFAULT_REVISION) else f"@{str(revision).replace('/', '--')}"
        return self.folder / model.org / f"{model.name}{suffix}"

    def _stored(self, folder: Path) -> StoredModel:
        notes = _notes(folder)
        size_bytes = sum(_sizes(folder))
        whole = notes is not None or not (folder / OWN).exists()
        revision = notes["revision"] if notes else ""
        return StoredModel(f"{folder.parent.name}/{folder.name}", revision, size_bytes, folder, whole)

    def _files(self, hub: Any, model: ModelName, revision: str | None) -> tuple[str, list[_File]]:
        """The commit of the revision, and the files on top of its tree.

        One question has a time limit; the library's list of a tree has none.
        """
        api = hub.HfApi(endpoint=self._endpoint)
        asked = revision or DEFAULT_REVISION
        told = api.model_info(model.repository, revision=asked, files_metadata=True, timeout=self._answer_s)
        commit = str(told.sha)
        files = [
            _File(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else str(each.blob_id))
            for each in told.siblings or ()
            if not set("/\\") & set(each.rfilename) and each.rfilename not in ("", ".", "..")
        ]
        for file in files:
            if not _HEX.fullmatch(file.checksum):
                raise InputError(f"the hub tells of {file.path!r:.80} in {model} without a checksum")
        return commit, files

    def _fetch(
        self, hub: Any, model: ModelName, commit: str, files: Sequence[_File], folder: Path, report: Report | None
    ) -> None:
        """Every file that is not there; notes are written when all are."""
        notes = _notes(folder)
        known = notes["files"] if notes else {}
        parts = {file: _part_of(folder, file) for file in files if not _is_there(folder, file, known)}
        wanted_bytes = sum(max(file.size_bytes - _size_of(part), 0) for file, part in parts.items())
        others_bytes = sum(entry["size_bytes"] for path, entry in known.items() if path not in {f.path for f in files})
        self._check_room(folder, wanted_bytes, others_bytes + sum(file.size_bytes for file in files))
        done = sum(file.size_bytes for file in files if file not in parts)
        for file, part in parts.items():
            before = done

            def progressed(count: int, file: _File = file, before: int = before) -> None:
                if report is not None:
                    report(file.path, count, file.size_bytes, before + count)

            if not part.exists() or _size_of(part) < file.size_bytes:
                self._get(hub, model, commit, file, part, progressed)
            _check(part, file, model)
            done += file.size_bytes
            progressed(file.size_bytes)
        if parts:
            (folder / PULLED).unlink(missing_ok=True)  # of a mix of old and new files, `find` must say nothing
        for file, part in parts.items():
            part.replace(folder / file.path)
        listed = {file.path: {"size_bytes": file.size_bytes, "checksum": file.checksum} for file in files}
        text = json.dumps({"name": model.repository, "revision": commit, "files": {**known, **listed}}, indent=1)
        Disk().write_whole(folder / PULLED, [text.encode()])
        shutil.rmtree(folder / OWN, ignore_errors=True)

    def _get(
        self, hub: Any, model: ModelName, commit: str, file: _File, part: Path, progressed: Callable[[int], None]
    ) -> None:
        """What is missing of a file; what is there of it stays for the next time.

        The library's own download begins a file anew in each call, so its parts are put together here.
        """
        from huggingface_hub.file_download import http_get

        url = hub.hf_hub_url(model.repository, file.path, revision=commit, endpoint=self._endpoint)
        place = hub.get_hf_file_metadata(url, endpoint=self._endpoint).location
        headers = hub.utils.build_hf_headers()
        if urlsplit(place).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # it is for the hub, and not for who stores its files
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as out:
            # Without the size, by which the library refuses those of 50 GB and more; `_check` compares it.
            http_get(
                place, out, resume_size=out.tell(), headers=headers, displayed_filename=file.path,
                tqdm_class=_counting(progressed),
            )  # fmt: skip

    def _check_room(self, folder: Path, wanted_bytes: int, model_bytes: int) -> None:
        """Raise StorageError if the disk has no room for so much, or the limit of the store none for this model."""
        free_bytes = shutil.disk_usage(self.folder).free - LEFT_FREE
        if wanted_bytes > free_bytes:
            raise StorageError(
                f"the download takes {size_text(wanted_bytes)}, and the disk of {self.folder} has room for "
                f"{size_text(max(free_bytes, 0))}",
                next_step="Free some space, or set MESH_MODELS to a folder on another disk",
            )
        if self.limit_bytes is None:
            return
        others_bytes = sum(model.size_bytes for model in self.models() if model.folder != folder)
        held_bytes = others_bytes + model_bytes - wanted_bytes
        if others_bytes + model_bytes > self.limit_bytes:
            raise StorageError(
                f"the download takes {size_text(wanted_bytes)}, and the store {self.folder} has "
                f"{size_text(held_bytes)} of {size_text(self.limit_bytes)}",
                next_step="Delete a model: mesh-coord models rm NAME; or raise MESH_MODELS_MAX",
            )

    @contextmanager
    def _translated(self, hub: Any, model: ModelName, revision: str | None, folder: Path) -> Iterator[None]:
        """What huggingface-hub raises, as errors that say what to do."""
        errors, by_hand = hub.errors, _by_hand(folder)
        try:
            yield
        except errors.GatedRepoError as error:
            raise ConfigError(
                f"the hub gives {model} only to those who accepted its terms", cause=_first(error),
                next_step=f"Accept them on the model's page, and set HF_TOKEN. {by_hand}",
            ) from None  # fmt: skip
        except errors.RevisionNotFoundError:
            raise InputError(f"{model} has no revision {revision or DEFAULT_REVISION!r}") from None
        except errors.RepositoryNotFoundError as error:
            raise InputError(
                f"the hub has no model {model}, or does not show it to you", cause=_first(error),
                next_step=f"Check the name. Set HF_TOKEN for a private model. {by_hand}",
            ) from None  # fmt: skip
        except errors.HfHubHTTPError as error:
            if error.response is not None and error.response.status_code in (401, 403):
                raise ConfigError(
                    f"the hub refuses {model}", cause=_first(error), next_step=f"Set HF_TOKEN. {by_hand}"
                ) from None
            raise ConnectFailed(f"the hub does not give {model}", cause=_first(error), next_step=by_hand) from None
        except OSError as error:
            if error.errno not in FULL_DISK:
                if error.filename is None:  # of a connection, and of no file
                    raise ConnectFailed(f"no hub answers for {model}", cause=_first(error), next_step=by_hand) from None
                raise StorageError(
                    f"the store {self.folder} cannot be written", cause=_first(error),
                    next_step="Set MESH_MODELS to a folder that you may write in",
                ) from None  # fmt: skip
            raise StorageError(
                f"the disk of {self.folder} is full: {error.strerror}",
                next_step="Free some space, and pull again: what was downloaded stays",
            ) from None
        except Exception as error:  # of the library's HTTP client, which is not ours to name
            if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "huggingface_hub"):
                raise
            raise ConnectFailed(f"no hub answers for {model}", cause=_first(error), next_step=by_hand) from None


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of a model, so that this process alone changes it; StorageError if another one does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    if not lock.try_acquire():
        raise StorageError(f"another process pulls {name}", next_step="Wait for it, and try again")
    try:
        yield
    finally:
        lock.release()


def _sizes(folder: Path) -> Iterator[int]:
    """The bytes of each file below a folder, which a pull may change meanwhile."""
    for where, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(where, file)).st_size


def _named(text: str) -> ModelName:
    model = name_of(text)
    if model is None:
        raise InputError(
            f"{text!r} is no name of a model", next_step="Write ORG/NAME, or ORG/NAME:PART for a GGUF file"
        )
    return model


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ModuleNotFoundError:
        raise ConfigError(
            "downloads need the package 'huggingface_hub', which is not installed",
            next_step="pip install 'graph-mesh[hub]', or give the folder of a model",
        ) from None
    return huggingface_hub


def _by_hand(folder: Path) -> str:
    return f"Or put the files of the model into {folder}"


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def _notes(folder: Path) -> dict[str, Any] | None:
    """What the last whole pull noted; None where there was none, or its notes are damaged."""
    try:
        notes = json.loads((folder / PULLED).read_text(encoding="utf-8"))
        files = {path: {"size_bytes": int(file["size_bytes"]), "checksum": str(file["checksum"])}
                 for path, file in notes["files"].items()}  # fmt: skip
        return {"revision": str(notes["revision"]), "files": files}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _chosen(model: ModelName, files: Sequence[_File]) -> list[_File]:
    """The files that are loaded: a GGUF file, or config.json and safetensors; and those of the tokenizer."""
    graphs = [file for file in files if file.path.endswith(".gguf")]
    if model.part:
        graphs = [file for file in graphs if model.part.lower() in file.path.lower()]
    paths = {file.path for file in files}
    text = [file for file in files if _is_one_of(file.path, TEXT)]
    folder = [file for file in files if _is_one_of(file.path, SAFETENSORS)]
    if not model.part and "config.json" in paths and any(path.endswith(".safetensors") for path in paths):
        return folder + text
    if len(graphs) == 1:
        return graphs + text
    if graphs:
        names = ", ".join(file.path for file in graphs[:8])
        raise InputError(
            f"{model} has {len(graphs)} GGUF files: {names}", next_step=f"Name one: {model.repository}:Q4_K_M"
        )
    what = f"no GGUF file with {model.part!r} in its name" if model.part else "neither safetensors nor GGUF files"
    raise InputError(f"{model} has {what}", cause=f"it has {', '.join(sorted(paths)[:8]) or 'no files'}")


def _is_one_of(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def _what_to_load(folder: Path, model: ModelName) -> Path:
    """The folder, or the GGUF file in it."""
    return whole_model(folder, model.part, f"Name one: {model.repository}:Q4_K_M")


def _is_there(folder: Path, file: _File, known: dict[str, Any]) -> bool:
    """Whether a file is there as the hub has it.

    One that the notes do not have is read: somebody put it there, or a pull ended before it wrote them.
    """
    path, recorded = folder / file.path, known.get(file.path, {})
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    return recorded.get("checksum") == file.checksum or _checksum(path, file.size_bytes, file.checksum) == file.checksum


def _part_of(folder: Path, file: _File) -> Path:
    """The place of a file until all have come; two files of a model may have the same content."""
    return folder / OWN / f"{hashlib.sha256(f'{file.checksum} {file.path}'.encode()).hexdigest()}.part"


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check(part: Path, file: _File, model: ModelName) -> None:
    """Raise ConnectFailed for a file that ended early; delete what is not the file that the hub has, and raise
    StorageError."""
    size_bytes = part.stat().st_size
    if size_bytes < file.size_bytes:
        raise ConnectFailed(
            f"the hub gave {size_text(size_bytes)} of {file.path} of {model}, which has {size_text(file.size_bytes)}",
            next_step="Pull it again: what was downloaded stays",
        )
    if size_bytes == file.size_bytes and _checksum(part, size_bytes, file.checksum) == file.checksum:
        return
    part.unlink()
    raise StorageError(
        f"{file.path} of {model} is damaged: its checksum is not the hub's, and the file was deleted",
        next_step="Pull it again. If it happens again, something between here and the hub changes files",
    )


def _checksum(path: Path, size_bytes: int, expected: str) -> str:
    """The checksum as the hub has it: sha256, or the name of a git blob, by its length."""
    found = hashlib.sha256() if len(expected) == 64 else hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
    with path.open("rb") as data:
        while piece := data.read(_READ_BYTES):
            found.update(piece)
    return found.hexdigest()


def _counting(report: Callable[[int], None]) -> type:
    """A class like tqdm's, as huggingface-hub takes one: it tells how many bytes of a file are there."""

    class Counting:
        def __init__(self, *args: Any, total: float | None = None, initial: float = 0, **kwargs: Any) -> None:
            self.total, self.n = total, int(initial)
            report(self.n)

        def __enter__(self) -> Counting:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def update(self, count: float | None = 1) -> None:
            self.n += int(count or 0)
            report(self.n)

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **kwargs: None

    return Counting
