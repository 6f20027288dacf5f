"""Real worker daemons for tests: started like local workers are, asked and fed over real links."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import MeshError
from wire.ir.codec import hash_array, tensor_bytes, tensor_from
from wire.ir.dtypes import dtype_named, dtype_of
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.joining.credentials import Credentials
from wire.link.identity import identity_here
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import (
    Beat,
    Began,
    BlobSpec,
    BlobStream,
    Deploy,
    Deployed,
    Feed,
    FetchBlob,
    Join,
    Joined,
    Leaving,
    Message,
    PartSpec,
    PlanKey,
    Push,
    Ran,
    Run,
    Value,
)
from wire.security.certificates import CertificateAuthority
from wire.system.child_python import python_command
from wire.system.shared_memory import SharedDir, take
from wire.transfer.content_exchange import BlobExchange
from worker.config import WorkerConfig

from ..tls import credentials
from .commands import PATIENT_S, ROOT
from .forked_hosts import hosts_of
from .forked_workers import forked
from .forking import HOSTS
from .launching import runs

READY_S = 120.0
HANGS_S = 120.0  # nothing here takes so long, however busy the machine


@dataclass(slots=True)
class WorkerProcess:
    """A worker daemon and what it said when it was ready."""

    process: asyncio.subprocess.Process
    ready: dict[str, Any]
    log: Path

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def node_id(self) -> str:
        return str(self.ready["node_id"])

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def exit_code(self, within_s: float = HANGS_S) -> int:
        return await asyncio.wait_for(self.process.wait(), within_s)

    def host_pids(self) -> list[int]:
        """The engine hosts, which are its only children."""
        return children(self.process.pid)


async def _started(module: str, words: list[str], errors: IO[bytes]) -> Any:
    """A process that is forked where engine hosts may be (tests/e2e/conftest.py)."""
    if HOSTS in os.environ and (found := await forked(module, words, {**os.environ, "PYTHONPATH": str(ROOT)}, errors)):
        return found
    pipe, env = asyncio.subprocess.PIPE, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = python_command(module, *words)
    return await asyncio.create_subprocess_exec(*command, env=env, stdin=pipe, stdout=pipe, stderr=errors)


@asynccontextmanager
async def worker(
    folder: Path,
    name: str = "w",
    mesh: str = "test",
    by: CertificateAuthority | None = None,
    throttle: str = "",
    **changes: Any,
) -> AsyncIterator[WorkerProcess]:
    """A worker with a cpu device only, killed at the end if it still runs; with `by` a member of that one's mesh.

    With a `throttle` it is `mesh-worker --throttle`, which takes no other changes.
    """
    config = replace(WorkerConfig.local(name, mesh, folder, devices=("cpu",)), measured_dir=str(folder / "measured"))
    config = replace(config, **changes)
    module, words = "worker.__main__", [json.dumps(asdict(config))]
    if by is not None:
        credentials(config.state_base / name, by, mesh=mesh)
        module = "support.processes.member_worker"
    if throttle:
        assert by is None and not changes
        folders = ("--state-dir", config.state_dir, "--cache-dir", config.cache_dir)
        words = ["--local", "--port", "0", "--name", name, "--mesh", mesh, "--device", "cpu", *folders]
        module, words = "mesh.commands.worker", [*words, "--throttle", throttle]
    log = folder / f"{name}.log"
    with log.open("wb") as stderr:
        process = await _started(module, words, stderr)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        assert line, f"the worker did not start:\n{log.read_text()}"
        yield WorkerProcess(process, json.loads(line), log)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


class Coordinator:
    """A coordinator for tests: it knows nothing but to send messages and to remember what comes."""

    def __init__(self, name: str = "tester", mesh: str = "test", member: Credentials | None = None) -> None:
        self.shared = SharedDir.create()
        node_id = member.node_id if member is not None else ""
        identity = identity_here("coordinator", mesh, name, self.shared, node_id)
        self.endpoint = Endpoint(identity, self, credentials=member)
        self.content: dict[bytes, NDArray[Any]] = {}
        self.exchange = BlobExchange(self.shared, self._find)
        self.notes: list[tuple[Link, Message]] = []
        self.outputs: dict[tuple[int, int], NDArray[Any]] = {}  # streamed or pushed: (step, slot)
        self.unlinked: list[tuple[Link, MeshError | None]] = []
        self.epoch = 1
        self._steps = 0
        self._news = asyncio.Event()

    async def join(
        self, worker: WorkerProcess, beat_s: float = 0.1, silence_s: float = PATIENT_S
    ) -> tuple[Link, Joined]:
        """`silence_s` is after how long the worker gives this process up, which may be held up by others."""
        link = await self.endpoint.dial("127.0.0.1", worker.port)
        joined = await link.request(
            Join(self.epoch, beat_s, self.endpoint.identity.node_id, silence_s), timeout_s=HANGS_S
        )
        assert isinstance(joined, Joined)
        return link, joined

    async def deploy(
        self,
        link: Link,
        parts: Sequence[tuple[PartSpec, WireGraph]],
        plan: PlanKey,
        blobs: Sequence[tuple[NDArray[Any], Sequence[str]]] = (),
        peers: dict[str, tuple[str, ...]] | None = None,
        keep: bool = True,
        ordered: bool = False,
    ) -> Deployed:
        graphs = {graph.hash: graph.encoded for _, graph in parts}
        specs = tuple(self.blob_spec(array, holders, keep) for array, holders in blobs)
        message = Deploy(plan, tuple(part for part, _ in parts), graphs, specs, peers or {}, ordered=ordered)
        answer = await link.request(message, timeout_s=HANGS_S)
        assert isinstance(answer, Deployed)
        return answer

    def blob_spec(self, array: NDArray[Any], holders: Sequence[str] = ("",), keep: bool = True) -> BlobSpec:
        address = hash_array(array)
        self.content[address] = array
        return BlobSpec(address, array.nbytes, dtype_of(array).name, array.shape, tuple(holders), keep)

    def feed(self, part: int, slot: int, array: NDArray[Any], how: str = "inline") -> Feed:
        """An input that travels inline, in a shared-memory file, or ("stream") by itself."""
        dtype, data = dtype_of(array).name, tensor_bytes(array)
        match how:
            case "inline":
                return Feed(part, slot, Value(dtype, array.shape, data.tobytes()))
            case "shared":
                return Feed(part, slot, Value(dtype, array.shape, None, self.shared.write([data])))
        return Feed(part, slot, Value(dtype, array.shape))

    async def run(self, link: Link, plan: PlanKey, step: int, *feeds: Feed) -> tuple[Ran, dict[int, NDArray[Any]]]:
        """The answer and the outputs that came with it."""
        answer = await link.request(Run(plan, step, feeds), timeout_s=HANGS_S)
        assert isinstance(answer, Ran)
        outputs = {}
        for output in answer.outputs:
            if output.value.data is not None or output.value.shared:
                outputs[output.slot] = _array(link, output.value)
            else:
                await self.until(lambda slot=output.slot: (step, slot) in self.outputs)
                outputs[output.slot] = self.outputs[step, output.slot]
        return answer, outputs

    def of(self, kind: type[Any]) -> list[Any]:
        return [note for _, note in self.notes if isinstance(note, kind)]

    async def until(self, condition: Callable[[], bool], within_s: float = HANGS_S) -> None:
        """Wait until what came makes `condition` true."""
        async with asyncio.timeout(within_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        await self.endpoint.close()
        self.shared.close()

    def _find(self, blob: bytes) -> memoryview | None:
        return tensor_bytes(self.content[blob]) if blob in self.content else None

    # -- the Handler

    async def on_request(self, link: Link, body: Message) -> Message:
        assert isinstance(body, FetchBlob)
        return await self.exchange.serve(link, body)

    def on_notify(self, link: Link, body: Message) -> None:
        assert isinstance(body, Beat | Began | Leaving | Push)
        if isinstance(body, Push):
            self.outputs[body.step, body.slot] = _array(link, body.value)
        self.notes.append((link, body))
        self._news.set()

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        if isinstance(header, BlobStream):
            return self.exchange.open_stream(link, header, size_bytes)
        return memoryview(bytearray(size_bytes))

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        if isinstance(header, BlobStream):
            self.exchange.stream_done(link, header, buffer, error)
        elif isinstance(header, Push) and error is None:
            self.outputs[header.step, header.slot] = tensor_from(buffer, _type(header.value))
        self._news.set()

    def on_linked(self, link: Link) -> None:
        self._news.set()

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        self.unlinked.append((link, error))
        self._news.set()


@dataclass(slots=True)
class Fleet:
    """Workers and the coordinator they joined."""

    coordinator: Coordinator
    workers: list[WorkerProcess] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    @property
    def peers(self) -> dict[str, tuple[str, ...]]:
        return {each.node_id: (each.address,) for each in self.workers}


def is_alive(pid: int) -> bool:
    """Whether the process still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(pid: int, within_s: float = HANGS_S) -> bool:
    """Whether the process ends in time."""
    try:
        async with asyncio.timeout(within_s):
            while is_alive(pid):
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return True


def opened_by(pid: int) -> list[str]:
    """The targets of a process's file descriptors, less those that were closed while they were read."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


def children(pid: int) -> list[int]:
    """The processes that this one started and that live: of a worker's daemon its engine hosts.  One that was killed is
    listed a moment longer, until somebody has collected it."""
    found: list[str] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended has none
                found += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    return [child for child in (*map(int, found), *hosts_of(pid)) if runs(child)]


def _type(value: Value) -> TensorType:
    return TensorType(value.shape, dtype_named(value.dtype))


def _array(link: Link, value: Value) -> NDArray[Any]:
    kind = _type(value)
    data = value.data if value.data is not None else take(link.peer.shared_memory, value.shared, kind.size_bytes)
    return np.array(tensor_from(data, kind))
