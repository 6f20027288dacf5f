"""Data: which rows are in which step.  It knows nothing of workers, so any number of them sees the same steps.

The order of an epoch follows from the seed and the epoch's number, every row comes once in it, and a `Cursor` says
where one is.  A step's rows lie as its ranks share them out, evenly or by speed; what is left of a rank's room is
padded with copies of the first row, of weight 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.dtypes import dtype_of
from wire.policy.batch_shares import Portions, ends_of

from .. import tree
from ..core.handle import Handle
from ..numpy.promotion import as_numpy, is_array_like
from ..util.units import counted
from .step_config import Recipe


@dataclass(frozen=True, slots=True)
class Cursor:
    """The steps of an epoch that are done."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step is fed: a pytree of rows, or their places in resident data.

    `counted` of them are not padding; `after` is the cursor after the step.
    """

    batch: Any
    counted: int
    after: Cursor


@dataclass(frozen=True, slots=True)
class Shares:
    """The rows of a step that each rank has, and the number of equal turns in which it computes them.

    All ranks have room for as many rows as the one with most.
    """

    rows: tuple[int, ...]
    turns: tuple[int, ...]

    @classmethod
    def of(cls, recipe: Recipe, portions: Portions, rows: int) -> Shares:
        """The shares of this many rows; what units share out are the rows, or the virtual shards."""
        if isinstance(portions, tuple):
            return cls._unlike(recipe, portions, rows)
        turns = -(-recipe.shards // portions) if recipe.shards else recipe.accumulate
        parts = recipe.shards or portions * turns
        return cls((-(-rows // parts) * turns,) * portions, (turns,) * portions)

    @classmethod
    def _unlike(cls, recipe: Recipe, units: tuple[int, ...], rows: int) -> Shares:
        whole = recipe.shards or rows
        ends = ends_of(units, whole)
        counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        if recipe.shards:
            return cls(tuple(-(-rows // whole) * count for count in counts), tuple(counts))
        turns = recipe.accumulate
        return cls(tuple(-(-count // turns) * turns for count in counts), (turns,) * len(units))

    @property
    def room(self) -> int:
        """The slots of a rank."""
        return max(self.rows)

    @property
    def slots(self) -> int:
        """The number of rows, with padding."""
        return self.room * len(self.rows)

    @property
    def even(self) -> bool:
        """Whether every rank has as many."""
        return len({*self.rows}) == 1

    def pads(self, rows: int) -> bool:
        """Whether ranks compute more than these."""
        return sum(self.rows) != rows

    @property
    def places(self) -> NDArray[np.intp]:
        """The slots that ranks take their rows from, in the order of the rows."""
        slots = np.arange(self.slots).reshape(len(self.rows), self.room)
        return np.concatenate([mine[:count] for mine, count in zip(slots, self.rows, strict=True)])


class ArrayData:
    """A pytree of arrays, or of handles that `mesh.put` gave, with the same number of rows each."""

    def __init__(self, data: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        leaves = tree.leaves(data)
        handles = [isinstance(leaf, Handle) for leaf in leaves]
        if not leaves or (any(handles) and not all(handles)):
            raise InputError("data are arrays, or handles that mesh.put gave, and not both")
        data = data if all(handles) else arrays_of(data, "the data")
        lengths = {(leaf.type.shape if isinstance(leaf, Handle) else leaf.shape)[:1] for leaf in tree.leaves(data)}
        if len(lengths) != 1 or () in lengths or (0,) in lengths:
            raise InputError(f"the arrays of the data need the same number of rows, at least 1, got {_rows_text(data)}")
        self.count: int = next(iter(lengths))[0]
        self.resident = data if all(handles) else None
        self._data = data
        self.batch_size = min(batch_size, self.count)
        self._shuffle, self._seed = shuffle, seed
        self.steps = self.count // self.batch_size if drop_last else -(-self.count // self.batch_size)
        self.uneven = not drop_last and self.count % self.batch_size != 0

    def epoch(self, cursor: Cursor) -> Iterator[Rows]:
        """Yield the steps that are left of the cursor's epoch."""
        order = self._order(cursor.epoch)
        for batch in range(cursor.batch, self.steps):
            mine = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            rows = mine if self.resident is not None else tree.map(lambda leaf, mine=mine: leaf[mine], self._data)
            after = Cursor(cursor.epoch, batch + 1) if batch + 1 < self.steps else Cursor(cursor.epoch + 1)
            yield Rows(rows, len(mine), after)

    def _order(self, epoch: int) -> NDArray[np.int32]:
        if not self._shuffle:
            return np.arange(self.count, dtype=np.int32)
        return np.random.default_rng([self._seed, epoch]).permutation(self.count).astype(np.int32)


class BatchData:
    """An iterable of batches (a list, torch's DataLoader), iterated anew for every epoch; the first is the largest."""

    resident = None
    steps: int | None = None
    uneven = True

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        begun = iter(batches)
        if begun is batches:
            raise InputError(
                f"data are a {type(batches).__name__}, which can be iterated once: every epoch iterates them anew, "
                "and so do steps that are done again after a death",
                next_step="Give list(...) of it, or an object whose __iter__ begins anew, as a DataLoader's does",
            )
        first = next(begun, _END)
        if first is _END:
            raise InputError(f"data are a {type(batches).__name__} without a single batch")
        self.batch_size = rows_of(batch_of(first, 1))

    def epoch(self, cursor: Cursor) -> Iterator[Rows]:
        """Yield the steps that are left of the cursor's epoch."""
        batches = itertools.islice(self._batches, cursor.batch, None)
        current = next(batches, _END)
        place = cursor.batch
        while current is not _END:
            following = next(batches, _END)
            place += 1
            batch = batch_of(current, place)
            count = rows_of(batch)
            if count > self.batch_size:
                raise InputError(f"batch {place} has {counted(count, 'row')}, and the first {self.batch_size}")
            after = Cursor(cursor.epoch, place) if following is not _END else Cursor(cursor.epoch + 1)
            yield Rows(batch, count, after)
            current = following


Data = ArrayData | BatchData
_END = object()


def data_of(data: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> Data:
    """The data of arrays, by their rows, or of anything iterable, by its batches."""
    leaves = [] if isinstance(data, list) else tree.leaves(data)
    if leaves and all(map(_is_rows, leaves)):
        return ArrayData(data, batch_size, shuffle, seed, drop_last)
    if isinstance(data, tuple | dict) and any(map(_is_rows, leaves)):
        path, leaf = next((path, leaf) for path, leaf in tree.flatten_with_paths(data)[0] if not _is_rows(leaf))
        raise InputError(
            f"{path!r} of the data is a {type(leaf).__name__}, and no array",
            next_step="Arrays are given as a tuple, fit((x, y)), and batches as a list",
        )
    if isinstance(data, Iterable):
        return BatchData(data)
    raise InputError(
        f"{type(data).__name__} is no data",
        next_step="Pass arrays, or something to iterate of batches, such as a DataLoader",
    )


def _is_rows(leaf: object) -> bool:
    return isinstance(leaf, Handle) or is_array_like(leaf)


def batch_of(batch: Any, place: int = 0) -> Any:
    """A batch as a pytree of numpy arrays; a list becomes a tuple, since torch's DataLoader gives tuples as lists.

    InputError names what is no array.
    """
    batch = tuple(batch) if type(batch) is list else batch
    return arrays_of(batch, f"batch {place}" if place else "the batch")


def arrays_of(value: Any, what: str) -> Any:
    """A pytree of arrays of any library as one of numpy's."""
    leaves, structure = tree.flatten_with_paths(value)
    return tree.unflatten(structure, [_array(leaf, f"{path!r} of {what}" if path else what) for path, leaf in leaves])


def _array(leaf: Any, what: str) -> NDArray[Any]:
    array = as_numpy(leaf, what)
    if array.dtype.kind in "OSUMm":
        kind = f"an array of dtype {leaf.dtype}" if isinstance(leaf, np.ndarray) else f"a {type(leaf).__name__}"
        raise InputError(f"{what}: {kind} is no array of numbers")
    dtype_of(array)
    return array


def _rows_text(data: Any) -> str:
    """How many rows each leaf has: "4 in '0', 3 in '1'"."""
    shapes = [(path, leaf.type.shape if isinstance(leaf, Handle) else leaf.shape)
              for path, leaf in tree.flatten_with_paths(data)[0]]  # fmt: skip
    return ", ".join(f"{shape[0] if shape else 'none'} in {path or 'the array'!r}" for path, shape in shapes)


def rows_of(batch: Any) -> int:
    """The number of rows of a batch; InputError if its arrays differ."""
    counts = {np.shape(leaf)[:1] for leaf in tree.leaves(batch)}
    if len(counts) != 1 or () in counts:
        counts_text = ", ".join(str(shape[0]) if shape else "none" for shape in sorted(counts)) or "no array"
        raise InputError(f"the arrays of a batch need the same number of rows, got {counts_text}")
    ((count,),) = counts
    if not count:
        raise InputError("a batch has no rows")
    return int(count)


def padded(rows: Rows, shares: Shares) -> tuple[Any, NDArray[np.float32]]:
    """The rows as all steps have them, with copies of the first row as padding, and the weight of each."""
    weights, rows_at = np.zeros(shares.slots, np.float32), np.zeros(shares.slots, np.intp)
    filled = shares.places[: rows.counted]
    weights[filled] = 1 / rows.counted
    rows_at[filled] = np.arange(rows.counted)
    return tree.map(lambda leaf: leaf[rows_at], rows.batch), weights
