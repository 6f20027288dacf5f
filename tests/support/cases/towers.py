"""Towers of dense layers as graphs, with their weights as params."""

from __future__ import annotations

from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph


def layers(rows: int, width: int, count: int) -> WireGraph:
    """`count` products of rows by a square matrix, each with a tanh."""
    builder = GraphBuilder()
    x = builder.input("x", (rows, width), F32)
    for number in range(count):
        w = builder.param(f"w{number}", (width, width), F32)
        x = builder.add(
            "tanh", builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
        )
    return builder.build([x])
