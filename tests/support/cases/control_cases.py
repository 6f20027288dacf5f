"""Graphs that branch and loop, as cases of the ops `cond`, `while` and `scan`, which engines are tested with.

Values are tame and loops short, so that a wrong result is a wrong program and not an unlucky rounding.  To add one: a
function of a dtype that yields graphs, in a row of CASES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BOOL, F16, F32, F64, I32, U32, DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType

from .values import ordinary

Inputs = dict[str, NDArray[Any]]
Found = tuple[str, WireGraph, Inputs]
DTYPES = (F32, F16, F64, I32, U32)


def graph_of(types: list[TensorType], make: Callable[..., list[int]]) -> WireGraph:
    """The graph of `make(builder, *inputs)`."""
    builder = GraphBuilder()
    return builder.build(make(builder, *[builder.input(str(at), *kind) for at, kind in enumerate(types)]))


def siblings(builder: GraphBuilder, op: str, *operands: int, count: int, **attrs: Any) -> list[int]:
    """A node for each of the results of `op`."""
    return [builder.add(op, *operands, **attrs, output=output) for output in range(count)]


def counted(builder: GraphBuilder, times: int, value: int, other: int, step: WireGraph) -> list[int]:
    """A while that turns so many times: `step` gives the next value of the value and the other; index and value."""
    kind = builder.types[value]
    signature = [TensorType((), I32), TensorType((), I32), kind, builder.types[other]]

    def turn(inner: GraphBuilder, at: int, limit: int, x: int, y: int) -> list[int]:
        (found,) = inner.graph(step, dict(zip(step.input_types, (x, y), strict=True)))
        return [inner.add("add", at, inner.const(np.int32(1))), limit, found]

    test = graph_of(signature, lambda inner, at, limit, *_: [inner.add("lt", at, limit)])
    zero, limit = builder.const(np.int32(0)), builder.const(np.int32(times))
    body = graph_of(signature, turn)
    return siblings(builder, "while", zero, limit, value, other, count=3, test=test, body=body)[::2]


# -- cond -------------------------------------------------------------------------------------------------


def _cond(dtype: DType) -> Iterator[Found]:
    kind, scalar = TensorType((3, 5), dtype), TensorType((), BOOL)
    then = graph_of([kind, kind], lambda b, x, y: [b.add("add", x, y), x, b.add("reduce_max", y, axes=(0,))])
    otherwise = graph_of([kind, kind], lambda b, x, y: [b.add("mul", x, y), y, b.add("reduce_min", x, axes=(0,))])
    attrs = {"then": then, "otherwise": otherwise}
    given = {"1": ordinary(dtype, 3, 5), "2": ordinary(dtype, 3, 5, seed=1)}
    for asked in (True, False):
        whole = graph_of([scalar, kind, kind], lambda b, *all: siblings(b, "cond", *all, count=3, **attrs))
        yield f"asked-{asked}", whole, {"0": np.array(asked), **given}
        part = graph_of(
            [scalar, kind, kind],
            lambda b, p, x, y: [b.add("neg", b.add("cond", p, b.add("add", x, x), y, **attrs, output=2))],
        )
        yield f"one-result-{asked}", part, {"0": np.array(asked), **given}
    yield "nested", *_nested_cond(kind)
    endless = graph_of([kind], lambda b, x: [b.add("while", x, test=_true(kind), body=_itself(kind), output=0)])
    either = {"then": endless, "otherwise": _itself(kind)}
    whole = graph_of([scalar, kind], lambda b, p, x: [b.add("cond", p, x, **either, output=0)])
    yield "not-taken-is-not-computed", whole, {"0": np.array(False), "1": given["1"]}


def _nested_cond(kind: TensorType) -> tuple[WireGraph, Inputs]:
    scalar = TensorType((), BOOL)
    doubled = graph_of([kind], lambda b, x: [b.add("add", x, x)])
    inner = {"then": doubled, "otherwise": _itself(kind)}
    either = graph_of([scalar, kind], lambda b, p, x: [b.add("cond", p, x, **inner, output=0)])
    first = graph_of([scalar, kind], lambda b, p, x: [x])
    attrs = {"then": either, "otherwise": first}
    whole = graph_of([scalar, scalar, kind], lambda b, p, q, x: [b.add("cond", p, q, x, **attrs, output=0)])
    return whole, {"0": np.array(True), "1": np.array(True), "2": ordinary(kind.dtype, *kind.shape)}


def _true(kind: TensorType) -> WireGraph:
    return graph_of([kind], lambda b, x: [b.const(np.array(True))])


def _itself(kind: TensorType) -> WireGraph:
    return graph_of([kind], lambda b, x: [x])


# -- while ------------------------------------------------------------------------------------------------


def _while(dtype: DType) -> Iterator[Found]:
    kind = TensorType((4, 3), dtype)
    larger = graph_of([kind, kind], lambda b, x, y: [b.add("max", b.add("mul", x, y), y)])
    given = {"0": ordinary(dtype, 4, 3), "1": ordinary(dtype, 4, 3, seed=1)}
    for times in (0, 1, 7):
        yield (
            f"{times}-times",
            graph_of([kind, kind], lambda b, x, y, times=times: counted(b, times, x, y, larger)),
            given,
        )

    def twice(builder: GraphBuilder, x: int, y: int) -> list[int]:
        return counted(builder, 2, x, y, larger)[1:]

    yield "nested", graph_of([kind, kind], lambda b, x, y: counted(b, 3, x, y, graph_of([kind, kind], twice))), given
    yield "swapped", _swapped(kind), given
    yield "constant-carry", _collatz(), {}


def _swapped(kind: TensorType) -> WireGraph:
    """Two of the carry change places at every turn, which a buffer written too early would break."""
    types = [TensorType((), I32), kind, kind]
    test = graph_of(types, lambda b, at, x, y: [b.add("lt", at, b.const(np.int32(3)))])
    body = graph_of(types, lambda b, at, x, y: [b.add("add", at, b.const(np.int32(1))), y, x])
    attrs = {"test": test, "body": body, "count": 3}
    return graph_of([kind, kind], lambda b, x, y: siblings(b, "while", b.const(np.int32(0)), x, y, **attrs))


def _collatz() -> WireGraph:
    """Steps from 27 to 1: nobody knows the number of turns ahead."""
    types = [TensorType((), I32)] * 2
    test = graph_of(types, lambda b, n, steps: [b.add("ne", n, b.const(np.int32(1)))])

    def body(b: GraphBuilder, n: int, steps: int) -> list[int]:
        one, two, three = (b.const(np.int32(value)) for value in (1, 2, 3))
        odd = b.add("eq", b.add("rem", n, two), one)
        following = b.add("select", odd, b.add("add", b.add("mul", n, three), one), b.add("div", n, two))
        return [following, b.add("add", steps, one)]

    attrs = {"test": test, "body": graph_of(types, body), "count": 2}
    return graph_of([], lambda b: siblings(b, "while", b.const(np.int32(27)), b.const(np.int32(0)), **attrs))


# -- scan -------------------------------------------------------------------------------------------------


def _scan(dtype: DType) -> Iterator[Found]:
    row, table = TensorType((3,), dtype), TensorType((3, 3), dtype)

    def step(b: GraphBuilder, carry: int, weight: int, x: int) -> list[int]:
        contract = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (0,), "rhs_contract": (0,)}
        turned = b.add("max", b.add("dot", carry, weight, **contract), x)
        return [turned, b.add("add", turned, x), b.add("lt", x, turned)]

    body = graph_of([row, table, row], step)
    for length in (0, 1, 6):
        for reverse in (0, 1):
            attrs = {"body": body, "carry": 1, "consts": 1, "length": length, "reverse": reverse}
            types = [row, table, TensorType((length, 3), dtype)]
            whole = graph_of(types, lambda b, *all, attrs=attrs: siblings(b, "scan", *all, count=3, **attrs))
            quarter = ordinary(dtype, 3, 3, seed=1)
            inputs = {"0": ordinary(dtype, 3), "1": quarter, "2": ordinary(dtype, length, 3, seed=2)}
            yield f"{length}-rows-{'back' if reverse else 'on'}", whole, inputs
    yield "without-rows", *_powers(row)
    yield "of-scalars-in-a-loop", *_triangle(dtype)


def _powers(row: TensorType) -> tuple[WireGraph, Inputs]:
    """No rows come in, and what goes out is the carry before the turn."""
    body = graph_of([row], lambda b, x: [b.add("add", x, x), x])
    attrs = {"body": body, "carry": 1, "consts": 0, "length": 5, "reverse": 0, "count": 2}
    return graph_of([row], lambda b, x: siblings(b, "scan", x, **attrs)), {"0": ordinary(row.dtype, *row.shape)}


def _triangle(dtype: DType) -> tuple[WireGraph, Inputs]:
    """Every row is scanned in its turn."""
    scalar, line = TensorType((), dtype), TensorType((4,), dtype)
    inner = graph_of([scalar, scalar], lambda b, total, x: [b.add("add", total, x), b.add("max", total, x)])
    small = {"body": inner, "carry": 1, "consts": 0, "length": 4, "reverse": 0, "count": 2}

    def rows(b: GraphBuilder, total: int, x: int) -> list[int]:
        return siblings(b, "scan", total, x, **small)

    attrs = {"body": graph_of([scalar, line], rows), "carry": 1, "consts": 0, "length": 3, "reverse": 0, "count": 2}
    whole = graph_of([scalar, TensorType((3, 4), dtype)], lambda b, *all: siblings(b, "scan", *all, **attrs))
    return whole, {"0": ordinary(dtype), "1": ordinary(dtype, 3, 4)}


CASES: dict[str, Callable[[DType], Iterator[Found]]] = {"cond": _cond, "while": _while, "scan": _scan}
