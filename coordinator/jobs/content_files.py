"""Content in files named by their BLAKE2b-256: written whole, kept for as long as something holds it.

Content that may well come again (weights) is held a while longer: the most recent, as long as there is room.  It does
not know what the content is.  Methods wait for the disk, so they are called in threads.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from wire.bounds import CONTENT_KEPT
from wire.errors import BlobCorrupt, BlobMissing
from wire.ir.codec import content_hasher
from wire.limits import MIB
from wire.system import mapped_files
from wire.system.atomic_files import WRITING, Disk
from wire.system.shared_memory import reserve

PIECE_BYTES = MIB
RECENT_BYTES_MAX = CONTENT_KEPT.most  # weights that come again need not be sent again


class ContentFiles:
    """The files of one folder."""

    def __init__(self, folder: Path, disk: Disk, recent_bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._recent_bytes_max = recent_bytes_max
        self._folder = folder
        self._disk = disk
        self._holds: Counter[bytes] = Counter()
        self._recent: dict[bytes, int] = {}  # sizes of what is held once more as it may come again, the oldest first
        self._damaged: set[bytes] = set()  # of those that are held: written anew once somebody has them
        self._busy: set[bytes] = set()  # what a thread writes or removes now
        self._changing = threading.Condition()  # held for a change of these tables, never while the disk is waited for

    def restore(self, held: Iterable[bytes]) -> None:
        """Restore the holds of an earlier run; all other files in the folder are removed."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._holds = Counter(held)
        names = {address.hex() for address in self._holds}
        for path in self._folder.iterdir():
            if path.name not in names:
                self._disk.remove(path)

    def put(self, address: bytes, data: memoryview, again: bool = False) -> None:
        """Hold content: write it if it is not held yet, and keep it longer if it may come `again`.  OSError if the disk
        refuses, and then it is not held."""
        room = min(self._recent_bytes_max, shutil.disk_usage(self._folder).free // 4) if again else 0
        try:
            self._put(address, data, again)
        except OSError:
            if not self._recent:
                raise
            self._forget(0)
            self._put(address, data, again)
        if again:
            self._forget(room)

    def _put(self, address: bytes, data: memoryview, again: bool) -> None:
        with self._alone_with(address):
            if self._lacks(address):
                self._disk.write_whole(self._path(address), [data])
            with self._changing:
                self._damaged.discard(address)
                self._holds[address] += 1
                if again:
                    self._holds[address] += self._recent.pop(address, None) is None
                    self._recent[address] = data.nbytes

    @contextlib.contextmanager
    def _alone_with(self, address: bytes) -> Iterator[None]:
        """Have no other thread write or remove this content; those with others go on, as a disk may take seconds."""
        with self._changing:
            self._changing.wait_for(lambda: address not in self._busy)
            self._busy.add(address)
        try:
            yield
        finally:
            with self._changing:
                self._busy.discard(address)
                self._changing.notify_all()

    @contextlib.contextmanager
    def arriving(self, address: bytes, size_bytes: int) -> Iterator[int]:
        """An open file of this size for content that comes in pieces; held, as by `put`, if the block ends well.

        BlobCorrupt if it is not what its address says, OSError if the disk refuses; then there is no file.
        """
        path = f"{self._path(address)}.{secrets.token_hex(8)}{WRITING}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            reserve(handle, size_bytes)
            yield handle
            if _hash_of(handle) != address:
                raise BlobCorrupt(f"what arrived for content {address.hex()[:16]} has another address")
            self._disk.sync(handle)
            with self._alone_with(address):
                if self._lacks(address):
                    self._disk.replace(path, self._path(address))
                    self._disk.sync_folder(self._folder)
                with self._changing:
                    self._damaged.discard(address)
                    self._holds[address] += 1
        finally:
            os.close(handle)
            with contextlib.suppress(FileNotFoundError):
                mapped_files.unlink(path)  # an event loop may do it, where the sender went meanwhile

    def forget(self) -> None:
        """Release what is held only because it may come again: the disk is needed for something else."""
        self._forget(0)

    def release(self, addresses: Iterable[bytes]) -> None:
        """Undo one `put` each; what nobody holds is removed."""
        for address in addresses:
            self._let_go(address)

    def load(self, address: bytes, size_bytes: int) -> memoryview:
        """Map the content; BlobMissing or BlobCorrupt, naming the file, if it is not what was put."""
        path = self._path(address)
        try:
            with open(path, "rb") as file:
                length = file.seek(0, 2)
                found = _hash_of(file.fileno()) if length == size_bytes else b""  # not by a mapping, which takes memory
                data = mapped_files.viewed(file.fileno(), length)
        except OSError as error:
            self._is_damaged(address)
            raise BlobMissing(f"content of a job is missing: {path}", cause=str(error), next_step=_AGAIN) from None
        if length != size_bytes or found != address:
            self._is_damaged(address)
            raise BlobCorrupt(f"content of a job is altered: {path}", next_step=_AGAIN)
        return data

    def find(self, address: bytes, size_bytes: int) -> memoryview | None:
        """Map content that is held; None if it is not held, or damaged."""
        if address not in self._holds:  # it does not wait for the thread that changes that
            return None
        try:
            return self.load(address, size_bytes)
        except (BlobMissing, BlobCorrupt):
            return None

    def view(self, address: bytes) -> memoryview | None:
        """Map content that is held, whatever its size, for a caller that checks it; None if it is not here.  It never
        waits: an event loop asks."""
        if address not in self._holds:
            return None
        try:
            with open(self._path(address), "rb") as file:
                return mapped_files.viewed(file.fileno(), file.seek(0, 2))
        except OSError:
            return None

    def _lacks(self, address: bytes) -> bool:
        """Whether there is no file of this content, or it was found to be another."""
        return address not in self._holds or address in self._damaged

    def _is_damaged(self, address: bytes) -> None:
        with self._changing:
            if address in self._holds:
                self._damaged.add(address)

    def _forget(self, size_bytes: int) -> None:
        """Release the oldest recent content until the rest has at most `size_bytes` together."""
        gone = []
        with self._changing:
            while self._recent and sum(self._recent.values()) > size_bytes:
                gone.append(next(iter(self._recent)))
                del self._recent[gone[-1]]
        for address in gone:
            with contextlib.suppress(OSError):  # what stays is removed by the next start
                self._let_go(address)

    def _let_go(self, address: bytes) -> None:
        with self._alone_with(address):
            with self._changing:
                self._holds[address] -= 1
                last = self._holds[address] <= 0
                if last:
                    del self._holds[address]
                    self._damaged.discard(address)
            if last:
                self._disk.remove(self._path(address))

    def _path(self, address: bytes) -> str:
        return os.path.join(self._folder, address.hex())


def _hash_of(handle: int) -> bytes:
    """The address of what is in an open file, read a piece at a time."""
    hasher, piece = content_hasher(), memoryview(bytearray(PIECE_BYTES))
    os.lseek(handle, 0, os.SEEK_SET)
    with open(handle, "rb", buffering=0, closefd=False) as file:
        while length := file.readinto(piece):
            hasher.update(piece[:length])
    return hasher.digest()


_AGAIN = "Restore the file from a copy, or submit the job again under another id"
