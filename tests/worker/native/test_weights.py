"""Packed weights: made for tensors that were loaded, once, with the same bits, and never those of another tensor."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from weakref import ref

import numpy as np
import pytest
from numpy.typing import NDArray
from support.compare import same_bits
from support.emulated import ARM, EmulatedEngine, needs_emulator
from support.vector_functions import without_avx512

import mesh
import mesh.numpy as mnp
from mesh.core import inprocess
from mesh.core.backend import Work
from mesh.functions.compiled import handle_of
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType
from wire.system.shared_memory import SharedDir
from worker.engine import host_messages as hm
from worker.engine.host_messages import BoundParam, Input, OutputRequest
from worker.engine_host.host import Host
from worker.native.engine import NativeEngine
from worker.native.llvm import this_processor
from worker.native.weights import Layout

pytestmark = pytest.mark.skipif(not this_processor().has_fma, reason="the native engine needs fma")

HERE = this_processor()
SIDE, ROWS = 64, 16
MATRIX_BYTES = 4 * SIDE * SIDE
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, SIDE)).astype(np.float32)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for machine code, so that engines do not each compile the same."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def engine(kernels: Path) -> Iterator[NativeEngine]:
    made = NativeEngine(folder=kernels)
    yield made
    made.close()


def matrix(seed: int, shape: tuple[int, ...] = (SIDE, SIDE), dtype: Any = np.float32) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(turned: bool = False) -> WireGraph:
    return mesh.trace(lambda x, w: x @ (w.T if turned else w), X, matrix(0))


def layers(x: Any, w: Any, u: Any, both: Any) -> Any:
    """A matrix as it lies, one that is transposed, and parts of one; of odd sizes, and with what follows a product."""
    half = both.shape[0] // 2
    return mnp.tanh(x @ w) + 1, x @ u.T, (x @ both[:half].T) * (x @ both[half:].T)


def given_layers(rows: int, length: int, columns: int, dtype: Any) -> list[NDArray[Any]]:
    shapes = (rows, length), (length, columns), (columns, length), (2 * columns, length)
    return [matrix(seed, shape, dtype) for seed, shape in enumerate(shapes)]


SHAPES = [(5, 290, 19, np.float32), (40, 300, 90, np.float32), (17, 520, 33, np.float64), (20, 30, 40, np.float16)]


@pytest.mark.parametrize("vector_bytes", [width for width in (16, 32, 64) if width <= HERE.vector_bytes])
def test_bits_are_those_of_what_is_not_packed(vector_bytes: int, kernels: Path) -> None:
    engine = NativeEngine(vector_bytes=vector_bytes, threads=2, folder=kernels)
    for *sizes, dtype in SHAPES:
        packed_bytes = check_layers(engine, given_layers(*sizes, dtype))
        assert bool(packed_bytes) == (dtype != np.float16), "what is narrow stays so"
    engine.close()


@needs_emulator
@pytest.mark.parametrize("name", ["AVX2", "NEON"])
def test_bits_on_other_processors(name: str) -> None:
    engine = EmulatedEngine(ARM[name]) if name in ARM else NativeEngine(processor=without_avx512(HERE))
    assert check_layers(engine, given_layers(11, 270, 21, np.float32))
    engine.close()


def check_layers(engine: NativeEngine, given: list[NDArray[Any]]) -> int:
    """AssertionError unless the layers have the same bits in every run of loaded weights; what their panels take."""
    x, *weights = given
    executable = engine.compile(mesh.trace(layers, *given))
    wanted = engine.run(executable, given)
    loaded = [x, *(engine.load(weight) for weight in weights)]
    for _ in range(3):
        found = engine.run(executable, loaded)
        assert all(same_bits(a, b) for a, b in zip(found, wanted, strict=True))
    other = [matrix(99, x.shape, x.dtype), *loaded[1:]]
    found, wanted = engine.run(executable, other), engine.run(executable, [other[0], *weights])
    assert all(same_bits(a, b) for a, b in zip(found, wanted, strict=True))
    return engine.spare_bytes


def test_what_is_not_finite_and_what_is_zero_has_the_same_bits(engine: NativeEngine) -> None:
    length = 300
    x, weight = np.tril(matrix(1, (40, length)), 20), matrix(2, (length, 50))
    x[7], x[7, 3] = 0, 1e-30
    weight[3], weight[-1, 4], weight[9, 49] = -1e-30, np.inf, np.nan
    executable = engine.compile(mesh.trace(lambda x, w: x @ w, x, weight))
    (wanted,), loaded = engine.run(executable, [x, weight]), engine.load(weight)
    found = [engine.run(executable, [x, loaded])[0] for _ in range(3)][-1]
    assert engine.spare_bytes and same_bits(found, wanted)


def test_a_weight_is_packed_by_the_second_run_that_reads_it(engine: NativeEngine) -> None:
    executable, weight = engine.compile(product()), engine.load(matrix(1))
    seen = []
    for _ in range(4):
        engine.run(executable, [X, weight])
        seen.append(engine.spare_bytes)
    assert seen[0] == 0 and MATRIX_BYTES <= seen[1] < 2 * MATRIX_BYTES and seen[1:] == [seen[1]] * 3


@pytest.mark.parametrize(("rows", "packs"), [(4, False), (5, True), (8, True), (9, True)])
def test_a_few_rows_read_a_weight_as_it_lies(engine: NativeEngine, rows: int, packs: bool) -> None:
    x, weight = matrix(0, (rows, SIDE)), matrix(1)
    executable, handle = engine.compile(mesh.trace(lambda x, w: x @ w.T, x, weight)), engine.load(weight)
    wanted = engine.run(executable, [x, weight])
    for _ in range(3):
        assert same_bits(engine.run(executable, [x, handle])[0], wanted[0])
    assert bool(engine.spare_bytes) == packs


def test_panels_that_are_given_up_are_not_read_any_more(engine: NativeEngine) -> None:
    """By a program whose arguments said where they were."""
    executable, other, weight = engine.compile(product()), matrix(2), engine.load(matrix(1))
    for given in (matrix(1), weight, weight, weight, other, weight, weight, other):
        (found,) = engine.run(executable, [X, given])
        np.testing.assert_allclose(found, X @ np.asarray(given), rtol=1e-3, atol=1e-3)
    kept = ref(engine._weights.packed(weight, product_layout()).memory)
    engine.free_spare()
    assert kept() is None, "no program holds them"
    (found,) = engine.run(executable, [X, weight])
    np.testing.assert_allclose(found, X @ matrix(1), rtol=1e-3, atol=1e-3)


def product_layout() -> Layout:
    return Layout("f32", 0, SIDE, 1, SIDE, SIDE)


def test_what_was_not_loaded_is_never_packed_and_may_change(engine: NativeEngine) -> None:
    """Such as the state of a session, which each step writes in place."""
    executable, weight = engine.compile(product()), matrix(1)
    engine.load(weight)  # the handle stands for it, and not the array itself
    for step in range(4):
        weight += np.float32(step)
        (found,) = engine.run(executable, [X, weight])
        np.testing.assert_allclose(found, X @ weight, rtol=1e-3, atol=1e-3)
    assert engine.spare_bytes == 0


def test_a_weight_that_is_replaced_gives_its_own_result(engine: NativeEngine) -> None:
    executable, weights = engine.compile(product()), [matrix(seed) for seed in range(3)]
    handles = [engine.load(weight) for weight in weights]
    for which in (0, 0, 0, 1, 0, 1, 1, 2, 1, 2, 2, 0):
        (found,) = engine.run(executable, [X, handles[which]])
        np.testing.assert_allclose(found, X @ weights[which], rtol=1e-3, atol=1e-3)
    three = engine.spare_bytes
    engine.unload(handles[1])
    assert 3 * engine.spare_bytes == 2 * three, "its panels went with it"


def test_memory_that_another_tensor_gets_has_no_panels(engine: NativeEngine) -> None:
    """Arrays that nobody has any more, and others at their addresses."""
    executable = engine.compile(product())
    for seed in range(20):
        weight = engine.load(matrix(seed))
        for _ in range(2):
            (found,) = engine.run(executable, [X, weight])
        np.testing.assert_allclose(found, X @ matrix(seed), rtol=1e-3, atol=1e-3)
        if seed % 2:
            engine.unload(weight)
        del weight
    gc.collect()
    assert engine.spare_bytes == 0


def test_executables_share_the_panels_of_a_weight(engine: NativeEngine) -> None:
    scaled = mesh.trace(lambda w, x: (x * 2) @ w, matrix(0), X)
    first, second, turned = (engine.compile(graph) for graph in (product(), scaled, product(turned=True)))
    weight = engine.load(matrix(1))
    for _ in range(2):
        engine.run(first, [X, weight])
    one = engine.spare_bytes
    for _ in range(3):
        (found,) = engine.run(second, [weight, X])
    assert engine.spare_bytes == one
    np.testing.assert_allclose(found, 2 * X @ matrix(1), rtol=1e-3, atol=1e-3)
    for _ in range(2):
        (found,) = engine.run(turned, [X, weight])
    np.testing.assert_allclose(found, X @ matrix(1).T, rtol=1e-3, atol=1e-3)
    assert engine.spare_bytes == 2 * one, "its transpose is another matrix"


def test_a_loop_packs_the_weight_that_it_reads(engine: NativeEngine) -> None:
    def repeated(x: Any, w: Any) -> Any:
        return mesh.fori_loop(0, 3, lambda _, h: mnp.tanh(h @ w), x)

    executable = engine.compile(mesh.trace(repeated, X, matrix(0)))
    (wanted,) = engine.run(executable, [X, matrix(1)])
    weight = engine.load(matrix(1))
    assert same_bits(engine.run(executable, [X, weight])[0], wanted)
    assert engine.spare_bytes, "its second turn reads it again"
    assert same_bits(engine.run(executable, [X, weight])[0], wanted)


def test_without_a_host_panels_take_a_share_of_the_budget(kernels: Path) -> None:
    engine = NativeEngine(memory_bytes=8 * MATRIX_BYTES, folder=kernels)
    executable, weights = engine.compile(product()), [matrix(seed) for seed in range(4)]
    handles = [engine.load(weight) for weight in weights]
    for _ in range(3):
        for weight, handle in zip(weights, handles, strict=True):
            (found,) = engine.run(executable, [X, handle])
            np.testing.assert_allclose(found, X @ weight, rtol=1e-3, atol=1e-3)
    assert MATRIX_BYTES <= engine.spare_bytes <= 2 * MATRIX_BYTES
    engine.close()


def test_handles_of_this_process_are_weights_and_what_is_given_instead_is_not() -> None:
    x, weights = matrix(0, (400, 1024)), [matrix(seed, (1024, 1024)) for seed in range(2)]
    for weight in weights:
        weight.flags.writeable = False
    handles = [handle_of(weight, "w") for weight in weights]
    graph = mesh.trace(lambda x, w: x @ w, x, handles[0])
    (param,) = graph.param_types
    of_engine = cast(NativeEngine, inprocess._engine())
    before = of_engine.spare_bytes
    for which in (0, 0, 1, 1, 0):
        (found,) = inprocess.evaluate(Work(graph, {param: handles[which]}, "auto"), {"x": x})
        np.testing.assert_allclose(found, x @ weights[which], rtol=1e-3, atol=1e-3)
    both = of_engine.spare_bytes - before
    evaluating, state = inprocess.Evaluating(Work(graph, {param: handles[0]}, "auto")), weights[0].copy()
    for _ in range(3):
        state += 1
        (found,) = evaluating.run({"x": x}, {param: state})
        np.testing.assert_allclose(found, x @ state, rtol=1e-3, atol=1e-2)
    assert of_engine.spare_bytes - before == both >= 2 * 4 * 1024 * 1024
    del evaluating, handles
    gc.collect()
    assert of_engine.spare_bytes == before, "they went with their handles"


# -- in an engine host -----------------------------------------------------------------------------------------------


class Parts:
    """A host with weights in files, whose parts are products with one each."""

    def __init__(self, folder: Path, kernels: Path, budget: int) -> None:
        self.folder, self.runs = folder, 0
        self.shared = SharedDir.create(folder)
        self.engine = NativeEngine(folder=kernels)
        self.host = Host(self.engine, self.shared, memoryview(bytearray(8)), budget)

    def prepare(self, part: int, weight: int, side: int = SIDE) -> Any:
        builder = GraphBuilder()
        x, w = builder.input("x", (ROWS, side), F32), builder.param("w", (side, side), F32)
        axes = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
        graph = builder.build([builder.add("dot", x, w, **axes)])
        path = self.folder / f"weight-{weight}-{side}"
        path.write_bytes(matrix(weight, (side, side)).tobytes())
        bound = BoundParam(1, weight.to_bytes(32, "big"), str(path))
        return self.host.handle(hm.PreparePart(part, graph.hash, graph.encoded, 2, 1, (bound,), {}, False))

    def run(self, part: int, weight: int, side: int = SIDE) -> None:
        """Check what a part gives."""
        x = matrix(7, (ROWS, side))
        self.runs += 1
        given = Input(0, "f32", x.shape, False, x.tobytes())
        answer = self.host.handle(hm.ExecutePart(self.runs, part, (given,), (OutputRequest(0, 1),)))
        assert isinstance(answer, hm.Executed), answer
        (output,) = answer.outputs
        data = output.data or (self.shared.path / output.files[0]).read_bytes()
        found = np.frombuffer(data, np.float32).reshape(x.shape)
        np.testing.assert_allclose(found, x @ matrix(weight, (side, side)), rtol=1e-3, atol=1e-3)


@pytest.fixture
def parts(tmp_path: Path, kernels: Path, request: pytest.FixtureRequest) -> Iterator[Parts]:
    made = Parts(tmp_path, kernels, getattr(request, "param", 1 << 20))
    yield made
    made.engine.close()
    made.shared.close()


def test_parts_of_a_host_share_a_weight_and_its_panels(parts: Parts) -> None:
    parts.prepare(0, weight=1)
    parts.prepare(1, weight=1)
    parts.run(0, 1)
    parts.run(1, 1)
    one = parts.engine.spare_bytes
    assert MATRIX_BYTES <= one < 2 * MATRIX_BYTES
    parts.host.handle(hm.Unprepare(0))
    parts.prepare(0, weight=2)
    for _ in range(2):
        parts.run(0, 2)
        parts.run(1, 1)
    assert parts.engine.spare_bytes == 2 * one
    parts.host.handle(hm.Unbind(1, (1,)))
    assert parts.engine.spare_bytes == one, "its last user is gone"
    parts.host.handle(hm.FreeUnused())
    assert parts.engine.spare_bytes == 0, "the machine is short of memory"
    parts.run(0, 2)


@pytest.mark.parametrize("parts", [3 * MATRIX_BYTES], indirect=True)
def test_panels_are_made_only_where_the_budget_has_room_and_given_up_for_what_needs_it(parts: Parts) -> None:
    parts.prepare(0, weight=1)
    for _ in range(3):
        parts.run(0, 1)
    assert parts.engine.spare_bytes, "there is room for one more matrix"
    assert isinstance(parts.prepare(1, weight=2), hm.Prepared)
    assert parts.engine.spare_bytes == 0, "the other weight needs it"
    for _ in range(3):
        parts.run(0, 1)
        parts.run(1, 2)
    assert parts.engine.spare_bytes == 0, "no room is left"
    refused = parts.prepare(2, weight=3, side=2 * SIDE)
    assert isinstance(refused, hm.PrepareFailed) and refused.error["code"] == "out_of_memory"


@pytest.mark.parametrize("parts", [4 * MATRIX_BYTES], indirect=True)
def test_panels_of_a_weight_that_was_spilled_are_made_anew(parts: Parts) -> None:
    parts.prepare(0, weight=1)
    for _ in range(2):
        parts.run(0, 1)
    assert parts.engine.spare_bytes
    assert isinstance(parts.prepare(1, 2, side=SIDE * 7 // 4), hm.Prepared)
    assert parts.engine.spare_bytes == 0
    parts.run(1, 2, side=SIDE * 7 // 4)
    parts.run(0, 1)
    parts.run(0, 1)


def test_a_state_that_each_step_changes_is_read_as_it_is(parts: Parts) -> None:
    """As training does: w, a param that is given as a kept tensor, becomes w + 1 in each step."""
    builder = GraphBuilder()
    x, w = builder.input("x", (ROWS, SIDE), F32), builder.param("w", (SIDE, SIDE), F32)
    axes = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
    one = builder.const(np.float32(1))
    graph = builder.build([builder.add("dot", x, w, **axes), builder.add("add", w, one)])
    prepared = parts.host.handle(hm.PreparePart(0, graph.hash, graph.encoded, 2, 2, (), {}, False))
    assert isinstance(prepared, hm.Prepared)
    state, kind = matrix(1), TensorType((SIDE, SIDE), F32)
    given: tuple[Input, ...] = (Input(1, "f32", kind.shape, False, state.tobytes()),)
    for step in range(1, 6):
        wanted = (OutputRequest(0, 1), OutputRequest(step, 0))
        asked = (Input(0, "f32", X.shape, False, X.tobytes()), *given)
        answer = parts.host.handle(hm.ExecutePart(step, 0, asked, wanted))
        assert isinstance(answer, hm.Executed), answer
        found = np.frombuffer(answer.outputs[0].data or b"", np.float32).reshape(X.shape)
        np.testing.assert_allclose(found, X @ (state + (step - 1)), rtol=1e-3, atol=1e-2)
        given = (Input(1, "f32", kind.shape, False, kept=step),)
    assert parts.engine.spare_bytes == 0
