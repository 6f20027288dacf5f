"""What numpy takes for a product besides its operands and its result: wider operands, and copies for BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.machines.profiles import device, near, worker
from support.traced_memory import peak_bytes_of

from coordinator.planning.model.cost_model import CostModel
from coordinator.planning.model.liveness import working_set
from coordinator.planning.planner import make_plan
from wire.ir.dtypes import BF16, F16, F32, DType
from wire.ir.graph import GraphBuilder, WireGraph
from worker.cpu.engine import compile_graph, run

PLAIN = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
HEADS = {"lhs_batch": (0, 2), "rhs_batch": (0, 2), "lhs_contract": (3,), "rhs_contract": (3,)}
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "matrices": ((300, 500), (500, 400), PLAIN),
    "transposed": ((500, 300), (400, 500), {**PLAIN, "lhs_contract": (0,), "rhs_contract": (1,)}),
    "a batch": ((6, 200, 100), (6, 100, 200), {**PLAIN, "lhs_batch": (0,), "rhs_batch": (0,), "lhs_contract": (2,),
                                               "rhs_contract": (1,)}),
    "heads in the middle": ((2, 100, 8, 64), (2, 120, 8, 64), HEADS),
    "a batch at the end": ((200, 100, 8), (100, 90, 8), {"lhs_batch": (2,), "rhs_batch": (2,), "lhs_contract": (1,),
                                                         "rhs_contract": (0,)}),
    "rows around what is summed": ((50, 300, 40), (300, 90), {**PLAIN, "lhs_contract": (1,)}),
    "two axes are summed": ((200, 30, 40), (30, 40, 100), {**PLAIN, "lhs_contract": (1, 2), "rhs_contract": (0, 1)}),
    "two axes in another order": ((200, 40, 30), (30, 40, 100), {**PLAIN, "lhs_contract": (2, 1),
                                                                 "rhs_contract": (0, 1)}),
    "one row": ((1, 500), (500, 4000), PLAIN),
    "few rows by a transposed matrix": ((8, 512), (4000, 512), {**PLAIN, "rhs_contract": (1,)}),
}  # fmt: skip


def product(name: str, dtype: DType) -> WireGraph:
    x, w, attrs = CASES[name]
    builder = GraphBuilder()
    return builder.build([builder.add("dot", builder.input("x", x, dtype), builder.input("w", w, dtype), **attrs)])


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", CASES)
def test_no_more_memory_is_taken_than_was_said(name: str, dtype: DType) -> None:
    graph = product(name, dtype)
    executable, given = compile_graph(graph), [np.ones(shape, dtype.numpy) for shape in CASES[name][:2]]
    run(executable, given)
    peak_bytes = peak_bytes_of(lambda: run(executable, given))
    assert peak_bytes <= executable.memory_bytes + (1 << 16), "and objects that are no arrays"
    assert working_set(graph, by_numpy=True) == executable.memory_bytes, "plans count the same"
    if dtype is not F32:
        assert peak_bytes > working_set(graph), "more than other engines need"


def test_a_plan_counts_it_on_numpy_alone() -> None:
    graph = product("matrices", F16)
    by_engine = {}
    for engine in ("cpu", "native"):
        profiles = near(worker(0, device(0, 1.0, 1.0, engine=engine)))
        units = len(CostModel(graph, profiles).index.units)
        by_engine[engine] = CostModel(graph, profiles).predict([0] * units).memory_bytes[0]
        assert make_plan(graph, profiles, "single").workers[0].memory_bytes == by_engine[engine]
    assert by_engine["cpu"] - by_engine["native"] == 4 * (300 * 500 + 500 * 400 + 300 * 400)
