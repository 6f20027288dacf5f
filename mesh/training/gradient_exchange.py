"""Gradient exchange: how ranks make one gradient of theirs.  It stands in a step's program, around the collectives.

Gradients of one dtype are laid end to end, the last params first since the backward pass has these first, and cut into
buckets of `bucket_bytes`: one collective each, which leaves as soon as its own part is there.  A tensor that would fill
a quarter of a bucket is not copied next to others, but is sent from where it is.  What was computed in a narrow
precision travels in it.

Compression keeps what it did not send, per rank, and adds it to the next gradient (error feedback: Seide et al., 2014;
Karimireddy et al., 2019).  Deterministic training exchanges shards in place of sums, and adds these in one binary tree
whose shape depends on their count only, so it does not matter who computed which.  Who has a whole branch of that tree
may add it up before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import collectives, tree
from .. import numpy as mnp
from ..core.array import Array
from .step_config import Compression, Recipe, TopK

AXIS = "data"
Block = tuple[int, int]  # neighbours in the tree that adds up shards: 2 to the power of the first, the how manieth
Blocks = tuple[Block, ...]
Piece = tuple[int, int, int]  # leaf, first element, end
ALONE_BYTES_MIN = 256 << 10  # copying a larger one next to others takes longer than a collective of its own


@dataclass(frozen=True, slots=True)
class Bucket:
    """Pieces of tensors that travel together."""

    pieces: tuple[Piece, ...]
    dtype: str

    @property
    def size(self) -> int:
        return sum(end - first for _, first, end in self.pieces)


def buckets(leaves: Sequence[Any], bucket_bytes: int) -> list[Bucket]:
    """The buckets of every dtype: ceil(bytes / bucket_bytes), full but for the last; large leaves have their own."""
    filled: list[Bucket] = []
    for dtype in dict.fromkeys(str(leaf.dtype) for leaf in leaves):
        mine = [index for index, leaf in reversed(list(enumerate(leaves))) if str(leaf.dtype) == dtype]
        itemsize = leaves[mine[0]].dtype.itemsize
        most = max(1, bucket_bytes // itemsize)
        alone = max(most // 4, ALONE_BYTES_MIN // itemsize)
        sizes = {index: math.prod(leaves[index].shape) for index in mine}
        for index in (index for index in mine if sizes[index] >= alone):
            filled += [Bucket(pieces, dtype) for pieces in _filled({index: sizes[index]}, most)]
        small = {index: size for index, size in sizes.items() if size < alone}
        filled += [Bucket(pieces, dtype) for pieces in _filled(small, most)]
    return filled


def _filled(sizes: Mapping[int, int], most: int) -> Iterator[tuple[Piece, ...]]:
    """Pieces of tensors, laid end to end and cut after every `most` elements; `sizes` are elements by index."""
    pieces: list[Piece] = []
    room = most
    for index, size in sizes.items():
        first = 0
        while first < size:
            taken = min(room, size - first)
            pieces.append((index, first, first + taken))
            first, room = first + taken, room - taken
            if not room:
                yield tuple(pieces)
                pieces, room = [], most
    if pieces:
        yield tuple(pieces)


def memory_size(params: Any, compression: Compression) -> int:
    """The count of numbers that a rank keeps of what it did not send."""
    return sum(math.prod(leaf.shape) for leaf in tree.leaves(params)) if compression else 0


def summed(recipe: Recipe, gradients: Any, memory: Any) -> tuple[Any, Any]:
    """The sum of the ranks' gradients, on all of them, and what this rank has not sent yet."""
    leaves, structure = tree.flatten(gradients)
    flat = [mnp.reshape(leaf, (-1,)) for leaf in leaves]
    made: dict[int, list[tuple[int, Array]]] = {index: [] for index in range(len(leaves))}
    kept, place = [], 0
    for bucket in buckets(leaves, recipe.bucket_bytes):
        own = _joined([flat[index][first:end] for index, first, end in bucket.pieces])
        if recipe.compression is None:
            whole = collectives.all_reduce(own, AXIS)
        else:
            own = mnp.astype(own, "float32") + memory[0, place : place + bucket.size]
            whole, sent = _compressed(own, recipe.compression)
            kept.append(own - sent)
            whole = mnp.astype(whole, bucket.dtype)
        place, at = place + bucket.size, 0
        for index, first, end in bucket.pieces:
            made[index].append((first, whole[at : at + end - first]))
            at += end - first
    results = [mnp.reshape(_joined([piece for _, piece in sorted(made[index], key=lambda pair: pair[0])]), leaf.shape)
               for index, leaf in enumerate(leaves)]  # fmt: skip
    return tree.unflatten(structure, results), _joined(kept)[None] if kept else memory


def narrowed(recipe: Recipe, gradients: Any, scale: Any) -> Any:
    """Gradients as they travel: in the dtype of computations, and `scale` times as large, as they were when computed.

    So nothing is lost where a rank's gradient is that of one batch.
    """
    if recipe.narrow is None:
        return gradients
    return tree.map(lambda leaf: mnp.astype(leaf if scale is None else leaf * scale, recipe.narrow), gradients)


def widened(recipe: Recipe, gradients: Any, params: Any, scale: Any) -> Any:
    """Gradients that `narrowed` made, in the dtypes of the params again."""
    if recipe.narrow is None:
        return gradients
    wide = tree.map(lambda leaf, param: mnp.astype(leaf, param.dtype), gradients, params)
    return wide if scale is None else tree.map(lambda leaf: leaf / scale, wide)


def combined(stacked: Any, blocks: Sequence[Blocks], shards: int) -> Any:
    """The sums over all shards; the leaves have this rank's blocks along their first dimension.

    `blocks` are those of every rank.
    """
    leaves, structure = tree.flatten(stacked)
    sizes = [math.prod(leaf.shape[1:]) for leaf in leaves]
    rows, ranks = leaves[0].shape[0], len(blocks)
    flat = mnp.concatenate([mnp.reshape(mnp.astype(leaf, "float32"), (rows, -1)) for leaf in leaves], axis=1)
    total, room = sum(sizes), -sum(sizes) % ranks
    if ranks > 1:  # each rank adds up its share of the elements, of all shards
        flat = mnp.concatenate([flat, mnp.zeros((rows, room), "float32")], axis=1) if room else flat
        flat = collectives.all_to_all(flat, AXIS, 1, 0)
    known = {block: flat[rank * rows + turn] for rank, mine in enumerate(blocks) for turn, block in enumerate(mine)}
    whole = _tree_sum(known, shards)
    if ranks > 1:
        whole = collectives.all_gather(whole, AXIS)[:total]
    sums, first = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        sums.append(mnp.astype(mnp.reshape(whole[first : first + size], leaf.shape[1:]), leaf.dtype))
        first += size
    return tree.unflatten(structure, sums)


def one_by_one(ranks: int, turns: int, shards: int) -> list[Blocks]:
    """The blocks of each rank, where each of its `turns` shards is a block; there are none after the last shard."""
    return [
        tuple((0, shard) for shard in range(rank * turns, min((rank + 1) * turns, shards))) for rank in range(ranks)
    ]


def blocks_of(first: int, count: int, shards: int) -> Blocks:
    """The fewest blocks that make up `count` shards from the first, and no others."""
    blocks, place, end = [], first, first + count
    while place < end:
        level = max(k for k in range((shards - 1).bit_length() + 1)
                    if place % (1 << k) == 0 and min(place + (1 << k), shards) <= end)  # fmt: skip
        blocks.append((level, place >> level))
        place += 1 << level
    return tuple(blocks)


def added_up(stacked: Any, first: int, blocks: Blocks) -> Any:
    """The sums of blocks, as f32; the leaves have the shards, from the first, along their first dimension."""

    def of(leaf: Array) -> Array:
        rows = mnp.astype(leaf, "float32")
        parts = [rows[(at << level) - first : ((at + 1) << level) - first] for level, at in blocks]
        sums = [_tree_sum({(0, row): part[row] for row in range(part.shape[0])}, part.shape[0]) for part in parts]
        return mnp.stack(sums)

    return tree.map(of, stacked)


def _tree_sum(known: Mapping[Block, Array], count: int) -> Array:
    """The sum of terms, some known only as blocks: neighbours first; a term that is left over goes up as it is."""
    level, terms = 0, [known.get((0, at)) for at in range(count)]
    while len(terms) > 1:
        level += 1
        terms = [_sum_of(terms[at : at + 2], known.get((level, at // 2))) for at in range(0, len(terms), 2)]
    (whole,) = terms
    assert whole is not None, "blocks are of all shards"
    return whole


def _sum_of(pair: Sequence[Array | None], block: Array | None) -> Array | None:
    """The sum of two neighbours, or the block that they make where they are not known."""
    if block is not None or pair[0] is None:
        return block
    other = pair[1] if len(pair) > 1 else None
    return pair[0] if other is None else pair[0] + other


def _compressed(own: Array, compression: Compression) -> tuple[Array, Array]:
    """The sum of all ranks, and what this rank gave to it."""
    if isinstance(compression, TopK):
        return _largest(own, max(1, round(compression.share * own.shape[0])))
    return _halved(own) if compression == "f16" else _bytes(own)


def _halved(own: Array) -> tuple[Array, Array]:
    """The sum as f16: every rank gets all blocks of its share, adds them up as f32, and gives the sum as f16 again."""
    sent = mnp.astype(own, "float16")
    total = _by_shares(sent, lambda blocks: mnp.sum(mnp.astype(blocks, "float32"), axis=0))
    return total, mnp.astype(sent, "float32")


def _by_shares(sent: Array, add: Any) -> Array:
    """The sum by reduce-scatter and gather: `add` makes sums as wide as it likes, and they travel as `sent` does."""
    ranks, size = collectives.axis_size(AXIS), sent.shape[0]
    padded = mnp.concatenate([sent, mnp.zeros((-size % ranks,), sent.dtype)]) if size % ranks else sent
    blocks = collectives.all_to_all(mnp.reshape(padded, (ranks, -1)), AXIS, 0, 0)
    total = collectives.all_gather(mnp.astype(add(blocks), sent.dtype), AXIS)
    return mnp.astype(total[:size], "float32")


def _bytes(own: Array) -> tuple[Array, Array]:
    """The sum as int8, by the largest number of any rank; it is int8 again, of a range as wide as all ranks need."""
    ranks = collectives.axis_size(AXIS)
    top = collectives.all_reduce(mnp.max(mnp.abs(own)), AXIS, "max")
    unit = mnp.where(top > 0, top / 127.0, 1.0)
    sent = mnp.astype(mnp.clip(mnp.round(own / unit), -127, 127), "int8")

    def add(blocks: Array) -> Array:
        return mnp.round(mnp.sum(mnp.astype(blocks, "float32"), axis=0) / ranks)

    return _by_shares(sent, add) * (unit * ranks), mnp.astype(sent, "float32") * unit


def _largest(own: Array, count: int) -> tuple[Array, Array]:
    """The `count` numbers that are furthest from 0, with their places."""
    places = mnp.astype(mnp.argsort(mnp.abs(own), descending=True)[:count], "int32")
    values = own[places]
    everywhere = collectives.all_gather(places, AXIS), collectives.all_gather(values, AXIS)
    empty = mnp.zeros(own.shape, "float32")
    return empty.at[everywhere[0]].add(everywhere[1]), empty.at[places].set(values)


def _joined(pieces: Sequence[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else mnp.concatenate(list(pieces))
