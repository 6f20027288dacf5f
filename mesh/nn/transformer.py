"""Transformers: attention with grouped heads, rotary positions and a cache, and the blocks made of it.

While a text is generated, `step` takes the keys and values of what came before as a `KVCache` and gives it back longer;
its arrays have the full length from the start, so every step is the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from wire.errors import ShapeError

from .. import numpy as mnp
from ..core.array import Array, Operand, apply
from ..numpy import random
from ..numpy.promotion import asarray, floats
from ..util.annotation_checks import checked, truth
from ..util.argument_checks import integer
from .attention import both_masks, causal_mask, join_heads, scaled_dot_product_attention, split_heads
from .layers import MLP, STATIC, GatedMLP, LayerNorm, Linear, RMSNorm, check_parts, dropout, layer


@checked
def rotary(x: Operand, positions: Operand, *, base: float = 10_000.0, interleaved: bool = False) -> Array:
    """Turn pairs of features by angles that grow with the position.

    Parameters
    ----------
    x : array_like, (..., n, size)
        Queries or keys; the size is even.
    positions : array_like of int, (n,) or (..., n)
        The position of each row.
    base : float, optional
        Pair i turns by `position / base**(2 * i / size)`.
    interleaved : bool, optional
        Whether pair i is features 2 * i and 2 * i + 1, and not i and i + size / 2.

    Returns
    -------
    Array
        The turned rows, of the shape of x.

    Raises
    ------
    ShapeError
        If the size is odd.
    InputError
        If the base is no number.

    Notes
    -----
    Su et al., 2021 (arXiv 2104.09864).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.rotary(np.array([[1.0, 0.0], [1.0, 0.0]]), np.arange(2)), 3)
    array([[1.   , 0.   ],
           [0.54 , 0.841]])
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
    """The keys and values of one attention layer, for the positions that were computed before.

    The arrays have their full length from the start, so that every step of a text is the same graph.

    Parameters
    ----------
    key : Array, (..., heads, length, size)
        The keys.
    value : Array, (..., heads, length, size)
        The values.
    used : Array, int32
        How many positions are filled.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> cache = nn.KVCache.init((1,), heads=2, length=8, size=4)
    >>> cache = cache.extended(np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 3, 4), np.float32))
    >>> int(cache.used), cache.key.shape
    (3, (1, 2, 8, 4))
    """

    key: Operand
    value: Operand
    used: Operand

    @classmethod
    @checked
    def init(
        cls, batch: Sequence[int], heads: int, length: int, size: int, *, dtype: DTypeLike = np.float32
    ) -> KVCache:
        """Make room for positions, none of which is filled.

        Parameters
        ----------
        batch : sequence of int
            The shape in front of the heads.
        heads : int
            The number of heads that have keys and values.
        length : int
            How many positions there is room for.
        size : int
            The number of features of a head.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        KVCache
            The cache.

        Raises
        ------
        InputError
            If a size is no int.
        """
        shape = (*batch, heads, length, size)
        return cls(mnp.zeros(shape, dtype=dtype), mnp.zeros(shape, dtype=dtype), mnp.asarray(0))

    def extended(self, key: Operand, value: Operand) -> KVCache:
        """Put keys and values behind those that are there.

        Parameters
        ----------
        key : array_like, (..., heads, n, size)
            The next keys.
        value : array_like, (..., heads, n, size)
            The next values.

        Returns
        -------
        KVCache
            The longer cache; past the end, the last positions are replaced.

        Raises
        ------
        ShapeError
            If an array has fewer than two dimensions.
        """
        key, value, used = _rows(key, "key"), _rows(value, "value"), asarray(self.used)
        starts = mnp.stack([used if axis == key.ndim - 2 else mnp.zeros_like(used) for axis in range(key.ndim)])
        keys, values = (
            apply("dynamic_update_slice", asarray(old), mnp.astype(new, asarray(old).dtype), starts)
            for old, new in ((self.key, key), (self.value, value))
        )
        return KVCache(keys, values, used + key.shape[-2])


@layer
@dataclass(frozen=True, slots=True)
class Attention:
    """Attention with several heads: bidirectional, causal, or across to a context.

    Called with x (..., n, width), and perhaps a mask that broadcasts to (..., heads, n, k) and a context
    (..., k, width), it gives (..., n, width).  A mask is bool, true where a query may look, or a float that is added to
    the scores.

    Parameters
    ----------
    query : Linear
        From width to heads * size features.
    key : Linear
        From width to kv_heads * size features.
    value : Linear
        From width to kv_heads * size features.
    output : Linear
        From heads * size to width features.
    heads : int
        The number of heads.
    kv_heads : int, optional
        How many heads have keys and values of their own, which the others share; all by default.
    causal : bool, optional
        Whether a position sees only itself and what comes before.
    rotary : float, optional
        The base of rotary positions; none by default.

    Raises
    ------
    InputError
        If a part is no layer, or a number of heads is less than 1.
    ShapeError
        If the shapes do not fit.

    Notes
    -----
    Vaswani et al., 2017 (arXiv 1706.03762); shared keys and values: Ainslie et al., 2023 (arXiv 2305.13245).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.Attention.init(random.key(0), width=8, heads=2, causal=True)
    >>> x = np.ones((1, 3, 8), np.float32)
    >>> layer(x).shape
    (1, 3, 8)
    >>> y, cache = layer.step(x, nn.KVCache.init((1,), heads=2, length=16, size=4))
    >>> int(cache.used)
    3
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
        causal: bool = False, rotary: float | None = None, bias: bool = True, dtype: DTypeLike = np.float32,
    ) -> Attention:  # fmt: skip
        """Make a layer with first weights.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        width : int
            The number of features of x.
        heads : int
            The number of heads.
        kv_heads : int, optional
            How many heads have keys and values of their own; all by default.
        size : int, optional
            The number of features of a head, width / heads by default.
        causal : bool, optional
            Whether a position sees only itself and what comes before.
        rotary : float, optional
            The base of rotary positions; none by default.
        bias : bool, optional
            Whether there is a bias.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        Attention
            The layer.

        Raises
        ------
        InputError
            If a number of heads is less than 1.
        ShapeError
            If kv_heads does not divide heads, or heads does not divide the width.
        """
        integer(heads, "heads of Attention.init", 1)
        few, size_of_head = integer(kv_heads or heads, "kv_heads of Attention.init", 1), size or width // heads
        if heads % few:
            raise ShapeError(f"{heads} heads cannot share {few} keys and values")
        if size is None and width % heads:
            raise ShapeError(f"a width of {width} does not split into {heads} heads; say the size of one")
        keys = random.split(key, 4)
        query = Linear.init(keys[0], width, heads * size_of_head, bias=bias, dtype=dtype)
        to_key, to_value = (Linear.init(keys[at], width, few * size_of_head, bias=bias, dtype=dtype) for at in (1, 2))
        output = Linear.init(keys[3], heads * size_of_head, width, bias=bias, dtype=dtype)
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
        """Compute the next positions, which also attend to those in a cache.

        Parameters
        ----------
        x : array_like, (..., n, width)
            The next positions.
        cache : KVCache
            The keys and values of the positions before.
        mask : array_like, (..., heads, n, length), optional
            True where a query may look, or floats that are added to the scores.

        Returns
        -------
        tuple of Array and KVCache
            The results, (..., n, width), and the longer cache.

        Raises
        ------
        InputError
            If the cache is no `KVCache`.
        ShapeError
            If the shapes do not fit.
        """
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
        seen = scaled_dot_product_attention(q, k, v, mask)
        front = seen.shape[: -3 - (few != self.heads)]
        return self.output(join_heads(seen.reshape(*front, self.heads, *seen.shape[-2:])))


@layer
@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """Attention and an MLP, each with a norm and a residual, and perhaps attention to a context between.

    Called with x (..., n, width), and perhaps a mask, a context (..., k, width), a mask of the context and a key of
    `mesh.random` that turns dropout on, it gives (..., n, width).

    Parameters
    ----------
    attention : Attention
        Attention of the positions to each other; an encoder's is bidirectional, a decoder's causal.
    attention_norm : LayerNorm or RMSNorm
        The norm of the attention.
    mlp : MLP or GatedMLP
        The layer after the attention.
    mlp_norm : LayerNorm or RMSNorm
        The norm of the MLP.
    cross : Attention, optional
        Attention to a context.
    cross_norm : LayerNorm or RMSNorm, optional
        The norm of the attention to a context.
    pre_norm : bool, optional
        Whether a norm stands before its layer, `x + f(norm(x))`, and not behind the sum, `norm(x + f(x))`.
    dropout : float, optional
        The rate of dropout of what is added to the residual.

    Raises
    ------
    InputError
        If a part is neither a layer nor a function.
    ShapeError
        If the shapes do not fit.

    Notes
    -----
    Vaswani et al., 2017 (arXiv 1706.03762); norms before layers: Xiong et al., 2020 (arXiv 2002.04745).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> block = nn.TransformerBlock.init(random.key(0), width=8, heads=2, causal=True)
    >>> x = np.ones((1, 3, 8), np.float32)
    >>> block(x).shape
    (1, 3, 8)
    >>> y, cache = block.step(x, nn.KVCache.init((1,), heads=2, length=16, size=4))
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
        pre_norm: bool = True, dropout: float = 0.0, bias: bool = True, dtype: DTypeLike = np.float32,
    ) -> TransformerBlock:  # fmt: skip
        """Make a block with first weights.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        width : int
            The number of features of x.
        heads : int
            The number of heads.
        kv_heads : int, optional
            How many heads have keys and values of their own; all by default.
        hidden : int, optional
            The number of features inside of the MLP, 4 * width by default.
        causal : bool, optional
            Whether a position sees only itself and what comes before.
        cross : bool, optional
            Whether there is attention to a context.
        rotary : float, optional
            The base of rotary positions; none by default.
        norm : type, optional
            LayerNorm or RMSNorm.
        mlp : type, optional
            MLP or GatedMLP.
        pre_norm : bool, optional
            Whether a norm stands before its layer.
        dropout : float, optional
            The rate of dropout.
        bias : bool, optional
            Whether linear layers have a bias.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        TransformerBlock
            The block.

        Raises
        ------
        InputError
            If a number of heads is less than 1.
        ShapeError
            If kv_heads does not divide heads, or heads does not divide the width.
        """
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
        attended = self._around(self.attention_norm, lambda y: self.attention(y, mask), asarray(x), keys[0])
        return self._after_attention(attended, context, context_mask, keys)

    @checked
    def step(
        self, x: Operand, cache: KVCache, context: Operand | None = None, context_mask: Operand | None = None
    ) -> tuple[Array, KVCache]:
        """Compute the next positions, which also attend to those in a cache.

        Parameters
        ----------
        x : array_like, (..., n, width)
            The next positions.
        cache : KVCache
            The keys and values of the positions before.
        context : array_like, (..., k, width), optional
            What the block attends to besides, if it has `cross`.
        context_mask : array_like, (..., heads, n, k), optional
            True where a query may look in the context.

        Returns
        -------
        tuple of Array and KVCache
            The results, (..., n, width), and the longer cache.

        Raises
        ------
        InputError
            If the cache is no `KVCache`.
        ShapeError
            If the shapes do not fit.
        """
        self._check()
        longer = [cache]

        def attend(y: Array) -> Array:
            attended, longer[0] = self.attention.step(y, cache)
            return attended

        attended = self._around(self.attention_norm, attend, asarray(x), None)
        return self._after_attention(attended, context, context_mask, _keys(None)), longer[0]

    def _check(self) -> None:
        check_parts(self, "attention", "attention_norm", "mlp", "mlp_norm")
        truth(self.pre_norm, "pre_norm of TransformerBlock")
        if self.cross is not None and self.cross_norm is not None:
            check_parts(self, "cross", "cross_norm")

    def _after_attention(self, x: Array, context: Any, context_mask: Any, keys: Sequence[Any]) -> Array:
        cross, norm = self.cross, self.cross_norm
        if cross is not None and norm is not None:
            x = self._around(norm, lambda y: cross(y, context_mask, context), x, keys[1])
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
