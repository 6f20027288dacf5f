"""The native engine as a whole: kernels on disk, runs that are stopped, memory over many graphs, refusals."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

import mesh
import mesh.numpy as mnp
from mesh import nn, trace
from wire.errors import Cancelled, ConfigError
from wire.ir.graph import WireGraph
from worker.cpu import CpuEngine
from worker.devices.benchmark import measured
from worker.devices.registry import list_devices, open_engine
from worker.engine.protocol import native_bytes
from worker.native import engine as native
from worker.native.engine import NativeEngine
from worker.native.llvm import OVERHEAD_BYTES


def layers(x: Any, w: Any) -> Any:
    return nn.softmax(nn.gelu(x @ w) + mnp.sin(x @ w))


def example() -> tuple[WireGraph, list[NDArray[np.float32]]]:
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in ((40, 24), (24, 33))]
    return trace(layers, *arrays), arrays


def private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def test_another_process_finds_the_kernels_on_disk(tmp_path: Path) -> None:
    graph, arrays = example()
    results, compiled = [], []
    for _ in range(2):
        engine = NativeEngine(folder=private(tmp_path / "kernels") if not compiled else tmp_path / "kernels")
        results.append(engine.run(engine.compile(graph), arrays)[0].tobytes())
        compiled.append(engine._objects.compiled)
        engine.close()
    assert compiled[0] > 2
    assert compiled[1] == 0
    assert results[0] == results[1]


def test_a_part_says_what_its_kernels_take() -> None:
    graph, _ = example()
    loop = trace(lambda x: mesh.fori_loop(0, 3, lambda _, value: mnp.sin(value * x), x), np.ones(5, np.float32))
    for made in (graph, loop):
        engine = NativeEngine()
        executable = engine.compile(made)
        assert native_bytes(executable) >= len(engine._kernels) * OVERHEAD_BYTES > 0
        assert native_bytes(CpuEngine().compile(made)) == 0
        engine.close()


def test_it_computes_what_numpy_does() -> None:
    graph, arrays = example()
    engine, numpys = NativeEngine(threads=2), CpuEngine()
    (result,), (expected,) = (each.run(each.compile(graph), arrays) for each in (engine, numpys))
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-7)
    engine.close()


def twice(x: Any) -> Any:
    made = x * 2
    return made, made


OUTPUTS: list[tuple[str, bool, Any]] = [
    ("of kernels", True, lambda x: (x * 2, mnp.sum(x, axis=0), x.T + 1)),
    ("one twice", False, twice),
    ("an input", False, lambda x: (x, x * 2)),
    ("a constant", False, lambda x: (x * 2, mnp.asarray(np.arange(6, dtype=np.float32)))),
    ("of numpy", False, lambda x: (x * 2, mnp.cumsum(x, axis=1))),
    ("a view of another", False, lambda x: (y := x * 2, y.reshape(-1))),
]


@pytest.mark.parametrize(
    ("only_fused", "function"), [row[1:] for row in OUTPUTS], ids=[f"outputs: {row[0]}" for row in OUTPUTS]
)
def test_outputs_have_memory_of_their_own(only_fused: bool, function: Any) -> None:
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    graph, numpys = trace(function, x), CpuEngine()
    engine = NativeEngine()
    executable = engine.compile(graph)
    assert executable.only_fused == only_fused
    made, expected = engine.run(executable, [x]), numpys.run(numpys.compile(graph), [x])
    engine.close()
    for place, (output, right) in enumerate(zip(made, expected, strict=True)):
        assert np.array_equal(output, right)
        assert output.flags.writeable
        assert not any(np.shares_memory(output, other) for other in (x, *made[place + 1 :]))


def test_a_run_that_is_stopped_ends_soon_and_the_next_one_is_whole() -> None:
    """A product of some seconds is stopped after its first tiles."""
    size = 4096
    graph = trace(lambda x, y: x @ y @ x @ y, *[np.zeros((size, size), np.float32)] * 2)
    engine, asked = NativeEngine(threads=2), threading.Event()
    executable, arrays = engine.compile(graph), [np.zeros((size, size), np.float32)] * 2
    threading.Timer(0.05, asked.set).start()
    began_s = time.process_time()
    with pytest.raises(Cancelled):
        engine.run(executable, arrays, asked.is_set)
    stopped_s = time.process_time() - began_s
    began_s = time.process_time()
    assert not engine.run(executable, arrays)[0].any()
    assert stopped_s < (time.process_time() - began_s) / 2
    engine.close()


def test_where_machine_code_may_not_run_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "missing", lambda: "this system forbids memory that is executable: Permission denied")
    with pytest.raises(ConfigError, match=r"no native engine here: this system forbids memory.*device `cpu`"):
        open_engine("native", tmp_path, 0)


@pytest.mark.long
def test_a_thousand_graphs_leave_no_memory_behind() -> None:
    """Kernels are remembered up to a number; from then on memory stays where it is."""
    engine, x, sizes = NativeEngine(), np.ones((8, 8), np.float32), []
    for number in range(3 * native.KERNELS_MAX):
        graph = trace(lambda x, factor=float(number + 1): mnp.sum(x * factor + mnp.tanh(x)), x)
        engine.run(engine.compile(graph), [x])
        if number >= 1.5 * native.KERNELS_MAX and number % 100 == 0:
            sizes.append(psutil.Process().memory_info().rss)
    assert max(sizes) - sizes[0] < 8 << 20
    engine.close()


@pytest.mark.long
def test_ten_thousand_runs_leave_no_memory_behind() -> None:
    graph, arrays = example()
    engine, sizes = NativeEngine(threads=2), []
    executable = engine.compile(graph)
    for number in range(10_000):
        engine.run(executable, arrays)
        if number >= 1_000 and number % 1_000 == 0:
            sizes.append(psutil.Process().memory_info().rss)
    assert max(sizes) - sizes[0] < 4 << 20
    engine.close()


def test_figures_of_another_number_of_threads_are_measured_anew(tmp_path: Path) -> None:
    """A worker that was measured with one thread is faster with two, and plans must know it."""
    for threads in (1, 2, 1):
        engine = NativeEngine(threads=threads)
        measured(engine, tmp_path)
        engine.close()
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_it_is_listed_as_a_device() -> None:
    assert [row.select for row in list_devices()][-2:] == ["native", "cpu"]
