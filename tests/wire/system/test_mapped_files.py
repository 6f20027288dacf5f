"""Large mappings cost whoever begins or ends them next to nothing: an event loop may be the one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from wire.errors import OutOfMemory
from wire.system import mapped_files
from wire.system.mapped_files import AT_ONCE_BYTES_MAX
from wire.system.shared_memory import SharedDir

LARGE = AT_ONCE_BYTES_MAX + mapped_files.READ_BYTES_MAX


@pytest.fixture
def handle(tmp_path: Path) -> int:
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(handle, LARGE)
    return handle


def mapped_bytes(view: memoryview) -> int:
    """How much of a mapping has pages."""
    address = f"{np.asarray(view).ctypes.data:x}-"
    _, _, rest = Path("/proc/self/smaps").read_text().partition(f"\n{address}")
    return int(rest.partition("Rss:")[2].split()[0]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="what has pages is read from /proc")
def test_pages_of_a_large_file_are_mapped_by_whoever_reads_them(handle: int) -> None:
    small, large = mapped_files.copied(handle, AT_ONCE_BYTES_MAX), mapped_files.copied(handle, LARGE)
    assert mapped_bytes(small) == AT_ONCE_BYTES_MAX and mapped_bytes(large) == 0
    assert not np.asarray(large).any() and mapped_bytes(large) == LARGE
    large[5] = 7
    assert os.pread(handle, 6, 0) == bytes(6), "the file does not change with it"
    os.close(handle)


def test_a_thread_gives_large_mappings_back_and_can_be_waited_for(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, may_end = list[str](), threading.Event()
    take = mapped_files._Ending.take

    def slowly(ending: mapped_files._Ending, unmap: Callable[[], object]) -> bool:
        def work() -> None:
            may_end.wait(60)
            unmap()
            ended.append(threading.current_thread().name)

        return take(ending, work)

    view = mapped_files.copied(handle, LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(mapped_files._Ending, "take", slowly)
        del view
    assert not ended
    threading.Timer(0.01, may_end.set).start()
    assert mapped_files.settle()
    assert ended == ["unmapping"]
    os.close(handle)


def test_what_finds_no_room_waits_for_memory_that_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedDir.create(tmp_path)
    full, settled = [True], list[bool]()

    def reserve(handle: int, size_bytes: int) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        os.truncate(handle, size_bytes)

    def settle() -> bool:
        settled.append(True)
        full[0] = len(settled) > 1
        return not full[0]

    monkeypatch.setattr("wire.system.shared_memory._reserve", reserve)
    monkeypatch.setattr(mapped_files, "settle", settle)
    assert len(shared.allocate(100).buffer) == 100 and settled == [True]
    full[0] = True
    with pytest.raises(OutOfMemory):
        shared.allocate(100)
    assert settled == [True, True]
    shared.close()


def test_memory_that_bytes_pass_through_does_not_grow_with_them() -> None:
    size_bytes, piece, process = 64 << 20, 1 << 20, psutil.Process()
    view, before, most = mapped_files.passing(size_bytes), process.memory_info().rss, 0
    for begin in range(0, size_bytes, piece):
        view[begin : begin + piece] = b"x" * piece
        most = max(most, process.memory_info().rss - before)
        mapped_files.forget(view, begin + 100, begin + piece - 100)  # the page that is not whole goes with the next one
        assert bytes(view[begin + piece - 100 : begin + piece]) == b"x" * 100
    if sys.platform == "linux":
        assert most < size_bytes // 8
    mapped_files.forget(mapped_files.passing(0), 0, 0)
