"""A run that is suspended in its engine host: others see what it had seen, and it goes on as if nothing had been."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from wire.ir.codec import tensor_bytes
from wire.ir.dtypes import F32, I32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.system.shared_memory import SharedDir
from worker.cpu import CpuEngine
from worker.engine import host_messages as hm
from worker.engine.protocol import Engine
from worker.engine_host.host import Host
from worker.engine_host.suspension import Suspension, suspend_mark
from worker.native.engine import NativeEngine

LENGTH = 8192  # a tensor of this many numbers is worth an update in place
ENGINES: dict[str, Callable[[], Engine]] = {"cpu": CpuEngine, "native": NativeEngine}
LIMIT, SIDE = 1e6, 32


class Cell:
    """A stop cell in which a run finds, when it looks for the `at`th time, that it is to be suspended."""

    def __init__(self) -> None:
        self.run = self.at = self.looks = 0

    def __eq__(self, other: object) -> bool:
        if other != suspend_mark(self.run):
            return False
        self.looks += 1
        return self.looks == self.at

    __hash__ = None  # type: ignore[assignment]


class Suspending:
    """A host that calls `meanwhile` in place of waiting while a run is suspended."""

    def __init__(self, folder: Path, engine: Engine, memory_bytes: int = 1 << 30) -> None:
        self.shared, self.cell = SharedDir.create(folder), Cell()
        self.said: list[hm.FromHost] = []
        self.meanwhile: Callable[[], None] = lambda: None
        cell = cast(memoryview, self.cell)
        self.host = Host(engine, self.shared, cell, memory_bytes, self.said.append, suspend=self.suspend)

    def suspend(self, run: int, say: Callable[[], None]) -> None:
        say()
        self.meanwhile()

    def prepare(self, number: int, graph: WireGraph, params: tuple[hm.BoundParam, ...] = ()) -> Any:
        counts = len(graph.inputs) + len(graph.params), len(graph.outputs)
        return self.host.handle(hm.PreparePart(number, graph.hash, graph.encoded, *counts, params, {}, False))

    def run(self, run: int, part: int, *inputs: hm.Input, keep: tuple[int, ...] = (0,), suspended_at: int = 0) -> Any:
        if suspended_at:
            self.cell.run, self.cell.at, self.cell.looks = run, suspended_at, 0
        wanted = tuple(hm.OutputRequest(number, 1) for number in keep)
        return self.host.handle(hm.ExecutePart(run, part, inputs, wanted, suspendable=True))


def given(position: int, array: Any) -> hm.Input:
    dtype = {"float32": "f32", "int32": "i32"}[array.dtype.name]
    return hm.Input(position, dtype, array.shape, False, tensor_bytes(array))


def kept(position: int, number: int, last: bool = False) -> hm.Input:
    return hm.Input(position, "f32", (LENGTH,), last, kept=number)


def doubled() -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (LENGTH,), F32)
    return builder.build([builder.add("add", x, x)])


def summed() -> WireGraph:
    builder = GraphBuilder()
    return builder.build([builder.add("reduce_sum", builder.input("t", (LENGTH,), F32), axes=(0,))])


def updated() -> WireGraph:
    builder = GraphBuilder()
    tensor, rows = builder.input("t", (LENGTH,), F32), builder.input("r", (4,), F32)
    after = builder.add("dynamic_update_slice", tensor, rows, builder.input("i", (1,), I32))
    total = builder.add("reduce_sum", after, axes=(0,))
    return builder.build([after, builder.add("while", total, test=_smaller(), body=_larger(), output=0)])


def _smaller() -> WireGraph:
    builder = GraphBuilder()
    return builder.build([builder.add("lt", builder.input("v", (), F32), builder.const(np.float32(LIMIT)))])


def _larger() -> WireGraph:
    builder = GraphBuilder()
    value = builder.input("v", (), F32)
    return builder.build([builder.add("add", value, value)])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("last", [False, True])
def test_a_tensor_that_another_run_reads_is_not_written_over_meanwhile(tmp_path: Path, engine: str, last: bool) -> None:
    host, sums = Suspending(tmp_path, ENGINES[engine]()), list[float]()
    for number, graph in ((1, doubled()), (2, updated()), (3, summed())):
        assert isinstance(host.prepare(number, graph), hm.Prepared)
    total = float(2 * (LENGTH - 4) + 4000)
    while total < LIMIT:
        total += total
    rows = given(1, np.full(4, 1000, np.float32)), given(2, np.zeros(1, np.int32))

    def read() -> None:
        answer = host.run(3, 3, kept(0, 7, last))
        assert isinstance(answer, hm.Executed), answer
        sums.append(float(np.frombuffer(answer.outputs[0].data, np.float32)[0]))

    host.meanwhile = read
    for look in range(1, 8):  # at a kernel, or a turn of the loop
        made = host.run(1, 1, given(0, np.ones(LENGTH, np.float32)), keep=(7,))
        assert isinstance(made, hm.Executed)
        answer = host.run(2, 2, kept(0, 7), *rows, keep=(8, 0), suspended_at=look)
        assert isinstance(answer, hm.Executed), answer
        assert np.frombuffer(answer.outputs[1].data, np.float32)[0] == total
        host.host.handle(hm.Forget((7, 8)))
    assert sums == [2 * LENGTH] * 7


def weighted(layers: int) -> WireGraph:
    builder = GraphBuilder()
    value = builder.input("x", (1, SIDE), F32)
    for layer in range(layers):
        weight = builder.param(f"w{layer}", (SIDE, SIDE), F32)
        value = builder.add("dot", value, weight, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return builder.build([value])


def test_what_has_no_room_beside_a_suspended_run_is_postponed_and_then_fits(tmp_path: Path) -> None:
    """The suspended run reads three weights, which cannot be spilled meanwhile, and there is room for four."""
    host = Suspending(tmp_path, CpuEngine(), 4 * 4 * SIDE * SIDE + 512)
    for number in range(6):
        (tmp_path / f"weight-{number}").write_bytes(np.full((SIDE, SIDE), number, np.float32).tobytes())
    first, second = (
        tuple(hm.BoundParam(1 + at, bytes([at + of] * 32), str(tmp_path / f"weight-{at + of}")) for at in range(3))
        for of in (0, 3)
    )
    assert isinstance(host.prepare(1, weighted(3), first), hm.Prepared)
    answers = []
    host.meanwhile = lambda: answers.append(host.prepare(2, weighted(3), second))
    ran = host.run(1, 1, given(0, np.ones((1, SIDE), np.float32)), suspended_at=2)
    assert isinstance(ran, hm.Executed), ran
    (answer,) = answers
    assert isinstance(answer, hm.PrepareFailed) and answer.postponed
    (said,) = (message for message in host.said if isinstance(message, hm.Suspended))
    assert 4 * SIDE * SIDE <= said.room_bytes < 4 * SIDE * SIDE + 512, "the fourth weight's"
    assert isinstance(host.prepare(2, weighted(3), second), hm.Prepared)


def test_the_time_for_which_a_run_was_suspended_is_none_of_its_own(tmp_path: Path) -> None:
    host = Suspending(tmp_path, CpuEngine())
    host.prepare(1, doubled())
    host.meanwhile = lambda: time.sleep(0.5)
    began_s = time.perf_counter()
    ran = host.run(1, 1, given(0, np.ones(LENGTH, np.float32)), suspended_at=1)
    took_s = time.perf_counter() - began_s
    assert isinstance(ran, hm.Executed)
    assert ran.compute_s >= 0 and ran.encode_s >= 0
    assert ran.compute_s + ran.encode_s <= took_s - 0.5, "on a machine of any speed"


def test_one_thread_computes_at_a_time_and_each_run_in_its_own() -> None:
    """Three runs, two of which are suspended in each other, and resumed the first one first."""
    messages: queue.Queue[tuple[str, int]] = queue.Queue()
    log: list[tuple[str, int, int]] = []
    over = threading.Event()

    def serve() -> None:
        while True:
            what, run = messages.get(timeout=60)
            if what == "end":
                over.set()
                return
            if what == "resume":
                if suspension.resume(run):
                    return
                continue
            log.append(("begun", run, threading.get_ident()))
            suspension.suspend(run, lambda run=run: log.append(("suspended", run, threading.get_ident())))  # type: ignore[misc]
            log.append(("over", run, threading.get_ident()))

    suspension = Suspension(serve)
    for message in (("run", 1), ("run", 2), ("resume", 1), ("resume", 2), ("resume", 7), ("end", 0)):
        messages.put(message)
    threading.Thread(target=serve, daemon=True).start()
    assert over.wait(60)
    kinds = [(what, run) for what, run, _ in log]
    assert kinds == [("begun", 1), ("suspended", 1), ("begun", 2), ("suspended", 2), ("over", 1), ("over", 2)]
    threads = {run: {thread for _, of, thread in log if of == run} for run in (1, 2)}
    assert len(threads[1]) == len(threads[2]) == 1 and threads[1] != threads[2]
