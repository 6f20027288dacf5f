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
from wire.system.shared_memory import SharedDir, exists, remove

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


class Ends:
    """What gives memory back, once it may; `threads` did so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.threads, self.may_end = list[str](), threading.Event()
        take = mapped_files._Ending.take

        def slowly(ending: mapped_files._Ending, unmap: Callable[[], object]) -> bool:
            def work() -> None:
                self.may_end.wait(60)
                unmap()
                self.threads.append(threading.current_thread().name)

            return take(ending, work)

        patch.setattr(mapped_files._Ending, "take", slowly)


def test_a_thread_gives_large_mappings_back_and_can_be_waited_for(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    view = mapped_files.copied(handle, LARGE)
    with monkeypatch.context() as patch:
        ends = Ends(patch)
        del view
    assert not ends.threads
    threading.Timer(0.01, ends.may_end.set).start()
    assert mapped_files.settle()
    assert ends.threads == ["unmapping"]
    os.close(handle)


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open cannot be removed there")
@pytest.mark.parametrize("size_bytes", [LARGE, 5])
def test_a_file_is_gone_at_once_and_a_thread_gives_back_what_a_large_one_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """On a disk a gigabyte takes 0.2 s, for which an event loop would stand still."""
    shared, open_files = SharedDir.create(tmp_path), psutil.Process().num_fds()
    name = shared.allocate(size_bytes).name
    with monkeypatch.context() as patch:
        ends = Ends(patch)
        remove(shared.path, name)
    assert not exists(shared.path, name)
    assert psutil.Process().num_fds() == open_files + (size_bytes == LARGE)
    ends.may_end.set()
    mapped_files.settle()
    assert ends.threads == (["unmapping"] if size_bytes == LARGE else [])
    assert psutil.Process().num_fds() == open_files
    shared.close()


async def test_an_event_loop_that_finds_no_room_does_not_wait_until_memory_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, size_bytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("wire.system.shared_memory.reserve", full)
    shared, given_back, tired = SharedDir.create(tmp_path), threading.Event(), list[bool]()
    mapped_files._ending.take(lambda: given_back.wait(60))

    def end_it() -> None:
        tired.append(True)
        given_back.set()

    timer = threading.Timer(5.0, end_it)
    timer.start()
    with pytest.raises(OutOfMemory):
        shared.allocate(100)
    assert not tired, "the loop stood still"
    given_back.set()
    timer.cancel()
    shared.close()


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

    monkeypatch.setattr("wire.system.shared_memory.reserve", reserve)
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
