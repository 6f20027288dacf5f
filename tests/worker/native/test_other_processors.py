"""Processors of every kind give the same bits: AVX2, AVX-512 where this machine has it, and ARM's, in an emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases import training
from support.cases.language import gpt2_folder
from support.cases.op_cases import PROGRAMS, ROWS, cases
from support.cases.random_graphs import random_graph
from support.compare import same_bits
from support.emulated import ARM, EmulatedEngine, needs_emulator
from support.kept_kernels import native_engine
from support.vector_functions import without_avx512

import mesh
from mesh import nn, optim
from wire.ir.arithmetic import BY_LIBRARIES, by_libraries
from wire.ir.graph import WireGraph
from worker.cpu.engine import ordered
from worker.native.engine import NON_TEMPORAL_BYTES, NativeEngine
from worker.native.llvm import this_processor

pytestmark = [needs_emulator, pytest.mark.skipif(not this_processor().has_fma, reason="the native engine needs fma")]

Step = Callable[..., Any]
STEPS = 20
UNDEFINED = BY_LIBRARIES | {"real", "imag", "complex"}  # ops whose bits numpy and LAPACK decide
VOCABULARY, LENGTH, ROWS_OF_TEXT = 80, 24, 4


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, NativeEngine]]:
    here = this_processor()
    made = {f"{8 * here.vector_bytes} bits": native_engine()}
    if here.vector_bytes == 64:
        made["AVX2"] = native_engine(processor=without_avx512(here))
    made.update({name: EmulatedEngine(processor) for name, processor in ARM.items()})
    yield made
    for engine in made.values():
        engine.close()


def check_everywhere(engines: Mapping[str, NativeEngine], graph: WireGraph, given: list[NDArray[Any]]) -> None:
    """AssertionError unless all engines give the same bits.  Which NaN it is, an op does not say."""
    results = {name: engine.run(engine.compile(graph), given) for name, engine in engines.items()}
    (first, wanted), *others = results.items()
    for name, found in others:
        same = [same_bits(np.asarray(a), np.asarray(b)) for a, b in zip(found, wanted, strict=True)]
        assert all(same), f"{name} and {first} differ in {same.count(False)} results:\n{graph}"


def check_training(engines: Mapping[str, NativeEngine], step: Step, state: Any, batch: Callable[[int], Any]) -> None:
    """AssertionError unless all engines have the same state and loss after each of STEPS steps."""
    traced = mesh.trace_full(step, state, *batch(0))
    states = dict.fromkeys(engines, state)
    executables = {name: engine.compile(traced.graph) for name, engine in engines.items()}
    for number in range(STEPS):
        after = {}
        for name, engine in engines.items():
            inputs = traced.bind(states[name], *batch(number)).inputs
            after[name] = engine.run(executables[name], ordered(traced.graph, inputs))
            states[name], _ = traced.unflatten(after[name])
        seen = {name: b"".join(np.asarray(array).tobytes() for array in arrays) for name, arrays in after.items()}
        assert len(set(seen.values())) == 1, f"step {number}: { ({name: hash(bits) for name, bits in seen.items()}) }"
    assert all(engine.walked >= STEPS for engine in engines.values() if isinstance(engine, EmulatedEngine))


@pytest.mark.parametrize("seed", [1])
def test_a_random_graph(engines: Mapping[str, NativeEngine], seed: int) -> None:
    random = random_graph(seed)
    check_everywhere(engines, random.graph, ordered(random.graph, {**random.inputs, **random.params}))


def test_training_of_a_network(engines: Mapping[str, NativeEngine]) -> None:
    """Three layers of 8 to 16, 8 rows, Adam."""
    check_training(engines, training.train, training.first_state(), training.batch)


def test_products_that_leave_zeros_out(engines: Mapping[str, NativeEngine]) -> None:
    """A triangle, its turn, a product that underflows to -0 before zeros, and elements that are not finite."""
    rng = np.random.default_rng(5)
    a, b = np.tril(rng.standard_normal((20, 150)).astype(np.float32), 120), rng.standard_normal((150, 21))
    a[7], a[7, 3], b[3] = 0, 1e-30, -1e-30
    not_finite = b.copy()
    not_finite[-1, 4] = np.inf
    graph = mesh.trace(
        lambda x, y, z: (x @ y, x[:, ::-1] @ z, x @ z), *(x.astype(np.float32) for x in (a, b, not_finite))
    )
    check_everywhere(engines, graph, [x.astype(np.float32) for x in (a, b, not_finite)])


@pytest.mark.long
def test_results_larger_than_the_caches(engines: Mapping[str, NativeEngine]) -> None:
    """They are stored past these, by rows and by elements."""
    x = np.random.default_rng(7).standard_normal((NON_TEMPORAL_BYTES // 4096, 1024)).astype(np.float32)
    graph = mesh.trace(lambda x: (x - x.sum(-1, keepdims=True), x[:, ::-1] * 2), x)
    texts = [row.text for row in NativeEngine().explain(NativeEngine().compile(graph), texts=True).rows]
    assert ["!nontemporal" in text for text in texts] == [True, True]
    check_everywhere(engines, graph, [x])


@pytest.mark.long
def test_attention_by_heads(engines: Mapping[str, NativeEngine]) -> None:
    """Scores of more than a second cache, which a region computes head by head."""
    rng = np.random.default_rng(6)
    given = [rng.standard_normal((5, 256, 8)).astype(np.float32) for _ in range(3)]
    graph = mesh.trace(nn.scaled_dot_product_attention, *given)
    (joined,) = [call.kernel for call in NativeEngine().compile(graph).calls]
    assert len(joined._sequenced.program.rows) < joined.count
    check_everywhere(engines, graph, given)


@pytest.mark.long
def test_training_of_a_gpt(engines: Mapping[str, NativeEngine], tmp_path: Path) -> None:
    """Two layers of width 32 with 4 heads, 4 texts of 23 tokens, Adam."""
    model = mesh.load(gpt2_folder(tmp_path, vocabulary=VOCABULARY, layers=2, positions=LENGTH))
    optimizer = optim.adam(3e-3)

    def loss_of(params: Any, rows: Any) -> Any:
        return nn.cross_entropy(model.apply(params, rows[:, :-1]), rows[:, 1:])

    def step(state: Any, rows: Any) -> Any:
        loss, gradients = mesh.value_and_grad(loss_of)(state["params"], rows)
        updates, moments = optimizer.update(gradients, state["moments"], state["params"])
        return {"params": optim.apply_updates(state["params"], updates), "moments": moments}, loss

    def batch(number: int) -> tuple[Any]:
        return (np.random.default_rng(number).integers(0, VOCABULARY, (ROWS_OF_TEXT, LENGTH)).astype(np.int32),)

    params = dict(model.params)
    check_training(engines, step, {"params": params, "moments": optimizer.init(params)}, batch)


@pytest.mark.long
@pytest.mark.parametrize("op", [op for op in (*ROWS, *PROGRAMS) if op not in UNDEFINED])
def test_every_case_of_the_conformance_suite(engines: Mapping[str, NativeEngine], op: str) -> None:
    known = [case for case in cases(op) if by_libraries(case.graph) is None]
    assert known
    for case in known:
        check_everywhere(engines, case.graph, case.arguments)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 200, 20))
def test_many_random_graphs(engines: Mapping[str, NativeEngine], first: int) -> None:
    for seed in range(first, first + 20):
        test_a_random_graph(engines, seed)
