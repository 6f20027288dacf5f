"""Graphs of several ops for the conformance of engines: what fusion, views and scheduling may get wrong.

A row of PROGRAMS is a function of arrays and example arguments; its graph is traced, as a user's would be.  The values
are tame, so that a wrong result is a wrong program and not an unlucky rounding.  To add one, add a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import mesh.numpy as mnp
from mesh import nn, trace_full
from wire.ir.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, U32
from wire.ir.graph import GraphBuilder

from .op_cases import Case
from .values import any_bits, ordinary

Program = Callable[..., Any]


@cache
def programs() -> tuple[Case, ...]:
    """Every program as a case of the op `composite`, whose tolerance is that of sums."""
    return (_other_order(), *(_program(label, function, arguments) for label, function, arguments in PROGRAMS))


def _program(label: str, function: Program, arguments: tuple[Any, ...]) -> Case:
    traced = trace_full(function, *arguments)
    dtype = next(iter(traced.graph.output_types.values())).dtype
    return Case(f"program/{dtype.name}/{label}", "composite", dtype, traced.graph, traced.bind(*arguments).inputs)


def _other_order() -> Case:
    """A composite over params whose body reads the second first and the third not at all."""
    body = GraphBuilder()
    a, b, _ = (body.input(name, (2, 3), F32) for name in "abc")
    quotient = body.build([body.add("div", body.add("exp", b), a)])
    builder = GraphBuilder()
    params = [builder.param(name, (2, 3), F32) for name in "pqr"]
    graph = builder.build([builder.add("composite", *params, name="quotient", body=quotient)])
    inputs = {name: ordinary(F32, 2, 3, seed=seed) for seed, name in enumerate("pqr")}
    return Case("program/f32/other-order", "composite", F32, graph, inputs)


def _chain_with_views(x: Any) -> Any:
    y = mnp.flip(mnp.exp(x * 0.5).T, axis=0)[1:, ::2]
    return mnp.tanh(y.reshape(-1)) + 1


def _sliced_and_joined(x: Any) -> Any:
    return mnp.concat([x[:, 3:] * 2, mnp.sin(x[:, :3]), mnp.flip(x, axis=1)], axis=1)


def _normalised(x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / mnp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)


def _dot_with_epilogue(x: Any, w: Any, b: Any) -> Any:
    return mnp.maximum(x @ w + b, 0) * 0.5


def _dot_with_prologue(x: Any, w: Any) -> Any:
    return mnp.exp(x * 0.1) @ mnp.tanh(w.T)


def _residual(x: Any, w: Any) -> Any:
    y = x @ w
    return x + mnp.tanh(y) * y


def _shared(x: Any) -> Any:
    """One intermediate is an output, is reduced, and feeds two more outputs."""
    y = mnp.exp(x * 0.3)
    total = y.sum(axis=0)
    return {"y": y, "total": total, "ratio": y / total, "double": y + y}


def _given_back(x: Any, y: Any) -> Any:
    """An output that is an input, one that is a view of it, and one computed."""
    return x, x.T, x + y


def _reduced_twice(x: Any) -> Any:
    return (x.sum(axis=1) * x.max(axis=1)).sum()


def _mixed_dtypes(x: Any, count: Any, flag: Any) -> Any:
    scaled = mnp.where(flag, x, 0.0) * mnp.astype(count, mnp.float32)
    return scaled, mnp.astype(mnp.round(scaled), mnp.int32) + count, (scaled > 0) & flag


def _many_inputs(*arrays: Any) -> Any:
    """More operands in one chain than a kernel may bind buffers."""
    total = arrays[0]
    for array in arrays[1:]:
        total = total * 0.5 + array
    return total


def _looked_up(table: Any, ids: Any) -> Any:
    return mnp.tanh(mnp.take(table, ids, axis=0)).sum(axis=1)


def _pooled(x: Any, mask: Any) -> Any:
    """Mean pooling over the tokens that are there, then vectors of length 1: the end of a sentence encoder."""
    weights = mnp.astype(mask, mnp.float32)[:, :, None]
    mean = (x * weights).sum(axis=1) / mnp.maximum(weights.sum(axis=1), 1e-9)
    return mean / mnp.sqrt((mean * mean).sum(axis=-1, keepdims=True))


def _deep(x: Any) -> Any:
    for _ in range(60):
        x = mnp.sin(x) + x * 0.25
    return x


def _diamond(x: Any) -> Any:
    for _ in range(12):
        x = (x * 0.5) + mnp.flip(x, axis=-1) * 0.5
    return x


def _attended(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return nn.scaled_dot_product_attention(q, k, v, mask)


def _broadcast_everywhere(x: Any, y: Any, z: Any) -> Any:
    return (x * y + z).sum(axis=(0, 2)) - z


def _bits(x: Any, y: Any) -> Any:
    mixed = (x ^ (y << 3)) + (x >> 5)
    return mixed * 747796405, mixed % 7, mixed // 3


X, Y, WIDE = ordinary(F32, 5, 12), ordinary(F32, 5, 12, seed=1), ordinary(F32, 3, 7, 40)
WEIGHT, BIAS = ordinary(F32, 12, 12, seed=2), ordinary(F32, 12, seed=3)
QUERY, KEY, VALUE = (ordinary(F32, 2, 3, 9, 8, seed=seed) for seed in (4, 5, 6))

PROGRAMS: tuple[tuple[str, Program, tuple[Any, ...]], ...] = (
    ("chain-with-views", _chain_with_views, (X,)),
    ("sliced-and-joined", _sliced_and_joined, (X,)),
    ("normalised", _normalised, (WIDE,)),
    ("normalised-f16", _normalised, (WIDE.astype(F16.numpy),)),
    ("normalised-bf16", _normalised, (WIDE.astype(BF16.numpy),)),
    ("normalised-f64", _normalised, (WIDE.astype(F64.numpy),)),
    ("dot-with-epilogue", _dot_with_epilogue, (X, WEIGHT, BIAS)),
    ("dot-with-epilogue-batched", _dot_with_epilogue, (ordinary(F32, 3, 65, 12), WEIGHT, BIAS)),
    ("dot-with-epilogue-f16", _dot_with_epilogue, tuple(each.astype(F16.numpy) for each in (X, WEIGHT, BIAS))),
    ("dot-with-prologue", _dot_with_prologue, (X, WEIGHT)),
    ("residual", _residual, (X, WEIGHT)),
    ("shared", _shared, (X,)),
    ("given-back", _given_back, (X, Y)),
    ("given-back-i64", _given_back, (any_bits(I64, 3, 4), any_bits(I64, 3, 4, seed=1))),
    ("reduced-twice", _reduced_twice, (X,)),
    ("mixed-dtypes", _mixed_dtypes, (X, ordinary(I32, 12), ordinary(BOOL, 5, 1))),
    ("many-inputs", _many_inputs, tuple(ordinary(F32, 6, 11, seed=seed) for seed in range(21))),
    ("looked-up", _looked_up, (ordinary(F32, 50, 24), ordinary(U32, 13).astype("int32"))),
    ("pooled", _pooled, (ordinary(F32, 3, 9, 16), ordinary(BOOL, 3, 9) | (ordinary(I32, 9) > 0))),
    ("deep", _deep, (X,)),
    ("diamond", _diamond, (X,)),
    ("bits", _bits, (any_bits(U32, 40), any_bits(U32, 40, seed=1))),
    ("bits-signed", _bits, (any_bits(I32, 40), any_bits(I32, 40, seed=1))),
    ("broadcast-everywhere", _broadcast_everywhere, (ordinary(F32, 4, 1, 6), ordinary(F32, 5, 1), ordinary(F32, 5, 1))),
    ("softmax", nn.softmax, (WIDE,)),
    ("softmax-first-axis", lambda x: nn.softmax(x * 30, axis=0), (WIDE,)),
    ("softmax-f16", nn.softmax, (WIDE.astype(F16.numpy),)),
    ("log-softmax", nn.log_softmax, (WIDE * 20,)),
    ("layer-norm", nn.layer_norm, (X, BIAS, BIAS)),
    ("gelu", nn.gelu, (ordinary(F32, 10_007) * 3,)),
    ("gelu-tanh", lambda x: nn.gelu(x, approximate=True), (WIDE * 3,)),
    ("silu", nn.silu, (WIDE * 3,)),
    ("linear", nn.linear, (X, WEIGHT, BIAS)),
    ("attention", nn.scaled_dot_product_attention, (QUERY, KEY, VALUE)),
    ("attention-masked", _attended, (QUERY, KEY, VALUE, ordinary(BOOL, 9, 9) | (ordinary(I32, 9) > 0))),
    ("attention-biased", _attended, (QUERY, KEY, VALUE, ordinary(F32, 2, 1, 1, 9))),
)
