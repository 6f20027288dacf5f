"""A mesh that is closed leaves nothing in the program that used it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from mesh import AsyncMesh, Mesh
from mesh.errors import Cancelled


def test_a_handle_keeps_no_mesh_that_is_closed() -> None:
    with Mesh.builder().simulate(1).build() as first:
        handle = first.put(np.arange(100_000, dtype=np.float32))
        backends = [weakref.ref(first._async._backend)]
        assert first.run(lambda w: w.sum(), handle) == np.arange(100_000, dtype=np.float32).sum()
    del first
    for _ in range(3):
        with Mesh.builder().simulate(1).build() as another:
            backends.append(weakref.ref(another._async._backend))
            assert another.run(lambda w: w[1], handle) == 1
        del another
    gc.collect()
    assert [backend() for backend in backends] == [None] * 4
    assert handle.shape == (100_000,)


async def test_sessions_in_this_process_end_with_their_mesh_as_those_on_workers_do() -> None:
    def added(total: Any, x: Any) -> Any:
        return total + x, total + x

    mesh = await AsyncMesh.builder().build_async()
    session = await mesh.session(added, np.float32(0), np.float32(0))
    assert await session.step(np.float32(1)) == 1
    await mesh.close()
    with pytest.raises(Cancelled):
        await session.step(np.float32(1))
    with pytest.raises(Cancelled):
        await session.state()
    await session.close()


def test_workers_and_thread_of_a_mesh_end_though_something_else_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh: Any = Mesh.builder().local(1).build()
    backend = mesh._async._backend
    workers, folder = list(backend._local._processes), backend._local._folder.path

    async def fail(*_: object) -> None:
        raise OSError("the test's disk is full")

    monkeypatch.setattr(backend.coordinator.endpoint, "close", fail)
    with pytest.raises(OSError, match="disk"):
        mesh.close()
    assert [worker.returncode for worker in workers] != [None] and not folder.exists()
    assert mesh._loop.stopped
    mesh.close()
