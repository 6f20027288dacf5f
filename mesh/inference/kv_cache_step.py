"""KV-cache step: one step of a batch of texts, whose keys and values stay where the layers are computed.

A batch has `slots` places, each with room for `length` tokens.  A step takes up to `chunk` tokens of every text: those
of a prompt, or the one that the step before chose, which never leaves the workers.  So prompts are read in pieces while
other texts go on by one token (Agrawal et al., 2024, "Sarathi-Serve"), and steps can be asked for ahead.  Where no text
has more than one token the layers compute no more than that.

What is written behind a text's end is never looked at before it is overwritten, so nothing has to be cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.codec import hash_array
from wire.ir.dtypes import DType
from wire.ir.types import TensorType

from .. import numpy as mnp
from ..core.array import Array, apply
from ..core.handle import Handle
from ..models.decoder import Decoder, Scores, attended
from ..transforms.control_flow import cond
from . import sampling
from .settings import Room

State = dict[str, Any]
LAST = "last"


def empty(decoder: Decoder, room: Room, dtype: DType) -> State:
    """The state of a batch without texts: keys and values (slots, kv_heads, length, size) of every layer, all zeros."""
    kind = TensorType((room.slots, decoder.kv_heads, room.length, decoder.size), dtype)
    zeros = np.zeros(kind.shape, dtype.numpy)  # one for all: memory that nobody writes takes no place
    zeros.flags.writeable = False
    first = Handle(hash_array(zeros), kind, "zeros", zeros)
    caches = {f"{what}.{number}": first for number in range(decoder.layers) for what in ("keys", "values")}
    return {**caches, LAST: np.zeros(room.slots, np.int32)}


def moved(state: Mapping[str, NDArray[Any]], room: Room, order: Sequence[int]) -> State:
    """The texts of these slots in a batch of another size."""
    return {name: _moved(array, room, order) for name, array in state.items()}


def feeds(
    room: Room, ids: NDArray[np.int32], start: NDArray[np.int32], count: NDArray[np.int32], follow: NDArray[np.bool_],
    how: dict[str, NDArray[Any]],
) -> tuple[Any, ...]:  # fmt: skip
    """A step's arguments: tokens (slots, chunk), of which `count` are meant, at positions from `start`; where `follow`
    the first one is what the step before chose.  Last: whether a text has several."""
    assert ids.shape == (room.slots, room.chunk)
    return ids, start, count, follow, how, np.any(count > 1)


def stepper(
    decoder: Decoder, room: Room, params: Mapping[str, Array], detailed: bool = False
) -> Callable[..., tuple[State, Array]]:
    """`step(state, *feeds)` gives the next state and the token i32 (slots,) chosen behind every text; a detailed one
    takes `sampling.limits` too, and gives what `sampling.scored` makes."""

    def step(
        state: State, ids: Array, start: Array, count: Array, follow: Array, how: Any, several: Array
    ) -> tuple[State, Array]:
        column = mnp.astype(mnp.arange(room.chunk), mnp.int32)[None]
        ids = mnp.where(follow[:, None] & (column == 0), state[LAST][:, None], ids)
        x = decoder.embed(params, ids, start[:, None] + column)
        following: State = {}
        for number in range(decoder.layers):
            kept = state[f"keys.{number}"], state[f"values.{number}"]
            x, *kept = _either(_layer(decoder, number, params, room.length), several, x, start, count, kept)
            following[f"keys.{number}"], following[f"values.{number}"] = kept
        final = apply("gather", x, mnp.maximum(count - 1, 0)[:, None], axis=1, batch_dims=1)[:, 0]
        logits = decoder.head(params, final)
        token = sampling.chosen(logits, start + count, how)
        token = mnp.where(count > 0, token, state[LAST])
        return {**following, LAST: token}, sampling.scored(logits, token, how) if detailed else token

    return step


def _either(layer: Any, several: Array, x: Array, start: Array, count: Array, kept: Any) -> Any:
    """The layer over all columns, or over the first alone where no text has more.

    It takes nothing but arguments of the step from outside, which every worker is given: what several layers computed
    together would be sent from stage to stage.
    """
    if x.shape[1] == 1:
        return layer(x, start, count, *kept)

    def first(*kept: Array) -> tuple[Array, ...]:
        first_column, *caches = layer(x[:, :1], start, count, *kept)
        return (apply("dynamic_update_slice", x, first_column, mnp.asarray(np.zeros(3, np.int32))), *caches)

    return cond(several, lambda *kept: tuple(layer(x, start, count, *kept)), first, *kept)


def _layer(decoder: Decoder, number: int, params: Mapping[str, Array], length: int) -> Callable[..., tuple[Array, ...]]:
    """A layer that reads and extends what was kept: (x, keys, values)."""
    window = decoder.windows[number]

    def layer(x: Array, start: Array, count: Array, keys: Array, values: Array) -> tuple[Array, ...]:
        caches: list[Array] = []
        column = mnp.astype(mnp.arange(x.shape[1]), mnp.int32)[None]
        positions, meant = start[:, None] + column, column < count[:, None]

        def attend(_: int, q: Array, k: Array, v: Array, scores: Scores) -> Array:
            caches[:] = [_written(old, new, positions, meant) for old, new in ((keys, k), (values, v))]
            there = mnp.astype(mnp.arange(length), mnp.int32)
            seen = there <= positions[:, :, None]
            if window is not None and window < length:
                seen = seen & (there > positions[:, :, None] - window)
            k, v = (mnp.astype(cache, q.dtype) for cache in caches)
            return attended(q, k, v, seen[:, None], scores, there[None])

        x = decoder.layer(params, number, x, positions, attend)
        return x, *caches

    return layer


def _written(old: Array, new: Array, positions: Array, meant: Array) -> Array:
    """`old` (slots, heads, length, size) with `new` (slots, heads, n, size) at its positions, where it is meant."""
    slots, heads, length, size = old.shape
    rows = slots * heads
    first = mnp.reshape(mnp.astype(mnp.arange(rows), mnp.int32) * length, (slots, heads, 1))
    fits = (meant & (positions < length))[:, None]
    places = mnp.where(fits, first + positions[:, None], rows * length)  # beyond the end: dropped
    flat = mnp.reshape(old, (rows * length, size))
    updates = mnp.reshape(mnp.astype(new, old.dtype), (-1, size))
    written = apply("scatter", flat, mnp.reshape(places, (-1,)), updates, axis=0, mode="set")
    return mnp.reshape(written, old.shape)


def _moved(array: NDArray[Any], room: Room, order: Sequence[int]) -> NDArray[Any]:
    shape = (room.slots, array.shape[1], room.length, array.shape[3]) if array.ndim > 1 else (room.slots,)
    resized = np.zeros(shape, array.dtype)
    part = tuple([slice(0, min(old, new)) for old, new in zip(array.shape[1:], shape[1:], strict=True)])
    resized[(slice(len(order)), *part)] = array[list(order)][(slice(None), *part)]
    return resized
