"""The sandbox of engine hosts: somebody who took one over gets nowhere, and what it is there for works as before."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.processes.commands import ROOT

from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages import INLINE_BYTES_MAX
from wire.system import landlock, seccomp
from wire.system.child_python import python_command
from wire.system.shared_memory import SharedDir, take
from worker.config import WorkerConfig
from worker.engine import host_messages as hm
from worker.engine_host import sandbox
from worker.engine_host.host_client import HOST, HostProcess

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is Linux's")
HANGS_S = 120.0
SIDE = 300
ENGINES = ("cpu", "native", "wgsl")
NO_LANDLOCK = "NOT TESTED: this kernel has no Landlock, or keeps it from this container"
NO_SECCOMP = "NOT TESTED: this kernel takes no seccomp filters"


@dataclass
class Opened:
    """A host whose device is open, its answers, and where the daemon's files would be."""

    process: HostProcess
    answer: hm.Opened
    said: queue.Queue[hm.FromHost]
    shared: SharedDir
    folder: Path

    async def ask(self, message: hm.ToHost) -> hm.FromHost:
        self.process.send(message)
        async with asyncio.timeout(HANGS_S):
            while self.said.empty():
                await asyncio.sleep(0.005)
        return self.said.get()

    async def computes(self) -> None:
        """A part with a weight from a file and an input from shared memory, and its answer in a file."""
        builder = GraphBuilder()
        x = builder.input("x", (SIDE, SIDE), F32)
        weight = builder.param("weight", (SIDE, SIDE), F32)
        graph = builder.build([builder.add("exp", builder.add("mul", x, weight))])
        rng = np.random.default_rng(0)
        given, weights = (rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(2))
        content = self.folder / "content" / "weight"
        content.write_bytes(weights.tobytes())
        bound = (hm.BoundParam(1, hash_array(weights), str(content)),)
        prepared = await self.ask(hm.PreparePart(1, graph.hash, graph.encoded, 2, 1, bound, {}, False))
        assert isinstance(prepared, hm.Prepared), prepared
        name = self.shared.write([given])
        inputs = (hm.Input(0, F32.name, (SIDE, SIDE), True, None, str(self.shared.path), name),)
        ran = await self.ask(hm.ExecutePart(1, 1, inputs, (hm.OutputRequest(1, 1),)))
        assert isinstance(ran, hm.Executed), ran
        (output,) = ran.outputs
        assert given.nbytes > INLINE_BYTES_MAX and output.files
        out = np.frombuffer(take(self.shared.path, output.files[0], given.nbytes), np.float32).reshape(SIDE, SIDE)
        np.testing.assert_allclose(out, np.exp(given * weights), rtol=1e-4)


@asynccontextmanager
async def host(
    selection: str, folder: Path, command: Sequence[str] = HOST, shared: SharedDir | None = None, **fields: object
) -> AsyncIterator[Opened]:
    shared = shared or SharedDir.create()
    said: queue.Queue[hm.FromHost] = queue.Queue()
    lost: list[Exception] = []
    (folder / "content").mkdir(exist_ok=True)
    stop = shared.allocate(hm.STOP_BYTES)
    asked: dict[str, object] = {
        "memory_bytes": 0, "threads": 2, "cache_dir": str(folder / "kernels"), "measured_dir": str(folder / "measured"),
        "readable": (str(folder / "content"),), "sandboxed": True, **fields,
    }  # fmt: skip
    opening = hm.Open(
        device=selection, shared_dir=str(shared.path), stop_file=stop.name, parent_pid=os.getpid(), beat_s=0.5, **asked
    )  # fmt: skip
    process = HostProcess(
        opening, stop.buffer, WorkerConfig(), lambda _, m: said.put(m), lambda _, error: lost.append(error), command
    )
    try:
        await process.start()
        async with asyncio.timeout(HANGS_S):
            answer = await process.opened
        assert isinstance(answer, hm.Opened) and answer.device is not None, answer
        yield Opened(process, answer, said, shared, folder)
        assert not lost, lost
    finally:
        process.kill()
        async with asyncio.timeout(HANGS_S):
            await process.exited.wait()
        shared.close()


@pytest.mark.parametrize("engine", ENGINES)
async def test_who_took_an_engine_host_over_gets_nowhere_and_it_computes_as_before(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not landlock.version():
        pytest.skip(NO_LANDLOCK)
    if not seccomp.available():
        pytest.skip(NO_SECCOMP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "tests"))))
    state = tmp_path / "state"
    state.mkdir(0o700)
    key = state / "node.key"
    key.write_text("secret")
    key.chmod(0o600)
    (tmp_path / "kernels").mkdir()
    link = tmp_path / "kernels" / "link"
    link.symlink_to(key)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        local.listen()
        report = tmp_path / "kernels" / "report"
        asked = {
            "file": str(key), "folder": str(state), "link": str(link), "pid": os.getpid(), "report": str(report),
            "port": listening.getsockname()[1], "unix": str(tmp_path / "socket"),
        }  # fmt: skip
        command = python_command("support.hostile.escaping_host", json.dumps(asked))
        async with host(engine, tmp_path, command) as opened:
            found = json.loads(report.read_text())
            assert [layer.missing for layer in opened.answer.sandbox] == [""] * len(sandbox.LAYERS)
            await opened.computes()
    assert found.keys() == {"main", "thread"}
    for where, attempts in found.items():
        got_out = {what: came for what, came in attempts.items() if came not in ("EPERM", "EACCES")}
        assert got_out == {"link it here": "EXDEV"}, where  # as Landlock has it: no other folder is the same disk
    assert not {"moved", "linked", "named"} & {path.name for path in (tmp_path / "kernels").iterdir()}
    assert key.read_text() == "secret" and key.stat().st_mode & 0o777 == 0o600 and key.stat().st_uid == os.geteuid()
    assert list(state.iterdir()) == [key]


async def test_without_a_sandbox_the_same_attempts_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what the test above sees is the sandbox's doing."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "tests"))))
    key = tmp_path / "node.key"
    key.write_text("secret")
    (tmp_path / "kernels").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked = {
            "file": str(key), "folder": str(tmp_path), "link": str(key), "pid": os.getpid(), "only": "harmless",
            "report": str(tmp_path / "kernels" / "report"), "port": listening.getsockname()[1], "unix": "",
        }  # fmt: skip
        command = python_command("support.hostile.escaping_host", json.dumps(asked))
        async with host("cpu", tmp_path, command, sandboxed=False) as opened:
            found = json.loads((tmp_path / "kernels" / "report").read_text())["main"]
            assert {layer.missing for layer in opened.answer.sandbox} == {"--no-sandbox was asked for"}
    for what in ("connect by TCP", "listen", "read the key", "list the folder", "fork", "start a program"):
        assert found[what].startswith("done"), (what, found[what])


async def test_a_budget_limits_memory_and_what_it_leaves_is_enough(tmp_path: Path) -> None:
    async with host("native", tmp_path, memory_bytes=64 << 20) as opened:
        limits = Path(f"/proc/{opened.process.pid}/limits").read_text()
        data = next(line.split() for line in limits.splitlines() if line.startswith("Max data size"))
        core = next(line.split() for line in limits.splitlines() if line.startswith("Max core file size"))
        assert int(data[3]) == 2 * (64 << 20) + sandbox.BESIDE_BUDGET_BYTES and core[4] == "0"
        await opened.computes()


async def test_where_shared_memory_is_no_folder_of_its_own_the_report_says_so(tmp_path: Path) -> None:
    async with host("cpu", tmp_path, shared=SharedDir.create(tmp_path)) as opened:
        (files, *others) = opened.answer.sandbox
        assert files.name == sandbox.FILES and f"shared memory is in {tmp_path}" in files.missing
        assert not any(layer.missing for layer in others)
        await opened.computes()
