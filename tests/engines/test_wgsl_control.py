"""Branches and loops on an adapter: what stays on the device, what is read back, what stops them, what they take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.adapter import needs_adapter
from support.cases.control_cases import graph_of
from support.cases.op_cases import cases

import mesh
import mesh.numpy as mnp
from wire.errors import Cancelled, ExecuteFailed, OutOfMemory, Unsupported
from wire.ir.dtypes import BOOL, F32, I64
from wire.ir.types import TensorType
from worker.cpu import evaluate
from worker.engine.protocol import never
from worker.wgsl.profile import WEBGPU_MINIMUM

pytestmark = needs_adapter
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def opened(**options: Any) -> Any:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0, **options)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    made = opened()
    yield made
    made.close()


@pytest.fixture
def read_back(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of everything that is read from the device."""
    sizes: list[int] = []
    run = engine._device.run

    def counted(commands: Any, outputs: Any, *stopped: Any) -> Any:
        sizes.extend(size for _, size in outputs)
        return run(commands, outputs, *stopped)

    monkeypatch.setattr(engine._device, "run", counted)
    return sizes


def traced(fn: Any, *arguments: NDArray[Any]) -> Any:
    return mesh.trace(fn, *arguments)


def runs_as_cpu(engine: Any, fn: Any, *arguments: NDArray[Any]) -> None:
    graph = traced(fn, *arguments)
    expected = evaluate(graph, dict(zip(graph.input_types, arguments, strict=True)))
    for actual, right in zip(engine.run(engine.compile(graph), list(arguments)), expected, strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-5)


def test_a_scan_reads_nothing_back_but_its_results(engine: Any, read_back: list[int]) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32)
    runs_as_cpu(engine, lambda x: mesh.scan(lambda c, row: (mnp.tanh(c + row), c * 2), mnp.zeros(5), x), rows)
    assert read_back == [20, 300 * 20]


def test_a_while_reads_its_test_and_a_cond_what_it_is_asked(engine: Any, read_back: list[int]) -> None:
    runs_as_cpu(engine, lambda x: mesh.while_loop(lambda c: c.sum() < 1000, lambda c: c * 2 + 1, x), X)
    assert set(read_back[:-1]) == {4} and 3 < len(read_back) < 20
    read_back.clear()
    runs_as_cpu(engine, lambda x: mesh.cond(x.sum() > 1, lambda: x * 2, lambda: x + 1), X)
    assert read_back == [4, X.nbytes]


def test_steps_between_and_around_loops(engine: Any) -> None:
    def program(x: Any) -> Any:
        first = mnp.exp(x)
        carry, rows = mesh.scan(lambda c, row: (c + row, (row * c, c > 0)), mnp.zeros(3), first)
        chosen = mesh.cond(carry.sum() > 0, lambda: rows[0] @ first.T, lambda: first @ first.T)
        turned = mesh.fori_loop(0, 3, lambda i, c: mesh.map(lambda row: row * 0.5 + carry.sum() * i, c), chosen)
        return turned.sum(), rows[1], first, carry + 1, mnp.ones(2)

    runs_as_cpu(engine, program, X)


@pytest.mark.parametrize("after", [0, 1, 5, 40])
def test_an_endless_loop_is_stopped_between_two_turns(engine: Any, after: int) -> None:
    graph = traced(lambda x: mesh.while_loop(lambda c: True, lambda c: mesh.map(mnp.sin, c), x), X)
    executable, asked = engine.compile(graph), itertools.count()
    with pytest.raises(Cancelled):
        engine.run(executable, [X], lambda: next(asked) >= after)
    assert next(asked) == after + 1
    assert engine._device.recorded == 0
    runs_as_cpu(engine, lambda x: x * 2, X)


def test_a_loop_that_runs_long_is_asked_again_and_again(engine: Any) -> None:
    graph = traced(lambda x: mesh.scan(lambda c, _: (mnp.sin(c), ()), x, None, length=100_000)[0], X)
    asked = itertools.count()
    with pytest.raises(Cancelled):
        engine.run(engine.compile(graph), [X], lambda: next(asked) >= 5000)


def test_buffers_go_back() -> None:
    engine = opened()  # of its own: a pool frees now and then what other programs left in it
    graph = traced(lambda x: mesh.scan(lambda c, row: (c + row, row * c), x[0], x), X)
    executable = engine.compile(graph)
    sizes = []
    for _ in range(6):
        engine.run(executable, [X])
        sizes.append(engine._device.allocated_bytes)
    engine.close()
    assert sizes[1:] == sizes[1:2] * 5


def test_programs_of_all_pieces_are_kept_on_disk(tmp_path: Path) -> None:
    def turn(carry: Any, row: Any) -> Any:
        return mesh.cond(carry[0] > 0, lambda: carry + row, lambda: carry), ()

    graph = traced(lambda x: mesh.scan(turn, x[0], x)[0], X)
    first = opened(cache_dir=tmp_path)
    assert not first.compile(graph).from_cache
    expected = first.run(first.compile(graph), [X])
    first.close()
    second = opened(cache_dir=tmp_path)
    executable = second.compile(graph)
    assert executable.from_cache and executable.kept_bytes > 0
    assert second.run(executable, [X])[0].tobytes() == expected[0].tobytes()
    assert not second.compile(graph, force=True).from_cache
    second.close()


def test_what_does_not_fit_is_refused_when_it_is_compiled() -> None:
    small = opened(memory_bytes=1 << 20)
    wide = traced(lambda x: mesh.scan(lambda c, _: (c, mnp.broadcast_to(c, (64, 64))), x, None, length=100)[1], X[0, 0])
    with pytest.raises(OutOfMemory):
        small.compile(wide)
    small.close()
    lowest = opened(limits_override={**WEBGPU_MINIMUM, "binding_bytes": 1 << 19})
    with pytest.raises(Unsupported, match=r"needs 1\.6 MiB, kernels of this adapter take 1\.0 MiB"):
        lowest.compile(wide)
    lowest.close()


def test_a_dtype_inside_that_the_device_lacks_is_refused_by_name(engine: Any) -> None:
    kind = TensorType((3,), I64)
    body = graph_of([TensorType((), BOOL), kind], lambda b, p, x: [p, b.add("add", x, x)])
    test = graph_of([TensorType((), BOOL), kind], lambda b, p, x: [p])
    graph = graph_of(
        [TensorType((), BOOL), kind], lambda b, *all: [b.add("while", *all, test=test, body=body, output=1)]
    )
    with pytest.raises(Unsupported, match="i64"):
        engine.compile(graph)


def test_a_copy_that_cannot_be_is_never_submitted(engine: Any) -> None:
    from worker.wgsl.device import Copy

    device = engine._device
    a, b = device.take(256), device.take(256)
    for bad in (Copy(a, 0, a, 128, 64), Copy(a, 0, b, 0, 260), Copy(a, 200, b, 0, 64), Copy(a, 2, b, 0, 4),
                Copy(a, 0, b, 0, 0), Copy(a, 0, b, 0, 6), Copy(a, -4, b, 0, 4)):  # fmt: skip
        with pytest.raises(ExecuteFailed):
            device.record([bad])
    device.record([Copy(a, 0, b, 0, 256)])
    device.give(a)
    device.trim()  # what is recorded is submitted before its buffer is destroyed
    assert device.recorded == 0
    device.give(b)


def test_no_run_is_left_half_recorded(engine: Any) -> None:
    for case in [case for op in ("cond", "while", "scan") for case in cases(op) if case.dtype is F32]:
        engine.run(engine.compile(case.graph), case.arguments, never)
        assert engine._device.recorded == 0, case.id
