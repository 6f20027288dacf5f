"""What engines tell of their kernels: nodes, bytes and operations against numbers made by hand, and times of all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.endless import endless
from support.kept_kernels import native_engine

import mesh
import mesh.numpy as mnp
from mesh import nn, trace
from mesh.simulation.throttled_engine import ThrottledEngine
from mesh.transforms.composite import composite
from wire.errors import Cancelled, Unsupported
from wire.ir.ops import LEAVES
from worker.cpu.engine import CpuEngine
from worker.engine.kernel_rows import KernelRow, Span
from worker.engine.protocol import Engine, explained
from worker.engine_host.explanation import Texts, explanation, know
from worker.engine_host.kernel_trace import KernelTrace

M, K, N = 48, 32, 24
X, W, B = (np.linspace(-1, 1, n, dtype=np.float32) for n in (M * K, K * N, N))
ARRAYS = [X.reshape(M, K), W.reshape(K, N), B]


def wgsl(stamps: bool = True) -> Engine:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(stamps=stamps)


ENGINES = {"cpu": CpuEngine, "native": lambda: native_engine(threads=2), "wgsl": wgsl}
NAMES = [pytest.param(name, marks=needs_adapter) if name == "wgsl" else name for name in ENGINES]


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = ENGINES[request.param]()
    yield made
    made.close()


def layer(x: Any, w: Any, b: Any) -> Any:
    return mnp.maximum(x @ w + b, 0.0)


def rows_of(engine: Engine, executable: Any, texts: bool = False) -> list[KernelRow]:
    return list(explained(engine, executable, texts).rows)


def watched(engine: Engine, executable: Any, inputs: Any) -> tuple[list[Any], list[Span]]:
    """A run that is watched: its results, and when kernels ran."""
    spans = list[Span]()
    engine.watch(spans.append)
    try:
        return engine.run(executable, inputs), spans
    finally:
        engine.watch(None)


def test_operations_and_bytes_are_those_counted_by_hand(engine: Engine) -> None:
    rows = rows_of(engine, engine.compile(trace(layer, *ARRAYS)))
    # 2 M K N of the product, and M N each of the sum and of the maximum
    assert sum(row.flops for row in rows) == 2 * M * K * N + M * N + M * N
    (product,) = [row for row in rows if row.flops >= 2 * M * K * N]
    assert product.read_bytes >= 4 * (M * K + K * N) and product.written_bytes == 4 * M * N
    if len(rows) == 1:  # bias and maximum are its epilogue
        assert product.read_bytes == 4 * (M * K + K * N + N)


def updated(x: Any, row: Any) -> Any:
    """So large that GPUs update it in place."""
    return mnp.sum(x.at[7].set(row * 2.0), axis=1)


PROGRAMS = {
    "layer": (layer, ARRAYS),
    "softmax": (lambda x: nn.softmax(nn.gelu(x)).sum(0), [ARRAYS[0]]),
    "attention": (lambda x: nn.softmax(x @ x.T) @ x, [ARRAYS[0]]),
    "moved": (lambda x: (mnp.reshape(x.T, (-1,)), x[1:], mnp.sort(x)), [ARRAYS[0]]),
    "updated": (updated, [np.zeros((1024, 128), np.float32), np.ones(128, np.float32)]),
    "branch": (lambda x: mesh.cond(x[0, 0] > 0, lambda y: y + 1.0, lambda y: y * 2.0, x), [ARRAYS[0]]),
    "loop": (lambda x: mesh.scan(lambda c, row: (c * 2.0 + row, mnp.sum(c)), x[0] + 1.0, x), [ARRAYS[0]]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_nodes_are_in_kernels_and_all_kernels_are_timed(engine: Engine, name: str) -> None:
    work, arrays = PROGRAMS[name]
    graph = trace(work, *arrays)
    executable = engine.compile(graph)
    rows = rows_of(engine, executable)
    computed = {index for index, node in enumerate(graph.nodes) if node.op not in LEAVES}
    assert {node for row in rows for node in row.nodes} == computed
    plain = engine.run(executable, arrays)
    results, spans = watched(engine, executable, arrays)
    for result, expected in zip(results, plain, strict=True):
        np.testing.assert_array_equal(result, expected)
    keys = {key for row in rows for key in row.keys}
    assert len(keys) == sum(len(row.keys) for row in rows), "no two kernels share a key"
    inner = {key for row in rows for _, part in row.inside for key in keys_of(engine, part)}
    assert keys <= {span.key for span in spans} <= keys | inner
    assert all(span.began_s <= span.ended_s for span in spans)


def keys_of(engine: Engine, executable: Any) -> set[Any]:
    rows = explained(engine, executable).rows
    return {key for row in rows for key in row.keys}.union(
        *(keys_of(engine, inner) for row in rows for _, inner in row.inside)
    )


def test_the_turns_of_a_loop_are_told_one_by_one(engine: Engine) -> None:
    work, arrays = PROGRAMS["loop"]
    executable = engine.compile(trace(work, *arrays))
    (turn,) = [row for row in rows_of(engine, executable) if row.inside]
    assert turn.name == "control scan" and [name for name, _ in turn.inside] == ["body"]
    inner = rows_of(engine, turn.inside[0][1])
    _, spans = watched(engine, executable, arrays)
    for key in (row.keys[0] for row in inner):
        assert sum(span.key == key and not span.joins for span in spans) == M


def looped(x: Any) -> Any:
    return mesh.scan(lambda c, row: (mnp.tanh(c + row), mnp.exp(c) * row), x[0], x)


def looped_last(x: Any) -> Any:
    return looped(x)[0]


INSIDE = {  # a loop, and the engines that do not have it as the graph has
    "as it is": (looped, np.ones((5, 4), np.float32), ()),
    "rows of three f16": (looped, np.ones((5, 3), np.float16), ("wgsl",)),  # which are cast to f32 between turns
    "in a composite": (lambda x: composite("looped", looped_last, x), np.ones((5, 4), np.float32), tuple(ENGINES)),
}


@pytest.mark.parametrize("name", INSIDE)
def test_kernels_inside_are_told_by_nodes_that_others_know_or_by_none(engine: Engine, name: str) -> None:
    work, array, unlike = INSIDE[name]
    if array.dtype == np.float16 and "f16" not in engine.info.dtypes_by_op["add"]:
        pytest.skip("the adapter has no f16")
    graph = trace(work, array)
    executable = engine.compile(graph)
    kernels, *_ = explanation(engine, executable, graph, Texts(), lambda: False)
    inner = [kernel for kernel in kernels if kernel.inside is not None]
    assert inner and all(kernel.seconds is not None for kernel in inner)
    nodes = sorted({node for kernel in inner for node in kernel.nodes})
    if engine.info.engine in unlike:
        assert nodes == []
        return
    (body,) = [node.attrs["body"] for node in graph.nodes if node.op == "scan" and node.attrs["output"] == 0]
    assert nodes == [index for index, node in enumerate(body.nodes) if node.op not in LEAVES]


def test_a_run_that_is_watched_can_be_stopped(engine: Engine) -> None:
    executable = engine.compile(trace(endless, np.ones((64, 64), np.float32)))
    looks = iter(range(20))
    engine.watch(lambda span: None)
    with pytest.raises(Cancelled):
        engine.run(executable, [np.ones((64, 64), np.float32)], lambda: next(looks, None) is None)
    engine.watch(None)
    results = engine.run(engine.compile(trace(layer, *ARRAYS)), ARRAYS)
    np.testing.assert_allclose(results[0], np.maximum(ARRAYS[0] @ ARRAYS[1] + B, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "loop"])
def test_a_trace_has_an_event_for_each_run_of_each_kernel(engine: Engine, name: str, tmp_path: Path) -> None:
    work, arrays = PROGRAMS[name]
    graph = trace(work, *arrays)
    executable, made = engine.compile(graph), KernelTrace(tmp_path / "kernels.json", "me")
    know(made, engine, executable, graph)
    spans: list[Span] = []
    engine.watch(lambda span: (spans.append(span), made(span)))  # type: ignore[func-returns-value, arg-type, return-value]
    engine.run(executable, arrays)
    engine.watch(None)
    made.flush()
    events = json.loads((tmp_path / "kernels.json").read_text())["traceEvents"]
    kernels = [event for event in events if event["ph"] == "X"]
    assert len(kernels) == len(spans) > 0
    assert {event["args"]["graph"] for event in kernels} == {graph.hash.hex()[:16]}, "each is known"
    assert {event["pid"] for event in events} == {os.getpid()}
    assert [event["name"] for event in events if event["ph"] == "M"].count("thread_name") == len(
        {s.lane for s in spans}
    )


def test_texts_are_those_of_the_engine(engine: Engine) -> None:
    executable = engine.compile(trace(layer, *ARRAYS))
    assert not any(row.text for row in rows_of(engine, executable))
    texts = [row.text for row in rows_of(engine, executable, texts=True)]
    mark = {"cpu": "f32[", "native": 'define void @"kernel"', "wgsl": "@compute"}[engine.info.engine]
    assert all(mark in text for text in texts)


def test_threads_that_share_a_kernel_are_told_each_and_overlap() -> None:
    engine = native_engine(threads=2)
    executable = engine.compile(trace(lambda x: mnp.sin(x @ x), np.ones((512, 512), np.float32)))
    for _ in range(20):  # a thread may come too late
        _, spans = watched(engine, executable, [np.ones((512, 512), np.float32)])
        lanes = {span.lane for span in spans}
        if lanes == {"thread 0", "thread 1"}:
            break
    engine.close()
    assert lanes == {"thread 0", "thread 1"}
    runs = {span.key: 0 for span in spans}
    for span in spans:
        runs[span.key] += not span.joins
    assert set(runs.values()) == {1}, "threads that share a run count once"


def test_a_throttled_engine_tells_what_the_one_below_does() -> None:
    engine = ThrottledEngine(CpuEngine(), 1e12)
    executable = engine.compile(trace(layer, *ARRAYS))
    rows = rows_of(engine, executable)
    _, spans = watched(engine, executable, ARRAYS)
    assert [span.key for span in spans] == [key for row in rows for key in row.keys]
    assert [row.name for row in rows] == ["numpy dot", "numpy add", "numpy max"]


def test_an_engine_from_before_says_that_it_cannot_tell() -> None:
    class Old:
        info = CpuEngine().info

    with pytest.raises(Unsupported, match="the engine cpu does not report its kernels"):
        explained(Old(), None)  # type: ignore[arg-type]


@needs_adapter
def test_without_timestamps_each_kernel_is_timed_around_its_submission() -> None:
    engine = wgsl(stamps=False)
    executable = engine.compile(trace(layer, *ARRAYS))
    explanation = explained(engine, executable)
    assert "around the submission" in explanation.clock
    results, spans = watched(engine, executable, ARRAYS)
    assert {span.key for span in spans} == {key for row in explanation.rows for key in row.keys}
    np.testing.assert_allclose(results[0], np.maximum(ARRAYS[0] @ ARRAYS[1] + B, 0), rtol=1e-5, atol=1e-5)
    engine.close()
