"""The op table, swept: every row is documented, has a cpu kernel, and refuses what does not fit with a typed error."""

from __future__ import annotations

import inspect
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.control_cases import graph_of

from docs.tools.ops_page import FAMILIES, OPERANDS, markdown
from wire.errors import AttrError, DTypeError, GraphError, LimitExceeded, ShapeError, UnknownOp
from wire.ir import collective_rules, control_rules, indexing_rules, matrix_rules, ops, rules
from wire.ir.dtypes import BOOL, C64, DTYPES, F32, F64, I32, U32, DType
from wire.ir.graph import GraphBuilder, Node, infer
from wire.ir.ops import (
    GRAPH_ATTRS,
    LEAVES,
    MULTIPLE,
    OPS,
    check_attrs,
    op_named,
    result_count,
    row_hash,
    tolerance_for,
)
from wire.ir.types import Attrs, TensorType
from wire.units import counted
from worker.cpu.control import CONTROL
from worker.cpu.engine import KERNELS, SEVERAL

SHAPE = (2, 3)
RULES = (rules, matrix_rules, indexing_rules, control_rules, collective_rules)


def body(*dtypes: DType) -> Any:
    """A composite's body over operands of SHAPE: the first, negated."""
    builder = GraphBuilder()
    operands = [builder.input(str(place), SHAPE, dtype) for place, dtype in enumerate(dtypes)]
    return builder.build([builder.add("neg", operands[0])])


def with_param() -> Any:
    builder = GraphBuilder()
    x, w = builder.input("x", SHAPE, F32), builder.param("w", SHAPE, F32)
    return builder.build([builder.add("add", x, w)])


def with_large_constant() -> Any:
    builder = GraphBuilder()
    x, table = builder.input("x", SHAPE, F32), builder.const(np.zeros((20_000, *SHAPE), np.float32))
    return builder.build([builder.add("add", x, builder.add("reduce_sum", table, axes=(0,)))])


def f32(*shape: int) -> TensorType:
    return TensorType(shape, F32)


def c64(*shape: int) -> TensorType:
    return TensorType(shape, C64)


def i32(*shape: int) -> TensorType:
    return TensorType(shape, I32)


ASKED = TensorType((), BOOL)
SHRUNK = graph_of([f32(2, 3)], lambda b, x: [b.add("reduce_sum", x, axes=(0,))])
ALWAYS = graph_of([f32(2, 3)], lambda b, x: [b.const(np.array(True))])
COND: dict[str, Any] = {"then": body(F32), "otherwise": body(F32)}
WHILE: dict[str, Any] = {
    "test": graph_of([f32(2, 3)] * 2, lambda b, x, y: [b.const(np.array(False))]),
    "body": body(F32, F32),
}
SCAN: dict[str, Any] = {
    "body": graph_of([f32(2, 3)] * 2, lambda b, x, y: [b.add("add", x, y), y]),
    "carry": 1,
    "consts": 0,
    "length": 4,
    "reverse": 1,
}


GROUP: dict[str, Any] = {"axes": ("dp", "tp"), "sizes": (2, 3)}
SPMD: dict[str, Any] = {
    **GROUP,
    "body": graph_of([f32(2, 3), f32(4)], lambda b, x, y: [b.add("all_reduce", x, **GROUP, reduction="sum"), y]),
    "in_specs": ("dp -", "tp+dp"),
    "out_specs": ("- tp", "-"),
}


def spmd_over(make: Any, **attrs: Any) -> dict[str, Any]:
    """An spmd of one operand and result."""
    plain = {"in_specs": ("dp -",), "out_specs": ("dp -",), "output": 0}
    return {**GROUP, **plain, "body": graph_of([f32(2, 3)], make), **attrs}


def turned(axes: tuple[str, ...], *sizes: tuple[int, ...]) -> Any:
    """The body that has a collective over a group of each of these sizes."""

    def make(b: GraphBuilder, x: int) -> list[int]:
        for size in sizes:
            x = b.add("permute", x, axes=axes, sizes=size, pairs=())
        return [x]

    return make


ALONE = {**spmd_over(lambda b, x: [x]), "axes": ("pp",), "sizes": (1,), "in_specs": ("- -",), "out_specs": ("- -",)}


# One good use of every op: its operands' types, attributes, and the result.
GOOD: dict[str, tuple[tuple[TensorType, ...], dict[str, Any], TensorType]] = {
    "input": ((), {"name": "x", "shape": SHAPE, "dtype": "f32"}, f32(2, 3)),
    "param": ((), {"name": "x", "shape": SHAPE, "dtype": "bf16"}, TensorType(SHAPE, rules.dtype_named("bf16"))),
    "const": ((), {"shape": (2,), "dtype": "i32", "data": bytes(8)}, i32(2)),
    "iota": ((), {"shape": SHAPE, "dtype": "i32", "axis": 1}, i32(2, 3)),
    "random_bits": ((TensorType((2,), U32),), {"shape": SHAPE}, TensorType(SHAPE, U32)),
    **{name: ((f32(2, 3),), {}, f32(2, 3)) for name, op in OPS.items() if op.family == "unary"},
    **{name: ((f32(2, 1), f32(3)), {}, f32(2, 3)) for name, op in OPS.items() if op.family == "binary"},
    "not": ((i32(2, 3),), {}, i32(2, 3)),
    "is_nan": ((f32(2, 3),), {}, TensorType(SHAPE, BOOL)),
    **{name: ((c64(2, 3),), {}, f32(2, 3)) for name in ("real", "imag")},
    "complex": ((f32(2, 1), f32(3)), {}, c64(2, 3)),
    **{name: ((i32(2, 1), i32(3)), {}, i32(2, 3)) for name in ("and", "or", "xor", "shl", "shr")},
    **{name: ((f32(2, 1), f32(3)), {}, TensorType(SHAPE, BOOL)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "select": ((TensorType((), BOOL), f32(2, 1), f32(3)), {}, f32(2, 3)),
    "cast": ((f32(2, 3),), {"dtype": "i32"}, i32(2, 3)),
    "bitcast": ((f32(2, 3),), {"dtype": "i32"}, i32(2, 3)),
    **{f"reduce_{name}": ((f32(2, 3),), {"axes": (1,)}, f32(2)) for name in ("sum", "prod", "max", "min")},
    "argmax": ((f32(2, 3),), {"axis": 0}, i32(3)),
    **{name: ((f32(2, 3),), {"axis": 1}, f32(2, 3)) for name in ("cumsum", "cumprod", "cummax", "cummin")},
    "fft": ((c64(2, 3),), {"axis": 1, "inverse": 1}, c64(2, 3)),
    "argsort": ((f32(2, 3),), {"axis": 1}, i32(2, 3)),
    "reshape": ((f32(2, 3),), {"shape": (3, 2)}, f32(3, 2)),
    "transpose": ((f32(2, 3),), {"perm": (1, 0)}, f32(3, 2)),
    "broadcast": ((f32(2, 1),), {"shape": (4, 2, 3)}, f32(4, 2, 3)),
    "slice": ((f32(2, 7),), {"start": (0, 1), "stop": (2, 6), "step": (1, 2)}, f32(2, 3)),
    "pad": ((f32(2, 3), f32()), {"low": (1, 0), "high": (0, 2), "interior": (0, 1)}, f32(3, 7)),
    "concat": ((f32(2, 3), f32(4, 3)), {"axis": 0}, f32(6, 3)),
    "reverse": ((f32(2, 3),), {"axes": (1,)}, f32(2, 3)),
    "after": ((f32(2, 3), i32(4), f32()), {}, f32(2, 3)),
    "constraint": ((f32(2, 3),), {"axes": ("dp", "tp"), "sizes": (2, 3), "spec": "tp dp"}, f32(2, 3)),
    "transfer": ((f32(2, 3),), {"device": "worker 1 anna"}, f32(2, 3)),
    "dot": ((f32(5, 2, 3), f32(5, 3, 4)),
            {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contract": (2,), "rhs_contract": (1,)}, f32(5, 2, 4)),
    "conv": ((f32(2, 6, 9, 5), f32(8, 3, 3, 2)),
             {"stride": (2, 1), "low": (1, 0), "high": (0, 2), "lhs_dilation": (1, 2), "rhs_dilation": (2, 3),
              "groups": 2}, f32(2, 8, 3, 8)),
    "cholesky": ((f32(2, 3, 3),), {}, f32(2, 3, 3)),
    "solve": ((f32(2, 3, 3), f32(2, 3, 4)), {}, f32(2, 3, 4)),
    "lu": ((f32(2, 3, 4),), {"output": 1}, i32(2, 3)),
    "qr": ((f32(2, 4, 3),), {"full": 0, "output": 1}, f32(2, 3, 3)),
    "eigh": ((f32(2, 3, 3),), {"output": 0}, f32(2, 3)),
    "svd": ((f32(2, 4, 3),), {"full": 1, "output": 2}, f32(2, 3, 3)),
    "gather": ((f32(2, 3, 4), i32(2, 5)), {"axis": 1, "batch_dims": 1}, f32(2, 5, 4)),
    "scatter": ((f32(2, 3), i32(5), f32(2, 5)), {"axis": 1, "mode": "add"}, f32(2, 3)),
    "dynamic_slice": ((f32(2, 3), i32(2)), {"sizes": (1, 2)}, f32(1, 2)),
    "dynamic_update_slice": ((f32(2, 3), f32(1, 2), i32(2)), {}, f32(2, 3)),
    "composite": ((f32(2, 3),), {"name": "c", "body": body(F32)}, f32(2, 3)),
    "cond": ((ASKED, f32(2, 3)), {**COND, "output": 0}, f32(2, 3)),
    "while": ((f32(2, 3), f32(2, 3)), {**WHILE, "output": 0}, f32(2, 3)),
    "scan": ((f32(2, 3), f32(4, 2, 3)), {**SCAN, "output": 1}, f32(4, 2, 3)),
    "spmd": ((f32(4, 3), f32(24)), {**SPMD, "output": 0}, f32(2, 9)),
    "all_reduce": ((f32(2, 3),), {**GROUP, "reduction": "max"}, f32(2, 3)),
    "all_gather": ((f32(2, 3),), {**GROUP, "axis": 1}, f32(2, 18)),
    "reduce_scatter": ((f32(2, 12),), {**GROUP, "axis": 1, "reduction": "sum"}, f32(2, 2)),
    "all_to_all": ((f32(2, 12),), {**GROUP, "split_axis": 1, "concat_axis": 0}, f32(12, 2)),
    "permute": ((f32(2, 3),), {**GROUP, "pairs": (0, 5, 5, 1)}, f32(2, 3)),
    "broadcast_from": ((f32(2, 3),), {**GROUP, "root": 5}, f32(2, 3)),
    "axis_index": ((), GROUP, i32()),
}  # fmt: skip


def inferred(op: str, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> TensorType:
    return infer(Node(op, tuple(range(len(types))), Attrs(attrs)), types)


@pytest.mark.parametrize("op", OPS)
def test_a_good_use_has_the_type_the_rules_say(op: str) -> None:
    types, attrs, result = GOOD[op]
    assert inferred(op, types, attrs) == result
    assert OPS[op].flops(Attrs(attrs), types, result) >= 0


def test_docs_are_generated_from_the_table() -> None:
    stored = Path(__file__).parents[3] / "docs" / "ops.md"
    assert stored.read_text() == markdown(), "run: python -m docs.tools.ops_page > docs/ops.md"


def test_every_row_stands_in_the_docs() -> None:
    text = markdown()
    assert {op.family for op in OPS.values()} == FAMILIES.keys()
    for op in OPS.values():
        assert f"| `{op.name}(" in text
        assert all(inspect.getdoc(rule) for rule in (op.shape, op.dtype)), op.name
    assert {name: OPS[name].inputs for name in OPERANDS} == {name: len(words) for name, words in OPERANDS.items()}


def test_every_op_has_exactly_one_cpu_row() -> None:
    assert KERNELS.keys() == OPS.keys() - LEAVES - GRAPH_ATTRS.keys() - MULTIPLE - ops.COLLECTIVES, (
        "the engine itself places leaves and inner graphs, and no rank is alone"
    )
    assert SEVERAL.keys() == MULTIPLE - {"spmd"} and CONTROL.keys() == ops.CONTROL


def test_names_are_keys_and_every_rule_belongs_to_the_rules() -> None:
    for name, op in OPS.items():
        assert op.name == name
        for rule in (op.shape, op.dtype):
            assert rule in [getattr(module, rule.__name__, None) for module in RULES]


def test_attribute_kinds_are_known_and_what_a_type_says_is_the_attribute() -> None:
    for op, (types, attrs, _) in GOOD.items():
        assert {kind.rstrip("?") for kind in OPS[op].attrs.values()} <= {
            "int",
            "ints",
            "float",
            "str",
            "strs",
            "bytes",
            "graph",
        }
        result = inferred(op, types, attrs)
        assert attrs.get("shape", result.shape) == result.shape, "the text form relies on it"
        assert attrs.get("dtype", result.dtype.name) == result.dtype.name


@pytest.mark.parametrize("op", OPS)
def test_attributes_are_exactly_those_of_the_row(op: str) -> None:
    _, attrs, _ = GOOD[op]
    kinds = {"int": 1.0, "ints": [1], "float": 1, "str": b"f32", "strs": ["dp"], "bytes": "f32", "graph": 3}
    wrong = [{**attrs, "surplus": 1}]
    for name, kind in OPS[op].attrs.items():
        wrong.append({**attrs, name: kinds[kind.rstrip("?")]})
        wrong.append({**attrs, name: None})
        if not kind.endswith("?"):
            wrong.append({key: value for key, value in attrs.items() if key != name})
        if kind == "ints":
            wrong.extend({**attrs, name: (value,)} for value in (1.0, True, "1", 1 << 63, -(1 << 63) - 1))
        if kind == "strs":
            wrong.extend({**attrs, name: value} for value in ("dp", (b"dp",), ("dp", 1)))
        if kind.startswith("int"):
            wrong.extend({**attrs, name: value} for value in (True, 1 << 63))
    for case in wrong:
        with pytest.raises(AttrError) as caught:
            check_attrs(OPS[op], Attrs(case))
        assert caught.value.op == op


def test_a_builder_names_an_attribute_that_cannot_be_hashed() -> None:
    builder = GraphBuilder()
    with pytest.raises(AttrError, match="axes must be ints, got list"):
        builder.add("reduce_sum", builder.input("x", SHAPE, F32), axes=[1])


@pytest.mark.parametrize(("name", "said"), [("\ud800", "half a surrogate pair"), ("n" * 257, "at most 256 bytes")])
def test_a_builder_refuses_names_that_cannot_travel(name: str, said: str) -> None:
    builder = GraphBuilder()
    for use in (lambda: builder.param(name, (), F32), lambda: builder.build([], name=name)):
        with pytest.raises(GraphError, match=said):
            use()
    with pytest.raises(GraphError, match=said):
        builder.build([builder.input("x", (), F32)], names=[name])


# -- dtypes -----------------------------------------------------------------------------------------------

REAL, NUMBER, FLOAT, INEXACT, BITS, INTEGER, ORDERED, ANY = "iuf", "iufc", "f", "fc", "biu", "iu", "biuf", "biufc"
ACCEPTED = {
    **dict.fromkeys(("neg", "abs", "add", "mul", "div", "pow"), NUMBER),
    **dict.fromkeys(("reduce_sum", "reduce_prod", "cumsum", "cumprod", "dot", "conv"), NUMBER),
    **dict.fromkeys(("recip", "sqrt", "sin", "cos", "tan", "tanh", "exp", "log", "round", "is_nan"), INEXACT),
    **dict.fromkeys((name for name, op in OPS.items() if op.family == "matrix"), INEXACT),
    **dict.fromkeys(("sign", "max", "min", "rem", "argmax", "cummax", "cummin"), REAL),
    **dict.fromkeys(("not", "and", "or", "xor"), BITS),
    **dict.fromkeys(("shl", "shr"), INTEGER),
    **dict.fromkeys(("lt", "le", "gt", "ge", "reduce_max", "reduce_min", "argsort"), ORDERED),
    **dict.fromkeys(("real", "imag", "fft"), "c"),
    **dict.fromkeys(("eq", "ne"), ANY),
    **dict.fromkeys(("all_gather", "all_to_all", "permute", "broadcast_from"), ANY),
    "all_reduce": ORDERED,
    "reduce_scatter": NUMBER,
    **dict.fromkeys((name for name, op in OPS.items() if op.family == "view"), ANY),
}


REAL_DTYPES = [dtype for dtype in DTYPES if dtype.kind != "c"]
ROLES = OPERANDS.keys() - {"dot", "atan2", "solve"}  # operands of different kinds: rows of WRONG_DTYPES


@pytest.mark.parametrize("op", [name for name in OPS if OPS[name].inputs and name not in ROLES])
def test_operands_have_one_dtype_of_the_kinds_the_op_takes(op: str) -> None:
    types, attrs, _ = GOOD[op]
    for dtype in DTYPES:
        alike = tuple(kind._replace(dtype=dtype) for kind in types)
        if op == "bitcast":
            accepted = dtype.kind != "b" and dtype.itemsize == 4
        elif op in ("complex", "cast"):
            accepted = dtype in {"complex": (F32, F64), "cast": REAL_DTYPES}[op]
        else:
            accepted = dtype.kind in ACCEPTED.get(op, FLOAT)
        if accepted:
            inferred(op, alike, attrs)
        else:
            with pytest.raises(DTypeError) as caught:
                inferred(op, alike, attrs)
            assert caught.value.op == op
    if len(types) > 1:
        with pytest.raises(DTypeError, match="operands must have one dtype"):
            inferred(op, (types[0], types[1]._replace(dtype=F64)), attrs)


U8 = next(dtype for dtype in DTYPES if dtype.name == "u8")
WRONG_DTYPES = [
    ("iota", (), {"dtype": "bool"}, "expected a real number dtype"),
    ("iota", (), {"dtype": "c64"}, "expected a real number dtype"),
    ("iota", (), {"dtype": "f33"}, "unknown dtype 'f33'"),
    ("input", (), {"dtype": ""}, "unknown dtype ''"),
    ("param", (), {"dtype": "float32"}, "unknown dtype"),
    ("const", (), {"dtype": "F32"}, "unknown dtype"),
    ("cast", (f32(2, 3),), {"dtype": "f128"}, "unknown dtype"),
    ("bitcast", (f32(2, 3),), {"dtype": "f64"}, "two real number dtypes of one size"),
    ("bitcast", (TensorType(SHAPE, U8),), {"dtype": "bool"}, "two real number dtypes of one size"),
    ("bitcast", (c64(2, 3),), {"dtype": "f64"}, "two real number dtypes of one size"),
    ("bitcast", (c64(2, 3),), {"dtype": "c64"}, "two real number dtypes of one size"),
    ("cast", (c64(2, 3),), {"dtype": "f32"}, "would drop the imaginary part"),
    ("complex", (i32(2), i32(2)), {}, "expected a float dtype, got i32"),
    *[
        (op, (c64(2, 3),) * 2, {}, "expected (bool or )?a real number dtype, got c64")
        for op in ("max", "min", "rem", "lt", "le", "gt", "ge")
    ],
    ("floor", (c64(2, 3),), {}, "expected a float dtype, got c64"),
    ("argsort", (c64(2, 3),), {}, "expected bool or a real number dtype, got c64"),
    ("real", (f32(2, 3),), {}, "expected a complex dtype, got f32"),
    ("scatter", (c64(2, 3), i32(5), c64(2, 5)), {"mode": "max"}, "mode 'max' needs a real number dtype, got c64"),
    ("select", (c64(), f32(3), f32(3)), {}, "a condition is bool or float"),
    ("fft", (f32(2, 3),), {}, "expected a complex dtype, got f32"),
    ("random_bits", (i32(2),), {}, "a random key is u32"),
    ("select", (i32(), f32(3), f32(3)), {}, "a condition is bool or float"),
    ("select", (f32(), i32(3), f32(3)), {}, "operands must have one dtype"),
    ("pad", (f32(2, 3), i32()), {}, "operands must have one dtype"),
    ("concat", (f32(2, 3), i32(4, 3)), {}, "operands must have one dtype"),
    ("gather", (f32(2, 3, 4), f32(2, 5)), {}, "expected an integer dtype, got f32"),
    ("scatter", (f32(2, 3), f32(5), f32(2, 5)), {}, "expected an integer dtype"),
    ("scatter", (f32(2, 3), i32(5), i32(2, 5)), {}, "operands must have one dtype"),
    ("scatter", (TensorType(SHAPE, BOOL), i32(5), TensorType((2, 5), BOOL)), {}, "mode 'add' needs a number dtype"),
    ("dynamic_slice", (f32(2, 3), f32(2)), {}, "expected an integer dtype"),
    ("dynamic_update_slice", (f32(2, 3), f32(1, 2), f32(2)), {}, "expected an integer dtype"),
    ("dynamic_update_slice", (f32(2, 3), i32(1, 2), i32(2)), {}, "operands must have one dtype"),
]


def test_there_are_as_many_results_as_the_table_says() -> None:
    for op in MULTIPLE:
        types, attrs, _ = GOOD[op]
        count = result_count(op, Attrs(attrs))
        assert [inferred(op, types, {**attrs, "output": place}) for place in range(count)]
        with pytest.raises(AttrError, match=f"output {count} of {count}"):
            inferred(op, types, {**attrs, "output": count})


def test_values_of_complex_matrices_are_real() -> None:
    for op, place in (("eigh", 0), ("svd", 1)):
        given = TensorType((3, 3), C64)
        dtypes = [
            inferred(op, (given,), {**GOOD[op][1], "output": output}).dtype
            for output in range(result_count(op, Attrs()))
        ]
        assert dtypes == [F32 if output == place else C64 for output in range(len(dtypes))]


@pytest.mark.parametrize(("op", "types", "changes", "said"), WRONG_DTYPES)
def test_a_wrong_dtype_is_named(op: str, types: tuple[TensorType, ...], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DTypeError, match=said) as caught:
        inferred(op, types, {**GOOD[op][1], **changes})
    assert caught.value.op == op


# -- shapes -----------------------------------------------------------------------------------------------

DOT = GOOD["dot"][1]
CONV = GOOD["conv"][1]
_line = {name: (0,) if name in ("low", "high") else (1,) for name in CONV}
SLICE = GOOD["slice"][1]
WRONG_SHAPES: list[tuple[str, tuple[TensorType, ...], dict[str, Any], type[GraphError]]] = [
    *[(op, (), {**GOOD[op][1], "shape": (2, -1)}, ShapeError) for op in ("input", "param", "iota")],
    *[(op, (), {**GOOD[op][1], "shape": (2, (1 << 31) + 1)}, LimitExceeded) for op in ("input", "param", "iota")],
    *[(op, (), {**GOOD[op][1], "shape": (1 << 31, 1 << 31)}, LimitExceeded) for op in ("input", "param", "iota")],
    *[(op, (), {**GOOD[op][1], "shape": (1 << 31, 0, 1 << 31)}, LimitExceeded) for op in ("input", "param", "iota")],
    *[(op, (), {**GOOD[op][1], "shape": (1,) * 9}, LimitExceeded) for op in ("input", "param", "iota")],
    ("const", (), {"shape": (3,), "dtype": "i32", "data": bytes(8)}, ShapeError),
    ("const", (), {"shape": (-2,), "dtype": "i32", "data": bytes(8)}, ShapeError),
    ("const", (), {"shape": (1 << 62,), "dtype": "i32", "blob": bytes(32)}, LimitExceeded),
    ("const", (), {"shape": (2,), "dtype": "i32"}, AttrError),
    ("const", (), {"shape": (2,), "dtype": "i32", "data": bytes(8), "blob": bytes(32)}, AttrError),
    ("const", (), {"shape": (2,), "dtype": "i32", "blob": bytes(31)}, AttrError),
    ("iota", (), {"shape": (2,), "dtype": "i32", "axis": 1}, AttrError),
    ("iota", (), {"shape": (), "dtype": "i32", "axis": 0}, AttrError),
    ("random_bits", (TensorType((3,), U32),), {"shape": (2,)}, ShapeError),
    ("random_bits", (TensorType((), U32),), {"shape": (2,)}, ShapeError),
    ("random_bits", (TensorType((2,), U32),), {"shape": (-2,)}, ShapeError),
    ("random_bits", (TensorType((2,), U32),), {"shape": (1 << 40,)}, LimitExceeded),
    *[(op, tuple(kind._replace(shape=shape) for kind, shape in zip(GOOD[op][0], (SHAPE, (2,)), strict=True)), {},
       ShapeError) for op in OPS if OPS[op].family == "binary"],
    ("add", (f32(1 << 20, 1), f32(1 << 20)), {}, LimitExceeded),
    ("select", (f32(2), f32(3), f32(3)), {}, ShapeError),
    *[(f"reduce_{name}", (f32(2, 3),), {"axes": axes}, AttrError)
      for name in ("sum", "prod", "max", "min") for axes in ((2,), (-1,), (0, 0), (1 << 62,))],
    *[(f"reduce_{name}", (f32(2, 0),), {"axes": (1,)}, ShapeError) for name in ("max", "min")],
    *[("argmax", (f32(2, 3),), {"axis": axis}, AttrError) for axis in (-1, 2, 1 << 62)],
    *[(op, (f32(2, 3),), {"axis": axis}, AttrError)
      for op in ("cumsum", "cumprod", "cummax", "cummin", "argsort") for axis in (-1, 2, 1 << 62)],
    *[("fft", (c64(2, 3),), {"axis": axis, "inverse": inverse}, AttrError)
      for axis, inverse in ((2, 0), (-1, 0), (1, 2))],
    ("fft", (c64(2, 0),), {"axis": 1, "inverse": 0}, ShapeError),
    ("argmax", (f32(2, 0),), {"axis": 1}, ShapeError),
    ("argmax", (f32(),), {"axis": 0}, AttrError),
    ("reshape", (f32(2, 3),), {"shape": (7,)}, ShapeError),
    ("reshape", (f32(2, 3),), {"shape": (-2, -3)}, ShapeError),
    ("reshape", (f32(0,),), {"shape": (0, 1 << 40)}, LimitExceeded),
    *[("transpose", (f32(2, 3),), {"perm": perm}, AttrError) for perm in ((0,), (0, 0), (0, 2), (1, 0, 2), (-1, 0))],
    ("broadcast", (f32(2, 3),), {"shape": (3,)}, ShapeError),
    ("broadcast", (f32(2, 3),), {"shape": (2, 1)}, ShapeError),
    ("broadcast", (f32(2, 1),), {"shape": (2, -1)}, ShapeError),
    ("broadcast", (f32(2, 1),), {"shape": (1 << 30, 2, 100)}, LimitExceeded),
    ("slice", (f32(2, 7),), {**SLICE, "start": (0,)}, AttrError),
    ("slice", (f32(2, 7),), {**SLICE, "stop": (2, 8)}, ShapeError),
    ("slice", (f32(2, 7),), {**SLICE, "start": (0, -1)}, ShapeError),
    ("slice", (f32(2, 7),), {**SLICE, "start": (0, 7)}, ShapeError),
    ("slice", (f32(2, 7),), {**SLICE, "step": (1, 0)}, ShapeError),
    ("pad", (f32(2, 3), f32(1)), GOOD["pad"][1], ShapeError),
    ("pad", (f32(2, 3), f32()), {**GOOD["pad"][1], "low": (1,)}, AttrError),
    ("pad", (f32(2, 3), f32()), {**GOOD["pad"][1], "high": (0, -1)}, AttrError),
    ("pad", (f32(2, 3), f32()), {**GOOD["pad"][1], "interior": (1 << 62, 0)}, LimitExceeded),
    ("concat", (f32(2, 3), f32(2, 4)), {"axis": 0}, ShapeError),
    ("concat", (f32(2, 3), f32(2)), {"axis": 0}, ShapeError),
    ("concat", (f32(2, 3),), {"axis": 2}, AttrError),
    ("concat", (f32(),), {"axis": 0}, AttrError),
    ("concat", (), {"axis": 0}, LimitExceeded),
    ("concat", (f32(2, 3),) * 4097, {"axis": 0}, LimitExceeded),
    ("after", (), {}, LimitExceeded),
    *[("transfer", (f32(),), {"device": device}, AttrError)
      for device in ("", "gpu 1", "accelerator", "accelerator -1", "worker", "tpu", "worker 1 ", "worker x", " cpu")],
    *[("constraint", (f32(2, 3),), {**GOOD["constraint"][1], "spec": spec}, AttrError)
      for spec in ("", "tp", "tp dp -", "tp tp", "pp -", "- tp+tp", "- +", "-  -")],
    *[("constraint", (f32(2, 3),), {**GOOD["constraint"][1], "axes": axes, "sizes": sizes}, AttrError)
      for axes, sizes in ((("dp",), (2, 3)), (("dp", "dp"), (2, 3)), (("dp", ""), (2, 3)), (("dp", "tp"), (2, 0)),
                          ((), ()))],
    ("reverse", (f32(2, 3),), {"axes": (2,)}, AttrError),
    ("reverse", (f32(2, 3),), {"axes": (1, 1)}, AttrError),
    ("dot", (f32(5, 2, 3), f32(5, 4, 4)), DOT, ShapeError),
    ("dot", (f32(5, 2, 3), f32(6, 3, 4)), DOT, ShapeError),
    ("dot", (f32(5, 2, 3), f32(3,)), DOT, AttrError),
    ("dot", (f32(5, 2, 3), f32(5, 3, 4)), {**DOT, "lhs_contract": ()}, AttrError),
    ("dot", (f32(5, 2, 3), f32(5, 3, 4)), {**DOT, "lhs_contract": (0,)}, AttrError),
    ("dot", (f32(5, 2, 3), f32(5, 3, 4)), {**DOT, "lhs_batch": (), "lhs_contract": (0, 2)}, AttrError),
    ("dot", (f32(1 << 20, 1), f32(1, 1 << 20)), {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,),
                                                 "rhs_contract": (0,)}, LimitExceeded),
    ("conv", (f32(2, 6), f32(8, 3)), CONV, ShapeError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3)), CONV, ShapeError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 6, 3, 2)), CONV, ShapeError),
    ("conv", (f32(2, 6, 9, 5), f32(7, 3, 3, 2)), CONV, ShapeError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "groups": 0}, ShapeError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "groups": -2}, ShapeError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "low": (1,)}, AttrError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "low": (-1, 0)}, AttrError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "high": (0, -1)}, AttrError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "stride": (0, 1)}, AttrError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "lhs_dilation": (1, 0)}, AttrError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "rhs_dilation": (0, 1)}, AttrError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "rhs_dilation": (5, 1)}, ShapeError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 0, 2)), CONV, ShapeError),
    ("conv", (f32(2, 6, 9, 5), f32(8, 3, 3, 2)), {**CONV, "low": (1 << 62, 0)}, ShapeError),
    ("conv", (f32(1 << 20, 2, 1), f32(1 << 20, 2, 1)), {**_line, "groups": 1}, LimitExceeded),
    ("gather", (f32(2, 3), i32(2, 5)), {"axis": 2, "batch_dims": 0}, AttrError),
    ("gather", (f32(2, 3), i32(2, 5)), {"axis": 0, "batch_dims": 1}, ShapeError),
    ("gather", (f32(2, 3), i32(4, 5)), {"axis": 1, "batch_dims": 1}, ShapeError),
    ("gather", (f32(2, 3), i32(2, 5)), {"axis": 1, "batch_dims": -1}, ShapeError),
    ("gather", (f32(2, 0), i32(5)), {"axis": 1, "batch_dims": 0}, ShapeError),
    ("gather", (f32(1 << 20, 1 << 10), i32(1 << 30)), {"axis": 0, "batch_dims": 0}, LimitExceeded),
    ("scatter", (f32(2, 3), i32(5), f32(2, 4)), {"axis": 1, "mode": "add"}, ShapeError),
    ("scatter", (f32(2, 3), i32(5), f32(2, 5)), {"axis": 1, "mode": "mul"}, AttrError),
    ("scatter", (f32(2, 3), i32(5), f32(2, 5)), {"axis": 2, "mode": "add"}, AttrError),
    ("dynamic_slice", (f32(2, 3), i32(2)), {"sizes": (1, 4)}, ShapeError),
    ("dynamic_slice", (f32(2, 3), i32(2)), {"sizes": (1, -1)}, ShapeError),
    ("dynamic_slice", (f32(2, 3), i32(2)), {"sizes": (1,)}, ShapeError),
    ("dynamic_slice", (f32(2, 3), i32(3)), {"sizes": (1, 1)}, ShapeError),
    ("dynamic_slice", (f32(2, 3), i32()), {"sizes": (1, 1)}, ShapeError),
    ("dynamic_update_slice", (f32(2, 3), f32(1, 4), i32(2)), {}, ShapeError),
    ("dynamic_update_slice", (f32(2, 3), f32(1), i32(2)), {}, ShapeError),
    ("dynamic_update_slice", (f32(2, 3), f32(1, 2), i32(1)), {}, ShapeError),
    ("composite", (f32(3, 2),), {"name": "c", "body": body(F32)}, ShapeError),
    ("composite", (i32(2, 3),), {"name": "c", "body": body(F32)}, ShapeError),
    ("composite", (f32(2, 3),) * 2, {"name": "c", "body": body(F32)}, ShapeError),
    ("composite", (), {"name": "c", "body": body(F32)}, ShapeError),
    ("composite", (f32(2, 3),), {"name": "c", "body": with_param()}, AttrError),
    ("composite", (f32(2, 3),), {"name": "c", "body": with_large_constant()}, AttrError),
    ("composite", (f32(2, 3),), {"name": "c", "body": replace(body(F32), outputs=(), output_names=())}, AttrError),
    *[(op, (f32(*shape),), GOOD[op][1], ShapeError) for op in ("cholesky", "eigh") for shape in ((3,), (), (2, 3))],
    *[(op, (f32(*shape),), GOOD[op][1], ShapeError) for op in ("lu", "qr", "svd") for shape in ((3,), ())],
    *[(op, (f32(3, 3),), {**GOOD[op][1], "output": output}, AttrError)
      for op in ("lu", "qr", "eigh", "svd") for output in (-1, 3, 1 << 62)],
    *[(op, (f32(3, 3),), {**GOOD[op][1], "full": full}, AttrError) for op in ("qr", "svd") for full in (-1, 2)],
    *[("solve", (f32(*a), f32(*b)), {}, ShapeError)
      for a, b in (((2, 3), (2, 3)), ((3, 3), (3,)), ((3, 3), (4, 3)), ((2, 3, 3), (3, 3)), ((2, 3, 3), (1, 3, 3)),
                   ((3,), (3, 1)))],
    ("cond", (), {**COND, "output": 0}, ShapeError),
    ("cond", (TensorType((1,), BOOL), f32(2, 3)), {**COND, "output": 0}, ShapeError),
    ("cond", (f32(), f32(2, 3)), {**COND, "output": 0}, ShapeError),
    ("cond", (ASKED, f32(3, 2)), {**COND, "output": 0}, ShapeError),
    ("cond", (ASKED, f32(2, 3)), {**COND, "then": with_param(), "output": 0}, AttrError),
    ("cond", (ASKED, f32(2, 3)), {**COND, "otherwise": with_large_constant(), "output": 0}, AttrError),
    ("cond", (ASKED, f32(2, 3)), {**COND, "otherwise": SHRUNK, "output": 0}, ShapeError),
    *[(op, types, {**attrs, "output": output}, AttrError) for output in (-1, 2, 1 << 62)
      for op, types, attrs in (("cond", (ASKED, f32(2, 3)), COND), ("while", (f32(2, 3),) * 2, WHILE),
                               ("scan", (f32(2, 3), f32(4, 2, 3)), SCAN))],
    ("while", (f32(2, 3),), {**WHILE, "output": 0}, ShapeError),
    ("while", (f32(2, 3), f32(2)), {**WHILE, "output": 0}, ShapeError),
    ("while", (f32(2, 3),) * 2, {**WHILE, "test": body(F32, F32), "output": 0}, ShapeError),
    ("while", (f32(2, 3),), {"test": ALWAYS, "body": SHRUNK, "output": 0}, ShapeError),
    ("while", (f32(2, 3),) * 2, {**WHILE, "body": with_param(), "output": 0}, AttrError),
    ("scan", (f32(2, 3), f32(5, 2, 3)), {**SCAN, "output": 0}, ShapeError),
    ("scan", (f32(2, 3), f32()), {**SCAN, "output": 0}, ShapeError),
    ("scan", (f32(2, 2), f32(4, 2, 3)), {**SCAN, "output": 0}, ShapeError),
    ("scan", (f32(4, 2, 3),), {**SCAN, "body": SHRUNK, "carry": 1, "output": 0}, ShapeError),
    *[("scan", (f32(2, 3), f32(4, 2, 3)), {**SCAN, name: value, "output": 0}, AttrError)
      for name, value in (("carry", -1), ("carry", 3), ("consts", -1), ("consts", 2), ("length", -1),
                          ("length", 1 << 31), ("reverse", 2))],
    *[(op, GOOD[op][0], {**GOOD[op][1], **group}, AttrError) for op in sorted(ops.COLLECTIVES) for group in (
        {"axes": ()}, {"axes": ("dp", "dp")}, {"axes": ("dp", "t p")}, {"axes": ("dp", "")}, {"axes": ("dp",)},
        {"sizes": (2, 0)}, {"sizes": (2, -3)}, {"sizes": (1 << 62, 3)}, {"sizes": (1024, 2)})],
    *[(op, (f32(2, 3),), {**GOOD[op][1], "reduction": "mean"}, AttrError) for op in ("all_reduce", "reduce_scatter")],
    *[(op, (f32(6, 6),), {**GOOD[op][1], name: axis}, AttrError) for axis in (-1, 2, 1 << 62) for op, name in (
        ("all_gather", "axis"), ("reduce_scatter", "axis"), ("all_to_all", "split_axis"),
        ("all_to_all", "concat_axis"))],
    ("all_gather", (f32(),), {**GROUP, "axis": 0}, AttrError),
    ("all_gather", (f32(1 << 30, 1),), {**GROUP, "axis": 0}, LimitExceeded),
    ("reduce_scatter", (f32(2, 10),), GOOD["reduce_scatter"][1], ShapeError),
    ("all_to_all", (f32(2, 10),), GOOD["all_to_all"][1], ShapeError),
    *[("permute", (f32(2, 3),), {**GROUP, "pairs": pairs}, AttrError)
      for pairs in ((0,), (0, 1, 2), (0, 6), (-1, 0), (0, 1, 0, 2), (1, 0, 2, 0))],
    *[("broadcast_from", (f32(2, 3),), {**GROUP, "root": root}, AttrError) for root in (-1, 6, 1 << 62)],
    ("spmd", (f32(4, 3), f32(25)), {**SPMD, "output": 0}, ShapeError),
    ("spmd", (f32(4, 4), f32(24)), {**SPMD, "output": 0}, ShapeError),
    ("spmd", (i32(4, 3), f32(24)), {**SPMD, "output": 0}, ShapeError),
    ("spmd", (f32(4, 3),), {**SPMD, "output": 0}, AttrError),
    ("spmd", (f32(4, 3), f32(24)), {**SPMD, "output": 2}, AttrError),
    ("spmd", (f32(4, 3), f32(24)), {**SPMD, "output": 0, "body": with_param()}, AttrError),
    *[("spmd", (f32(4, 3), f32(24)), {**SPMD, "output": 0, **wrong}, AttrError) for wrong in (
        {"in_specs": ("dp -",)}, {"in_specs": ("dp", "tp+dp")}, {"in_specs": ("dp pp", "tp+dp")},
        {"in_specs": ("dp dp", "tp+dp")}, {"in_specs": ("dp+dp -", "tp+dp")}, {"in_specs": ("dp  -", "tp+dp")},
        {"out_specs": ("- tp",)}, {"out_specs": ("tp", "-")}, {"out_specs": ("- pp", "-")},
        {"axes": ("dp", "dp")}, {"axes": ("dp",), "sizes": (2,)}, {"sizes": (1 << 40, 1 << 40)})],
    ("spmd", (f32(4, 3),), spmd_over(turned(("pp",), (2,))), AttrError),
    ("spmd", (f32(4, 3),), spmd_over(turned(("tp",), (2,))), AttrError),
    ("spmd", (f32(4, 3),), spmd_over(turned(("tp",), (2,), (3,))), AttrError),
    ("spmd", (f32(4, 3),), spmd_over(lambda b, x: [b.add("spmd", x, **ALONE)]), AttrError),
]  # fmt: skip


@pytest.mark.parametrize(("op", "types", "attrs", "error"), WRONG_SHAPES)
def test_a_wrong_shape_or_axis_is_named(
    op: str, types: tuple[TensorType, ...], attrs: dict[str, Any], error: type[GraphError]
) -> None:
    with pytest.raises(error) as caught:
        inferred(op, types, attrs)
    assert (type(caught.value), caught.value.op) == (error, op)


def test_operands_of_an_spmd_with_many_results_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = range(200)
    body = graph_of([f32(2, 3)] * len(counts), lambda b, *xs: [b.add("neg", x) for x in xs])
    specs = ("dp -",) * len(counts)
    attrs = {**GROUP, "body": body, "in_specs": specs, "out_specs": specs}
    check, checked = collective_rules.check_body, list[object]()
    monkeypatch.setattr(collective_rules, "check_body", lambda *args: (checked.append(args), check(*args)))
    assert {inferred("spmd", [f32(4, 3)] * len(counts), {**attrs, "output": output}) for output in counts} == {
        f32(4, 3)
    }
    assert len(checked) == 1
    with pytest.raises(ShapeError):
        inferred("spmd", [f32(4, 3)] * (len(counts) - 1) + [f32(5, 3)], {**attrs, "output": 0})


def test_every_op_that_could_be_misshapen_is_swept() -> None:
    swept = {row[0] for row in WRONG_SHAPES}
    assert OPS.keys() - swept == {name for name, op in OPS.items() if op.shape is rules.same_shape}


@pytest.mark.parametrize("op", OPS)
def test_a_wrong_number_of_operands_is_named(op: str) -> None:
    types, attrs, _ = GOOD[op]
    wrong = [types[:-1], (*types, f32())] if types else [(f32(),)]
    for case in wrong if OPS[op].inputs is not None else []:
        with pytest.raises(GraphError, match=f"{op} takes {counted(len(types), 'input')}, got {len(case)}"):
            inferred(op, case, attrs)


@pytest.mark.parametrize("op", OPS)
def test_whatever_stands_in_types_and_attributes_only_graph_errors_come_out(op: str) -> None:
    types, attrs, _ = GOOD[op]
    rng = random.Random(op)
    dims = (0, 1, 2, 3, 1 << 31, 1 << 62, -1)
    numbers = (*dims, 5, -(1 << 63), (1 << 63) - 1)
    refused = 0
    for _ in range(400):
        strange = [
            TensorType(tuple(rng.choice(dims[:5]) for _ in range(rng.randrange(9))), rng.choice(DTYPES))
            if rng.random() < 0.4 else kind
            for kind in types
        ]  # fmt: skip
        changed = {name: _strange(OPS[op].attrs[name], value, numbers, rng) for name, value in attrs.items()}
        try:
            result = inferred(op, tuple(strange), changed)
        except GraphError:
            refused += 1
        else:
            assert 0 <= result.size_bytes <= 1 << 36
            assert all(0 <= dim <= 1 << 31 for dim in result.shape)
    assert refused or op == "cast"


def _strange(kind: str, value: Any, numbers: tuple[int, ...], rng: random.Random) -> Any:
    if rng.random() < 0.5:
        return value
    match kind.rstrip("?"):
        case "int":
            return rng.choice(numbers)
        case "ints":
            return tuple(rng.choice(numbers) for _ in range(rng.choice((len(value), rng.randrange(10)))))
        case "strs":
            return tuple(rng.choice(("dp", "tp", "", "- -", "dp+tp -", "x y")) for _ in range(rng.randrange(4)))
        case "str":
            return rng.choice(("f32", "bool", "u64", "c128", "set", "", "\x00"))
        case "bytes":
            return bytes(rng.randrange(40))
    return value


# -- agreement --------------------------------------------------------------------------------------------


def test_an_unknown_op_says_what_to_do() -> None:
    with pytest.raises(UnknownOp, match="Upgrade the older node"):
        op_named("frobnicate")


def test_row_hashes_differ_and_follow_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {name: row_hash(name) for name in OPS}
    assert len(set(hashes.values())) == len(OPS)
    assert {len(row_bytes) for row_bytes in hashes.values()} == {8}
    for changed in (
        replace(OPS["add"], version=2),
        replace(OPS["add"], inputs=3),
        replace(OPS["add"], attrs={"axis": "int?"}),
        replace(OPS["add"], shape=rules.same_shape),
        replace(OPS["add"], dtype=rules.floating),
    ):
        monkeypatch.setitem(ops.OPS, "add", changed)
        row_hash.cache_clear()
        assert row_hash("add") != hashes["add"]
        assert row_hash("mul") == hashes["mul"]
    monkeypatch.undo()
    row_hash.cache_clear()
    assert row_hash("add") == hashes["add"]


def test_row_hashes_are_the_released_ones() -> None:
    """A changed hash means that older nodes no longer exchange this op: raise its version on purpose, then this."""
    assert {name: row_hash(name).hex() for name in ("add", "dot", "composite", "const")} == RELEASED


RELEASED = {
    "add": "ffa33715b9006ef7",
    "composite": "e3c390e67eb49653",
    "const": "162dfbbb4aea5ae6",
    "dot": "f7afd01a959187ff",
}


def test_tolerances_widen_with_the_dtype_and_integers_are_exact() -> None:
    for name in OPS:
        for dtype in DTYPES:
            tolerance, base = tolerance_for(name, dtype), OPS[name].tolerance
            if dtype.kind not in "fc" or (
                base == ops.EXACT and (dtype.kind, name) not in (("c", "abs"), ("c", "sign"))
            ):
                assert tolerance == ops.EXACT
            else:
                assert tolerance.rtol >= base.rtol and tolerance.atol >= base.atol
                assert dtype.name not in ("f16", "bf16") or tolerance.rtol >= 1e-3
