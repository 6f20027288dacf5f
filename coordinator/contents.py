"""Content in files named by their BLAKE2b-256: written whole, kept for as long as something holds it.

It does not know what the content is.  Methods wait for the disk, so they are called in threads.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from wire.codec import hash_bytes
from wire.disk import Disk
from wire.errors import BlobCorrupt, BlobMissing


class Contents:
    """The files of one folder."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._holds: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def restore(self, held: Iterable[bytes]) -> None:
        """Take up what a folder of before holds; everything else in it goes."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._holds = Counter(held)
        names = {address.hex() for address in self._holds}
        for path in self._folder.iterdir():
            if path.name not in names:
                self._disk.remove(path)

    def put(self, address: bytes, data: memoryview) -> None:
        """Hold content, written if nobody held it; OSError if the disk refuses, and then it is not held."""
        with self._lock:
            if not self._holds[address]:
                self._disk.write_whole(self._path(address), [data])
            self._holds[address] += 1

    def release(self, addresses: Iterable[bytes]) -> None:
        """Undo one `put` each; what nobody holds is removed."""
        with self._lock:
            for address in addresses:
                self._holds[address] -= 1
                if self._holds[address] <= 0:
                    del self._holds[address]
                    self._disk.remove(self._path(address))

    def load(self, address: bytes, size_bytes: int) -> memoryview:
        """The content, mapped; BlobMissing or BlobCorrupt, naming the file, if it is not what was put."""
        path = self._path(address)
        try:
            with open(path, "rb") as file:
                length = file.seek(0, 2)
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if length else b"")
        except OSError as error:
            raise BlobMissing(f"content of a job is missing: {path}", cause=str(error), next_step=_AGAIN) from None
        if length != size_bytes or hash_bytes(data) != address:
            raise BlobCorrupt(f"content of a job is altered: {path}", next_step=_AGAIN)
        return data

    def _path(self, address: bytes) -> str:
        return os.path.join(self._folder, address.hex())


_AGAIN = "Restore the file from a copy, or submit the job again under another id"
