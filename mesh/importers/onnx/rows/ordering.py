"""Order along an axis: the largest k, running sums and products, and choosing boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import I64

from .... import numpy as mnp
from ....core.array import Array, value_array
from ....numpy.promotion import cast
from ....numpy.reductions import normal_axis
from ..constant_folding import int_of, value_of
from ..evaluate import Call, Row


def _top_k(call: Call, x: Array, k: Array | None = None) -> tuple[Array, Array]:
    count = call.required("k") if k is None else int_of(k)
    values, places = mnp.topk(x, count, call.attr("axis", -1), largest=bool(call.attr("largest", 1)))
    return values, cast(places, I64)


def _running(function: Callable[..., Array]) -> Row:
    def row(call: Call, x: Array, axis: Array) -> Array:
        along = normal_axis(int_of(axis), x.ndim)
        reverse, exclusive = call.attr("reverse", 0), bool(call.attr("exclusive", 0))
        ordered = mnp.flip(x, along) if reverse else x
        sums = function(ordered, along, dtype=x.type.dtype, include_initial=exclusive)
        if exclusive:
            sums = sums[tuple([slice(dim) for dim in x.shape])]
        return mnp.flip(sums, along) if reverse else sums

    return row


def _non_max_suppression(
    call: Call, boxes: Array, scores: Array, most: Array | None = None, overlap: Array | None = None,
    threshold: Array | None = None,
) -> Array:  # fmt: skip
    corners = _corners(value_of(boxes), call.attr("center_point_box", 0))
    marks = value_of(scores)
    limit = 0 if most is None else int_of(most)
    shared_max = 0.0 if overlap is None else float(value_of(overlap).reshape(()))
    score_min = None if threshold is None else float(value_of(threshold).reshape(()))
    chosen = [
        (batch, category, box)
        for batch in range(marks.shape[0])
        for category in range(marks.shape[1])
        for box in _suppressed(corners[batch], marks[batch, category], limit, shared_max, score_min)
    ]
    return value_array(np.asarray(chosen, np.int64).reshape(-1, 3))


def _corners(boxes: NDArray[Any], centred: int) -> NDArray[Any]:
    """(batch, boxes, 4) as y1, x1, y2, x2 with y1 <= y2 and x1 <= x2."""
    if centred:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    return np.concatenate([low, high], -1)


def _suppressed(
    boxes: NDArray[Any], scores: NDArray[Any], limit: int, shared_max: float, score_min: float | None
) -> list[int]:
    """The boxes kept: the best first, none that shares more than `shared_max` with one before."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    for box in np.argsort(-scores, kind="stable"):
        if len(kept) == limit or (score_min is not None and scores[box] <= score_min):
            break
        low, high = np.maximum(boxes[kept, :2], boxes[box, :2]), np.minimum(boxes[kept, 2:], boxes[box, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=-1)
        union = areas[kept] + areas[box] - shared
        if not (shared > shared_max * union).any():
            kept.append(int(box))
    return kept


ROWS: dict[str, Row] = {
    "CumProd": _running(mnp.cumulative_prod),
    "CumSum": _running(mnp.cumulative_sum),
    "NonMaxSuppression": _non_max_suppression,
    "TopK": _top_k,
}
