"""Weights of parts that do not run leave the device for those of one that does, and come back: never more than fits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import HostArray
from wire.system.shared_memory import SharedDir
from worker.cpu import CpuEngine
from worker.engine import host_messages as hm
from worker.engine.host_messages import BoundParam, Input, OutputRequest
from worker.engine.protocol import Engine
from worker.engine_host.host import Host

SIDE = 16
WEIGHT_BYTES = 4 * SIDE * SIDE
X = np.linspace(-1, 1, SIDE, dtype=np.float32).reshape(1, SIDE)


class Loaded:
    """A tensor on the device; without an array once it was unloaded."""

    def __init__(self, array: HostArray) -> None:
        self.array: HostArray | None = array.copy()


class DeviceEngine(CpuEngine):
    """The cpu engine with memory of its own, which holds so many bytes of weights."""

    def __init__(self, room_bytes: int) -> None:
        super().__init__()
        self.room_bytes, self.held, self.loads = room_bytes, dict[int, Loaded](), 0
        self.spill: Callable[[], bool] = lambda: False

    def load(self, array: HostArray) -> Any:
        handle, self.loads = Loaded(array), self.loads + 1
        self.held[id(handle)] = handle
        assert sum(held.array.nbytes for held in self.held.values() if held.array is not None) <= self.room_bytes
        return handle

    def unload(self, handle: Any) -> None:
        assert handle.array is not None, "it was unloaded before"
        handle.array = None
        del self.held[id(handle)]

    def run(self, executable: Any, inputs: Sequence[Any], *more: Any) -> list[Any]:
        given = [each.array if isinstance(each, Loaded) else each for each in inputs]
        assert all(array is not None for array in given), "a weight that is read was spilled"
        return super().run(executable, given, *more)


def product_of(layers: int) -> WireGraph:
    builder = GraphBuilder()
    value = builder.input("x", X.shape, F32)
    for layer in range(layers):
        weight = builder.param(f"w{layer:02}", (SIDE, SIDE), F32)
        value = builder.add("dot", value, weight, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return builder.build([value])


class Parts:
    """A host with weights in files, and the parts that it has."""

    def __init__(self, folder: Path, room: int) -> None:
        self.shared = SharedDir.create(folder)
        self.engine = DeviceEngine(room * WEIGHT_BYTES)
        self.room_bytes = room * WEIGHT_BYTES + 512  # and a little for what is computed
        self.host = Host(cast(Engine, self.engine), self.shared, memoryview(bytearray(8)), self.room_bytes)
        self.folder, self.weights, self.of, self.runs = folder, dict[int, HostArray](), dict[int, list[int]](), 0

    def weight(self, number: int) -> HostArray:
        if number not in self.weights:
            made = np.random.default_rng(number).standard_normal((SIDE, SIDE)).astype(np.float32)
            self.weights[number] = made
            (self.folder / f"weight-{number}").write_bytes(made.tobytes())
        return self.weights[number]

    def prepare(self, part: int, weights: list[int]) -> Any:
        graph = product_of(len(weights))
        for number in weights:
            self.weight(number)
        bound = tuple(
            BoundParam(place + 1, number.to_bytes(32, "big"), str(self.folder / f"weight-{number}"))
            for place, number in enumerate(weights)
        )
        counts = 1 + len(weights), 1
        answer = self.host.handle(hm.PreparePart(part, graph.hash, graph.encoded, *counts, bound, {}, False))
        if isinstance(answer, hm.Prepared):
            self.of[part] = weights
        return answer

    def run(self, part: int) -> int:
        """Check what a part gives; how many weights had to be loaded for it."""
        self.runs, before = self.runs + 1, self.engine.loads
        given = Input(0, "f32", X.shape, False, X.tobytes())
        answer = self.host.handle(hm.ExecutePart(self.runs, part, (given,), (OutputRequest(0, 1),)))
        assert isinstance(answer, hm.Executed), answer
        right = X
        for number in self.of[part]:
            right = right @ self.weight(number)
        data = answer.outputs[0].data
        assert data is not None
        np.testing.assert_allclose(np.frombuffer(data, np.float32).reshape(X.shape), right, rtol=1e-4, atol=1e-4)
        return self.engine.loads - before

    def drop(self, part: int) -> None:
        del self.of[part]
        self.host.handle(hm.Unprepare(part))


@pytest.fixture
def parts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Parts]:
    made = Parts(tmp_path, getattr(request, "param", 4))
    yield made
    made.shared.close()


def test_the_weights_that_were_read_longest_ago_make_room_and_come_back(
    parts: Parts, capfd: pytest.CaptureFixture[str]
) -> None:
    for part in range(4):
        parts.prepare(part, [part])
    assert [parts.run(part) for part in (1, 0, 3, 2)] == [0, 0, 0, 0]
    parts.prepare(4, [10, 11])
    assert len(parts.engine.held) == 4, "no more than needed is spilled"
    assert [parts.run(part) for part in (3, 2, 4)] == [0, 0, 0], "those that were read of late are still there"
    assert [parts.run(part) for part in (1, 0)] == [1, 1], "the oldest were spilled, and come back"
    assert [parts.run(part) for part in (4, 0, 1)] == [0, 0, 0]
    assert "1.0 KiB so far" in (said := capfd.readouterr().err) or "2.0 KiB so far" in said
    assert "loaded again by the next run" in said


def test_a_part_that_can_never_fit_is_refused_with_need_and_have_and_nothing_is_lost(parts: Parts) -> None:
    parts.prepare(0, [0, 1])
    refused = parts.prepare(1, [2, 3, 4, 5, 6])
    assert isinstance(refused, hm.PrepareFailed)
    assert refused.error["code"] == "out_of_memory"
    assert "needs 5." in refused.error["message"] and "budget is 4.5 KiB" in refused.error["message"]
    assert parts.run(0) == 2, "what was spilled in vain comes back"


def test_weights_that_parts_share_are_loaded_once_and_freed_with_the_last(parts: Parts) -> None:
    parts.prepare(0, [0, 1])
    parts.prepare(1, [1, 0])
    parts.prepare(2, [2, 3, 4])
    assert [parts.run(part) for part in (2, 0, 1)] == [0, 1, 0]
    parts.drop(0)
    assert [parts.run(part) for part in (2, 1)] == [1, 1], "one weight too many for both"
    parts.drop(1)
    parts.drop(2)
    parts.host.handle(hm.FreeUnused())
    assert not parts.engine.held


def test_a_file_that_is_gone_fails_the_run_and_nothing_else(parts: Parts) -> None:
    parts.prepare(0, [0])
    parts.prepare(1, [1, 2, 3, 4])
    os.rename(parts.folder / "weight-0", parts.folder / "elsewhere")
    given = Input(0, "f32", X.shape, False, X.tobytes())
    failed = parts.host.handle(hm.ExecutePart(1, 0, (given,), (OutputRequest(0, 1),)))
    assert isinstance(failed, hm.ExecuteFailed) and failed.error["code"] == "blob_missing"
    os.rename(parts.folder / "elsewhere", parts.folder / "weight-0")
    assert parts.run(0) == 1 and parts.run(1) > 0


def test_a_weight_that_is_bound_again_is_loaded_from_the_file_that_is_there_now(parts: Parts) -> None:
    """What nobody uses is not kept by the daemon: its file may be removed, and come back elsewhere."""
    parts.prepare(0, [0])
    parts.drop(0)
    parts.prepare(1, [1])
    assert parts.engine.spill()
    os.rename(parts.folder / "weight-0", parts.folder / "elsewhere")
    graph = product_of(1)
    bound = (BoundParam(1, bytes(32), str(parts.folder / "elsewhere")),)
    answer = parts.host.handle(hm.PreparePart(2, graph.hash, graph.encoded, 2, 1, bound, {}, False))
    assert isinstance(answer, hm.Prepared), answer
    parts.of[2] = [0]
    assert parts.run(2) == 0 == parts.run(1)
    assert parts.engine.spill() and parts.run(2) == 1


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_parts_gives_right_results_within_the_budget(tmp_path: Path, seed: int) -> None:
    rng, parts = np.random.default_rng(seed), Parts(tmp_path, 6)
    for step in range(60):
        match rng.choice(["prepare", "run", "run", "run", "drop"]):
            case "prepare":
                weights = rng.choice(12, int(rng.integers(1, 6)), replace=False).tolist()
                assert isinstance(parts.prepare(step, weights), hm.Prepared)
            case "run" if parts.of:
                parts.run(int(rng.choice(list(parts.of))))
            case "drop" if parts.of:
                parts.drop(int(rng.choice(list(parts.of))))
    parts.shared.close()
