"""Ranks of a group: threads of this process, or a process each, over ring buffers in memory or in files."""

from __future__ import annotations

import ast
import inspect
import mmap
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import MeshError, from_fields
from wire.ir.dtypes import BF16, BOOL, F16, F32, DType
from worker.collectives.channels import Channel, Channels
from worker.collectives.connection import Connection
from worker.collectives.executor import REDUCTIONS
from worker.collectives.group import Group
from worker.collectives.remote_channel import RemoteChannel
from worker.collectives.ring_buffer import (
    SLOT_BYTES,
    SLOTS,
    RingReader,
    RingWriter,
    SpinWait,
    initialise,
    short_sleeps,
    size_of,
)
from worker.collectives.shared_arena import SharedArena

Array = NDArray[Any]

Body = Callable[..., Any]  # (group, *arguments), at module level where ranks are processes
HANGS_S = 240.0  # nothing here takes so long, however busy the machine


def in_threads(n: int, body: Body, slots: int = 4, slot_bytes: int = 256, tag: int = 1, **how: Any) -> list[Any]:
    """What `body(group, rank)` gives or raises on every rank; ring buffers are small, so that they fill."""
    channels = channels_in_memory(n, slots, slot_bytes)
    return on_channels(channels, body, tag, **how)


def channels_in_memory(n: int, slots: int = 4, slot_bytes: int = 256) -> list[Channels]:
    """Each rank's ring buffers."""
    buffers = {(i, j): ring_buffer(slots, slot_bytes) for i in range(n) for j in range(n) if i != j}
    return [
        Channels(
            {
                other: Channel(RingWriter(buffers[rank, other]), RingReader(buffers[other, rank]))
                for other in range(n)
                if other != rank
            },
            spin_wait=SpinWait(0),
            slot_bytes=slot_bytes,
        )
        for rank in range(n)
    ]


def on_channels(channels: Sequence[Channels], body: Body, tag: int = 1, ranks: int = 0, **how: Any) -> list[Any]:
    """The same on ring buffers that may have been used before, by the first of so many ranks, or all."""
    results: list[Any] = [None] * len(channels)

    def work(rank: int) -> None:
        channels[rank].begin(tag, lambda: False)
        try:
            results[rank] = body(Group(channels[rank], range(ranks or len(channels)), rank, **how), rank)
        except Exception as error:
            results[rank] = error
            if hasattr(error, "to_fields"):
                channels[rank].fail(error)

    at_once(work, len(channels))
    return results


def at_once(work: Callable[[int], None], n: int) -> None:
    """`work(rank)` of so many ranks, each in a thread."""
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_S)
    assert not any(thread.is_alive() for thread in threads), "ranks wait for each other"


def connect(
    channels: Sequence[Channels], pairs: Iterable[tuple[int, int]], number: int = 7
) -> list[tuple[RemoteChannel, RemoteChannel]]:
    """Make a connection between these ranks.  Returns the two remote channels of each."""
    made = []
    for pair in pairs:
        ends = []
        for here, there, sock in zip(pair, reversed(pair), sockets(), strict=True):
            channel = channels[here].peers[there]
            channel.remote, channel.bridged = channel.remote or RemoteChannel(), True
            assert channel.remote.start_connecting()
            channel.remote.finish_connecting(Connection(sock, number, channels[here].slot_bytes))
            ends.append(channel.remote)
        made.append((ends[0], ends[1]))
    return made


def sockets() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        return caller, listener.accept()[0]


def ring_buffer(slots: int, slot_bytes: int) -> memoryview:
    """An empty ring buffer in this process."""
    buffer = memoryview(mmap.mmap(-1, size_of(slots, slot_bytes)))
    initialise(buffer, slots, slot_bytes)
    return buffer


def values(n: int, shape: tuple[int, ...], dtype: DType = F32, seed: int = 0) -> list[Array]:
    """One array per rank."""
    random = np.random.default_rng(seed)
    drawn = [random.standard_normal(shape) * 3 for _ in range(n)]
    if dtype is BOOL:
        return [each > 0 for each in drawn]
    if dtype.kind in "iu":
        return [np.abs(each * 40).astype(dtype.numpy) for each in drawn]
    if dtype.kind == "c":
        return [(each + 1j * random.standard_normal(shape)).astype(dtype.numpy) for each in drawn]
    return [each.astype(dtype.numpy) for each in drawn]


def folded(arrays: list[Array], reduction: str) -> Array:
    """In the order of ranks; halves in f32."""
    kind = arrays[0].dtype
    wide = [each.astype(np.float32) if kind in (F16.numpy, BF16.numpy) else each for each in arrays]
    with np.errstate(all="ignore"):
        return np.asarray(reduce(REDUCTIONS[reduction], wide)).astype(kind)


def assert_same(results: list[Any], expected: Array | list[Array]) -> None:
    """To the bit."""
    for rank, result in enumerate(results):
        wanted = expected[rank] if isinstance(expected, list) else expected
        assert not isinstance(result, Exception), result
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        assert np.ascontiguousarray(result).tobytes() == np.ascontiguousarray(wanted).tobytes()


class Processes:
    """n ranks, each a process, over ring buffers that are files in `folder`; `ask` has all of them run a function.

    Functions go by name, and arguments and results as Python literals, a line each.  With `operand_bytes` each has a
    arena on which it gives so much.
    """

    def __init__(
        self, n: int, folder: Path, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES, operand_bytes: int = 0
    ) -> None:
        for path in (_path(folder, i, j) for i in range(n) for j in range(n) if i != j):
            path.write_bytes(bytes(size_of(slots, slot_bytes)))
            initialise(mapped(path), slots, slot_bytes)
        for rank in range(n if operand_bytes else 0):
            with open(folder / _arena(rank), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, operand_bytes * (1 if rank else 2))
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(n), str(folder), str(slot_bytes), str(operand_bytes)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(n)
        ]

    def begin(self, body: Body, *arguments: Any, ranks: Sequence[int] | None = None) -> None:
        """Have the ranks (all if None) run `body(group, *arguments)`."""
        asked = (inspect.getfile(body), body.__name__, arguments)
        for process in self._of(ranks):
            assert process.stdin is not None
            print(repr(asked), file=process.stdin, flush=True)

    def results(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """What came of it: what was returned, or a MeshError."""
        results = []
        for process in self._of(ranks):
            assert process.stdout is not None
            result, failure = ast.literal_eval(process.stdout.readline())
            results.append(from_fields(failure) if failure else result)
        return results

    def ask(self, body: Body, *arguments: Any) -> list[Any]:
        """Both."""
        self.begin(body, *arguments)
        return self.results()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def _of(self, ranks: Sequence[int] | None) -> list[subprocess.Popen[str]]:
        return self.processes if ranks is None else [self.processes[rank] for rank in ranks]


def _path(folder: Path, source: int, target: int) -> Path:
    return folder / f"{source}-{target}"


def _arena(rank: int) -> str:
    return f"{rank:032x}"


def mapped(path: Path) -> memoryview:
    """A file as writable memory."""
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0))


def _serve(rank: int, n: int, folder: Path, slot_bytes: int, operand_bytes: int) -> None:
    short_sleeps()
    ends = {
        other: Channel(
            RingWriter(mapped(_path(folder, rank, other))),
            RingReader(mapped(_path(folder, other, rank)), lambda name: mapped(folder / name)),
        )
        for other in range(n)
        if other != rank
    }
    channels = Channels(ends, slot_bytes=slot_bytes, uses_arena=bool(operand_bytes))
    if operand_bytes:
        readers = [channel.writer for channel in ends.values()]
        channels.arena = SharedArena(_arena(rank), mapped(folder / _arena(rank)), operand_bytes, readers)
    for line in sys.stdin:
        file, name, arguments = ast.literal_eval(line)
        channels.begin(channels.tag + 1, lambda: False)
        try:
            answer = (_function(file, name)(Group(channels, range(n), rank), *arguments), None)
        except MeshError as error:
            channels.fail(error)
            answer = (None, error.to_fields())
        print(repr(answer), flush=True)


@cache
def _function(file: str, name: str) -> Body:
    return runpy.run_path(file)[name]  # type: ignore[no-any-return]


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
