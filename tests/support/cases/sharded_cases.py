"""Small programs of every op that can be sharded, with their gradients: graphs, and the inputs they are given.

What has a derivative comes from `smooth_cases.py`; a row of OTHERS is for the rest, and for composites, branches and
loops.  To cover a new op: a row in one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array, apply
from mesh.numpy import asarray
from mesh.transforms.vjp_rules import backward
from wire.ir.graph import WireGraph
from worker.cpu import evaluate

from .smooth_cases import SMOOTH, any_, apart, ints

Program = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A graph of results and gradients, its inputs, and the outputs as they are on one device."""

    id: str
    graph: WireGraph
    inputs: Mapping[str, NDArray[Any]]
    outputs: Sequence[NDArray[Any]]


def cases(op: str) -> list[Case]:
    """The programs of one op."""
    return list(_cases(op))


@cache
def _cases(op: str) -> tuple[Case, ...]:
    found = [(str(each), _applied(op, each.attrs), each.operands) for each in SMOOTH.get(op, ())]
    found += [(f"{name}", program, operands) for name, program, operands in OTHERS.get(op, ())]
    return tuple(_case(f"{op}-{name}", program, operands) for name, program, operands in found)


def _applied(op: str, attrs: Mapping[str, Any]) -> Program:
    return lambda *operands: apply(op, *operands, **attrs)


def _case(id: str, program: Program, operands: Sequence[NDArray[Any]]) -> Case:
    floats = [place for place, operand in enumerate(operands) if operand.dtype.kind in "fc"]

    def with_gradients(*given: Array) -> Any:
        def of_floats(*values: Array) -> list[Array]:
            arrays = list(given)
            for place, value in zip(floats, values, strict=True):
                arrays[place] = value
            return [asarray(leaf) for leaf in mesh.tree.leaves(program(*arrays))]

        results, pull = backward(of_floats, [given[place] for place in floats])
        cotangents = [_weights(result) if result.dtype.kind in "fc" else None for result in results]
        gradients = pull(cotangents) if any(each is not None for each in cotangents) else []
        return [*results, *[each for each in gradients if each is not None]]

    graph = mesh.trace(with_gradients, *operands)
    inputs = dict(zip(graph.input_types, operands, strict=True))
    return Case(id, graph, inputs, evaluate(graph, inputs))


def _weights(result: Array) -> Array:
    count = np.arange(result.size, dtype=np.float64).reshape(result.shape)
    return asarray(np.asarray(np.cos(count) + 1.5, result.dtype))


# -- what has no derivative, and what is made of graphs ---------------------------------------------------

BITS = np.arange(12, dtype=np.int32).reshape(3, 4) * 7 - 20
KEY = np.array([3, 9], np.uint32)
Rows = Iterator[tuple[str, Program, tuple[NDArray[Any], ...]]]


def _pairs(op: str) -> Rows:
    yield "", _applied(op, {}), (BITS, BITS[::-1].copy() % 5)
    yield "row", _applied(op, {}), (BITS, BITS[0].copy() % 5)


def _compared(op: str) -> Rows:
    values = np.round(any_(3, 4))
    yield "", _applied(op, {}), (values, values[0])


def _argument(op: str) -> Rows:
    for axis in (0, 1):
        yield f"{axis}", _applied(op, {"axis": axis}), (apart(5, 4),)
        yield f"{axis}-ties", _applied(op, {"axis": axis}), (np.zeros((5, 3)),)


def _iota() -> Rows:
    for axis, dtype in ((0, "i32"), (1, "f32"), (1, "u8")):
        attrs = {"shape": (5, 4), "dtype": dtype, "axis": axis}
        yield f"{axis}-{dtype}", lambda x, attrs=attrs: (apply("iota", **attrs), x + 1), (np.arange(3),)


def _random_bits() -> Rows:
    for shape in ((5, 4), (7,)):
        yield f"{shape}", lambda key, shape=shape: apply("random_bits", key, shape=shape), (KEY,)
    yield "normal", lambda key, x: x * mesh.random.normal(key, (5, 4), dtype="float64"), (KEY, any_(5, 4))


def _conv() -> Rows:
    attrs = {"stride": (2,), "low": (1,), "high": (0,), "lhs_dilation": (1,), "rhs_dilation": (1,)}
    for groups, inner in ((1, 4), (2, 2), (4, 1)):
        operands = (any_(3, 4, 7), any_(4, inner, 3))
        yield f"{groups}", lambda x, w, groups=groups: apply("conv", x, w, groups=groups, **attrs), operands


def _composites() -> Rows:
    yield "softmax", lambda x: mesh.nn.softmax(x, axis=-1), (any_(3, 5),)
    yield "log-softmax", lambda x: mesh.nn.log_softmax(x, axis=0), (any_(3, 5),)
    yield "layer-norm", lambda x, w, b: mesh.nn.layer_norm(x, w, b), (any_(3, 6), any_(6), any_(6))
    yield "gelu", lambda x: mesh.nn.gelu(x), (any_(3, 5),)
    heads = (any_(2, 2, 3, 4), any_(2, 2, 3, 4), any_(2, 2, 3, 4))
    yield "attention", lambda q, k, v: mesh.nn.scaled_dot_product_attention(q, k, v), heads


def _conds() -> Rows:
    def branches(x: Array, w: Array) -> Any:
        return mesh.cond(x.sum() > 100, lambda: (mnp.sin(x) * w, x[0]), lambda: (mnp.exp(x) @ mnp.ones((4, 4)), x[1]))

    def rows(x: Array, w: Array) -> Any:
        return mesh.cond(w[0] > -9, lambda x: x * 2 + w, lambda x: -x, x)

    yield "sums", branches, (any_(3, 4), any_(4))
    yield "rows", rows, (any_(3, 4), any_(4))


def _whiles() -> Rows:
    def counted(x: Array) -> Any:
        return mesh.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2 - 3), (mnp.asarray(0), x))[1]

    def asking_all(x: Array) -> Any:
        return mesh.while_loop(lambda x: mnp.any(x < 9), lambda x: x + 7, x)

    yield "counted", counted, (BITS,)
    yield "asking-all", asking_all, (BITS,)


def _scans() -> Rows:
    def recurrent(x: Array, w: Array, rows: Array) -> Any:
        def turn(carry: Array, row: Array) -> Any:
            hidden = mnp.tanh(carry @ w + row)
            return hidden, hidden * row

        return mesh.scan(turn, x, rows)

    def alone(x: Array, rows: Array) -> Any:
        return mesh.scan(lambda c, row: (mnp.sin(c) + row, c * row), x, rows, reverse=True)

    yield "recurrent", recurrent, (any_(3, 4), any_(4, 4), any_(2, 3, 4))
    yield "elementwise", alone, (any_(3, 4), any_(2, 3, 4))


OTHERS: dict[str, tuple[Any, ...]] = {
    **{op: tuple(_pairs(op)) for op in ("and", "or", "xor", "shl", "shr")},
    **{op: tuple(_compared(op)) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{op: (("", _applied(op, {}), (any_(3, 4),)),) for op in ("floor", "round", "sign", "is_nan")},
    "not": (("", _applied("not", {}), (BITS,)), ("bool", _applied("not", {}), (BITS > 0,))),
    "bitcast": (("", _applied("bitcast", {"dtype": "f32"}), (BITS,)),),
    "reduce_max": tuple(
        (f"{data.dtype}-{axes}", _applied("reduce_max", {"axes": axes}), (data,))
        for data in (BITS, BITS > 0) for axes in ((0,), (0, 1))
    ),
    "reduce_min": (("bool", _applied("reduce_min", {"axes": (0,)}), (BITS > -99,)),),
    "reduce_prod": (("ints", _applied("reduce_prod", {"axes": (0,)}), (BITS,)),),
    "argmax": tuple(_argument("argmax")),
    "argsort": tuple(_argument("argsort")),
    "iota": tuple(_iota()),
    "random_bits": tuple(_random_bits()),
    "conv": tuple(_conv()),
    "gather": (("bools", _applied("gather", {"axis": 0, "batch_dims": 0}), (BITS > 0, ints(0, 2, 9))),),
    "composite": tuple(_composites()),
    "cond": tuple(_conds()),
    "while": tuple(_whiles()),
    "scan": tuple(_scans()),
}  # fmt: skip
