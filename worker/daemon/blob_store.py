"""The blob store: content by its address, as files that engine hosts can map.

Content that may be kept lies in a bounded folder on disk and survives the worker; other content, and what the disk has
no room for, lies in a folder of memory-backed files.  Every file is checked against its address before it is used for
the first time in this process; a damaged one is removed, and the caller fetches it again.  So no write waits for the
disk (a sync costs milliseconds, a model has a thousand weights): what a power cut tore is damaged.  The least recently
used files go first; pinned ones never, nor a blob whose pin is about to follow.  The store does not know
where content comes from.

All bookkeeping happens on the loop's thread; hashing and writing of more than 1 MiB in others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wire.errors import BlobError, BlobMissing, ConfigError
from wire.ir.codec import hash_bytes
from wire.limits import GIB
from wire.system import mapped_files
from wire.system.private_folder import make_private
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, unheard
from wire.transfer.content_exchange import OFF_LOOP_BYTES, off_loop
from wire.units import size_text

log = steady_logger("graph_mesh.worker")
_FILE_NAME = re.compile(r"[0-9a-f]{64}")
_WRITING = re.compile(r"writing-\d+-\d+")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LISTED_MAX = 4096
PUT_S_MAX = 600.0  # the caller that put a blob and has not pinned it since is gone
ABANDONED_S = 3600.0  # no single write takes that long


@dataclass(slots=True)
class _Entry:
    size_bytes: int
    folder: _Folder
    checked: bool  # against its address, in this process
    keep: bool = True  # also when nothing pins it any more
    put: bool = False  # and not pinned since: its caller will
    put_s: float = 0.0  # when


@dataclass(eq=False, slots=True)
class _Folder:
    path: Path
    bytes_max: int
    durable: bool
    used_bytes: int = 0


class BlobStore:
    """Content in `disk` (None: nothing is kept) and in `memory`, each up to a size in bytes."""

    def __init__(
        self, disk: Path | None, memory: Path, disk_bytes_max: int = 20 * GIB, memory_bytes_max: int = 4 * GIB
    ) -> None:
        self._memory = _Folder(memory, memory_bytes_max, durable=False)
        self._disk = _Folder(disk, disk_bytes_max, durable=True) if disk else None
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # least recently used first
        self._pins: Counter[bytes] = Counter()  # also of what is gone, and comes again: others have it pinned still
        self._serial = itertools.count()
        self._tasks = Tasks()
        self._writing: dict[bytes, asyncio.Task[None]] = {}
        self._checking: dict[bytes, asyncio.Task[bool]] = {}
        memory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._disk:
            self._load_index(self._disk)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that have the content."""
        return (self._memory.path,) if self._disk is None else (self._disk.path, self._memory.path)

    @property
    def used_bytes(self) -> int:
        return self._memory.used_bytes + (self._disk.used_bytes if self._disk else 0)

    def held(self) -> tuple[bytes, ...]:
        """What is here, most recently used first, at most `LISTED_MAX`."""
        return tuple(itertools.islice(reversed(self._entries), LISTED_MAX))

    async def find(self, blob: bytes, size_bytes: int | None = None) -> str | None:
        """Look for content.  Returns "resident" if it was used before in this process, "disk" if not, and None if it is
        not here, or is damaged and therefore removed."""
        entry = self._entries.get(blob)
        if entry is None:
            return None
        was_checked = entry.checked
        path = self._path(entry, blob)
        sound = (size_bytes is None or size_bytes == entry.size_bytes) and (
            os.path.exists(path) if was_checked else await self._is_sound(path, blob, entry.size_bytes)
        )
        if self._entries.get(blob) is not entry:
            return None
        if not sound:
            if was_checked and size_bytes not in (None, entry.size_bytes):
                return None  # whoever asks is wrong, and others may use it
            if not self._remove(blob):
                del self._entries[blob]  # it takes its room still, and is nothing to read
            return None
        entry.checked = True
        self._entries.move_to_end(blob)
        if entry.folder.durable and not was_checked:
            _touch(path)
        return "resident" if was_checked else "disk"

    async def _is_sound(self, path: str, blob: bytes, size_bytes: int) -> bool:
        """Whether a file has the content of this address: looked at once for all who ask at once."""
        if size_bytes <= OFF_LOOP_BYTES:
            return _is_sound(path, blob, size_bytes)
        checking = self._checking.get(blob)
        if checking is None:
            work = asyncio.to_thread(_is_sound, path, blob, size_bytes)
            checking = self._checking[blob] = self._tasks.run("checking content", work, unheard)
            checking.add_done_callback(lambda _: self._checking.pop(blob))
        return await asyncio.shield(checking)

    def path(self, blob: bytes) -> str:
        """The file that holds the content; BlobMissing.  It stays only while it is pinned."""
        entry = self._entries.get(blob)
        if entry is None:
            raise BlobMissing(f"blob {blob.hex()[:16]} is not held here")
        return self._path(entry, blob)

    def view(self, blob: bytes) -> memoryview | None:
        """The content, mapped, if it was found sound before."""
        entry = self._entries.get(blob)
        if entry is None or not entry.checked:
            return None
        try:
            return _map(self._path(entry, blob))
        except OSError:
            return None

    async def put(self, blob: bytes, data: memoryview, keep: bool) -> None:
        """Store content whose address the caller has checked; BlobError if there is no room for it.  What is not to be
        kept goes with the last that pinned it, or sooner if there is no room."""
        while (other := self._writing.get(blob)) is not None or blob in self._entries:
            if other is not None:
                await asyncio.wait([other])
            elif await self.find(blob) is not None:  # it is sound, and there
                entry = self._entries[blob]
                entry.keep, entry.put, entry.put_s = entry.keep or keep, True, time.monotonic()
                return
        writing = self._writing[blob] = self._tasks.run("storing content", self._put(blob, data, keep), unheard)
        writing.add_done_callback(lambda _: self._writing.pop(blob))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:  # a thread writes on, and nobody is about to pin what it wrote
            writing.add_done_callback(lambda _: self.discard((blob,)))
            raise

    async def _put(self, blob: bytes, data: memoryview, keep: bool) -> None:
        folders = [folder for folder in (self._disk if keep else None, self._memory) if folder is not None]
        for folder in folders:
            if self._make_room(folder, data.nbytes) and await self._write(folder, blob, data, keep):
                return
        raise BlobError(
            f"no room for a blob of {size_text(data.nbytes)}",
            cause="; ".join(self._taken(folder) for folder in folders),
            next_step="Give the worker a larger --max-memory, or another --cache-dir, or free space there",
        )

    def _taken(self, folder: _Folder) -> str:
        """What a folder holds, for people."""
        held = [(blob, entry) for blob, entry in self._entries.items() if entry.folder is folder]
        used = sum(entry.size_bytes for blob, entry in held if self._in_use(blob, entry))
        return f"{folder.path} may hold {size_text(folder.bytes_max)}, of which {size_text(used)} are in use"

    def keep(self, blob: bytes) -> None:
        """What was put here for a time may stay: a plan needs it that allows that."""
        if blob in self._entries:
            self._entries[blob].keep = True

    def pin(self, blobs: Iterable[bytes]) -> None:
        for blob in blobs:
            self._pins[blob] += 1
            if blob in self._entries:
                self._entries[blob].put = False

    def unpin(self, blobs: Iterable[bytes]) -> None:
        for blob in blobs:
            if blob not in self._pins:
                continue
            self._pins[blob] -= 1
            if not self._pins[blob]:
                del self._pins[blob]
            entry = self._entries.get(blob)
            if entry is not None and not (blob in self._pins or entry.keep or entry.put):
                self._remove(blob)

    def discard(self, blobs: Iterable[bytes]) -> None:
        """Remove content that will not be pinned by whoever put it, at once or once nobody pins it, unless it is
        kept."""
        for blob in blobs:
            entry = self._entries.get(blob)
            if entry is None:
                continue
            entry.put = False
            if not (blob in self._pins or entry.keep):
                self._remove(blob)

    def keep_memory(self) -> None:
        """Make the folder of files in memory again if somebody has removed it, and forget what was there.  OSError."""
        self._keep_folder(self._memory)

    def free_memory(self) -> None:
        """Content in memory goes that nobody uses."""
        self._evict_all(self._memory)

    # -- files

    def _load_index(self, folder: _Folder) -> None:
        """Take over what an earlier process left; half-written files go."""
        try:
            make_private(folder.path)
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {folder.path}", cause=str(error), next_step="Name another with --cache-dir"
            ) from None
        held = []
        with os.scandir(folder.path) as listing:
            for item in listing:
                if not _FILE_NAME.fullmatch(item.name):
                    _remove_if_abandoned(Path(item.path))
                    continue
                status = item.stat(follow_symlinks=False)
                held.append((status.st_mtime, item.name, status.st_size))
        for _, name, size_bytes in sorted(held):
            self._entries[bytes.fromhex(name)] = _Entry(size_bytes, folder, checked=False)
            folder.used_bytes += size_bytes
        self._make_room(folder, 0)

    def _keep_folder(self, folder: _Folder) -> None:
        """Make a folder again if somebody has removed it, as a user may who frees space, and forget what was there."""
        if folder.path.exists():
            return
        if folder.durable:
            make_private(folder.path)
        else:
            folder.path.mkdir(mode=0o700)  # in one that this process makes itself
        for blob in [blob for blob, entry in self._entries.items() if entry.folder is folder]:
            self._remove(blob)

    def _make_room(self, folder: _Folder, size_bytes: int) -> bool:
        """Evict until `size_bytes` more fit into the folder's share."""
        for blob, entry in list(self._entries.items()):
            if folder.used_bytes + size_bytes <= folder.bytes_max:
                break
            if entry.folder is folder and not self._in_use(blob, entry):
                self._remove(blob)
        return folder.used_bytes + size_bytes <= folder.bytes_max

    async def _write(self, folder: _Folder, blob: bytes, data: memoryview, keep: bool) -> bool:
        """False if the folder cannot take it, where the file system is full also not after evicting all it may."""
        temporary = os.path.join(folder.path, f"writing-{os.getpid()}-{next(self._serial)}")
        final = os.path.join(folder.path, blob.hex())
        folder.used_bytes += data.nbytes  # from now on, so that others that are put meanwhile do not take its room
        written = False
        try:
            for attempt in range(2):
                try:
                    await off_loop(data.nbytes, _write_file, temporary, final, data)
                    break
                except OSError as error:
                    if attempt or not await self._may_now(folder, error):
                        return False
            if blob not in self._entries:  # two fetches may have brought it
                entry = _Entry(data.nbytes, folder, True, keep, put=True, put_s=time.monotonic())
                self._entries[blob], written = entry, True
        finally:
            folder.used_bytes -= 0 if written else data.nbytes
        return True

    async def _may_now(self, folder: _Folder, error: OSError) -> bool:
        """Whether a write that failed may succeed now."""
        if isinstance(error, FileNotFoundError):
            with contextlib.suppress(OSError):
                self._keep_folder(folder)
                return True
        return error.errno in _NO_ROOM and await self._freed(folder)

    async def _freed(self, folder: _Folder) -> bool:
        """Evict all that may go, and wait until the room of all that went is free; whether there was any."""
        evicted = self._evict_all(folder)
        return await asyncio.to_thread(mapped_files.settle) or evicted

    def _evict_all(self, folder: _Folder) -> bool:
        unused = [
            blob for blob, entry in self._entries.items() if entry.folder is folder and not self._in_use(blob, entry)
        ]
        removed = [self._remove(blob) for blob in unused]
        return any(removed)

    def _remove(self, blob: bytes) -> bool:
        """Whether it is gone; what cannot be removed, on a disk that has become read-only, still takes its room."""
        entry = self._entries[blob]
        try:
            mapped_files.unlink(self._path(entry, blob))
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("content cannot be removed: %s", error)
            return False
        del self._entries[blob]
        entry.folder.used_bytes -= entry.size_bytes
        return True

    def _in_use(self, blob: bytes, entry: _Entry) -> bool:
        """Whether it must stay: it is pinned, or it was put for a time and its pin is about to follow."""
        return blob in self._pins or (entry.put and not entry.keep and time.monotonic() - entry.put_s < PUT_S_MAX)

    @staticmethod
    def _path(entry: _Entry, blob: bytes) -> str:
        """A string: see wire/system/atomic_files.py."""
        return os.path.join(entry.folder.path, blob.hex())


def _write_file(temporary: str, final: str, data: memoryview) -> None:
    """All of it or nothing, unless the power fails."""
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, final)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _is_sound(path: str, blob: bytes, size_bytes: int) -> bool:
    try:
        data = _map(path)
    except OSError:
        return False
    return data.nbytes == size_bytes and hash_bytes(data) == blob


def _map(path: str) -> memoryview:
    with open(path, "rb") as file:
        return mapped_files.viewed(file.fileno(), os.fstat(file.fileno()).st_size)


def _remove_if_abandoned(path: Path) -> None:
    """Half-written files go once nobody can be writing them any more; what is not ours stays."""
    if _WRITING.fullmatch(path.name) and time.time() - path.stat().st_mtime > ABANDONED_S:
        path.unlink(missing_ok=True)


def _touch(path: str) -> None:
    try:
        os.utime(path)
    except OSError:
        return  # only the order of eviction suffers
