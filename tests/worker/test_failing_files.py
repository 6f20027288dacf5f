"""The Nth call on a file fails, for every N, where a worker keeps things: it is said by name, or costs speed alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hostile.failing_calls import NO_ROOM, each_call, system_refuses
from support.hostile.faulty_disk import Fuse

from wire.errors import MeshError
from wire.ir.codec import hash_bytes
from worker.cpu import CpuEngine
from worker.daemon import state_folder as state_folder
from worker.daemon.blob_store import BlobStore
from worker.daemon.pause_file import PauseFiles, PauseWatch
from worker.devices.benchmark import measured
from worker.engine.protocol import Measured
from worker.state.events import Event
from worker.wgsl.cache import ProgramCache, cache_key
from worker.wgsl.program import Program

CONTENT = bytes(range(256)) * 64


def blobs(folder: Path) -> None:
    """Put, find, and map; what is found is what was put."""
    store = BlobStore(folder / "disk", folder / "memory", 1 << 20, 1 << 20)

    async def story() -> None:
        blob = hash_bytes(CONTENT)
        await store.put(blob, memoryview(CONTENT), keep=True)
        assert await store.find(blob, len(CONTENT)) in ("resident", "disk", None)
        view = store.view(blob)
        assert view is None or bytes(view) == CONTENT
        assert store.used_bytes in (0, len(CONTENT))

    asyncio.run(story())
    assert not list(folder.rglob("writing-*"))


def kernels(folder: Path) -> None:
    cache, key, program = ProgramCache(folder / "kernels"), cache_key("test"), EMPTY
    cache.write(key, program)
    assert cache.read(key) in (program, None)
    assert not list(folder.rglob("*.tmp"))


def figures(folder: Path) -> None:
    engine = CpuEngine()
    engine.measure = lambda: Measured(2.0, 3.0, 4.0)  # type: ignore[method-assign]
    assert measured(engine, folder / "measured") == Measured(2.0, 3.0, 4.0)


def state(folder: Path) -> None:
    made = state_folder.claim(folder, "worker")
    try:
        assert made.name == "worker" and made.node_id
        assert state_folder.kept_node_id(made.path) == made.node_id
    finally:
        made.lock.release()


def pauses(folder: Path) -> None:
    files = PauseFiles(folder)
    files.set_wish("machine")
    files.set_duty("paused")
    files.set_wish("")


EMPTY = Program((), (), (), ())


def check(story: Callable[[Path], None], base: Path, number: int) -> int:
    """How many of its calls can fail; how often it ended with an error is left to `story`."""
    failed = 0
    for fuse in each_call():
        for kind in ("used", "new"):  # the new one last: it takes the most calls
            folder = base / f"{kind}-{fuse.fails_at}"
            folder.mkdir()
            if kind == "used":
                story(folder)
            fuse.steps = 0
            with system_refuses(fuse, number, base):
                try:
                    story(folder)
                except MeshError:
                    failed += 1
            story(folder)
    return failed


@pytest.mark.parametrize("number", NO_ROOM, ids=os.strerror)
@pytest.mark.parametrize("story", [blobs, kernels, figures])
def test_what_is_kept_for_speed_alone_costs_no_more_than_speed(
    tmp_path: Path, story: Callable[[Path], None], number: int
) -> None:
    assert check(story, tmp_path, number) == 0


@pytest.mark.parametrize("number", NO_ROOM, ids=os.strerror)
@pytest.mark.parametrize("story", [state, pauses])
def test_what_must_be_kept_is_kept_or_an_error_says_so(
    tmp_path: Path, story: Callable[[Path], None], number: int
) -> None:
    assert check(story, tmp_path, number) >= 2


def test_an_identity_that_cannot_be_read_now_is_not_replaced(tmp_path: Path) -> None:
    known = state_folder.claim(tmp_path, "worker")
    known.lock.release()
    for fuse in each_call():
        with system_refuses(fuse, errno.EMFILE, tmp_path), contextlib.suppress(MeshError):
            state_folder.claim(tmp_path, "worker").lock.release()
    again = state_folder.claim(tmp_path, "worker")
    again.lock.release()
    assert (again.name, again.node_id) == ("worker", known.node_id)


def test_a_pause_that_cannot_be_read_now_is_one(tmp_path: Path) -> None:
    files = PauseFiles(tmp_path)
    for wish, before, expected in (
        ("machine", "", "machine"), ("machine", "machine", "machine"), ("coordinator", "coordinator", "coordinator"),
        ("coordinator", "", "machine"), ("", "", ""), ("", "machine", ""),
    ):  # fmt: skip
        files.set_wish(wish)
        with system_refuses(fuse := Fuse(fails_at=1), errno.EMFILE, tmp_path):
            assert files.wish(before) == expected
        assert fuse.blown


def test_the_coordinators_pause_does_not_become_the_machines_while_it_cannot_be_read(tmp_path: Path) -> None:
    files, heard = PauseFiles(tmp_path), list[Event]()
    watch = PauseWatch(files, heard.append, lambda: "")
    watch.keep("coordinator")
    with system_refuses(fuse := Fuse(fails_at=1), errno.EMFILE, tmp_path):
        watch.look()
    assert fuse.blown and heard == []
