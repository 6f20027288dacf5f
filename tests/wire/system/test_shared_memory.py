"""Files in memory that change owner: what another process may make us open and delete, and what happens at its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from pathlib import Path, PosixPath, WindowsPath

import numpy as np
import psutil
import pytest
from support.machines.links import Recorder, node
from support.waiting import until

from wire.errors import BlobCorrupt, BlobMissing, ProtocolError
from wire.limits import MIB
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import PlanKey
from wire.system import mapped_files, shared_memory
from wire.system.mapped_files import READ_BYTES_MAX
from wire.system.shared_memory import SharedDir, copy_to, readable, remove, take
from wire.system.shared_memory_handoff import LOOK_EVERY, HandoffFiles
from worker.daemon.tensor_refs import bytes_of
from worker.daemon.tensor_sender import TensorSender
from worker.state import events as ev


def test_a_taken_file_belongs_to_the_taker(tmp_path: Path) -> None:
    made = SharedDir.create(tmp_path)
    name = made.write([b"abc", b"def"])
    with pytest.raises(BlobCorrupt, match="6 bytes, expected 5"):
        take(made.path, name, 5)
    view = take(made.path, name, 6)
    made.close()
    assert bytes(view) == b"abcdef"


def test_a_file_is_copied_into_another_and_is_gone(tmp_path: Path) -> None:
    made, data = SharedDir.create(tmp_path), os.urandom(3 * MIB + 5)
    name = made.write([data])
    with (tmp_path / "copy").open("w+b") as copy:
        with pytest.raises(BlobCorrupt, match="expected 5"):
            copy_to(made.path, name, 5, copy.fileno())
        copy_to(made.path, name, len(data), copy.fileno())
        with pytest.raises(BlobMissing):
            copy_to(made.path, name, len(data), copy.fileno())
        with pytest.raises(ProtocolError):
            copy_to(made.path, "../copy", 1, copy.fileno())
    made.close()
    assert (tmp_path / "copy").read_bytes() == data


def test_what_went_away_with_its_process_is_missing_and_need_not_be_removed(tmp_path: Path) -> None:
    made = SharedDir.create(tmp_path)
    name = made.write([b"abc"])
    assert readable(str(made.path))
    made.close()
    assert not readable(str(made.path))
    remove(made.path, name)
    with pytest.raises(BlobMissing, match="is gone"):
        take(made.path, name, 3)


@pytest.mark.parametrize("size_bytes", [0, 1, READ_BYTES_MAX, READ_BYTES_MAX + 1])
def test_what_was_taken_is_the_takers_own_and_holds_no_open_file(tmp_path: Path, size_bytes: int) -> None:
    own, process = SharedDir.create(tmp_path), psutil.Process()
    data, files = os.urandom(size_bytes), process.num_fds()
    names = own.write_copies([data], 12)
    taken = [take(own.path, name, size_bytes) for name in names[:10]]
    taken += [take(own.path, names[10], size_bytes, unlink=False) for _ in range(2)]
    places = [own.allocate(size_bytes) for _ in range(10)]
    assert process.num_fds() == files
    for number, view in enumerate(taken):
        view[:1] = bytes([number])[: view.nbytes]
    assert [bytes(view) for view in taken] == [bytes([n])[:size_bytes] + data[1:] for n in range(12)]
    assert bytes(take(own.path, names[11], size_bytes)) == data, "nobody else sees what is written"
    for place in places:
        place.buffer[:] = data
        assert bytes(take(own.path, place.name, size_bytes)) == data
    own.close()


def test_mapped_memory_is_given_back_with_the_last_view_of_it(tmp_path: Path) -> None:
    path, process = tmp_path / "file", psutil.Process()
    path.write_bytes(bytes(8 << 20))

    def mapped() -> int:
        return sum(region.path == str(path) for region in process.memory_maps(grouped=False))

    with path.open("r+b") as file:
        views = [
            make(file.fileno(), 8 << 20) for make in (mapped_files.copied, mapped_files.viewed, mapped_files.shared)
        ]
    arrays = [np.frombuffer(view, np.uint8)[1:] for view in views]
    assert mapped() == 3 and [view.readonly for view in views] == [False, True, False]
    views[2][0] = 7
    assert views[1][0] == 7
    del views
    assert mapped() == 3
    del arrays
    assert mapped() == 0
    with path.open("rb") as file, pytest.raises(OSError, match="Permission denied"):
        mapped_files.shared(file.fileno(), 8 << 20)


@pytest.mark.parametrize("name", ["", "lock", "../secret", "a" * 31, "A" * 32, "0" * 33, "/etc/passwd"])
def test_only_names_of_our_making_are_opened_or_removed(tmp_path: Path, name: str) -> None:
    made = SharedDir.create(tmp_path)
    (tmp_path / "secret").write_bytes(b"abc")
    for use in (lambda: take(made.path, name, 3), lambda: remove(made.path, name)):
        with pytest.raises(ProtocolError, match="is not the name of a shared file"):
            use()
    with pytest.raises(ProtocolError, match="is not a shared-memory directory"):
        take(tmp_path, "0" * 32, 3)
    assert (tmp_path / "secret").exists()
    made.close()


def test_a_directory_that_is_being_made_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = shared_memory._hold

    def sweep_first(lock: int) -> bool:
        monkeypatch.setattr(shared_memory, "_hold", hold)
        assert SharedDir.sweep(tmp_path) == 0
        return hold(lock)

    monkeypatch.setattr(shared_memory, "_hold", sweep_first)
    made = SharedDir.create(tmp_path)
    assert made.write([b"abc"]) and SharedDir.sweep(tmp_path) == 0
    made.close()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_removed_while_its_maker_runs_is_made_again(tmp_path: Path) -> None:
    """As systemd-logind removes it when the user of a service logs out, with all in /dev/shm that is the user's."""
    made = SharedDir.create(tmp_path)
    attached, alive = SharedDir.attach(made.path), SharedDir.life(made.path)
    shutil.rmtree(made.path)
    with pytest.raises(BlobMissing, match="is gone"):
        attached.write([b"abc"])
    assert alive() and not SharedDir.lives(made.path)
    made.keep()
    assert bytes(take(made.path, attached.write([b"abc"]), 3)) == b"abc"
    shutil.rmtree(made.path)
    assert bytes(take(made.path, made.write([b"abc"]), 3)) == b"abc", "a file is written without being asked to look"
    assert SharedDir.lives(made.path) and SharedDir.sweep(tmp_path) == 0 and alive()
    shutil.rmtree(made.path)
    assert len(made.write_copies([b"abc"], 2)) == 2 and made.allocate(3).buffer.nbytes == 3
    made.close()
    made.keep()
    assert not list(tmp_path.iterdir()) and not alive()
    with pytest.raises(BlobMissing, match="is gone"):
        made.write([b"abc"])


def test_a_directory_whose_lock_file_was_cleaned_away_is_that_of_a_living_process(tmp_path: Path) -> None:
    """Programs that clean a folder of temporary files remove what was not touched for days, and macOS does."""
    made = SharedDir.create(tmp_path)
    name = made.write([b"abc"])
    (made.path / "lock").unlink()
    os.utime(made.path, (0, 0))
    assert SharedDir.lives(made.path) and SharedDir.sweep(tmp_path) == 0
    assert bytes(take(made.path, name, 3)) == b"abc"
    made.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="it runs systemd's cleaner of temporary files")
def test_systemd_leaves_what_is_in_the_directory_of_a_living_process(tmp_path: Path) -> None:
    (folder := tmp_path / "cleaned").mkdir()
    living, dead = SharedDir.create(folder), SharedDir.create(folder)
    for made in (living, dead):
        (made.path / "node.key").touch()
    for lock in dead._locks:
        os.close(lock)
    (tmp_path / "conf").write_text(f"q {folder} 0700 - - 0\n")
    subprocess.run(["systemd-tmpfiles", "--clean", str(tmp_path / "conf")], check=True)
    assert sorted(path.name for path in living.path.iterdir()) == ["lock", "node.key"] and not dead.path.exists()
    dead._locks.clear()
    living.close()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="it takes root to give a folder away")
def test_a_directory_that_is_another_users_now_is_not_made_ones_own(tmp_path: Path) -> None:
    made = SharedDir.create(tmp_path)
    shutil.rmtree(made.path)
    made.path.mkdir(mode=0o777)
    os.chown(made.path, 12345, 12345)
    with pytest.raises(PermissionError, match="is another user's now"):
        made.keep()
    made.close()


def test_what_was_told_to_the_living_stays_and_what_they_took_is_not_remembered(tmp_path: Path) -> None:
    own, living, dead = SharedDir.create(tmp_path), SharedDir.create(tmp_path), SharedDir.create(tmp_path)
    handed, left = HandoffFiles(), []
    for number in range(3 * LOOK_EVERY):
        for taker in (living, dead):
            name = own.write([b"abc"])
            handed.add(str(taker.path), str(own.path), name)
            if number % LOOK_EVERY:
                take(own.path, name, 3)
            else:
                left.append((taker, name))
    held = sum(len(files) for files in handed._files.values())
    assert len(left) <= held <= len(left) + LOOK_EVERY + 1, "what was taken is forgotten"
    assert handed.clear(), "they live, and no link says how they are"
    assert not handed.clear({str(living.path), str(dead.path)})
    dead.close()
    assert handed.clear() and {name for taker, name in left if taker is living} == files_of(own)
    living.close()
    assert not handed.clear() and not files_of(own)
    own.close()


async def test_a_push_that_was_stopped_before_it_began_leaves_no_file(tmp_path: Path) -> None:
    own, sent = SharedDir.create(tmp_path), []

    async def relay(action: ev.SendPush) -> None:
        sent.append(bytes_of(action.tensor))

    sender = TensorSender(Endpoint(node("a"), Recorder()), relay, sent.append)
    for number in range(2):
        tensor = ev.SharedFile("u8", (3,), str(own.path), own.write([b"abc"]))
        sender.push(ev.SendPush(number, "elsewhere", PlanKey(1, 1), 0, 0, 0, tensor))
    sender.stop_push(ev.StopPush(1))
    await until(lambda: not sender._pushes, 30)
    assert sent == [b"abc", ev.PushSent(0)] and not files_of(own)
    own.close()


def files_of(directory: SharedDir) -> set[str]:
    return {path.name for path in directory.path.iterdir()} - {"lock"}


class SlowFolder(PosixPath if os.name == "posix" else WindowsPath):
    """A folder in which nothing is made before it may be."""

    begun, may = threading.Event(), threading.Event()

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        self.begun.set()
        assert self.may.wait(10.0)
        return Path(self, name)


async def test_a_folder_that_nobody_waits_for_any_more_is_removed(tmp_path: Path) -> None:
    """As `build_async` under a deadline does: the folder and its descriptors stayed until the process ended."""
    folder = SlowFolder(tmp_path)
    making = asyncio.create_task(SharedDir.created(folder))
    await until(folder.begun.is_set, within_s=10.0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    folder.may.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    await until(lambda: not any(tmp_path.iterdir()), within_s=5.0)
