"""An engine host keeps what it compiled, up to a number of graphs and a size; the longest unused goes first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from wire.bounds import UNUSED_WEIGHTS
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.system.shared_memory import SharedDir
from worker.cpu import CpuEngine
from worker.cpu.engine import compile_graph
from worker.engine import host_messages as hm
from worker.engine.protocol import Engine
from worker.engine_host.host import EXECUTABLES_BYTES_MAX, EXECUTABLES_MAX, NATIVE_BYTES_MAX, Host


@dataclass
class Compiled:
    kept_bytes: int
    native_bytes: int
    memory_bytes: int = 0
    from_cache: bool = False


@dataclass
class Compiling:
    """An engine that only compiles, to executables of a size."""

    kept_bytes: int
    native_bytes: int = 0
    info: Any = field(default_factory=lambda: CpuEngine().info)
    compiled: list[bytes] = field(default_factory=list)

    def compile(self, graph: WireGraph, force: bool) -> Compiled:
        self.compiled.append(graph.hash)
        return Compiled(self.kept_bytes, self.native_bytes)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedDir]:
    made = SharedDir.create(tmp_path)
    yield made
    made.close()


def graph(number: int) -> WireGraph:
    builder = GraphBuilder()
    return builder.build([builder.add("tanh", builder.input("x", (number + 1,), F32))])


def compiled(host: Host, engine: Compiling, number: int) -> bool:
    """Whether a part had to be compiled; it is not used afterwards."""
    before, made = len(engine.compiled), graph(number)
    answer = host.handle(hm.PreparePart(number, made.hash, made.encoded, 1, 1, (), {}, False))
    assert isinstance(answer, hm.Prepared)
    host.handle(hm.Unprepare(number))
    return len(engine.compiled) > before


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ((1, 1), EXECUTABLES_MAX), ((EXECUTABLES_BYTES_MAX // 4, 0), 4), ((2 * EXECUTABLES_BYTES_MAX, 0), 1),
        ((0, NATIVE_BYTES_MAX // 4), 4), ((1, 2 * NATIVE_BYTES_MAX), 1),
    ],
)  # fmt: skip
def test_so_many_are_kept_and_the_longest_unused_goes_first(
    shared: SharedDir, sizes: tuple[int, int], kept: int
) -> None:
    engine = Compiling(*sizes)
    host = Host(cast(Engine, engine), shared, memoryview(bytearray(8)), 1 << 30)
    assert all(compiled(host, engine, number) for number in range(kept))
    assert not any(compiled(host, engine, number) for number in range(kept))
    assert compiled(host, engine, kept)  # one too many
    assert not any(compiled(host, engine, number) for number in range(1, kept + 1))
    assert compiled(host, engine, 0)


def test_constants_count(shared: SharedDir) -> None:
    builder = GraphBuilder()
    x = builder.input("x", (1000,), F32)
    made = builder.build([builder.add("add", x, builder.const(np.ones(1000, np.float32)))])
    assert compile_graph(graph(3)).kept_bytes == 0 and compile_graph(made).kept_bytes == 4000


def test_so_many_weights_are_kept_that_nothing_reads(shared: SharedDir, tmp_path: Path) -> None:
    builder = GraphBuilder()
    made = builder.build([builder.add("tanh", builder.param("w", (4,), F32))])
    host = Host(CpuEngine(), shared, memoryview(bytearray(8)), 1 << 30)
    (path := tmp_path / "weights").write_bytes(bytes(16))
    for number in range(UNUSED_WEIGHTS.most + 5):
        param = hm.BoundParam(0, number.to_bytes(32, "big"), str(path))
        answer = host.handle(hm.PreparePart(number, made.hash, made.encoded, 1, 1, (param,), {}, False))
        assert isinstance(answer, hm.Prepared)
        host.handle(hm.Unprepare(number))
        assert len(host._unused) <= UNUSED_WEIGHTS.most + 1
    kept = [int.from_bytes(blob, "big") for blob, _ in host._unused]
    assert kept == list(range(number + 1 - len(kept), number + 1)), "the latest"
