"""Names of files that come and go with every job are not interned.

The table of interned strings does not use the places of those that went again: after some thousand of them it doubles,
by 0.5 MiB at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.hostile.faulty_disk import QuickDisk

from coordinator.jobs.content_files import ContentFiles
from wire.ir.codec import hash_bytes
from wire.system.shared_memory import SharedDir, remove, take
from worker.daemon.blob_store import BlobStore

ROUNDS = 20
DATA = [memoryview(bytes([number]) * 5000) for number in range(ROUNDS)]


@pytest.fixture
def interned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Python code has interned, all of it."""
    seen: list[str] = []
    real = sys.intern

    def intern(text: str) -> str:
        seen.append(text)
        return real(text)

    monkeypatch.setattr(sys, "intern", intern)
    if Path("the", "watch", "works").parts and not seen:
        pytest.skip("this Python's Path interns nothing, or not by sys.intern")
    seen.clear()
    return seen


def test_shared_memory(tmp_path: Path, interned: list[str]) -> None:
    shared = SharedDir.create(tmp_path)
    path = str(shared.path)
    interned.clear()
    for data in DATA:
        taken, removed = shared.write_copies([data], 2)
        assert take(path, taken, data.nbytes) == data
        remove(path, removed)
        segment = shared.allocate(100)
        remove(path, segment.name)
    assert interned == []


def test_contents(tmp_path: Path, interned: list[str]) -> None:
    contents = ContentFiles(tmp_path / "contents", QuickDisk())
    contents.restore(())
    interned.clear()
    for data in DATA:
        address = hash_bytes(data)
        contents.put(address, data)
        assert contents.load(address, data.nbytes) == data
        contents.release([address])
    assert interned == []


async def test_blobs(tmp_path: Path, interned: list[str]) -> None:
    store = BlobStore(tmp_path / "disk", tmp_path / "memory", disk_bytes_max=2 * DATA[0].nbytes)
    interned.clear()
    for data in DATA:
        address = hash_bytes(data)
        await store.put(address, data, keep=True)
        assert await store.find(address) == "resident" and store.view(address) == data
        assert store.path(address)
    assert interned == []
