"""KV-cache step: one step of a batch of texts, whose keys and values stay where the layers are computed.

A batch has `slots` places.  Keys and values lie in one pool of pages for all of them, and a table names the pages of
each text in their order (`kv_pages.py`).  A step takes up to `chunk` tokens of every text: those of a prompt, or the
one that the step before chose, which never leaves the workers.  So prompts are read in pieces while other texts go on
by one token (Agrawal et al., 2024, "Sarathi-Serve"), and steps can be asked for ahead.  Where no text has more than one
token the layers compute no more than that.  Where few have many, a token of each text and the others of these few lie
behind each other (Yu et al., 2022, "Orca").  Attention reads as many pages as the longest text has, rounded up to a
power of two.  Each of these numbers has a branch of its own, so that one program does for texts of all lengths.

Tokens lie without gaps as the branch of a step computes them, and zeros behind them: a hop to the next worker carries
the tokens that are there, not the room for more.

A step may check drafts (`speculation.py`): tokens of which a drafter says that they follow.  They stand behind a text's
last token, a branch computes that many columns, and a token is chosen behind each of them.

What is written behind a text's end is never looked at before it is overwritten, so nothing has to be cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.codec import hash_array
from wire.ir.dtypes import DType
from wire.ir.types import TensorType

from .. import numpy as mnp
from .. import tree
from ..core.array import Array, apply
from ..core.handle import Handle
from ..models.decoder import Attend, Decoder, Mixture, Scores, attended
from ..transforms.control_flow import cond
from ..transforms.step_list import Inner, run_like
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
    """A step's arguments, of tokens (slots, chunk), of which `count` are meant, at positions from `start`; where
    `follow` the first one is what the step before chose; the pages of each text (slots, pages).

    They are tokens, their positions, and whose last token stands in their place (-1: nobody's), as they are laid out:
    each i32 (slots * chunk,).  Then how many of these are computed, start and count, the place of the first token of
    each text, the slots of the few that have many tokens where the others have one, and the pages.  Then, for every
    number of columns but the last, for the few, and for every width but the last, whether it does for all texts.  Last,
    where a step may check drafts, how many of the tokens that are meant are drafts."""
    assert ids.shape == (room.slots, room.chunk) and table.shape == (room.slots, pages_for(room.length))
    most, longest = int(np.max(count)), pages_for(int(np.max((start + count) * (count > 0))))
    few = [most <= number for number in columns(room)[:-1]]
    near = tuple([np.bool_(longest <= width) for width in widths(room)[:-1]])
    positions = np.add(start[:, None], np.arange(room.chunk), dtype=np.int32)
    readers, many = np.full(room.readers, room.slots, np.int32), np.nonzero(count > 1)[0]
    mixed = many.size <= room.readers and not any(few)
    if mixed:
        readers[: many.size] = many
        first = np.arange(room.slots, dtype=np.int32)
        first[many] = room.slots + np.arange(many.size) * room.chunk
        used = room.slots + room.readers * room.chunk
        laid = _laid(ids.size, ids[:, 0], ids[many]), _laid(ids.size, positions[:, 0], positions[many])
    else:
        number = min(each for each in columns(room) if most <= each)
        first, used = np.arange(room.slots, dtype=np.int32) * number, room.slots * number
        laid = _laid(ids.size, ids[:, :number]), _laid(ids.size, positions[:, :number])
    source = np.full(ids.size, -1, np.int32)
    source[first[follow]] = np.nonzero(follow)[0]
    does = tuple([np.bool_(each) for each in (*few, *((mixed,) if room.readers else ()))])
    return (
        *laid, source, np.int32(used), start, count, first, readers, table, how, does, near,
        *(() if drafts is None else (drafts,)),
    )  # fmt: skip


def _laid(size: int, *arrays: NDArray[np.int32]) -> NDArray[np.int32]:
    """What arrays have, one behind the other, and zeros behind them."""
    laid, end = np.zeros(size, np.int32), 0
    for array in arrays:
        laid[end : end + array.size] = array.reshape(-1)
        end += array.size
    return laid


Together = Callable[[Sequence[str]], Sequence[tuple[int, int]]]
"""From the names of a layer's experts to runs of them, each (begin, end), that are computed together; none where they
are computed with the rest of the layer."""


def with_the_layer(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """No expert apart."""
    return ()


def stepper(
    decoder: Decoder, room: Room, params: Mapping[str, Array], detailed: bool = False, drafts_max: int = 0,
    together: Together = with_the_layer,
) -> Callable[..., tuple[State, Array]]:  # fmt: skip
    """`step(state, *feeds)` gives the next state and the token i32 (slots,) chosen behind every text; a detailed one
    takes `sampling.limits` too, may take `logit_adjustment.fed`, and gives what `sampling.scored` makes.  One that may
    check drafts gives i32 (slots, 1 + drafts_max): what is chosen behind the last token that is no draft, and behind
    each draft.  Experts that are not `together` with their layer may be placed elsewhere: each run of them is a branch
    of its own."""
    assert drafts_max < room.chunk and not (drafts_max and detailed)

    def step(
        state: State, ids: Array, positions: Array, source: Array, used: Array, start: Array, count: Array,
        first: Array, readers: Array, table: Array, how: Any, does: tuple[Array, ...], near: tuple[Array, ...],
        drafts: Array | None = None,
    ) -> tuple[State, Array]:  # fmt: skip
        last = apply("gather", state[LAST], mnp.maximum(source, 0), axis=0, batch_dims=0)
        x = decoder.embed(params, mnp.where(source >= 0, last, ids)[:, None], positions[:, None])[:, 0]
        x = mnp.where(mnp.arange(x.shape[0])[:, None] < used, x, mnp.zeros((), dtype=x.dtype))
        extents = start, count, readers, table, does, near
        branches, choices = _choices(room, *extents)
        layers = _Layers(decoder, room, params)
        following: State = {}
        for number in range(decoder.layers):
            kept: Sequence[Array] = (state[f"keys.{number}"], state[f"values.{number}"])
            mixture = decoder.mixture(number)
            runs = () if mixture is None else together(mixture.names)
            if mixture is None or not runs:
                x, *kept = layers.whole(number, x, kept, extents)
            else:
                begin = _layer(decoder.windows[number], choices, partial(mixture.begin, params))
                base, y, parts, *kept = _over(branches, begin, (x,), kept)
                total = mnp.zeros_like(y)
                for run in runs:
                    (total,) = _over(branches, _experts(mixture, params, run), (total, y, parts), ())
                (x,) = _over(branches, _end(mixture, params), (base, y, total), ())
            following[f"keys.{number}"], following[f"values.{number}"] = kept
        if drafts is not None:
            tokens = _checked(decoder, params, x, start, count, first, drafts, how, drafts_max)
            return {**following, LAST: mnp.where(count > 0, tokens[:, 0], state[LAST])}, tokens
        final = apply("gather", x, first + mnp.maximum(count - 1, 0), axis=0, batch_dims=0)
        logits = decoder.head(params, final)
        token = sampling.chosen(logits, start + count, how)
        token = mnp.where(count > 0, token, state[LAST])
        return {**following, LAST: token}, sampling.scored(logits, token, how) if detailed else token

    return step


def _checked(
    decoder: Decoder, params: Mapping[str, Array], x: Array, start: Array, count: Array, first: Array, drafts: Array,
    how: Any, drafts_max: int,
) -> Array:  # fmt: skip
    """The tokens i32 (slots, 1 + drafts_max) that are chosen behind the last token that is no draft, and behind each
    draft; behind the last draft they repeat.  Where no text has a draft, the first column alone is computed."""
    further = mnp.astype(mnp.arange(1 + drafts_max), mnp.int32)[None]
    place = mnp.maximum(mnp.minimum((count - 1 - drafts)[:, None] + further, (count - 1)[:, None]), 0)
    rows = apply("gather", x, first[:, None] + place, axis=0, batch_dims=0)

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
"""Numbers of pages, rising, each with whether it does; the last one always does."""


@dataclass(frozen=True, slots=True)
class _Texts:
    """Tokens of some texts: positions and whether they are meant (texts, columns), and the pages of each."""

    positions: Array
    meant: Array
    table: Array

    @property
    def count(self) -> int:
        return self.positions.shape[0] * self.positions.shape[1]

    def by_columns(self, x: Array) -> Array:
        """(texts, heads, columns, size) of tokens (texts * columns, heads, 1, size)."""
        texts, number = self.positions.shape
        return x if number == 1 else mnp.permute_dims(mnp.reshape(x, (texts, number, x.shape[1], -1)), (0, 2, 1, 3))

    def by_tokens(self, x: Array) -> Array:
        """The tokens of what `by_columns` gives."""
        return mnp.reshape(mnp.permute_dims(x, (0, 2, 1, 3)), (self.count, x.shape[1], 1, x.shape[3]))


Values = tuple[Array, ...]

Extents = tuple[Array, Array, Array, Array, tuple[Array, ...], tuple[Array, ...]]
"""How much of a step is computed: its arguments start, count, readers, table, does and near."""

Layer = Callable[[Values, Array, Sequence[_Texts], Sequence[Array]], tuple[Values, Sequence[Array]]]
"""(values (n, columns, width), positions (n, columns), the texts whose tokens these are, what was kept) to what a layer
or a piece of it makes of them, and the next that is kept."""

Computed = Callable[[Layer, Values, Any], Values]
"""What a layer makes of values (slots * chunk, width) and what was kept, one after the other, where not all of it is
computed."""


def _choices(
    room: Room, start: Array, count: Array, readers: Array, table: Array, does: tuple[Array, ...],
    near: tuple[Array, ...],
) -> tuple[tuple[tuple[Computed, Array | None], ...], Choices]:  # fmt: skip
    """How much of the input is computed, and how many pages are read, each with whether it does."""
    computed: list[Computed] = [partial(_few_columns, number, start, count, table) for number in columns(room)]
    if room.readers:
        computed.insert(-1, partial(_few_readers, room.chunk, start, count, readers, table))
    return tuple(zip(computed, (*does, None), strict=True)), tuple(zip(widths(room), (*near, None), strict=True))


class _Layers:
    """The layers of one step.  Of those that are alike one is traced, and the others repeat what it did: a batch waits
    for it, and a layer takes tens of milliseconds."""

    def __init__(self, decoder: Decoder, room: Room, params: Mapping[str, Array]) -> None:
        self._decoder, self._room, self._params = decoder, room, params
        self._traced: dict[tuple[Any, ...], Inner] = {}

    def whole(self, number: int, x: Array, kept: Sequence[Array], extents: Extents) -> Sequence[Array]:
        """The next x and what is kept."""
        alike = self._decoder.alike(number)
        if alike is None:
            return self._computed(number, self._params, x, kept, extents)
        own = {name.removeprefix(alike.prefix): name for name in self._params if name.startswith(alike.prefix)}
        given = {name: self._params[own[name]] for name in sorted(own)}, x, kept, extents
        leaves, structure = tree.flatten(given)
        window = self._decoder.windows[number]
        key = alike.kind, window, structure, *[(leaf.type, leaf.weak) for leaf in leaves]

        def flat(*leaves: Array) -> list[Array]:
            params, *others = tree.unflatten(structure, leaves)
            return list(self._computed(number, {own[name]: weight for name, weight in params.items()}, *others))

        if key not in self._traced:
            self._traced[key] = run_like(flat, leaves)
        return self._traced[key].call(*leaves)

    def _computed(
        self, number: int, params: Mapping[str, Array], x: Array, kept: Sequence[Array], extents: Extents
    ) -> Sequence[Array]:
        branches, choices = _choices(self._room, *extents)
        whole = _layer(self._decoder.windows[number], choices, partial(_whole, self._decoder, number, params))
        computed: Sequence[Array] = _over(branches, whole, (x,), kept)
        return computed


def _over(choices: tuple[tuple[Computed, Array | None], ...], layer: Layer, values: Values, kept: Any) -> Any:
    """The layer over the first part of its input that does for all texts.

    It takes nothing but arguments of the step from outside, which every worker is given: what several layers computed
    together would be sent from stage to stage.
    """
    (computed, does), *others = choices
    if does is None:
        return computed(layer, values, kept)
    return cond(
        does,
        lambda *kept: computed(layer, values, kept),
        lambda *kept: tuple(_over(tuple(others), layer, values, kept)),
        *kept,
    )


def _few_columns(
    number: int, start: Array, count: Array, table: Array, layer: Layer, values: Values, kept: Any
) -> Values:
    """The first columns of each text."""
    texts, slots = _columns_of(number, start, count, table), start.shape[0]
    near = tuple([mnp.reshape(x[: slots * number], (slots, number, -1)) for x in values])
    computed, caches = layer(near, texts.positions, [texts], kept)
    return (*_put_first(values, computed), *caches)


def _few_readers(
    chunk: int, start: Array, count: Array, readers: Array, table: Array, layer: Layer, values: Values, kept: Any
) -> Values:
    """A token of each text that has one, then all columns of those that have more."""
    slots = start.shape[0]
    own = [
        apply("gather", each, mnp.minimum(readers, slots - 1), axis=0, batch_dims=0) for each in (start, count, table)
    ]
    one = _columns_of(1, start, mnp.where(count == 1, count, 0), table)
    many = _columns_of(chunk, own[0], mnp.where(readers < slots, own[1], 0), own[2])
    positions = mnp.concat([one.positions, mnp.reshape(many.positions, (-1, 1))], axis=0)
    near = tuple([x[: positions.shape[0], None] for x in values])
    computed, caches = layer(near, positions, [one, many], kept)
    return (*_put_first(values, computed), *caches)


def _columns_of(number: int, start: Array, count: Array, table: Array) -> _Texts:
    column = mnp.astype(mnp.arange(number), mnp.int32)[None]
    return _Texts(start[:, None] + column, column < count[:, None], table)


def _put_first(values: Values, computed: Values) -> Iterator[Array]:
    """What was computed, each (tokens, width), with zeros behind: in place of values, which have them, where it can."""
    tokens, start = values[0].shape[0], mnp.asarray(np.zeros(2, np.int32))
    for place, each in enumerate(computed):
        rows = mnp.reshape(each, (-1, each.shape[-1]))
        if rows.shape[0] == tokens:
            yield rows
        elif place < len(values) and values[place].type == TensorType((tokens, rows.shape[1]), rows.type.dtype):
            yield apply("dynamic_update_slice", values[place], rows, start)
        else:
            yield mnp.pad(rows, ((0, tokens - rows.shape[0]), (0, 0)))


def _whole(
    decoder: Decoder, number: int, params: Mapping[str, Array], x: Array, positions: Array, attend: Attend
) -> tuple[Array]:
    return (decoder.layer(params, number, x, positions, attend),)


def _experts(mixture: Mixture, params: Mapping[str, Array], run: tuple[int, int]) -> Layer:
    """Experts of a run, added to a total."""

    def layer(values: Values, *_: object) -> tuple[Values, Sequence[Array]]:
        total, y, parts = values
        for which in range(*run):
            total = mixture.expert(params, which, y, parts, total)
        return (total,), ()

    return layer


def _end(mixture: Mixture, params: Mapping[str, Array]) -> Layer:
    return lambda values, *_: ((mixture.end(params, *values),), ())


def _layer(window: int | None, choices: Choices, compute: Callable[[Array, Array, Attend], Values]) -> Layer:
    """A layer, or the piece of it that attends: it reads and extends what was kept."""

    def looked_up(texts: _Texts, q: Array, caches: Sequence[Array], scores: Scores) -> Array:
        def over(width: int) -> Array:
            there = mnp.astype(mnp.arange(width * PAGE), mnp.int32)
            seen = there <= texts.positions[:, :, None]
            if window is not None and window < width * PAGE:
                seen = seen & (there > texts.positions[:, :, None] - window)
            k, v = (mnp.astype(_of_pages(cache, texts.table[:, :width]), q.dtype) for cache in caches)
            return attended(q, k, v, seen[:, None], scores, there[None])

        return _first(choices, over)

    def layer(
        values: Values, positions: Array, groups: Sequence[_Texts], kept: Sequence[Array]
    ) -> tuple[Values, Sequence[Array]]:
        caches, shape = list(kept), kept[0].shape

        def of(texts: _Texts, scores: Scores, q: Array, k: Array, v: Array) -> Array:
            places = _places(shape, texts.table, texts.positions, texts.meant)
            caches[:] = [_written(old, new, places) for old, new in zip(caches, (k, v), strict=True)]
            return looked_up(texts, q, caches, scores)

        def attend(_: int, q: Array, k: Array, v: Array, scores: Scores) -> Array:
            if len(groups) == 1:
                return of(groups[0], scores, q, k, v)
            looked, end = list[Array](), 0
            for texts in groups:
                begin, end = end, end + texts.count
                own = [texts.by_columns(each[begin:end]) for each in (q, k, v)]
                looked.append(texts.by_tokens(of(texts, scores, *own)))
            return mnp.concat(looked, axis=0)

        (x,) = values
        return compute(x, positions, attend), caches

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
