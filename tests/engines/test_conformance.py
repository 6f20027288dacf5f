"""One suite that every engine passes: all cases of the op table, within the table's tolerances of the cpu engine.

The wgsl engine runs it with its adapter's limits, and once more with the limits lowered to what WebGPU guarantees and
with the kernels that a GPU gets, as another, smaller device would have them.  Since a driver that computes on cpus
takes 0.1 s to compile a case, and the native engine some milliseconds, the default run has a case of each op in each
dtype, and the long suite has all.  test_cpu_reference.py compares all cases of the cpu engine.  To add an engine, add
a row to ENGINES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import as_gpu, needs_adapter
from support.cases.op_cases import PROGRAMS, ROWS, Case, cases
from support.cases.random_graphs import random_graph
from support.compare import assert_close, magnitude_of
from support.kept_kernels import native_engine
from support.node_by_node import judge

from wire.errors import GraphError, Unsupported
from wire.ir.dtypes import BOOL, BY_NAME, F32, I32, U32, DType
from wire.ir.graph import WireGraph
from wire.ir.ops import EXACT, OPS, inner_graphs
from worker.cpu import CpuEngine, evaluate
from worker.engine.protocol import Engine
from worker.wgsl.profile import CPU_ONLY, WEBGPU_MINIMUM

EVERY_DTYPE = {"bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64",
               "c64", "c128"}  # fmt: skip
EVERY_OP = (*ROWS, *PROGRAMS)


def _wgsl(folder: Path, limits: Any = None) -> Engine:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0, folder, limits_override=limits)


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "cpu": lambda folder: CpuEngine(),
    "native": lambda folder: native_engine(threads=2),
    "wgsl": _wgsl,
    "wgsl-minimum": lambda folder: as_gpu(_wgsl(folder, WEBGPU_MINIMUM)),
}
SAMPLED = {"cpu": 1, "native": 0, "wgsl": 0, "wgsl-minimum": 2}  # the default run's first place among an op's cases
FEW_DTYPES = "wgsl-minimum"  # in the default run it has float32 and another dtype, which is another one from op to op
ON_CPU = ("cpu", "native")  # engines that have every op and dtype, and need no adapter
MARKED = [name if name in ON_CPU else pytest.param(name, marks=needs_adapter) for name in ENGINES]
WGSL = [name for name in MARKED if name not in ON_CPU]


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    opened = ENGINES[request.param](tmp_path_factory.mktemp("kernels"))
    yield opened
    opened.close()


def supports(engine: Engine, graph: WireGraph) -> bool:
    """Whether the engine says at join that it computes every op of the graph in its dtypes."""
    for node, kind in zip(graph.nodes, graph.types, strict=True):
        known = engine.info.dtypes_by_op.get(node.op, ())
        if any(dtype.name not in known for dtype in (kind.dtype, *(graph.types[i].dtype for i in node.inputs))):
            return False
        if not all(supports(engine, inner) for inner in inner_graphs(node.op, node.attrs)):
            return False
    return True


@cache
def expected(case_id: str) -> tuple[list[Any], list[Any]]:
    """What the cpu engine gives for a case, and the magnitudes."""
    case = next(case for case in cases(_op_of(case_id)) if case.id == case_id)
    return evaluate(case.graph, case.inputs), magnitude_of(case)


def _op_of(case_id: str) -> str:
    family = case_id.partition("/")[0]
    return "composite" if family == "program" else family


def check(engine: Engine, case: Case) -> None:
    """AssertionError unless the engine gives what the cpu engine does, twice the same, and leaves its inputs alone."""
    arguments = [array.copy() for array in case.arguments]
    executable = engine.compile(case.graph)
    outputs = engine.run(executable, arguments)
    wanted, magnitudes = expected(case.id)
    kinds = case.graph.output_types.values()
    for actual, right, kind, magnitude in zip(outputs, wanted, kinds, magnitudes, strict=True):
        assert_close(actual, right, case.op, kind.dtype, magnitude)
    for given, original in zip(arguments, case.arguments, strict=True):
        assert given.tobytes() == original.tobytes(), "an input was written to"
    for output in outputs:
        assert not any(np.may_share_memory(output, given) for given in arguments), "an output aliases an input"
    again = engine.run(executable, arguments)
    assert [a.tobytes() for a in again] == [a.tobytes() for a in outputs], "a second run gives other bits"


def chosen_of(engine: Engine, op: str, first: int | None, few: bool = False) -> list[Case]:
    """The cases of an op which the engine supports; with `first` one of every dtype, another one from dtype to dtype.
    float32 has the one at place `first`: that at 0 has all special values, where the op has such a case."""
    of_dtype: dict[DType, list[Case]] = {}
    for case in cases(op):
        if supports(engine, case.graph):
            of_dtype.setdefault(case.dtype, []).append(case)
    if first is None:
        return [case for of_one in of_dtype.values() for case in of_one]
    count = 4 if op == "composite" else 1  # no two of those programs are alike
    rows = [of_dtype[dtype] for dtype in sorted(of_dtype, key=lambda dtype: dtype != F32)]
    if few and len(rows) > 2:
        rows = [rows[0], rows[1 + EVERY_OP.index(op) % (len(rows) - 1)]]
    return [case for place, row in enumerate(rows) for case in spread(row, count, first + place, len(rows))]


def spread(of_one: list[Case], count: int, place: int, places: int) -> list[Case]:
    """`count` cases of a dtype: those at equal distances, a `places`th of a distance further for each `place`."""
    chosen = [(turn * places + place % places) * len(of_one) // (count * places) for turn in range(count)]
    return [of_one[index] for index in dict.fromkeys(chosen)]


def check_cases(engine: Engine, op: str, first: int | None = None, few: bool = False) -> None:
    """AssertionError that lists the cases of an op which the engine gets wrong, of all or of a sample."""
    chosen = chosen_of(engine, op, first, few)
    assert chosen or op not in engine.info.dtypes_by_op, f"no case of {op} runs on {engine.info.engine}"
    wrong = []
    for case in chosen:
        try:
            check(engine, case)
        except (AssertionError, GraphError, Unsupported) as error:
            wrong.append(f"{case.id}: {error}")
    assert not wrong, f"{len(wrong)} of {len(chosen)} cases:\n" + "\n".join(wrong)


@pytest.mark.parametrize("engine", MARKED, indirect=True)
@pytest.mark.parametrize("op", EVERY_OP)
def test_engine_agrees_with_cpu(request: pytest.FixtureRequest, engine: Engine, op: str) -> None:
    name = request.node.callspec.params["engine"]
    check_cases(engine, op, SAMPLED[name], name == FEW_DTYPES)


@pytest.mark.long
@pytest.mark.parametrize("engine", MARKED, indirect=True)
@pytest.mark.parametrize("op", EVERY_OP)
def test_engine_agrees_with_cpu_in_every_case(engine: Engine, op: str) -> None:
    check_cases(engine, op)


def check_random(engine: Engine, seeds: range) -> None:
    """Integers and bool are exact on every engine, so whole random graphs can be compared bit for bit."""
    for seed in seeds:
        random = random_graph(seed, dtypes=(I32, U32, BOOL))
        graph, given = random.graph, {**random.inputs, **random.params}
        arguments = [given[graph.nodes[index].attrs["name"]] for index in (*graph.inputs, *graph.params)]
        outputs = engine.run(engine.compile(graph), arguments)
        for actual, right, kind in zip(outputs, evaluate(graph, given), graph.output_types.values(), strict=True):
            assert_close(actual, right, f"random graph {seed}", kind.dtype, tolerance=EXACT)


def check_random_by_node(engine: Engine, seeds: range) -> None:
    dtypes = [BY_NAME[name] for name in engine.info.dtypes_by_op["add"]]
    for seed in seeds:
        random = random_graph(seed, dtypes=dtypes, matrices=engine.info.engine in ON_CPU)
        judge(engine, random.graph, {**random.inputs, **random.params})


@pytest.mark.parametrize("check", [check_random, check_random_by_node])
@pytest.mark.parametrize("engine", MARKED, indirect=True)
def test_random_graphs(engine: Engine, check: Callable[[Engine, range], None]) -> None:
    check(engine, range(4 if engine.info.engine in ON_CPU else 1))  # a driver compiles each for seconds


@pytest.mark.long
@pytest.mark.parametrize("check", [check_random, check_random_by_node])
@pytest.mark.parametrize("engine", MARKED, indirect=True)
@pytest.mark.parametrize("first", range(1000, 1200, 20))
def test_many_random_graphs(engine: Engine, check: Callable[[Engine, range], None], first: int) -> None:
    check(engine, range(first, first + 20))


@pytest.mark.parametrize("engine", MARKED, indirect=True)
def test_resident_tensors_stand_for_inputs(request: pytest.FixtureRequest, engine: Engine) -> None:
    first = SAMPLED[request.node.callspec.params["engine"]]
    for case in (case for op in PROGRAMS for case in chosen_of(engine, op, first)[:1]):
        handles = [engine.load(array) for array in case.arguments]
        actual = engine.run(engine.compile(case.graph), handles)
        for handle in handles:
            engine.unload(handle)
        plain = engine.run(engine.compile(case.graph), case.arguments)
        assert [a.tobytes() for a in actual] == [a.tobytes() for a in plain], case.id


@pytest.mark.parametrize("engine", MARKED, indirect=True)
def test_declared_dtypes(engine: Engine) -> None:
    """Exactly these: what WGSL has no type for, the planner places on the cpu engine of the same machine."""
    if engine.info.engine in ON_CPU:
        allowed: list[set[str]] = [EVERY_DTYPE]
        assert set(engine.info.dtypes_by_op) == set(OPS)
    else:
        core = {"f32", "i32", "u32", "bool"}
        allowed = [core, core | {"f16"}]
        assert set(engine.info.dtypes_by_op) == set(OPS) - CPU_ONLY
    assert all(set(dtypes) in allowed for dtypes in engine.info.dtypes_by_op.values())
    assert len({frozenset(dtypes) for dtypes in engine.info.dtypes_by_op.values()}) == 1


@pytest.mark.parametrize("engine", WGSL, indirect=True)
@pytest.mark.parametrize("op", EVERY_OP)
def test_what_is_not_declared_is_refused_by_name(engine: Engine, op: str) -> None:
    declined: dict[Any, Case] = {}
    for case in cases(op):
        if not supports(engine, case.graph):
            declined.setdefault(case.dtype, case)
    for case in declined.values():
        with pytest.raises(Unsupported) as caught:
            engine.compile(case.graph)
        assert caught.value.op in OPS, case.id
