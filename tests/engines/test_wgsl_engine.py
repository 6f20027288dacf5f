"""The wgsl engine on an adapter: the disk cache across processes, budgets, errors that leave it usable, large tensors,
and float algebra that drivers would simplify.  Values of every op are in test_conformance.py."""

from __future__ import annotations

import gc
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.adapter import needs_adapter
from support.cases.values import special
from support.compare import assert_close

import mesh
import mesh.numpy as mnp
from mesh import nn
from wire.errors import Cancelled, CompileFailed, ConfigError, DeviceLost, ExecuteFailed, InputError, OutOfMemory
from wire.ir.dtypes import F32, I32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import EXACT, OPS
from worker.cpu import evaluate
from worker.engine.protocol import Engine
from worker.wgsl.legalise import FOURS

pytestmark = needs_adapter

ROOT = Path(__file__).parent.parent.parent
MIB = 1 << 20


def opened(**options: Any) -> Any:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0, **options)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    made = opened()
    yield made
    made.close()


def arguments(graph: WireGraph, *arrays: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return dict(zip([*graph.input_types, *graph.param_types], arrays, strict=True))


def same_as_cpu(engine: Any, graph: WireGraph, *arrays: NDArray[Any], op: str = "exp") -> None:
    outputs = engine.run(engine.compile(graph), arrays)
    for actual, right, kind in zip(
        outputs, evaluate(graph, arguments(graph, *arrays)), graph.output_types.values(), strict=True
    ):
        assert_close(actual, right, op, kind.dtype)


def doubled(size: int) -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (size,), F32)
    return builder.build([builder.add("add", x, x)])


# -- float algebra ----------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
ODD = np.array([1.0, -2.0, 0.0, -0.0, 1e-45, 3e38, 16777217.0, INF, -INF, NAN], np.float32)

SIMPLIFIABLE: list[tuple[str, Callable[[Any], Any]]] = [
    ("x + -x is NaN for NaN and Inf", lambda x: x + -x),
    ("x / x is NaN for 0 and Inf", lambda x: x / x),
    ("x * 0 is NaN for NaN and Inf, and -0.0 for negative x", lambda x: x * 0.0),
    ("(x + 1e8) - 1e8 rounds twice", lambda x: (x + 1e8) + -1e8),
    ("(x * 1e30) * 1e30 overflows before 1e-30", lambda x: (x * 1e30) * 1e30 * 1e-30),
    ("(x + y) - x rounds", lambda x: (x + 0.1) + -x),
    ("x * (1 / x) rounds twice", lambda x: x * (1.0 / x)),
    ("0 + -0.0 is 0", lambda x: 0.0 + x),
    ("sqrt of a square overflows", lambda x: mnp.sqrt(x * x)),
    ("not (a < b) is no a >= b", lambda x: mnp.logical_not(x < 1.0)),
    ("max keeps NaN", lambda x: mnp.maximum(x, 0.0)),
    ("NaN in a mask", lambda x: mnp.where(x > 0, x, -x)),
    ("a fold over both signs", lambda x: mnp.sum(mnp.stack([x, -x]), axis=0)),
    ("factoring overflows", lambda x: x * 2.0 + x * -2.0),
]


@pytest.mark.parametrize("function", [row[1] for row in SIMPLIFIABLE], ids=[row[0] for row in SIMPLIFIABLE])
def test_drivers_do_not_simplify_across_ops(engine: Any, function: Callable[[Any], Any]) -> None:
    """Fused into one kernel, each op still rounds, overflows and makes NaN as if it stood alone."""
    graph = mesh.trace(function, ODD)
    executable = engine.compile(graph)
    assert executable.dispatches == 1
    (actual,), (right,) = engine.run(executable, [ODD]), evaluate(graph, arguments(graph, ODD))
    assert_close(actual, right, "fused", next(iter(graph.output_types.values())).dtype, tolerance=EXACT)


UNARY = [name for name, op in OPS.items() if op.family == "unary" and name not in ("not", "is_nan", "real", "imag")]
BINARY = ("add", "mul", "atan2", "max", "min", "div", "rem", "pow")
SPECIAL = special(F32)


def run_one(engine: Any, build: Callable[[GraphBuilder, int, int], int], x: Any, y: Any) -> NDArray[Any]:
    """One graph of two inputs; the result's NaNs are all one NaN."""
    builder = GraphBuilder()
    graph = builder.build([build(builder, builder.input("x", x.shape, F32), builder.input("y", y.shape, F32))])
    (result,) = engine.run(engine.compile(graph), [x, y])
    return np.where(np.isnan(result), np.float32(np.nan), result)


def check_fused(engine: Any, inner: str, outer: str) -> None:
    """outer(inner(x), y) in one kernel has the bits of two kernels with the tensor between them in memory."""
    x, y = np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size)

    def add(builder: GraphBuilder, op: str, left: int, right: int) -> int:
        return builder.add(op, left) if op in UNARY else builder.add(op, left, right)

    between = run_one(engine, lambda b, left, right: add(b, inner, left, right), x, y)
    apart = run_one(engine, lambda b, left, right: add(b, outer, left, right), between, y)
    fused = run_one(engine, lambda b, left, right: add(b, outer, add(b, inner, left, right), right), x, y)
    assert fused.tobytes() == apart.tobytes(), f"{outer} of {inner}"


def test_fusing_changes_no_bits(engine: Any) -> None:
    """Pairs that drivers are tempted to simplify, and one pair of every op; the long suite has all."""
    for inner, outer in [("sqrt", "abs"), ("mul", "add"), ("add", "rem"), ("exp", "log"), ("neg", "add")]:
        check_fused(engine, inner, outer)
    every = [*UNARY, *BINARY]
    for inner, outer in zip(every, reversed(every[len(every) // 2 :]), strict=False):
        check_fused(engine, inner, outer)


@pytest.mark.long
@pytest.mark.parametrize("inner", [*UNARY, *BINARY])
def test_fusing_changes_no_bits_whatever_the_pair(engine: Any, inner: str) -> None:
    for outer in (*UNARY, *BINARY):
        check_fused(engine, inner, outer)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("last", [mnp.tanh, mnp.exp, mnp.log, mnp.sin, mnp.sqrt])
def test_an_activation_after_a_softmax(engine: Any, last: Any, dtype: Any) -> None:
    if np.dtype(dtype).name == "float16" and "f16" not in engine.info.dtypes_by_op["exp"]:
        pytest.skip("no f16 on this adapter")
    x = np.random.default_rng(3).standard_normal((24, 5)).astype(dtype)
    graph = mesh.trace(lambda x: last(nn.softmax(x)), x)
    (actual,), (right,) = engine.run(engine.compile(graph), [x]), evaluate(graph, arguments(graph, x))
    np.testing.assert_allclose(actual, right, rtol=2e-5 if dtype is np.float32 else 4e-3, atol=1e-6)


# -- sizes ------------------------------------------------------------------------------------------------


def test_more_workgroups_than_one_dimension_has(engine: Any) -> None:
    size = 65_536 * 128 + 1  # one invocation each, so 65,537 workgroups
    x = np.arange(size, dtype=np.float32)
    (y,) = engine.run(engine.compile(doubled(size)), [x])
    assert np.array_equal(y, x + x)


LARGE = np.random.default_rng(7).standard_normal((1032, 1024), dtype=np.float32)  # over kernels/map.py's LARGE_FROM
LARGE_VIEWS: list[tuple[str, Callable[[Any], Any]]] = [
    ("transposed", lambda x: mnp.transpose(x) * 2),
    ("of a row and a column", lambda x: x + x[0] - x[:, :1]),
    ("padded", lambda x: mnp.pad(x, ((1, 2), (3, 1)))),
    ("joined", lambda x: mnp.concatenate([x[:, 1:], -x], axis=1)),
    ("turned and cut", lambda x: x[::-1, :1020] * 0.5),
    ("a comparison", lambda x: x > 0.25),
]


@pytest.mark.parametrize("function", [row[1] for row in LARGE_VIEWS], ids=[row[0] for row in LARGE_VIEWS])
def test_large_views_are_those_of_the_cpu(engine: Any, function: Callable[[Any], Any]) -> None:
    graph = mesh.trace(function, LARGE)
    (actual,), (right,) = engine.run(engine.compile(graph), [LARGE]), evaluate(graph, arguments(graph, LARGE))
    assert right.size >= 1 << 20 and np.array_equal(engine.read(actual), right)


def test_a_large_chain_has_the_bits_of_small_ones(engine: Any) -> None:
    def chain(x: Any) -> Any:
        return x * mnp.sin(x * 1e4) + mnp.exp(-x)

    def run(x: NDArray[Any]) -> Any:
        return engine.run(engine.compile(mesh.trace(chain, x)), [x])[0]

    assert run(LARGE).tobytes() == b"".join(run(rows).tobytes() for rows in np.split(LARGE, 12))


@pytest.mark.long
@pytest.mark.parametrize("size", [20_000_000, 20_000_001])
def test_twenty_million_elements(engine: Any, size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    same_as_cpu(engine, doubled(size), x)
    graph = mesh.trace(lambda x: (mnp.max(x), mnp.argmax(x)), x)
    top, place = engine.run(engine.compile(graph), [x])
    assert top == x.max() and place == x.argmax()


@pytest.mark.parametrize("shape", [(3, 5), (40, 300), (2, 1024), (2, 3000)])
def test_a_sort_in_the_blocks_of_a_real_device(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    from worker.wgsl.shaders import Shaders

    engine = opened()
    hardware = replace(engine._device.profile, software=False)
    monkeypatch.setattr(engine, "_shaders", Shaders(hardware))
    builder = GraphBuilder()
    graph = builder.build([builder.add("argsort", builder.input("x", shape, F32), axis=1)])
    same_as_cpu(engine, graph, np.random.default_rng(0).integers(-99, 99, shape).astype(np.float32))
    engine.close()


def test_a_dot_longer_than_a_loop_may_be(engine: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, 1_200_001)).astype(np.float32)  # whole numbers: every order of summation is exact
    graph = mesh.trace(lambda x: x @ x.T, x)
    assert np.array_equal(engine.run(engine.compile(graph), [x])[0], x @ x.T)


@pytest.mark.parametrize("makers", [1, 2])
def test_a_conv_longer_than_a_loop_may_be(engine: Any, makers: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 1, 600_002), (makers, 1, 600_001)))
    builder = GraphBuilder()
    attrs = {"stride": (1,), "low": (1,), "high": (0,), "lhs_dilation": (1,), "rhs_dilation": (1,), "groups": 1}
    conv = builder.add("conv", builder.input("x", x.shape, F32), builder.input("w", w.shape, F32), **attrs)
    same_as_cpu(engine, builder.build([conv]), x, w)


def test_outputs_that_together_exceed_the_largest_buffer() -> None:
    small = opened(limits_override={"buffer_bytes": MIB})
    rows = np.arange(1000, dtype=np.float32)
    graph = mesh.trace(lambda x: [mnp.broadcast_to(x + float(k), (200, 1000)) for k in range(3)], rows)
    for k, output in enumerate(small.run(small.compile(graph), [rows])):
        assert np.array_equal(output, np.broadcast_to(rows + k, (200, 1000)))
    small.close()


# -- budgets and errors -----------------------------------------------------------------------------------


def test_a_part_over_the_budget_is_refused_before_anything_is_allocated() -> None:
    tight = opened(memory_bytes=4 * MIB)
    before = tight._device.allocated_bytes
    with pytest.raises(OutOfMemory, match=r"needs 8.0 MiB on the device, its budget is 4.0 MiB"):
        tight.compile(doubled(MIB))
    assert tight._device.allocated_bytes == before
    same_as_cpu(tight, doubled(1000), np.ones(1000, np.float32))
    tight.close()


def test_weights_over_the_budget_are_refused_and_can_be_unloaded() -> None:
    tight = opened(memory_bytes=4 * MIB)
    weight = np.ones(MIB // 2, np.float32)
    held = tight.load(weight)
    with pytest.raises(OutOfMemory, match="are left"):
        tight.load(np.ones(MIB, np.float32))
    tight.unload(held)
    held = tight.load(weight)
    assert tight._device.allocated_bytes <= 4 * MIB
    tight.unload(held)
    executable = tight.compile(doubled(MIB // 2))
    with pytest.raises(InputError, match="unloaded"):
        tight.run(executable, [held])
    tight.close()


def test_running_again_and_again_takes_no_more_memory(engine: Any) -> None:
    graph = mesh.trace(lambda x: nn.softmax(x @ x), np.zeros((64, 64), np.float32))
    x = np.eye(64, dtype=np.float32)
    executable = engine.compile(graph)
    first = engine.run(executable, [x])
    allocated = engine._device.allocated_bytes
    for _ in range(20):
        assert engine.run(executable, [x])[0].tobytes() == first[0].tobytes()
    assert engine._device.allocated_bytes == allocated


def test_constants_are_freed_with_the_executable() -> None:
    fresh = opened()
    table = np.random.default_rng(0).standard_normal(MIB).astype(np.float32)
    for shift in range(3):
        graph = mesh.trace(lambda x, shift=shift: x + mnp.asarray(table) * float(shift + 2), table)
        executable = fresh.compile(graph)
        fresh.run(executable, [table])
        del executable
        gc.collect()
    assert fresh._device.allocated_bytes < 20 * MIB  # input, output, staging and one table; not three
    fresh.close()


def test_buffers_that_nothing_uses_any_more_are_freed() -> None:
    fresh = opened()
    large, small = fresh.compile(doubled(MIB)), fresh.compile(doubled(16))
    for executable, size in ((large, MIB), (small, 16)):
        fresh.run(executable, [np.ones(size, np.float32)])
    used = fresh._device.allocated_bytes
    for _ in range(200):
        fresh.run(small, [np.ones(16, np.float32)])
    assert used > 8 * MIB and fresh._device.allocated_bytes < 4096
    assert np.array_equal(fresh.run(large, [np.ones(MIB, np.float32)])[0], np.full(MIB, 2, np.float32))
    assert fresh._device.allocated_bytes == used
    fresh.close()


def test_pipelines_go_with_the_executables_that_hold_them() -> None:
    fresh = opened()
    first, second = fresh.compile(doubled(16)), fresh.compile(doubled(32))
    assert first.kept_bytes > 0 and len(fresh._device._pipelines) == 2
    del first
    gc.collect()
    assert len(fresh._device._pipelines) == 1
    assert fresh.run(second, [np.ones(32, np.float32)])[0].sum() == 64
    fresh.close()


def test_errors_are_typed_and_leave_the_engine_usable(engine: Any) -> None:
    executable = engine.compile(doubled(16))
    x = np.ones(16, np.float32)
    with pytest.raises(CompileFailed, match="expected"):
        engine._device.pipeline("fn main( {")
    with pytest.raises(InputError, match=r"f32\[16\]"):
        engine.run(executable, [x.astype(np.float64)])
    with pytest.raises(InputError, match="expected 1 input,"):
        engine.run(executable, [])
    with pytest.raises(InputError, match=r"resident f32\[3\]"):
        engine.run(executable, [engine.load(np.ones(3, np.float32))])
    with pytest.raises(OutOfMemory):
        engine.load(np.broadcast_to(np.float32(1), (1 << 40,)))
    assert np.array_equal(engine.run(executable, [x])[0], x + x)


def test_nothing_invalid_is_ever_submitted(engine: Any) -> None:
    """wgpu would abort the process: a binding of no bytes, a grid beyond the limit, a buffer that is too small."""
    device = engine._device
    from worker.wgsl.device import Step

    pipeline = engine.compile(doubled(16))._pipelines[0]
    memory = device.take(64)
    for at, size in ((0, 0), (0, 3), (0, 1 << 30), (4, 16), (-256, 16), (256, 16)):
        with pytest.raises(ExecuteFailed, match="not possible"):
            device.bind_group(pipeline, [(memory, at, size), (memory, 0, 64)])
    with pytest.raises(ExecuteFailed, match="buffers in one kernel"):
        device.bind_group(pipeline, [(memory, 0, 64)] * 40)
    group = device.bind_group(pipeline, [(memory, 0, 64), (device.take(64), 0, 64)])
    for grid in ((0, 1, 1), (65_536, 1, 1)):
        with pytest.raises(ExecuteFailed, match="grid"):
            device.prepared([Step(pipeline, group, grid)])
    with pytest.raises(ExecuteFailed, match="do not fit"):
        device.write(memory, np.zeros(MIB, np.uint8))


def products(count: int) -> Any:
    """A straight program of so many dispatches, and a few more."""

    def program(x: Any) -> Any:
        for _ in range(count):
            x = mnp.tanh(x @ x)
        return x

    return mesh.trace(program, np.zeros((8, 8), np.float32))


def test_a_dispatch_that_is_replayed_costs_three_calls_of_the_c_library_and_none_of_python(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: what a run of 200 dispatches calls beyond a run of 100."""
    import worker.wgsl.device as wgsl_device

    x = engine.load(np.eye(8, dtype=np.float32))
    short, long = (engine.compile(products(count)) for count in (100, 200))
    more = long.dispatches - short.dispatches
    assert more >= 100

    def in_one_submission(executable: Any) -> None:
        """A machine that was busy during a run made the next one several submissions, each with calls of its own."""
        executable._costs.scale(0, executable.dispatches, 1e-9)

    def python(executable: Any) -> int:
        seen: list[str] = []
        in_one_submission(executable)
        sys.setprofile(lambda frame, event, argument: seen.append(event))
        try:
            engine.run(executable, [x], keep=(0,))
        finally:
            sys.setprofile(None)
        return sum(event in ("call", "c_call") for event in seen)

    def foreign(executable: Any) -> int:
        with monkeypatch.context() as patched:
            counting = Counting(wgsl_device.lib)
            patched.setattr(wgsl_device, "lib", counting)
            in_one_submission(executable)
            engine.run(executable, [x], keep=(0,))
        return counting.calls

    for executable in (short, long, short, long):
        engine.run(executable, [x], keep=(0,))
    assert python(long) - python(short) < more
    assert 0 < foreign(long) - foreign(short) <= 3 * more


class Counting:
    """A library whose calls are counted."""

    def __init__(self, library: Any) -> None:
        self.library, self.calls = library, 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)

        def called(*arguments: Any) -> Any:
            self.calls += 1
            return function(*arguments)

        return called


def test_a_long_program_is_submitted_in_slices_and_stopped_between_two(engine: Any) -> None:
    """Each dispatch is thought to take long; only what is submitted then counts here, and not the time."""
    x = np.eye(8, dtype=np.float32) * 2
    executable = engine.compile(graph := products(40))
    (right,) = evaluate(graph, arguments(graph, x))
    for _ in range(3):
        (whole,) = engine.run(executable, [x])
    np.testing.assert_allclose(whole, right, rtol=1e-5)
    asked: list[int] = []
    engine.run(executable, [x], lambda: bool(asked.append(0)))
    assert len(asked) < 10, "it takes a millisecond, and that was learned"
    asked.clear()
    executable._costs.scale(0, executable.dispatches, 1e6)
    (sliced,) = engine.run(executable, [x], lambda: bool(asked.append(0)))
    assert len(asked) == executable.dispatches - 1 and sliced.tobytes() == whole.tobytes()
    executable._costs.scale(0, executable.dispatches, 1e6)
    asked.clear()
    with pytest.raises(Cancelled):
        engine.run(executable, [x], lambda: asked.append(0) or len(asked) == 3)
    assert len(asked) == 3 and engine._device.recorded == 0
    assert engine.run(executable, [x])[0].tobytes() == whole.tobytes()


def test_a_lost_device_is_an_error_and_not_an_abort() -> None:
    lost = opened()
    executable = lost.compile(doubled(16))
    x = np.ones(16, np.float32)
    assert lost.run(executable, [x])[0][0] == 2
    lost._device._device.destroy()
    for attempt in (
        lambda: lost.run(executable, [x]),
        lambda: lost.load(x),
        lambda: lost.compile(doubled(17)),
    ):
        with pytest.raises(DeviceLost):
            attempt()
    lost.close()
    with pytest.raises(DeviceLost, match="closed"):
        lost.run(executable, [x])


def test_an_adapter_that_is_not_there_is_named() -> None:
    from worker.wgsl.engine import WgslEngine

    with pytest.raises(ConfigError, match="no adapter 99"):
        WgslEngine(99)


# -- the cache --------------------------------------------------------------------------------------------

IN_A_FRESH_PROCESS = """
import sys
from pathlib import Path
import numpy as np
import worker.wgsl.engine as wgsl
import mesh
from mesh import nn

lowered = []
own = wgsl.lower
wgsl.lower = lambda *arguments: lowered.append(1) or own(*arguments)
engine = wgsl.WgslEngine(0, Path(sys.argv[1]))
x = np.arange(32, dtype=np.float32).reshape(4, 8)
executable = engine.compile(mesh.trace(lambda x: nn.softmax(nn.gelu(x @ x.T)), x))
print(executable.from_cache, len(lowered), engine.run(executable, [x])[0].tobytes().hex())
"""


def in_a_fresh_process(folder: Path) -> tuple[str, str, str]:
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    from_cache, lowered, values = done.stdout.split()
    return from_cache, lowered, values


def test_a_second_process_generates_nothing(tmp_path: Path) -> None:
    first = in_a_fresh_process(tmp_path)
    assert first[:2] == ("False", "1")
    assert in_a_fresh_process(tmp_path) == ("True", "0", first[2])
    (file,) = tmp_path.rglob("*.json")
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    assert in_a_fresh_process(tmp_path) == first  # damaged: as if it were not there
    assert file.read_bytes() == whole  # and written anew


def test_ranks_that_share_a_folder_lower_a_graph_once_whoever_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import worker.wgsl.engine as wgsl

    lowered: list[WireGraph] = []
    lower = wgsl.lower
    monkeypatch.setattr(wgsl, "lower", lambda graph, shaders: lowered.append(graph) or lower(graph, shaders))
    engines = [opened(cache_dir=tmp_path) for _ in range(3)]
    start = threading.Barrier(len(engines))
    found: list[bool] = []

    def compile_one(engine: Engine) -> None:
        start.wait(100.0)
        for size in (16, 32):
            found.append(engine.compile(doubled(size)).from_cache)

    threads = [threading.Thread(target=compile_one, args=(engine,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100.0)
    assert sorted(found) == [False] * 2 + [True] * 4
    assert len(lowered) == 2
    assert len(list(tmp_path.rglob("*.json"))) == 2
    for engine in engines:
        engine.close()


def test_a_compiled_graph_is_compiled_once_unless_forced(tmp_path: Path) -> None:
    fresh = opened(cache_dir=tmp_path)
    executable = fresh.compile(doubled(16))
    assert not executable.from_cache
    again = fresh.compile(doubled(16))
    assert again is executable and again.from_cache
    forced = fresh.compile(doubled(16), force=True)
    assert forced is not executable and not forced.from_cache
    del executable, again, forced
    gc.collect()
    assert fresh.compile(doubled(16)).from_cache
    fresh.close()


def test_other_limits_are_another_key(tmp_path: Path) -> None:
    for limits in (None, {"storage_buffers": 8}, {"invocations": 64}):
        fresh = opened(cache_dir=tmp_path, limits_override=limits)
        assert not fresh.compile(doubled(16)).from_cache
        fresh.close()
    assert len(list(tmp_path.rglob("*.json"))) == 3


def test_every_part_of_the_key_makes_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph with its shapes and dtypes, the version of the lowering, the adapter and its driver; not the name."""

    def cached(graph: WireGraph, version: str = "", **adapter: str) -> bool:
        fresh = opened(cache_dir=tmp_path, version=version)
        monkeypatch.setattr(fresh._device, "adapter", replace(fresh._device.adapter, **adapter))
        actual = fresh.compile(graph).from_cache
        fresh.close()
        return actual

    def negated(dtype: Any) -> WireGraph:
        builder = GraphBuilder()
        return builder.build([builder.add("neg", builder.input("x", (16,), dtype))])

    for graph in (doubled(16), doubled(17), negated(F32), negated(I32)):
        assert not cached(graph)
        assert cached(replace(graph, name="another"))
    for adapter in ({"name": "another"}, {"backend": "another"}, {"driver": "another"}):
        assert not cached(doubled(16), **adapter)
        assert cached(doubled(16), **adapter)
    assert not cached(doubled(16), "another")


def test_sine_and_cosine_are_right_at_every_power_of_two(engine: Any) -> None:
    """Large ones are reduced by as many words of 2/pi as their exponent asks for."""
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.uniform(1, 2, (148, 32)), np.arange(-20, 128)[:, None]).astype(np.float32)
    x[:, ::2] *= -1
    graph = mesh.trace(lambda x: (mnp.sin(x), mnp.cos(x)), x)
    sine, cosine = engine.run(engine.compile(graph), [x])
    wide = x.astype(np.float64)
    for found, right in ((sine, np.sin(wide)), (cosine, np.cos(wide))):
        np.testing.assert_allclose(found, right, rtol=0, atol=2**-22)


def test_sine_and_cosine_of_four_elements_at_once_have_the_bits_of_one(engine: Any) -> None:
    """Large arguments are reduced one at a time: none, some or all of four neighbours."""
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.uniform(-2, 2, 4096), rng.integers(-4, 30, 4096)).astype(np.float32)
    x[1::5] = rng.choice(np.float32([np.inf, -np.inf, np.nan, -0.0, 0.0, 3e38, -1e-42, 8192, 8193]), x[1::5].size)

    def waves(x: Any) -> Any:
        return mnp.sin(x) * 0.5, mnp.cos(x)

    def text(executable: Any) -> str:
        return " ".join(module.text for module in executable.program.modules)

    whole, one_less = (engine.compile(mesh.trace(waves, part)) for part in (x, x[:-1]))
    assert "gm_sin4(" in text(whole) and "gm_cos4(" in text(whole) and "gm_sin4(" not in text(one_less)
    for four, one in zip(engine.run(whole, [x]), engine.run(one_less, [x[:-1]]), strict=True):
        assert four[:-1].tobytes() == one.tobytes()


@pytest.mark.parametrize("name", sorted(FOURS))
def test_a_function_of_four_elements_has_the_bits_of_one(engine: Any, name: str) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 4096, np.uint32).view(np.float32)
    x = np.concatenate([bits, rng.uniform(-4, 4, 4096).astype(np.float32), special(F32)])
    x = x[: x.size // 4 * 4]
    found = []
    for part in (x, x[:-1]):
        builder = GraphBuilder()
        graph = builder.build([builder.add(name, builder.input("x", part.shape, F32))])
        executable = engine.compile(graph)
        assert (f"gm_{name}4(" in executable.program.modules[0].text) == (part.size % 4 == 0)
        found.append(engine.run(executable, [part])[0])
    four, one = found
    assert four[:-1].tobytes() == one.tobytes()


WIDER: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan")},
    "tanh": np.tanh, "erf": np.vectorize(math.erf, otypes=[np.float64]), "pow": np.power, "atan2": np.arctan2,
}  # fmt: skip


@pytest.mark.parametrize("name", WIDER)
def test_every_function_is_within_its_tolerance_of_the_same_in_float64(engine: Any, name: str) -> None:
    """A third of any bits, a third between -100 and 100, a third small; the table's tolerance is for these."""
    rng = np.random.default_rng(0)
    count = 30_000
    spread = rng.uniform(-100, 100, count), np.ldexp(rng.uniform(-1, 1, count), rng.integers(-30, 1, count))
    operands = []
    for _ in range(2 if name in ("pow", "atan2") else 1):
        bits = rng.integers(0, 1 << 32, count, np.uint32).view(np.float32)
        operands.append(np.concatenate([bits, *(part.astype(np.float32) for part in spread), special(F32)]))
        spread = spread[::-1]
    builder = GraphBuilder()
    inputs = [builder.input("xy"[at], operand.shape, F32) for at, operand in enumerate(operands)]
    graph = builder.build([builder.add(name, *inputs)])
    (found,) = engine.run(engine.compile(graph), operands)
    with np.errstate(all="ignore"):
        right = WIDER[name](*(operand.astype(np.float64) for operand in operands)).astype(np.float32)
    assert_close(found, right, name, F32)


def test_no_function_of_the_text_has_a_table_of_cases() -> None:
    """Software drivers make each case of a switch for every element."""
    from worker.wgsl.polyfills import FUNCTIONS

    assert not any("switch" in text for text in FUNCTIONS.values())


# -- the device -------------------------------------------------------------------------------------------


def test_adapters_and_the_device_are_described(engine: Any) -> None:
    from worker.wgsl.device import list_adapters

    adapters = list_adapters()
    assert [adapter.index for adapter in adapters] == list(range(len(adapters)))
    assert all(adapter.backend in ("Metal", "Vulkan", "D3D12") for adapter in adapters)
    info = engine.info
    assert (info.engine, info.adapter, info.backend) == ("wgsl", adapters[0].name, adapters[0].backend)
    assert info.memory_bytes > 0 and info.limits["storage_buffers"] >= 8 and info.limits["invocations"] >= 256
    assert {"f32", "i32", "u32", "bool"} <= set(info.dtypes_by_op["add"]) and "f64" not in info.dtypes_by_op["add"]


def test_the_size_of_subgroups_is_asked_of_the_device(engine: Any) -> None:
    """llvmpipe names its width in bits, and a lane is 32; what is not known is 0, and then no kernel relies on it."""
    from worker.wgsl.profile import SUBGROUPS

    bits = re.search(r"llvmpipe .*?(\d+) bits", engine.info.adapter)
    size = engine._device.profile.subgroup
    assert size in (0, *SUBGROUPS)
    if bits:
        lanes = int(bits[1]) // 32
        assert size == (lanes if lanes in SUBGROUPS else 0)


def test_the_device_is_measured(engine: Any) -> None:
    began_s = time.perf_counter()
    measured = engine.measure()
    took_s = time.perf_counter() - began_s
    assert measured.gflops > 0 and measured.gbytes_per_s > 0 and 0 < measured.dispatch_s < took_s
