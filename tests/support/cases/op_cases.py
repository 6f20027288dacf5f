"""Small graphs for every op of the table and every dtype its rule accepts, with the inputs that catch mistakes.

A row of ROWS gives the examples of one op for one dtype: operands and attributes.  `cases` makes graphs of them, one
op each; graphs of several ops are in `op_programs.py`.  A test walks the op table and fails if a row or a dtype is
missing.  To cover a new op, add a row; for a new trap in an old one, add an example to its row or a value to
`values.py`.

Which dtype a row is asked for: that of the data operand (cast and bitcast: the source; leaves: the `dtype` attribute).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BOOL, C128, DTYPES, F32, F64, I32, PARTS, U32, DType, dtype_of
from wire.ir.graph import GraphBuilder, WireGraph

from . import control_cases, spmd_cases
from .matrix_cases import EXAMPLES, SIGNED
from .values import all_tuples, all_values, any_bits, ordinary, special

LARGE = 70_003  # more than 65,535 and no multiple of 4
RANK_6 = (2, 1, 3, 1, 2, 5)
WHOLE = {  # ops whose cases are whole graphs, and the dtypes they are asked for
    **{op: (row, control_cases.DTYPES) for op, row in control_cases.CASES.items()},
    **{op: (row, spmd_cases.DTYPES) for op, row in spmd_cases.CASES.items()},
}
PROGRAMS = ("composite", *WHOLE)


@dataclass(frozen=True, slots=True)
class Case:
    """One graph with its inputs and params by name; `op` is the op it is about, `dtype` the one it is swept over."""

    id: str
    op: str
    dtype: DType
    graph: WireGraph
    inputs: Mapping[str, NDArray[Any]]

    @property
    def arguments(self) -> list[NDArray[Any]]:
        """The inputs in the order `Engine.run` takes them."""
        graph = self.graph
        return [self.inputs[graph.nodes[index].attrs["name"]] for index in (*graph.inputs, *graph.params)]


class Example(NamedTuple):
    label: str
    operands: tuple[NDArray[Any], ...]
    attrs: dict[str, Any]


Examples = Iterator[Example]
Row = Callable[[DType], Examples]


def cases(op: str | None = None) -> list[Case]:
    """The cases of one op, or of all; always the same ones.  Those of the ops in PROGRAMS are whole programs."""
    return [case for name in ([op] if op else [*ROWS, *PROGRAMS]) for case in _cases_of(name)]


@cache
def _cases_of(op: str) -> tuple[Case, ...]:
    if op == "composite":
        from .op_programs import programs

        return programs()
    if op in WHOLE:
        make, dtypes = WHOLE[op]
        return tuple(
            Case(f"{op}/{dtype.name}/{label}", op, dtype, graph, inputs)
            for dtype in dtypes
            for label, graph, inputs in make(dtype)
        )
    kinds, row = ROWS[op]
    return tuple(_case(op, dtype, example) for dtype in DTYPES if dtype.kind in kinds for example in row(dtype))


def _case(op: str, dtype: DType, example: Example) -> Case:
    builder = GraphBuilder()
    names = [f"x{place}" for place in range(len(example.operands))]
    operands = [np.ascontiguousarray(array).reshape(np.shape(array)) for array in example.operands]
    if op in ("input", "param"):
        index = (builder.input if op == "input" else builder.param)("x0", operands[0].shape, dtype)
    elif op == "const":
        names, index = [], builder.const(operands[0])
    else:
        sources = [builder.input(name, a.shape, dtype_of(a)) for name, a in zip(names, operands, strict=True)]
        index = builder.add(op, *sources, **example.attrs)
        if (op, example.attrs.get("output")) in SIGNED:
            index = builder.add("abs", index)
    inputs = dict(zip(names, operands, strict=False))
    return Case(f"{op}/{dtype.name}/{example.label}", op, dtype, builder.build([index]), inputs)


# -- elementwise ------------------------------------------------------------------------------------------


def _unary(dtype: DType) -> Examples:
    yield Example("values", (all_values(dtype),), {})
    yield Example("0-d", (ordinary(dtype),), {})
    yield Example("empty", (ordinary(dtype, 0, 3),), {})
    yield Example("rank-6", (ordinary(dtype, *RANK_6),), {})
    yield Example("large", (ordinary(dtype, LARGE),), {})


def _binary(dtype: DType) -> Examples:
    yield Example("values", all_tuples(dtype, dtype), {})
    yield Example("0-d", (ordinary(dtype, seed=1), ordinary(dtype, seed=2)), {})
    yield Example("empty", (ordinary(dtype, 0, 3), ordinary(dtype, 1, 1)), {})
    yield Example("broadcast", (ordinary(dtype, *RANK_6), ordinary(dtype, 1, 4, 2, 1)), {})
    yield Example("scalar-left", (ordinary(dtype), ordinary(dtype, 3, 7)), {})
    yield Example("row-column", (ordinary(dtype, 1, 37), ordinary(dtype, 19, 1)), {})
    yield Example("large", (ordinary(dtype, LARGE), ordinary(dtype, LARGE, seed=1)), {})


def _power(dtype: DType) -> Examples:
    for example in _binary(dtype):
        tame = dtype.kind == "c" and example.label == "values"  # of large ones no digit is left
        yield example._replace(operands=tuple(array[:-200] for array in example.operands)) if tame else example
    if dtype.kind == "f":  # numpy has other loops for an exponent that repeats
        values = all_values(dtype)
        yield from (Example(f"to-{power}", (values, np.array(power, dtype.numpy)), {}) for power in (0.5, -1, 2))
        yield Example("to-each", (values, np.array([[0.5], [-0.5], [2], [-1]], dtype.numpy)), {})


def _complex(dtype: DType) -> Examples:
    yield from _binary(dtype) if dtype in PARTS.values() else ()


def _select(dtype: DType) -> Examples:
    for condition in (each for each in DTYPES if each.kind in "bf"):
        asked, taken, other = all_values(condition), all_values(dtype), all_values(dtype)[::-1]
        length = max(asked.size, taken.size)
        operands = tuple(np.resize(array, length) for array in (asked, taken, other))
        yield Example(f"{condition.name}-values", operands, {})
    values = ordinary(dtype, 3, 1), ordinary(dtype, seed=1)
    yield Example("broadcast", (ordinary(BOOL, 2, 1, 5), *values), {})
    yield Example("empty", (ordinary(BOOL, 0, 1, 5), *values), {})
    yield Example("0-d", (np.array(True), ordinary(dtype), ordinary(dtype, seed=1)), {})
    yield Example("large", (ordinary(BOOL, LARGE), ordinary(dtype, LARGE), ordinary(dtype, 1)), {})


def _cast(dtype: DType) -> Examples:
    for target in (each for each in DTYPES if dtype.kind != "c" or each.kind in "bc"):
        yield Example(f"{target.name}-values", (all_values(dtype),), {"dtype": target.name})
        yield Example(f"{target.name}-0-d", (ordinary(dtype),), {"dtype": target.name})
    yield Example("empty", (ordinary(dtype, 2, 0),), {"dtype": "bool"})
    if dtype.kind in "iu" and dtype.itemsize >= 4:  # a rounding in two steps would first make these ties
        above = np.array([(1 << 25) + (1 << 17) + 1, (1 << 25) + (3 << 17) - 1, (1 << 28) + (1 << 20) + 1], dtype.numpy)
        yield Example(
            "rounded-once", (np.concatenate([above, ~above + 1 if dtype.kind == "i" else above]),), {"dtype": "bf16"}
        )
    if dtype is F64:
        near_ties = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40])
        yield Example("rounded-once", (np.concatenate([near_ties, -near_ties]),), {"dtype": "bf16"})
    yield Example("large", (ordinary(dtype, LARGE),), {"dtype": "c64" if dtype.kind == "c" else "f32"})


def _bitcast(dtype: DType) -> Examples:
    for target in DTYPES:
        if target.kind not in "bc" and target.itemsize == dtype.itemsize:
            yield Example(f"{target.name}-values", (all_values(dtype),), {"dtype": target.name})
            yield Example(f"{target.name}-0-d", (ordinary(dtype),), {"dtype": target.name})
            yield Example(f"{target.name}-empty", (ordinary(dtype, 0),), {"dtype": target.name})


# -- reduce -----------------------------------------------------------------------------------------------


def _sum(dtype: DType) -> Examples:
    yield from _reduced(dtype, lambda *shape: ordinary(dtype, *shape))
    yield Example("empty-axis", (ordinary(dtype, 3, 0, 2),), {"axes": (1,)})
    yield Example("wrapping", (any_bits(dtype, 5, 9) if dtype.kind in "iu" else ordinary(dtype, 5, 9),), {"axes": (1,)})


def _product(dtype: DType) -> Examples:
    yield from _reduced(dtype, lambda *shape: _near_one(dtype, *shape))
    yield Example("empty-axis", (ordinary(dtype, 3, 0, 2),), {"axes": (1,)})


def _near_one(dtype: DType, *shape: int, seed: int = 0) -> NDArray[Any]:
    """Factors whose product stays of about 1; odd integers."""
    if dtype.kind in "iu":
        return any_bits(dtype, *shape, seed=seed) | dtype.numpy.type(1)
    spread = 0.5 / math.sqrt(max(math.prod(shape), 1))
    return np.asarray(1 + spread * ordinary(C128 if dtype.kind == "c" else F64, *shape, seed=seed)).astype(dtype.numpy)


def _extreme(dtype: DType) -> Examples:
    yield from _reduced(dtype, lambda *shape: any_bits(dtype, *shape))
    yield Example("pairs", (np.stack(all_tuples(dtype, dtype)),), {"axes": (0,)})


def _reduced(dtype: DType, make: Callable[..., NDArray[Any]]) -> Examples:
    """A reduction over one, several, all and no axes, of short and long rows, and of each special value."""
    for axes in ((), (0,), (1,), (2,), (0, 2), (2, 1), (0, 1, 2)):
        yield Example(f"axes-{axes}", (make(3, 5, 7),), {"axes": axes})
    yield Example("0-d", (make(),), {"axes": ()})
    yield Example("empty", (make(0, 3),), {"axes": (1,)})
    yield Example("rank-6", (make(*RANK_6),), {"axes": (1, 3, 4)})
    yield Example("long", (make(LARGE),), {"axes": (0,)})
    yield Example("long-columns", (make(1027, 3),), {"axes": (0,)})
    yield Example("many-rows", (make(2501, 28),), {"axes": (1,)})
    yield Example("long-rows", (make(3, 17_003),), {"axes": (1,)})
    yield Example("long-middle", (make(3, 1100, 5),), {"axes": (1,)})
    yield Example("one-each", (special(dtype).reshape(-1, 1),), {"axes": (1,)})
    with_ones = np.stack([special(dtype), np.ones_like(special(dtype)), np.ones_like(special(dtype))])
    yield Example("special", (with_ones,), {"axes": (0,)})


def _argmax(dtype: DType) -> Examples:
    for axis in (0, 1, 2):
        yield Example(f"axis-{axis}", (any_bits(dtype, 3, 5, 7),), {"axis": axis})
    yield Example(
        "ties", (ordinary(dtype, 40, 9).round() if dtype.kind == "f" else ordinary(dtype, 40, 9),), {"axis": 1}
    )
    yield Example("equal", (np.ones((4, 6), dtype.numpy),), {"axis": 1})
    yield Example("pairs", (np.stack(all_tuples(dtype, dtype)),), {"axis": 0})
    yield Example("swapped-pairs", (np.stack(all_tuples(dtype, dtype)[::-1]),), {"axis": 0})
    yield Example("special", (special(dtype),), {"axis": 0})
    lowest = -np.inf if dtype.kind == "f" else np.iinfo(dtype.numpy).min
    yield Example("lowest", (np.full((2, 5), lowest, dtype.numpy),), {"axis": 1})
    yield Example("empty", (ordinary(dtype, 0, 3),), {"axis": 1})
    yield Example("one", (ordinary(dtype, 4, 1),), {"axis": 1})
    yield Example("long", (any_bits(dtype, LARGE),), {"axis": 0})
    if dtype.kind == "f":
        rows = np.array([[-np.inf, -np.inf], [np.nan, np.inf], [np.inf, np.nan], [-0.0, 0.0], [np.nan, np.nan]])
        yield Example("edges", (rows.astype(dtype.numpy),), {"axis": 1})


# -- along an axis ----------------------------------------------------------------------------------------


def _cumulative_sum(dtype: DType) -> Examples:
    yield from _along(dtype, any_bits if dtype.kind in "iu" else ordinary)


def _cumulative_product(dtype: DType) -> Examples:
    yield from _along(dtype, _near_one)


def _running_extreme(dtype: DType) -> Examples:
    yield from _along(dtype, any_bits)
    yield Example("pairs", (np.stack(all_tuples(dtype, dtype)),), {"axis": 0})


def _fft(dtype: DType) -> Examples:
    lengths = [(shape, axis) for axis in (0, 1, 2) for shape in ((3, 5, 8), (4, 1, 7))]
    lengths += [((size,), 0) for size in (1, 2, 9, 64, 101, 360, 1000)] + [((0, 3), 1), (RANK_6, 4), ((700, 12), 1)]
    for shape, axis in lengths:
        for inverse in (0, 1):
            yield Example(f"{shape}-{axis}-{inverse}", (ordinary(dtype, *shape),), {"axis": axis, "inverse": inverse})


def _argsort(dtype: DType) -> Examples:
    yield Example("special", (np.concatenate([special(dtype), special(dtype)[::-1]]),), {"axis": 0})
    yield from _along(dtype, any_bits, most=5003)
    if dtype is F32:
        rows = np.array([[np.nan, -np.inf, np.inf, -np.nan], [0.0, -0.0, 0.0, -0.0], [-0.0, np.nan, 0.0, -1.0]])
        yield Example("edges", (rows.astype(dtype.numpy),), {"axis": 1})
    if dtype is I32:
        yield Example("equal", (np.ones((3, 6), dtype.numpy),), {"axis": 1})
        yield Example("ties", (ordinary(dtype, 3, 700),), {"axis": 1})
        yield Example("power-of-two", (any_bits(dtype, 2, 1024),), {"axis": 1})
        yield Example("two-blocks", (any_bits(dtype, 2, 1100),), {"axis": 1})
        yield Example("very-many-rows", (any_bits(dtype, LARGE, 2),), {"axis": 1})


def _along(dtype: DType, make: Callable[..., NDArray[Any]], most: int = LARGE) -> Examples:
    """Along an axis, short, long, of one, and none; `most` elements at once.  Every way for two dtypes only."""
    yield Example("axis-1", (make(dtype, 3, 5, 7),), {"axis": 1})
    yield Example("one", (make(dtype, 4, 1),), {"axis": 1})
    yield Example("empty-axis", (make(dtype, 3, 0, 2),), {"axis": 1})
    yield Example("long-columns", (make(dtype, 1027, 3),), {"axis": 0})
    if dtype in (F32, I32):
        yield Example("axis-0", (make(dtype, 3, 5, 7),), {"axis": 0})
        yield Example("axis-2", (make(dtype, 3, 5, 7),), {"axis": 2})
        yield Example("empty", (make(dtype, 0, 3),), {"axis": 1})
        yield Example("rank-6", (make(dtype, *RANK_6),), {"axis": 5})
        yield Example("many-rows", (make(dtype, 2501, 5),), {"axis": 1})
        yield Example("long", (make(dtype, most),), {"axis": 0})


# -- views ------------------------------------------------------------------------------------------------


def _reshape(dtype: DType) -> Examples:
    for source, target in (((3, 4), (2, 6)), ((6,), (1, 2, 1, 3)), ((), (1, 1)), ((1,), ()), ((0, 3), (5, 0)),
                           (RANK_6, (5, 12)), ((2, 2, 2, 2, 2, 2, 2, 3), (384,))):  # fmt: skip
        yield Example(f"{source}-{target}", (any_bits(dtype, *source),), {"shape": target})
    yield Example("values", (all_values(dtype),), {"shape": (1, all_values(dtype).size)})


def _transpose(dtype: DType) -> Examples:
    for shape, perm in (((), ()), ((5,), (0,)), ((3, 5), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 0, 3), (1, 2, 0)),
                        (RANK_6, (5, 0, 3, 2, 4, 1)), ((271, 259), (1, 0)), ((37, 29, 5), (1, 0, 2))):  # fmt: skip
        yield Example(f"{shape}-{perm}", (any_bits(dtype, *shape),), {"perm": perm})


def _broadcast(dtype: DType) -> Examples:
    for source, target in (((), ()), ((), (3, 2)), ((1,), (7,)), ((3, 1), (2, 3, 5)), ((5,), (0, 5)), ((1, 0), (4, 0)),
                           ((1, 3, 1, 2, 1), (2, 4, 3, 1, 2, 5)), ((1, 7), (10_001, 7))):  # fmt: skip
        yield Example(f"{source}-{target}", (any_bits(dtype, *source),), {"shape": target})


def _slice(dtype: DType) -> Examples:
    for shape, start, stop, step in (
        ((), (), (), ()), ((9,), (2,), (8,), (1,)), ((9,), (1,), (9,), (3,)), ((9,), (4,), (4,), (2,)),
        ((4, 5, 6), (0, 1, 2), (4, 5, 3), (3, 2, 7)), ((0, 3), (0, 1), (0, 3), (1, 1)),
        (RANK_6, (1, 0, 0, 0, 1, 0), (2, 1, 3, 1, 2, 5), (1, 1, 2, 1, 1, 4)), ((LARGE,), (1,), (LARGE - 1,), (2,)),
    ):  # fmt: skip
        yield Example(
            f"{shape}-{start}-{stop}-{step}", (any_bits(dtype, *shape),), _ints(start=start, stop=stop, step=step)
        )


def _pad(dtype: DType) -> Examples:
    fills = special(dtype)
    for place, (shape, low, high, interior) in enumerate((
        ((), (), (), ()), ((4,), (2,), (1,), (0,)), ((4,), (0,), (0,), (2,)), ((4,), (3,), (2,), (1,)),
        ((0,), (2,), (1,), (3,)), ((1,), (0,), (0,), (5,)), ((0, 2), (0, 1), (0, 0), (1, 1)),
        ((2, 3, 2), (1, 0, 2), (0, 1, 1), (2, 0, 1)), ((300, 100), (3, 0), (0, 5), (0, 1)),
        (RANK_6, (0, 1, 0, 2, 0, 1), (1, 0, 0, 0, 2, 0), (1, 1, 0, 0, 0, 2)),
    )):  # fmt: skip
        operands = (any_bits(dtype, *shape), fills[place % fills.size])
        yield Example(f"{shape}-{low}-{high}-{interior}", operands, _ints(low=low, high=high, interior=interior))
    for place, fill in enumerate(fills):
        yield Example(f"fill-{place}", (ordinary(dtype, 2), fill), _ints(low=(1,), high=(0,), interior=(1,)))


def _ints(**attrs: tuple[int, ...]) -> dict[str, Any]:
    return dict(attrs)


def _concat(dtype: DType) -> Examples:
    for label, axis, shapes in (
        ("one", 0, [(3,)]), ("two", 0, [(3,), (5,)]), ("last", 2, [(2, 3, 1), (2, 3, 4)]),
        ("empties", 0, [(0,), (3,), (0,)]), ("all-empty", 1, [(2, 0), (2, 0)]),
        ("elsewhere-empty", 1, [(0, 2), (0, 1)]),
        ("rank-6", 3, [RANK_6, (2, 1, 3, 4, 2, 5)]), ("many", 1, [(2, 1 + place % 3) for place in range(21)]),
        ("large", 0, [(LARGE,), (5,), (LARGE - 7,)]),
    ):  # fmt: skip
        operands = tuple(any_bits(dtype, *shape, seed=place) for place, shape in enumerate(shapes))
        yield Example(label, operands, {"axis": axis})


def _after(dtype: DType) -> Examples:
    yield Example("alone", (any_bits(dtype, 5),), {})
    yield Example("behind-another", (any_bits(dtype, 3, 4), ordinary(F32, 2, 2)), {})
    yield Example("behind-two", (any_bits(dtype), any_bits(dtype, 7), ordinary(I32, 3)), {})
    yield Example("empty", (any_bits(dtype, 0, 3), ordinary(F32, 2)), {})
    yield Example("large", (any_bits(dtype, LARGE), any_bits(dtype, 2)), {})


def _transfer(dtype: DType) -> Examples:
    for shape in ((), (5,), (3, 4), (0, 2)):
        yield Example(str(shape), (any_bits(dtype, *shape),), {"device": "cpu"})


def _constraint(dtype: DType) -> Examples:
    attrs = {"axes": ("dp", "tp"), "sizes": (2, 2)}
    for shape, spec in (((), ""), ((5,), "-"), ((5,), "dp"), ((3, 4), "tp dp"), ((3, 4), "- tp+dp"), ((0, 2), "dp -")):
        yield Example(f"{shape}-{spec}", (any_bits(dtype, *shape),), {**attrs, "spec": spec})


def _reverse(dtype: DType) -> Examples:
    for shape, axes in (((), ()), ((5,), (0,)), ((3, 4), ()), ((3, 4), (1,)), ((3, 4), (1, 0)), ((0, 2), (0,)),
                        (RANK_6, (0, 2, 5)), ((LARGE,), (0,))):  # fmt: skip
        yield Example(f"{shape}-{axes}", (any_bits(dtype, *shape),), {"axes": axes})


# -- contraction ------------------------------------------------------------------------------------------

_DOTS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], str], ...] = (
    # label, left shape, right shape, "left batch, right batch, left contract, right contract"
    ("matmul", (5, 7), (7, 3), ";;1;0"),
    ("matmul-tiles", (64, 32), (32, 64), ";;1;0"),
    ("matmul-edges", (67, 129), (129, 35), ";;1;0"),
    ("left-transposed", (7, 5), (7, 3), ";;0;0"),
    ("right-transposed", (33, 18), (21, 18), ";;1;1"),
    ("vectors", (9,), (9,), ";;0;0"),
    ("long-vectors", (5003,), (5003,), ";;0;0"),
    ("matrix-vector", (37, 65), (65,), ";;1;0"),
    ("vector-matrix", (65,), (65, 41), ";;0;0"),
    ("outer", (4,), (3, 2), ";;;"),
    ("scalars", (), (), ";;;"),
    ("scalar-matrix", (), (3, 4), ";;;"),
    ("batched", (3, 17, 9), (3, 9, 21), "0;0;2;1"),
    ("batch-last", (8, 6, 3), (3, 6, 5), "2;0;1;1"),
    ("two-batches", (2, 3, 4, 5), (3, 5, 2, 6), "0,1;2,0;3;1"),
    ("only-batches", (4, 3), (3, 4), "0,1;1,0;;"),
    ("two-contracted", (3, 4, 5), (5, 2, 3), ";;0,2;2,0"),
    ("all-contracted", (3, 4), (4, 3), ";;0,1;1,0"),
    ("nothing-to-sum", (3, 0), (0, 4), ";;1;0"),
    ("no-rows", (0, 3), (3, 4), ";;1;0"),
    ("no-batches", (0, 2, 3), (0, 3, 2), "0;0;2;1"),
    ("one-by-one", (1, 1), (1, 1), ";;1;0"),
    ("thin", (1, 300), (300, 1), ";;1;0"),
    ("rank-6", (2, 1, 3, 1, 2, 5), (5, 2, 4), "4;1;5;0"),
)


def _dot(dtype: DType) -> Examples:
    for label, left, right, axes in _DOTS:
        yield Example(label, (ordinary(dtype, *left), ordinary(dtype, *right, seed=1)), _dot_axes(axes))
    wide = any_bits if dtype.kind in "iu" else ordinary
    yield Example("wrapping", (wide(dtype, 9, 30), wide(dtype, 30, 8, seed=1)), _dot_axes(";;1;0"))
    if dtype.kind == "f":
        left, right = ordinary(dtype, 6, 5), ordinary(dtype, 5, 6, seed=1)
        left[:4, 2] = [np.nan, np.inf, -np.inf, 0]
        right[2, :3] = [0, np.inf, np.nan]
        yield Example("special", (left, right), _dot_axes(";;1;0"))


def _dot_axes(text: str) -> dict[str, Any]:
    names = ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract")
    parts = (tuple(int(axis) for axis in part.split(",") if axis) for part in text.split(";"))
    return dict(zip(names, parts, strict=True))


_CONVS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], str], ...] = (
    # label, x, w, "stride; low; high; lhs_dilation; rhs_dilation; groups"
    ("plain", (2, 3, 7, 6), (4, 3, 3, 3), "1,1;0,0;0,0;1,1;1,1;1"),
    ("same", (1, 2, 5, 8), (3, 2, 3, 3), "1,1;1,1;1,1;1,1;1,1;1"),
    ("strides", (1, 3, 9, 8), (2, 3, 3, 2), "2,3;1,0;0,1;1,1;1,1;1"),
    ("kernel-apart", (1, 2, 9, 9), (2, 2, 3, 2), "1,2;2,0;1,3;1,1;2,3;1"),
    ("x-apart", (2, 2, 4, 3), (3, 2, 3, 3), "1,1;2,1;2,0;2,3;1,1;1"),
    ("all-at-once", (1, 4, 5, 6), (6, 2, 3, 2), "2,3;3,1;1,4;3,2;2,3;2"),
    ("one-by-one", (2, 5, 4, 5), (3, 5, 1, 1), "1,1;0,0;0,0;1,1;1,1;1"),
    ("groups", (2, 6, 5, 5), (9, 2, 3, 3), "1,1;1,1;1,1;1,1;1,1;3"),
    ("depthwise", (2, 5, 6, 7), (5, 1, 3, 3), "1,1;1,1;1,1;1,1;1,1;5"),
    ("depthwise-by-two", (1, 3, 6, 7), (6, 1, 3, 2), "2,1;1,0;1,1;1,2;1,2;3"),
    ("one-channel-out", (1, 4, 6, 6), (1, 4, 3, 3), "1,1;1,1;1,1;1,1;1,1;1"),
    ("line", (2, 3, 17), (4, 3, 5), "2;2;1;1;2;1"),
    ("cube", (1, 2, 4, 5, 3), (3, 2, 2, 3, 2), "1,2,1;1,0,0;0,1,1;1,1,2;1,1,1;1"),
    ("four-axes", (1, 2, 3, 2, 3, 2), (2, 2, 2, 1, 2, 2), "1,1,1,1;0,0,0,0;0,0,0,0;1,1,1,1;1,1,1,1;1"),
    ("one-window", (3, 4, 3, 3), (5, 4, 3, 3), "1,1;0,0;0,0;1,1;1,1;1"),
    ("only-padding", (1, 2, 1), (2, 2, 2), "3;4;4;5;1;1"),
    ("huge-steps", (1, 2, 1, 3), (2, 2, 1, 3), "4611686018427387904,1;0,0;0,0;4611686018427387904,1;1099511627776,1;1"),
    ("no-samples", (0, 2, 5), (3, 2, 3), "1;0;0;1;1;1"),
    ("no-makers", (2, 2, 5), (0, 2, 3), "1;0;0;1;1;1"),
    ("no-channels", (2, 0, 5), (3, 0, 3), "1;0;0;1;1;1"),
    ("no-places", (1, 2, 0), (3, 2, 2), "1;2;1;1;1;1"),
)


def _conv(dtype: DType) -> Examples:
    for label, x, w, attrs in _CONVS:
        yield Example(label, (ordinary(dtype, *x), ordinary(dtype, *w, seed=1)), _conv_attrs(attrs))
    line = _conv_attrs("1;1;1;2;1;1")
    if dtype.kind in "iu":
        yield Example("wrapping", (any_bits(dtype, 1, 3, 6), any_bits(dtype, 2, 3, 3, seed=1)), line)
    elif dtype.kind == "f":
        left, right = ordinary(dtype, 1, 2, 8), ordinary(dtype, 6, 2, 3, seed=1)
        left[0, 1, :4] = [np.nan, np.inf, -np.inf, 0]
        right[:3, 0, 0] = [0, np.inf, np.nan]
        yield Example("special", (left, right), line)


def _conv_attrs(text: str) -> dict[str, Any]:
    *parts, groups = text.split(";")
    names = ("stride", "low", "high", "lhs_dilation", "rhs_dilation")
    columns = (tuple(int(entry) for entry in part.split(",")) for part in parts)
    return {**dict(zip(names, columns, strict=True)), "groups": int(groups)}


# -- indexing ---------------------------------------------------------------------------------------------


def _indices(dtype: DType, *shape: int, bound: int) -> NDArray[Any]:
    """Indices of which about a third are below 0 or not below `bound`, and all extremes of the dtype."""
    limits = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(bound)
    found = rng.integers(max(-bound // 2, limits.min), min(bound + bound // 2, limits.max), shape, endpoint=True)
    flat = np.asarray(found).astype(dtype.numpy).reshape(-1)
    edges = [limits.min, limits.max, max(-1, limits.min), min(bound, limits.max), min(bound - 1, limits.max), 0]
    flat[: min(6, flat.size // 2)] = np.array(edges[: flat.size // 2], dtype.numpy)
    return flat.reshape(shape)


_INTEGERS = tuple(dtype for dtype in DTYPES if dtype.kind in "iu")


def _gather(dtype: DType) -> Examples:
    def example(label: str, shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int, batch: int = 0,
                index: DType = I32) -> Example:  # fmt: skip
        indices = _indices(index, *index_shape, bound=max(shape[axis], 1))
        return Example(label, (any_bits(dtype, *shape), indices), {"axis": axis, "batch_dims": batch})

    yield example("rows", (7, 3), (14,), 0)
    yield example("columns", (3, 7), (14,), 1)
    yield example("middle", (2, 5, 3), (4, 3), 1)
    yield example("one-index", (5, 2), (), 0)
    yield example("no-index", (5, 2), (0, 3), 0)
    yield example("nothing-in-rows", (5, 0), (3,), 0)
    yield example("empty-axis", (0, 2), (0,), 0)
    yield example("one-row", (1, 4), (13,), 0)
    yield example("batch", (3, 7), (3, 13), 1, 1)
    yield example("batch-of-rows", (3, 7, 2), (3, 4, 5), 1, 1)
    yield example("two-batches", (2, 3, 5), (2, 3, 14), 2, 2)
    yield example("batch-one-each", (6, 5), (6,), 1, 1)
    yield example("batch-before", (2, 4, 6), (2, 13), 2, 1)
    yield example("rank-6", RANK_6, (2, 7), 2)
    yield example("large", (1003, 7), (10_007,), 0)
    for index in _INTEGERS:
        yield example(f"by-{index.name}", (7, 3), (14,), 0, index=index)
        yield example(f"many-by-{index.name}", (301, 2), (40,), 0, index=index)


def _scatter(dtype: DType) -> Examples:
    for mode in {"b": ("set",), "c": ("set", "add")}.get(dtype.kind, ("set", "add", "max", "min")):
        yield from _scattered(dtype, mode)


def _scattered(dtype: DType, mode: str) -> Examples:
    def example(
        label: str, shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int, index: DType = I32
    ) -> Example:
        indices = _indices(index, *index_shape, bound=max(shape[axis], 1))
        updates = ordinary(dtype, *shape[:axis], *index_shape, *shape[axis + 1 :], seed=1)
        return Example(f"{mode}-{label}", (ordinary(dtype, *shape), indices, updates), {"axis": axis, "mode": mode})

    yield example("duplicates", (4, 3), (26,), 0)
    yield example("columns", (3, 5), (16,), 1)
    yield example("middle", (2, 4, 3), (5, 3), 1)
    yield example("one-index", (5, 2), (), 0)
    yield example("no-index", (5, 2), (0, 3), 0)
    yield example("into-nothing", (0, 2), (4,), 0)
    yield example("nothing-in-rows", (3, 0), (4,), 0)
    yield example("vector", (6,), (37,), 0)
    yield example("rank-6", RANK_6, (7,), 5)
    yield example("large", (1003, 7), (2001,), 0)
    every = all_tuples(dtype, dtype)
    indices = np.arange(every[0].size, dtype=np.int32)
    yield Example(f"{mode}-special", (every[0], indices, every[1]), {"axis": 0, "mode": mode})
    if mode == "set":
        for index in _INTEGERS:
            yield example(f"by-{index.name}", (4, 3), (26,), 0, index)
            yield example(f"many-by-{index.name}", (301, 2), (40,), 0, index)


_WINDOWS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    # shape, window, starts
    ((), (), ()), ((7,), (3,), (2,)), ((7,), (3,), (-4,)), ((7,), (3,), (6,)), ((7,), (7,), (1,)), ((7,), (0,), (9,)),
    ((4, 5), (2, 3), (1, 1)), ((4, 5), (2, 3), (-1, 99)), ((0, 3), (0, 2), (1, 2)),
    ((4, 5), (2, 3), (2**31 - 1, -(2**31))), (RANK_6, (1, 1, 2, 1, 2, 3), (1, 1, 1, 0, 0, 1)),
    ((301, 300), (250, 281), (40, 33)),
)  # fmt: skip


def _dynamic_slice(dtype: DType) -> Examples:
    for shape, window, starts in _WINDOWS:
        operands = (any_bits(dtype, *shape), np.array(starts, np.int32))
        yield Example(f"{shape}-{window}-{starts}", operands, {"sizes": window})
    for label, starts in _extreme_starts():
        yield Example(label, (any_bits(dtype, 301, 4), starts), {"sizes": (2, 2)})


def _dynamic_update_slice(dtype: DType) -> Examples:
    for shape, window, starts in _WINDOWS:
        operands = (any_bits(dtype, *shape), any_bits(dtype, *window, seed=1), np.array(starts, np.int32))
        yield Example(f"{shape}-{window}-{starts}", operands, {})
    for label, starts in _extreme_starts():
        yield Example(label, (any_bits(dtype, 301, 4), any_bits(dtype, 2, 2, seed=1), starts), {})


def _extreme_starts() -> Iterator[tuple[str, NDArray[Any]]]:
    for index in _INTEGERS:
        for name in ("min", "max"):
            yield f"{index.name}-{name}", np.full(2, getattr(np.iinfo(index.numpy), name), index.numpy)


# -- matrices ---------------------------------------------------------------------------------------------


def _of_matrices(op: str) -> Row:
    return lambda dtype: (Example(*each) for each in EXAMPLES[op](dtype))


# -- leaves -----------------------------------------------------------------------------------------------


def _given(dtype: DType) -> Examples:
    yield Example("values", (all_values(dtype),), {})
    yield Example("0-d", (ordinary(dtype),), {})
    yield Example("empty", (ordinary(dtype, 3, 0),), {})
    yield Example("large", (any_bits(dtype, LARGE),), {})


def _iota(dtype: DType) -> Examples:
    for shape, axis in (((5,), 0), ((0,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 0, 3), 2), (RANK_6, 2), ((300, 3), 0),
                        ((LARGE,), 0)):  # fmt: skip
        yield Example(f"{shape}-{axis}", (), {"shape": shape, "dtype": dtype.name, "axis": axis})


def _random_bits(dtype: DType) -> Examples:
    if dtype is not U32:
        return
    for key in ((0, 0), (2**32 - 1, 2**32 - 1), (0x13198A2E, 0x03707344)):
        for shape in ((), (5,), (0, 2), (3, 4, 5)):
            yield Example(f"{key}-{shape}", (np.array(key, np.uint32),), {"shape": shape})
    yield Example("large", (np.array((1, 2), np.uint32),), {"shape": (LARGE,)})


# -- the table --------------------------------------------------------------------------------------------

_INEXACT_UNARY = ("recip", "sqrt", "sin", "exp", "log", "cos", "tan", "tanh", "round", "is_nan")

ROWS: dict[str, tuple[str, Row]] = {  # op -> (kinds of dtype, examples)
    "input": ("biufc", _given),
    "param": ("biufc", _given),
    "const": ("biufc", _given),
    "iota": ("iuf", _iota),
    "random_bits": ("u", _random_bits),
    **dict.fromkeys(_INEXACT_UNARY, ("fc", _unary)),
    **dict.fromkeys(("exp2", "log2", "expm1", "log1p", "erf", "floor"), ("f", _unary)),
    **dict.fromkeys(("neg", "abs"), ("iufc", _unary)),
    "sign": ("iuf", _unary),
    **dict.fromkeys(("real", "imag"), ("c", _unary)),
    "not": ("biu", _unary),
    **dict.fromkeys(("add", "mul", "div"), ("iufc", _binary)),
    "pow": ("iufc", _power),
    **dict.fromkeys(("max", "min", "rem"), ("iuf", _binary)),
    "atan2": ("f", _binary),
    "complex": ("f", _complex),
    **dict.fromkeys(("eq", "ne"), ("biufc", _binary)),
    **dict.fromkeys(("lt", "le", "gt", "ge"), ("biuf", _binary)),
    **dict.fromkeys(("and", "or", "xor"), ("biu", _binary)),
    **dict.fromkeys(("shl", "shr"), ("iu", _binary)),
    "select": ("biufc", _select),
    "cast": ("biufc", _cast),
    "bitcast": ("iuf", _bitcast),
    "reduce_sum": ("iufc", _sum),
    "reduce_prod": ("iufc", _product),
    "reduce_max": ("biuf", _extreme),
    "reduce_min": ("biuf", _extreme),
    "argmax": ("iuf", _argmax),
    "cumsum": ("iufc", _cumulative_sum),
    "cumprod": ("iufc", _cumulative_product),
    "cummax": ("iuf", _running_extreme),
    "cummin": ("iuf", _running_extreme),
    "fft": ("c", _fft),
    "argsort": ("biuf", _argsort),
    "reshape": ("biufc", _reshape),
    "transpose": ("biufc", _transpose),
    "broadcast": ("biufc", _broadcast),
    "slice": ("biufc", _slice),
    "pad": ("biufc", _pad),
    "concat": ("biufc", _concat),
    "reverse": ("biufc", _reverse),
    "constraint": ("biufc", _constraint),
    "transfer": ("biufc", _transfer),
    "after": ("biufc", _after),
    "dot": ("iufc", _dot),
    "conv": ("iufc", _conv),
    **{op: ("fc", _of_matrices(op)) for op in EXAMPLES},
    "gather": ("biufc", _gather),
    "scatter": ("biufc", _scatter),
    "dynamic_slice": ("biufc", _dynamic_slice),
    "dynamic_update_slice": ("biufc", _dynamic_update_slice),
}
