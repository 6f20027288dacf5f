"""Layers: frozen dataclasses of weights that can be called.

A layer is a pytree: `mesh.put(layer)` gives the same layer with handles, and a traced function takes it as an argument.
Numbers that shape the computation (eps, heads) are static fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..array import Array, Operand
from . import attention, functions, normalisation


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight^T + bias; weight (out, in), bias (out,) or None."""

    weight: Operand
    bias: Operand | None = None

    def __call__(self, x: Operand) -> Array:
        return functions.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of a table (n, width)."""

    table: Operand

    def __call__(self, indices: Operand) -> Array:
        return functions.embedding(indices, self.table)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalisation along the last axis; weight and bias (width,)."""

    weight: Operand
    bias: Operand
    eps: float = field(default=1e-5, metadata={"static": True})

    def __call__(self, x: Operand) -> Array:
        return normalisation.layer_norm(x, self.weight, self.bias, eps=self.eps)


@dataclass(frozen=True, slots=True)
class MultiHeadAttention:
    """Attention of several heads with its four projections."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int = field(metadata={"static": True})

    def __call__(self, x: Operand, mask: Operand | None = None, context: Operand | None = None) -> Array:
        layers = {"query": self.query, "key": self.key, "value": self.value, "output": self.output}
        params = {name: {"weight": layer.weight, "bias": layer.bias} for name, layer in layers.items()}
        return attention.multi_head_attention(x, params, self.heads, mask, context)
