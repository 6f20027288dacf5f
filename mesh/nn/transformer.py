"""Transformers: attention with grouped heads, rotary positions and a cache, and the blocks made of it.

While a text is generated, `step` takes the keys and values of what came before as a `KVCache` and gives it back longer;
its arrays have the full length from the start, so every step is the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wire.errors import ShapeError

from .. import numpy as mnp
from ..core.array import Array, Operand, apply
from ..numpy import random
from ..numpy.promotion import asarray, floats
from ..util.annotation_checks import checked, truth
from ..util.argument_checks import integer
from .attention import both_masks, causal_mask, join_heads, scaled_dot_product_attention, split_heads
from .layers import MLP, STATIC, GatedMLP, LayerNorm, Linear, RMSNorm, check_parts, dropout


@checked
def rotary(x: Operand, positions: Operand, *, base: float = 10_000.0, interleaved: bool = False) -> Array:
    """x (..., n, size) with pairs of features turned by angles that grow with `positions` (n,) or (..., n).

    Pair i turns by position / base^(2i / size).  It is features i and i + size / 2, or 2i and 2i + 1 if interleaved.
    Su et al., 2021 (arXiv 2104.09864).
    """
    (array,) = floats(x)
    if array.ndim < 2 or array.shape[-1] % 2:
        raise ShapeError(f"rotary needs x (..., n, size) with an even size, got {array.shape}")
    size = array.shape[-1]
    wide = array.dtype if array.dtype == np.float64 else np.float32
    speed = asarray((base ** (-np.arange(0, size, 2) / size)).astype(wide))
    angle = mnp.expand_dims(mnp.astype(positions, wide), -1) * speed
    cos, sin = (mnp.astype(fn(angle), array.dtype) for fn in (mnp.cos, mnp.sin))
    if interleaved:
        first, second = array[..., ::2], array[..., 1::2]
        return mnp.stack([first * cos - second * sin, second * cos + first * sin], -1).reshape(array.shape)
    first, second = array[..., : size // 2], array[..., size // 2 :]
    return mnp.concat([first * cos - second * sin, second * cos + first * sin], -1)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values (..., heads, length, size) of one layer, the first `used` of them (an int32 number) filled."""

    key: Operand
    value: Operand
    used: Operand

    @classmethod
    @checked
    def init(cls, batch: Sequence[int], heads: int, length: int, size: int, *, dtype: Any = np.float32) -> KVCache:
        """Room for `length` positions, none of them used."""
        shape = (*batch, heads, length, size)
        return cls(mnp.zeros(shape, dtype=dtype), mnp.zeros(shape, dtype=dtype), mnp.asarray(0))

    def extended(self, key: Operand, value: Operand) -> KVCache:
        """With `key` and `value` (..., heads, n, size) behind what is used; past the end they replace the last ones."""
        key, value, used = _rows(key, "key"), _rows(value, "value"), asarray(self.used)
        starts = mnp.stack([used if axis == key.ndim - 2 else mnp.zeros_like(used) for axis in range(key.ndim)])
        keys, values = (
            apply("dynamic_update_slice", asarray(old), mnp.astype(new, asarray(old).dtype), starts)
            for old, new in ((self.key, key), (self.value, value))
        )
        return KVCache(keys, values, used + key.shape[-2])


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of `heads` heads; bidirectional, causal, or across to a context.

    They share `kv_heads` keys and values, None for one each.  `rotary` is the base of rotary positions, None for none.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int = field(metadata=STATIC)
    kv_heads: int | None = field(default=None, metadata=STATIC)
    causal: bool = field(default=False, metadata=STATIC)
    rotary: float | None = field(default=None, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, width: int, heads: int, *, kv_heads: int | None = None, size: int | None = None,
        causal: bool = False, rotary: float | None = None, bias: bool = True, dtype: Any = np.float32,
    ) -> Attention:  # fmt: skip
        """Heads of `size` features each, width / heads by default."""
        integer(heads, "heads of Attention.init", 1)
        few, each = integer(kv_heads or heads, "kv_heads of Attention.init", 1), size or width // heads
        if heads % few:
            raise ShapeError(f"{heads} heads cannot share {few} keys and values")
        if size is None and width % heads:
            raise ShapeError(f"a width of {width} does not split into {heads} heads; say the size of one")
        keys = random.split(key, 4)
        query = Linear.init(keys[0], width, heads * each, bias=bias, dtype=dtype)
        to_key, to_value = (Linear.init(keys[at], width, few * each, bias=bias, dtype=dtype) for at in (1, 2))
        output = Linear.init(keys[3], heads * each, width, bias=bias, dtype=dtype)
        return cls(query, to_key, to_value, output, heads, kv_heads, causal, rotary)

    def __call__(self, x: Operand, mask: Operand | None = None, context: Operand | None = None) -> Array:
        """x (..., n, width) attends to itself or context (..., k, width); `mask` broadcasts to (..., heads, n, k)."""
        self._check()
        source = _rows(x, "x")
        target = source if context is None else _rows(context, "context")
        at, there = mnp.arange(source.shape[-2]), mnp.arange(target.shape[-2])
        q, (k, v) = self._queries(source, at), self._keys_and_values(target, there)
        allowed = causal_mask(at, there) if self.causal else None
        return self._attended(q, k, v, both_masks(allowed, mask))

    @checked
    def step(self, x: Operand, cache: KVCache, mask: Operand | None = None) -> tuple[Array, KVCache]:
        """The next positions x (..., n, width), which attend to those in the cache too; and the cache with them."""
        self._check()
        source, used = _rows(x, "x"), asarray(cache.used)
        at = mnp.arange(source.shape[-2]) + used
        grown = cache.extended(*self._keys_and_values(source, at))
        k, v = asarray(grown.key), asarray(grown.value)
        there = mnp.arange(k.shape[-2])
        allowed = causal_mask(at, there) if self.causal else there < used + source.shape[-2]
        return self._attended(self._queries(source, at), k, v, both_masks(allowed, mask)), grown

    def _check(self) -> None:
        check_parts(self, "query", "key", "value", "output")
        integer(self.heads, "heads of Attention", 1)
        truth(self.causal, "causal of Attention")
        if self.kv_heads is not None:
            integer(self.kv_heads, "kv_heads of Attention", 1)

    def _queries(self, x: Array, positions: Array) -> Array:
        return self._turned(split_heads(asarray(self.query(x)), self.heads), positions)

    def _keys_and_values(self, x: Array, positions: Array) -> tuple[Array, Array]:
        few = self.kv_heads or self.heads
        return self._turned(split_heads(asarray(self.key(x)), few), positions), split_heads(asarray(self.value(x)), few)

    def _turned(self, x: Array, positions: Array) -> Array:
        return x if self.rotary is None else rotary(x, positions, base=self.rotary)

    def _attended(self, q: Array, k: Array, v: Array, mask: Array | None) -> Array:
        """Heads that share keys stand side by side along an axis of their own, over which keys broadcast."""
        few = self.kv_heads or self.heads
        if few != self.heads:
            shape = (*q.shape[:-3], few, self.heads // few, *q.shape[-2:])
            q, k, v = q.reshape(shape), mnp.expand_dims(k, -3), mnp.expand_dims(v, -3)
            if mask is not None and mask.ndim > 2:
                many = mask.shape[-3]
                apart = (1, 1) if many == 1 else shape[-4:-2]
                mask = mask.reshape(*mask.shape[:-3], *apart, *mask.shape[-2:])
        found = scaled_dot_product_attention(q, k, v, mask)
        return self.output(
            join_heads(found.reshape(*found.shape[: -3 - (few != self.heads)], self.heads, *found.shape[-2:]))
        )


@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """Attention and an MLP, each with a norm and a residual; with `cross`, attention to a context between them.

    `pre_norm` normalises what a layer reads (x + f(norm(x))), else the sum is (norm(x + f(x))).  An encoder's block
    attends to all, a decoder's is causal.
    """

    attention: Attention
    attention_norm: LayerNorm | RMSNorm
    mlp: MLP | GatedMLP
    mlp_norm: LayerNorm | RMSNorm
    cross: Attention | None = None
    cross_norm: LayerNorm | RMSNorm | None = None
    pre_norm: bool = field(default=True, metadata=STATIC)
    dropout: float = field(default=0.0, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, width: int, heads: int, *, kv_heads: int | None = None, hidden: int | None = None,
        causal: bool = False, cross: bool = False, rotary: float | None = None, norm: Any = LayerNorm, mlp: Any = MLP,
        pre_norm: bool = True, dropout: float = 0.0, bias: bool = True, dtype: Any = np.float32,
    ) -> TransformerBlock:  # fmt: skip
        """`hidden` is 4 * width by default; `norm` is LayerNorm or RMSNorm, `mlp` MLP or GatedMLP."""
        keys = random.split(key, 3)
        shape: dict[str, Any] = {"kv_heads": kv_heads, "bias": bias, "dtype": dtype}
        return cls(
            Attention.init(keys[0], width, heads, causal=causal, rotary=rotary, **shape),
            norm.init(width, dtype=dtype),
            mlp.init(keys[1], width, hidden or 4 * width, bias=bias, dtype=dtype),
            norm.init(width, dtype=dtype),
            Attention.init(keys[2], width, heads, **shape) if cross else None,
            norm.init(width, dtype=dtype) if cross else None,
            pre_norm,
            dropout,
        )

    def __call__(
        self, x: Operand, mask: Operand | None = None, context: Operand | None = None,
        context_mask: Operand | None = None, key: Operand | None = None,
    ) -> Array:  # fmt: skip
        """x (..., n, width) to the same shape; a key turns dropout on."""
        self._check()
        keys = _keys(key)
        found = self._around(self.attention_norm, lambda each: self.attention(each, mask), asarray(x), keys[0])
        return self._rest(found, context, context_mask, keys)

    @checked
    def step(
        self, x: Operand, cache: KVCache, context: Operand | None = None, context_mask: Operand | None = None
    ) -> tuple[Array, KVCache]:
        """As the call, of the next positions, with the keys and values of those before."""
        self._check()
        grown = [cache]

        def attended(each: Array) -> Array:
            found, grown[0] = self.attention.step(each, cache)
            return found

        found = self._around(self.attention_norm, attended, asarray(x), None)
        return self._rest(found, context, context_mask, _keys(None)), grown[0]

    def _check(self) -> None:
        check_parts(self, "attention", "attention_norm", "mlp", "mlp_norm")
        truth(self.pre_norm, "pre_norm of TransformerBlock")
        if self.cross is not None and self.cross_norm is not None:
            check_parts(self, "cross", "cross_norm")

    def _rest(self, x: Array, context: Any, context_mask: Any, keys: Sequence[Any]) -> Array:
        cross, norm = self.cross, self.cross_norm
        if cross is not None and norm is not None:
            x = self._around(norm, lambda each: cross(each, context_mask, context), x, keys[1])
        return self._around(self.mlp_norm, self.mlp, x, keys[2])

    def _around(self, norm: Callable[[Any], Array], inner: Callable[[Array], Array], x: Array, key: Any) -> Array:
        if self.pre_norm:
            return x + dropout(inner(norm(x)), self.dropout, key)
        return norm(x + dropout(inner(x), self.dropout, key))


def _rows(x: Operand, what: str) -> Array:
    """An array (..., n, width); ShapeError for fewer dimensions."""
    array = asarray(x)
    if array.ndim < 2:
        raise ShapeError(f"{what} has shape {array.shape}, where (..., n, width) is needed")
    return array


def _keys(key: Operand | None) -> Sequence[Any]:
    if key is None:
        return (None, None, None)
    keys = random.split(key, 3)
    return [keys[at] for at in range(3)]
