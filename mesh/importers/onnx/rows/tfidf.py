"""TfIdfVectorizer: how often each n-gram of a pool of integers stands in a row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import F32, I64

from .... import numpy as mnp
from ....core.array import Array, apply, value_array
from ....numpy.promotion import cast
from ..evaluate import Call, Row


def _tf_idf(call: Call, x: Array) -> Array:
    pool = call.attr("pool_int64s")
    if pool is None:
        raise call.unsupported("a pool of strings")
    rows = mnp.reshape(x, (1, -1)) if x.ndim == 1 else x
    columns = np.asarray(call.required("ngram_indexes"))
    counts = mnp.zeros((rows.shape[0], int(columns.max()) + 1), dtype=F32)
    for first, grams in _grams(call, pool):
        counted = _counted(call, rows, grams)
        if counted is not None:
            places = columns[first : first + len(grams)]
            counts = apply("scatter", counts, value_array(places.astype(np.int32)), counted, axis=1, mode="add")
    mode = call.required("mode")
    if mode == "IDF":
        counts = cast(mnp.greater(counts, 0), F32)
    if mode != "TF":
        weights = np.ones(counts.shape[1], np.float32)
        weights[columns] = call.attr("weights", (1.0,) * len(columns))
        counts = mnp.multiply(counts, value_array(weights))
    return counts[0] if x.ndim == 1 else counts


def _grams(call: Call, pool: tuple[int, ...]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The n-grams of the lengths wanted, (count, n), and the number of those before."""
    starts = [*call.required("ngram_counts"), len(pool)]
    before = 0
    for length, (start, stop) in enumerate(pairwise(starts), 1):
        grams = np.asarray(pool[start:stop], np.int64).reshape(-1, length)
        if call.required("min_gram_length") <= length <= call.required("max_gram_length") and len(grams):
            yield before, grams
        before += len(grams)


def _counted(call: Call, rows: Array, grams: NDArray[np.int64]) -> Array | None:
    """(rows, grams): how often, with as many elements skipped between those of a gram as the node allows."""
    total: Array | None = None
    length, size = grams.shape[1], rows.shape[1]
    for skip in range(call.required("max_skip_count") + 1 if length > 1 else 1):
        places = size - (length - 1) * (skip + 1)
        if places <= 0:
            break
        positions = np.arange(places)[:, None] + np.arange(length) * (skip + 1)
        windows = mnp.take(cast(rows, I64), positions.astype(np.int32), axis=1)[:, None]  # (rows, 1, places, length)
        wanted = value_array(grams[:, None])
        hits = mnp.sum(cast(mnp.all(mnp.equal(windows, wanted), 3), F32), 2)
        total = hits if total is None else mnp.add(total, hits)
    return total


ROWS: dict[str, Row] = {"TfIdfVectorizer": _tf_idf}
