"""The cases that engines are tested with cover the whole op table."""

import pytest
from support.cases.op_cases import PROGRAMS, ROWS, cases

from wire.errors import GraphError
from wire.ir.dtypes import DTYPES, DType, dtype_of
from wire.ir.graph import Node
from wire.ir.ops import OPS
from wire.ir.types import Attrs, TensorType

DATA = {"gather": (0,), "scatter": (0, 2), "dynamic_slice": (0,), "dynamic_update_slice": (0, 1), "select": (1, 2)}


def accepts(node: Node, types: list[TensorType], dtype: DType) -> bool:
    """Whether the row's rule takes `dtype` for the data operands (or for the attribute, where there is none)."""
    data = DATA.get(node.op, range(len(types)))
    given = [TensorType(kind.shape, dtype if place in data else kind.dtype) for place, kind in enumerate(types)]
    attrs = dict(node.attrs)
    if not types:
        attrs["dtype"] = dtype.name
    if node.op == "bitcast":
        attrs["dtype"] = dtype.name
    try:
        OPS[node.op].dtype(Attrs(attrs), given)
    except GraphError:
        return False
    return True


def test_every_op_has_a_row() -> None:
    assert {*ROWS, *PROGRAMS} == set(OPS)


@pytest.mark.parametrize("op", ROWS)
def test_every_dtype_of_the_rule_has_cases(op: str) -> None:
    actual = cases(op)
    graph = actual[0].graph
    node = next(node for node in graph if node.op == op)
    types = [graph.types[source] for source in node.inputs]
    assert {case.dtype for case in actual} == {dtype for dtype in DTYPES if accepts(node, types, dtype)}


def test_cases_have_distinct_names_and_inputs_that_fit() -> None:
    every = cases()
    assert len({case.id for case in every}) == len(every)
    for case in every:
        declared = {**case.graph.input_types, **case.graph.param_types}
        assert {name: TensorType(a.shape, dtype_of(a)) for name, a in case.inputs.items()} == declared, case.id
        assert all(array.flags.c_contiguous for array in case.arguments), case.id
        assert case.op in PROGRAMS or case.op in {node.op for node in case.graph.nodes}, case.id
