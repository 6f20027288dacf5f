"""How the wgsl engine cuts a graph with branches and loops into steps; carried out here by the cpu engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.control_cases import CASES, graph_of, siblings
from support.cases.op_cases import cases
from support.cases.random_graphs import random_graph

from wire.ir.dtypes import F16
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import CONTROL
from wire.ir.types import TensorType
from wire.ir.verify import verify
from worker.cpu import evaluate
from worker.wgsl.control_schedule import Segment, schedule


def carried_out(graph: WireGraph, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """The outputs by the schedule, nothing being kept longer than it says."""
    plan = schedule(graph)
    flat = plan.graph
    values = {index: inputs[flat.nodes[index].attrs["name"]] for index in (*flat.inputs, *flat.params)}
    for at, step in enumerate(plan.steps):
        operands = [values[index] for index in step.inputs]
        if isinstance(step, Segment):
            verify(step.graph)
            assert not step.graph.has_control
            actual = evaluate(step.graph, dict(zip(step.graph.input_types, operands, strict=True)))
            values |= dict(zip(step.outputs, actual, strict=True))
        else:
            builder = GraphBuilder()
            sources = [builder.input(str(place), *flat.types[i]) for place, i in enumerate(step.inputs)]
            attrs = [{**step.node.attrs, "output": output} for _, output in step.outputs]
            alone = builder.build([builder.add(step.node.op, *sources, **attributes) for attributes in attrs])
            actual = evaluate(alone, {str(place): array for place, array in enumerate(operands)})
            values |= {index: array for (index, _), array in zip(step.outputs, actual, strict=True)}
        for index in step.inputs:
            if plan.last[index] == at:
                values.pop(index, None)
    return [values[index] for index in flat.outputs]


def same(graph: WireGraph, inputs: dict[str, NDArray[Any]]) -> None:
    for actual, expected in zip(carried_out(graph, inputs), evaluate(graph, inputs), strict=True):
        assert (actual.dtype, actual.shape, actual.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@pytest.mark.parametrize("op", CASES)
def test_cases_in_steps_give_the_same_bits(op: str) -> None:
    for case in cases(op):
        same(case.graph, dict(case.inputs))


def test_random_graphs_in_steps_give_the_same_bits() -> None:
    looped = 0
    for seed in range(40):
        random = random_graph(seed)
        if random.graph.has_control:
            looped += 1
            same(random.graph, {**random.inputs, **random.params})
    assert looped > 20


def test_straight_work_before_between_and_after_is_one_segment_each() -> None:
    kind = TensorType((4,), F16)
    step = graph_of([kind], lambda b, x: [b.add("neg", x), b.add("exp", x)])
    attrs = {"body": step, "carry": 1, "consts": 0, "length": 3, "reverse": 0}

    def whole(b: GraphBuilder, x: int) -> list[int]:
        before = b.add("exp", b.add("neg", x))
        last, rows = siblings(b, "scan", before, count=2, **attrs)
        between = b.add("add", b.add("sin", last), before)
        again = b.add("scan", between, **attrs, output=0)
        return [b.add("cos", again), b.add("neg", rows)]

    steps = schedule(graph_of([kind], whole)).steps
    assert [isinstance(step, Segment) for step in steps] == [True, False, True, False, True]
    sizes = [len([n for n in step.graph if n.op != "input"]) for step in steps if isinstance(step, Segment)]
    assert sizes == [2, 3, 1]


def test_composites_with_loops_inside_are_opened() -> None:
    kind = TensorType((4,), F16)
    attrs = {
        "body": graph_of([kind], lambda b, x: [x]),
        "carry": 1,
        "consts": 0,
        "length": 3,
        "reverse": 0,
        "output": 0,
    }
    body = graph_of([kind], lambda b, x: [b.add("scan", x, **attrs)])
    graph = graph_of([kind], lambda b, x: [b.add("composite", x, name="looped", body=body)])
    assert [node.op for node in schedule(graph).graph if node.op in CONTROL] == ["scan"]
    same(graph, {"0": np.ones(4, np.float16)})


@pytest.mark.parametrize("shape", [(), (3,), (4,), (3, 5)])
def test_rows_of_an_odd_number_of_f16_travel_as_f32(shape: tuple[int, ...]) -> None:
    kind = TensorType(shape, F16)
    body = graph_of([kind, kind], lambda b, x, y: [b.add("mul", x, y), b.add("add", x, y)])
    attrs = {"body": body, "carry": 1, "consts": 0, "length": 3, "reverse": 1, "count": 2}
    graph = graph_of([kind, TensorType((3, *shape), F16)], lambda b, *all: siblings(b, "scan", *all, **attrs))
    rng = np.random.default_rng(0)
    inputs = {
        "0": rng.standard_normal(shape).astype(np.float16),
        "1": rng.standard_normal((3, *shape)).astype(np.float16),
    }
    inputs["0"] = np.asarray(inputs["0"], np.float16)
    same(graph, inputs)
    (scan,) = {node.attrs["body"] for node in schedule(graph).graph if node.op == "scan"}
    odd = int(np.prod(shape)) % 2 == 1
    assert [scan.types[scan.inputs[1]].dtype.name, scan.types[scan.outputs[1]].dtype.name] == [
        ["f16"] * 2,
        ["f32"] * 2,
    ][odd]
