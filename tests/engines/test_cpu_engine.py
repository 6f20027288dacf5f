"""The cpu engine beyond values: who owns memory, how long it lives, what failures are called."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from support.cases.control_cases import siblings
from support.cases.values import any_bits, ordinary
from support.compare import same_bits
from support.traced_memory import peak_bytes_of

import mesh
import mesh.numpy as mnp
from wire.errors import ExecuteFailed, InputError, MeshError, OutOfMemory
from wire.ir.dtypes import BOOL, DTYPES, F32, F64, DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import OPS
from wire.ir.types import Attrs, TensorType
from worker.cpu import CpuEngine, evaluate
from worker.cpu import engine as cpu_engine
from worker.cpu.elementwise import IN_PLACE
from worker.cpu.engine import CLOCK_RESOLUTION_S, KERNELS, fastest
from worker.native.engine import NativeEngine

MIB = 1 << 20


def chain(length: int, size: int) -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (size,), F32)
    for _ in range(length):
        x = builder.add("sin", x)
    return builder.build([x])


def test_a_chain_needs_the_memory_of_two_tensors() -> None:
    graph = chain(30, MIB // 4)
    assert CpuEngine().compile(graph).memory_bytes == 2 * MIB
    x = ordinary(F32, MIB // 4)
    assert peak_bytes_of(lambda: evaluate(graph, {"x": x})) < 3 * MIB


def test_memory_counts_what_is_alive_and_not_inputs_or_constants() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (256,), F32)
    doubled = builder.add("add", x, builder.const(np.ones(256, np.float32)))
    total = builder.add("mul", doubled, builder.add("neg", doubled))
    graph = builder.build([total, doubled])
    assert CpuEngine().compile(graph).memory_bytes == 3 * 1024


@pytest.mark.parametrize("full", [0, 1])
def test_singular_values_of_what_is_not_finite_are_nan(full: int) -> None:
    """LAPACK turns for ever over some infinities.  Matrices beside it in a batch have the bits that they have alone."""
    x = np.stack([ordinary(F32, 5, 3, seed=seed) for seed in range(40)])
    for number, matrix in enumerate(x[1:], 1):
        matrix.reshape(-1)[number % 15] = (np.inf, -np.inf, np.nan)[number % 3]
    builder = GraphBuilder()
    results = siblings(builder, "svd", builder.input("x", x.shape, F32), count=3, full=full)
    graph, found = builder.build(results), list[Any]()
    computing = threading.Thread(target=lambda: found.extend(evaluate(graph, {"x": x})), daemon=True)
    computing.start()
    computing.join(60)
    assert found, "it does not end"
    for array, alone in zip(found, np.linalg.svd(x[0], full_matrices=bool(full)), strict=True):
        assert np.isnan(array[1:]).all() and same_bits(array[0], alone)


def views() -> WireGraph:
    """Outputs that could all show the same memory."""
    builder = GraphBuilder()
    x = builder.input("x", (4, 6), F32)
    y = builder.add("exp", x)
    constant = builder.const(np.arange(3, dtype=np.float32))
    flat = builder.add("reshape", y, shape=(24,))
    row = builder.add("slice", y, start=(1, 0), stop=(2, 6), step=(1, 1))
    spread = builder.add("broadcast", constant, shape=(3,))
    outputs = [x, builder.add("reshape", x, shape=(24,)), y, flat, row, constant, spread]
    return builder.build(outputs)


def test_outputs_are_writable_and_share_no_memory() -> None:
    x = ordinary(F32, 4, 6)
    engine = CpuEngine()
    executable = engine.compile(views())
    first = [array.copy() for array in engine.run(executable, [x])]
    outputs = engine.run(executable, [x])
    for place, output in enumerate(outputs):
        assert not np.may_share_memory(output, x)
        assert not any(np.may_share_memory(output, other) for other in outputs[place + 1 :])
        assert output.flags.c_contiguous
        output[...] = -1
    again = engine.run(executable, [x])
    assert [a.tobytes() for a in again] == [a.tobytes() for a in first]


def test_an_output_keeps_no_larger_tensor_alive() -> None:
    builder = GraphBuilder()
    y = builder.add("exp", builder.input("x", (1000,), F32))
    graph = builder.build([builder.add("slice", y, start=(0,), stop=(2,), step=(1,))])
    (output,) = evaluate(graph, {"x": ordinary(F32, 1000)})
    assert output.base is None


def test_read_only_inputs_are_computed_with_and_left_alone() -> None:
    x = ordinary(F32, 4, 6)
    x.flags.writeable = False
    before = x.tobytes()
    evaluate(views(), {"x": x})
    assert x.tobytes() == before


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "'x'.*missing"),
        ({"x": np.zeros((4, 5), np.float32)}, r"'x' is float32\[4, 5\], expected f32\[4,6\]"),
        ({"x": np.zeros((4, 6))}, "'x' is float64"),
        ({"x": np.zeros((4, 6), ">f4")}, "'x' is >f4"),
    ],
)
def test_wrong_inputs_are_named(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        evaluate(views(), inputs)


@pytest.mark.parametrize(("raised", "kind"), [(MemoryError(), OutOfMemory), (ValueError("bad"), ExecuteFailed)])
def test_a_kernels_failure_names_the_op(raised: Exception, kind: type[MeshError], monkeypatch: Any) -> None:
    def fail(*_: Any) -> Any:
        raise raised

    monkeypatch.setitem(cpu_engine.KERNELS, "sin", fail)
    with pytest.raises(kind) as caught:
        evaluate(chain(1, 4), {"x": ordinary(F32, 4)})
    assert caught.value.op == "sin"


def test_a_figure_of_a_processor_leaves_out_what_others_had_of_it() -> None:
    def disturbed() -> None:
        time.sleep(0.05)  # as if another program had the core

    assert fastest(disturbed) >= 0.05, "a call is waited for"
    fine = time.get_clock_info("process_time").resolution <= CLOCK_RESOLUTION_S
    assert (fastest(disturbed, threads=1) < 0.05) == fine


def test_the_device_is_measured() -> None:
    began_s = time.perf_counter()
    measured = CpuEngine().measure()
    took_s = time.perf_counter() - began_s
    assert measured.gflops > 0
    assert measured.gbytes_per_s > 0
    assert 0 < measured.dispatch_s < took_s


def test_the_memory_budget_is_the_owners_or_half_the_machine() -> None:
    assert CpuEngine(memory_bytes=123).info.memory_bytes == 123
    assert CpuEngine().info.memory_bytes > MIB


@pytest.mark.parametrize(("value", "rounded"), [(1.00390625, 1.0), (1.0039062500001, 1.0078125), (0.5, 0.5)])
def test_a_computed_scalar_is_cast_to_bf16_as_an_array_is(value: float, rounded: float) -> None:
    builder = GraphBuilder()
    negated = builder.add("neg", builder.input("x", (), F64))
    graph = builder.build([builder.add("cast", negated, dtype="bf16")])
    (actual,) = evaluate(graph, {"x": np.asarray(value)}, {})
    assert (str(actual.dtype), float(actual)) == ("bfloat16", -rounded)


SELECTIONS = (
    ((60, 90), (60, 90), (60, 90)), ((60, 90), (), (60, 90)), ((60, 90), (60, 90), ()), ((60, 90), (), ()),
    ((), (60, 90), (60, 90)), ((), (), (60, 90)), ((60, 90), (3, 60, 90), (90,)), ((70, 1, 90), (2, 1), (1, 90)),
    ((5,), (5,), ()),
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_large_selections_take_bits_as_they_are(dtype: DType) -> None:
    """NaN with whatever it carries and the sign of 0 too."""
    random = np.random.default_rng(0)

    def drawn(shape: tuple[int, ...]) -> Any:
        if dtype is BOOL:
            return np.asarray(random.random(shape) > 0.5)
        return random.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype.numpy).reshape(shape)

    zero, shapes = np.zeros((), dtype.numpy), ((70, 90), (70, 1), ())
    from_zero = [
        (condition, *each) for condition in shapes for other in shapes for each in ((None, other), (other, None))
    ]
    for condition, taken, other in (*SELECTIONS, *from_zero):
        values = [zero if shape is None else drawn(shape) for shape in (taken, other)]
        operands = [np.asarray(random.random(condition) > 0.5), *values]
        kind = TensorType(np.broadcast_shapes(condition, taken or (), other or ()), dtype)
        actual = KERNELS["select"](Attrs({}), operands, kind)
        assert (actual.shape, actual.dtype) == (kind.shape, kind.dtype.numpy)
        assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(np.where(*operands)).tobytes()


def written_over() -> WireGraph:
    """Sums that could be written over what they read, if nobody else had it."""
    builder = GraphBuilder()
    x, shape = builder.input("x", (64, 128), F32), (64, 128)
    made = builder.add("exp", x)
    flat = builder.add("reshape", made, shape=(64 * 128,))  # shows the memory of the one before
    once = builder.add("add", made, x)  # so this must not be written over it
    doubled = builder.add("mul", once, once)
    last = builder.add("add", builder.add("mul", doubled, x), builder.add("reshape", flat, shape=shape))
    held = builder.add("neg", x)
    return builder.build([last, builder.add("add", x, x), held, builder.add("mul", held, x)])


def test_results_are_written_over_operands_that_nobody_else_has(monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[str] = []

    def spied(name: str, ufunc: Any) -> Any:
        def call(*operands: Any, out: Any) -> Any:
            over.append(name)
            return ufunc(*operands, out=out)

        return call

    for name, ufunc in IN_PLACE.items():
        monkeypatch.setitem(IN_PLACE, name, spied(name, ufunc))
    x = ordinary(F32, 64 * 128).reshape(64, 128)
    before = x.copy()
    actual = evaluate(written_over(), {"x": x})
    made = np.exp(x)
    once = made + x
    for given, expected in zip(actual, (once * once * x + made, x + x, -x, -x * x), strict=True):
        assert given.tobytes() == expected.tobytes()
    assert x.tobytes() == before.tobytes(), "an input is never written over"
    assert over == ["mul", "add"]


@pytest.mark.parametrize("dtype", [F32, F64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", IN_PLACE)
def test_what_is_written_over_an_operand_has_the_same_bits(op: str, dtype: DType) -> None:
    count = OPS[op].inputs
    assert count is not None
    for size in (1, 7, 64, 5003):
        operands = [any_bits(dtype, size, seed=seed) for seed in range(count)]
        with np.errstate(all="ignore"):
            wanted = KERNELS[op](Attrs({}), operands, TensorType((size,), dtype))
            for place in range(count):
                given = [operand.copy() for operand in operands]
                actual = IN_PLACE[op](*given, out=given[place])
                assert actual is given[place] and same_bits(actual, wanted)


@pytest.mark.parametrize("rows", [1, 2, 8, 48, 49])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_few_rows_by_a_large_transposed_matrix_are_products_like_others(rows: int, batch: int) -> None:
    rng = np.random.default_rng(rows)
    a = rng.standard_normal((batch, rows, 384)).astype(np.float32)
    b = rng.standard_normal((batch, 512, 384)).astype(np.float32)
    builder = GraphBuilder()
    contract = {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contract": (2,), "rhs_contract": (2,)}
    graph = builder.build([builder.add("dot", builder.input("a", a.shape, F32), builder.input("b", b.shape, F32),
                                       **contract)])  # fmt: skip
    (actual,) = evaluate(graph, {"a": a, "b": b})
    wanted = np.einsum("bmk,bnk->bmn", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)
    assert actual.flags.c_contiguous


@pytest.mark.long
@pytest.mark.parametrize("make", [CpuEngine, NativeEngine])
def test_a_tensor_of_more_elements_than_an_int32_counts(make: Any) -> None:
    """Its pages are zeros that nobody wrote, so it takes no memory."""
    x = np.zeros((1 << 10, (1 << 21) + (1 << 10)), np.uint8)
    x[-1, -1], x[0, 1], x[513, 5] = 7, 3, 9
    engine = make()
    for fn, right in ((lambda x: mnp.max(x, axis=1), x.max(1)), (lambda x: x[1020:, -3:], x[1020:, -3:])):
        (made,) = engine.run(engine.compile(mesh.trace(fn, x)), [x])
        assert x.size > 1 << 31 and np.array_equal(made, right)
    engine.close()
