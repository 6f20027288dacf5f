"""KV-cache step: one step of a batch of texts, whose keys and values stay where the layers are computed.

A batch has `slots` places.  Keys and values lie in one pool of pages for all of them, and a table names the pages of
each text in their order (`kv_pages.py`).  A step takes up to `chunk` tokens of every text: those of a prompt, or the
one that the step before chose, which never leaves the workers.  So prompts are read in pieces while other texts go on
by one token (Agrawal et al., 2024, "Sarathi-Serve"), and steps can be asked for ahead.  Where no text has more than one
token the layers compute no more than that, and attention reads as many pages as the longest text has, rounded up to a
power of two: each number has a branch of its own, so that one program does for texts of all lengths.

A step may check drafts (`speculation.py`): tokens of which a drafter says that they follow.  They stand behind a text's
last token, a branch computes that many columns, and a token is chosen behind each of them.

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
from .kv_pages import PAGE, pages_for
from .settings import Room

State = dict[str, Any]
LAST = "last"
WIDTH_MIN = 8  # pages that attention reads at least


def page_bytes(decoder: Decoder, dtype: DType) -> int:
    """The bytes of a page of all layers."""
    return 2 * decoder.layers * TensorType((decoder.kv_heads, PAGE, decoder.size), dtype).size_bytes


def widths(room: Room) -> tuple[int, ...]:
    """The numbers of pages that attention may read, rising; the last one is all that a table has."""
    most = pages_for(room.length)
    powers = [WIDTH_MIN << turn for turn in range(max(most - 1, 0).bit_length())]
    return (*(width for width in powers if width < most), most)


def columns(room: Room) -> tuple[int, ...]:
    """The numbers of columns that layers may compute, rising; the last one is all that a step takes."""
    return (*sorted(count for count in {1, room.few} if count < room.chunk), room.chunk)


def empty(decoder: Decoder, room: Room, dtype: DType) -> State:
    """The state of a batch without texts: keys and values (pages, kv_heads, PAGE, size) of every layer, all zeros."""
    kind = TensorType((room.pages, decoder.kv_heads, PAGE, decoder.size), dtype)
    zeros = np.zeros(kind.shape, dtype.numpy)  # one for all: memory that nobody writes takes no place
    zeros.flags.writeable = False
    first = Handle(hash_array(zeros), kind, "zeros", zeros)
    caches = {f"{what}.{number}": first for number in range(decoder.layers) for what in ("keys", "values")}
    return {**caches, LAST: np.zeros(room.slots, np.int32)}


def moved(state: Mapping[str, NDArray[Any]], room: Room, order: Sequence[int]) -> State:
    """The state in another room: pages stay as they are, and slots in this order come first."""
    return {
        name: _longer(array[list(order)] if name == LAST else array, room.slots if name == LAST else room.pages)
        for name, array in state.items()
    }


def feeds(
    room: Room, ids: NDArray[np.int32], start: NDArray[np.int32], count: NDArray[np.int32], follow: NDArray[np.bool_],
    table: NDArray[np.int32], how: dict[str, NDArray[Any]], drafts: NDArray[np.int32] | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """A step's arguments: tokens (slots, chunk), of which `count` are meant, at positions from `start`; where `follow`
    the first one is what the step before chose; the pages of each text (slots, pages).  Then, for every number of
    columns but the last and for every width but the last, whether it does for all texts.  Last, where a step may check
    drafts, how many of the tokens that are meant are drafts."""
    assert ids.shape == (room.slots, room.chunk) and table.shape == (room.slots, pages_for(room.length))
    most, longest = int(np.max(count)), pages_for(int(np.max((start + count) * (count > 0))))
    few = tuple([np.bool_(most <= number) for number in columns(room)[:-1]])
    near = tuple([np.bool_(longest <= width) for width in widths(room)[:-1]])
    return ids, start, count, follow, table, how, few, near, *(() if drafts is None else (drafts,))


def stepper(
    decoder: Decoder, room: Room, params: Mapping[str, Array], detailed: bool = False, drafts_max: int = 0
) -> Callable[..., tuple[State, Array]]:
    """`step(state, *feeds)` gives the next state and the token i32 (slots,) chosen behind every text; a detailed one
    takes `sampling.limits` too, may take `logit_adjustment.fed`, and gives what `sampling.scored` makes.  One that may
    check drafts gives i32 (slots, 1 + drafts_max): what is chosen behind the last token that is no draft, and behind
    each draft."""
    assert drafts_max < room.chunk and not (drafts_max and detailed)

    def step(
        state: State, ids: Array, start: Array, count: Array, follow: Array, table: Array, how: Any,
        few: tuple[Array, ...], near: tuple[Array, ...], drafts: Array | None = None,
    ) -> tuple[State, Array]:  # fmt: skip
        column = mnp.astype(mnp.arange(room.chunk), mnp.int32)[None]
        ids = mnp.where(follow[:, None] & (column == 0), state[LAST][:, None], ids)
        x = decoder.embed(params, ids, start[:, None] + column)
        computed = tuple(zip(columns(room), (*few, None), strict=True))
        following: State = {}
        for number in range(decoder.layers):
            kept = state[f"keys.{number}"], state[f"values.{number}"]
            layer = _layer(decoder, number, params, table, tuple(zip(widths(room), (*near, None), strict=True)))
            x, *kept = _over(computed, layer, x, start, count, kept)
            following[f"keys.{number}"], following[f"values.{number}"] = kept
        if drafts is not None:
            tokens = _checked(decoder, params, x, start, count, drafts, how, drafts_max)
            return {**following, LAST: mnp.where(count > 0, tokens[:, 0], state[LAST])}, tokens
        final = apply("gather", x, mnp.maximum(count - 1, 0)[:, None], axis=1, batch_dims=1)[:, 0]
        logits = decoder.head(params, final)
        token = sampling.chosen(logits, start + count, how)
        token = mnp.where(count > 0, token, state[LAST])
        return {**following, LAST: token}, sampling.scored(logits, token, how) if detailed else token

    return step


def _checked(
    decoder: Decoder, params: Mapping[str, Array], x: Array, start: Array, count: Array, drafts: Array, how: Any,
    drafts_max: int,
) -> Array:  # fmt: skip
    """The tokens i32 (slots, 1 + drafts_max) that are chosen behind the last token that is no draft, and behind each
    draft; behind the last draft they repeat.  Where no text has a draft, the first column alone is computed."""
    further = mnp.astype(mnp.arange(1 + drafts_max), mnp.int32)[None]
    place = mnp.maximum(mnp.minimum((count - 1 - drafts)[:, None] + further, (count - 1)[:, None]), 0)
    rows = apply("gather", x, place, axis=1, batch_dims=1)

    def behind(number: int) -> Array:
        logits = decoder.head(params, mnp.reshape(rows[:, :number], (-1, rows.shape[-1])))
        positions = mnp.reshape(start[:, None] + place[:, :number] + 1, (-1,))
        settings = {name: mnp.repeat(value, number, axis=0) for name, value in how.items()}
        return mnp.reshape(sampling.chosen(logits, positions, settings), (-1, number))

    def alone() -> Array:
        return mnp.concat([behind(1), mnp.zeros((rows.shape[0], drafts_max), dtype=mnp.int32)], axis=1)

    tokens: Array = cond(mnp.any(drafts > 0), lambda: behind(1 + drafts_max), alone)
    return tokens


Choices = tuple[tuple[int, Array | None], ...]
"""Numbers of columns, or of pages, rising, each with whether it does; the last one always does."""


def _over(choices: Choices, layer: Any, x: Array, start: Array, count: Array, kept: Any) -> Any:
    """The layer over the first number of columns that does for all texts.

    It takes nothing but arguments of the step from outside, which every worker is given: what several layers computed
    together would be sent from stage to stage.
    """
    (number, does), *others = choices
    if does is None:
        return layer(x, start, count, *kept)

    def few(*kept: Array) -> tuple[Array, ...]:
        computed, *caches = layer(x[:, :number], start, count, *kept)
        return (apply("dynamic_update_slice", x, computed, mnp.asarray(np.zeros(3, np.int32))), *caches)

    return cond(does, few, lambda *kept: tuple(_over(tuple(others), layer, x, start, count, kept)), *kept)


def _layer(
    decoder: Decoder, number: int, params: Mapping[str, Array], table: Array, choices: Choices
) -> Callable[..., tuple[Array, ...]]:
    """A layer that reads and extends what was kept: (x, keys, values)."""
    window = decoder.windows[number]

    def layer(x: Array, start: Array, count: Array, keys: Array, values: Array) -> tuple[Array, ...]:
        caches: list[Array] = []
        column = mnp.astype(mnp.arange(x.shape[1]), mnp.int32)[None]
        positions, meant = start[:, None] + column, column < count[:, None]

        def attend(_: int, q: Array, k: Array, v: Array, scores: Scores) -> Array:
            places = _places(keys.shape, table, positions, meant)
            caches[:] = [_written(old, new, places) for old, new in ((keys, k), (values, v))]

            def over(width: int) -> Array:
                there = mnp.astype(mnp.arange(width * PAGE), mnp.int32)
                seen = there <= positions[:, :, None]
                if window is not None and window < width * PAGE:
                    seen = seen & (there > positions[:, :, None] - window)
                k, v = (mnp.astype(_of_pages(cache, table[:, :width]), q.dtype) for cache in caches)
                return attended(q, k, v, seen[:, None], scores, there[None])

            return _first(choices, over)

        x = decoder.layer(params, number, x, positions, attend)
        return x, *caches

    return layer


def _first(choices: Choices, over: Callable[[int], Array]) -> Array:
    """`over` the first number that does."""
    (width, does), *others = choices
    return over(width) if does is None else cond(does, lambda: over(width), lambda: _first(tuple(others), over))


def _places(shape: tuple[int, ...], table: Array, positions: Array, meant: Array) -> Array:
    """Find where the rows of tokens lie in a pool (pages, heads, PAGE, size): i32 (slots * heads * n,)."""
    pages, heads = shape[:2]
    meant = meant & (positions < table.shape[1] * PAGE)
    page = mnp.take_along_axis(table, mnp.where(meant, positions, 0) // PAGE, axis=1)
    rows = (page[:, None] * heads + _heads(heads)) * PAGE + (positions % PAGE)[:, None]
    return mnp.reshape(mnp.where(meant[:, None], rows, pages * heads * PAGE), (-1,))  # beyond the end: dropped


def _written(old: Array, new: Array, places: Array) -> Array:
    """A pool with rows (slots, heads, n, size) at their places."""
    rows = mnp.reshape(old, (-1, old.shape[-1]))
    updates = mnp.reshape(mnp.astype(new, old.dtype), (-1, old.shape[-1]))
    return mnp.reshape(apply("scatter", rows, places, updates, axis=0, mode="set"), old.shape)


def _of_pages(pool: Array, table: Array) -> Array:
    """What lies in the pages of a table (slots, width), in their order: (slots, heads, width * PAGE, size)."""
    pages, heads, page, size = pool.shape
    by_heads = mnp.reshape(pool, (pages * heads, page, size))
    found = apply("gather", by_heads, table[:, None] * heads + _heads(heads), axis=0, batch_dims=0)
    return mnp.reshape(found, (table.shape[0], heads, table.shape[1] * page, size))


def _heads(heads: int) -> Array:
    return mnp.astype(mnp.arange(heads), mnp.int32)[None, :, None]


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    """An array with zeros behind it along its first axis."""
    resized = np.zeros((length, *array.shape[1:]), array.dtype)
    resized[: len(array)] = array
    return resized
