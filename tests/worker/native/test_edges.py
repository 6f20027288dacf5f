"""Edges of masks: what is behind them is not computed, and no bit changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.cases.cuts import same_bits
from support.kept_kernels import native_engine

import mesh.numpy as mnp
from mesh import nn, trace, vjp
from worker.compiler.inline_composites import inline_composites
from worker.cpu.inplace_analysis import FUSED
from worker.native.engine import NativeEngine
from worker.native.kernels.product import REACH
from worker.native.outline import outlined

Mask = Callable[[int, int], Any]


def positions(rows: int, columns: int) -> tuple[Any, Any]:
    return mnp.arange(rows)[:, None], mnp.arange(columns)[None, :]


def compared(name: str, further: int = 0) -> Mask:
    def mask(rows: int, columns: int) -> Any:
        row, column = positions(rows, columns)
        return {"ge": row + further >= column, "gt": row + further > column}.get(name, column <= row + further)

    return mask


def padded(rows: int, columns: int) -> Any:
    row, column = positions(rows, columns)
    return mnp.logical_and(row >= column, column != 3)


# The mask, and how far to the right of the diagonal scores are read; None: everywhere.
MASKS: dict[str, tuple[Mask, int | None]] = {
    "tril": (lambda rows, columns: mnp.tril(mnp.ones((rows, columns), bool)), 0),
    "tril, further": (lambda rows, columns: mnp.tril(mnp.ones((rows, columns), bool), 5), 5),
    "tril, less far": (lambda rows, columns: mnp.tril(mnp.ones((rows, columns), bool), -40), -40),
    "row >= column": (compared("ge"), 0),
    "row > column": (compared("gt"), -1),
    "column <= row + 9": (compared("le", 9), 9),
    "and another": (padded, 0),
    "triu": (lambda rows, columns: mnp.triu(mnp.ones((rows, columns), bool)), None),
    "unlike": (lambda rows, columns: positions(rows, columns)[0] != positions(rows, columns)[1], None),
    "of bytes, which wrap": (
        lambda rows, columns: mnp.greater_equal(*(each.astype(np.int8) for each in positions(rows, columns))),
        None,
    ),
    "times": (lambda rows, columns: positions(rows, columns)[0] * 2 >= positions(rows, columns)[1], None),
}
SIZES, LONG_SIZES = [(70, 70), (40, 200)], [(96, 96), (200, 40), (131, 259)]
FILLS, LONG_FILLS = [-1e30], [np.nan, -np.inf, 0.25]


@pytest.fixture(scope="module")
def engine() -> Iterator[NativeEngine]:
    made = native_engine(threads=2)
    yield made
    made.close()


def attention(fill: float) -> Callable[..., Any]:
    def scored(mask: Any, q: Any, k: Any, v: Any) -> Any:
        return nn.softmax(mnp.where(mask, q @ mnp.swapaxes(k, -1, -2) * 0.125, fill), -1) @ v

    return scored


def given(rows: int, columns: int) -> list[Any]:
    random = np.random.default_rng(rows + columns)
    return [random.standard_normal((2, count, 16), dtype=np.float32) for count in (rows, columns, columns)]


def told(graph: Any) -> list[int | None]:
    """What products are told of where they are read."""
    parts = [node.attrs["cut"] for node in outlined(inline_composites(graph)).nodes if node.op == FUSED]
    return [node.attrs.get(REACH) for part in parts for node in part.nodes if node.op == "dot"]


@pytest.mark.parametrize("name", MASKS)
def test_a_product_is_told_where_it_is_read(name: str) -> None:
    mask, reach = MASKS[name]
    scored = attention(-1e30)
    graph = trace(lambda *arrays: scored(mask(96, 96), *arrays), *given(96, 96))
    assert told(graph) == [reach, None]


def test_a_product_that_others_read_is_computed_everywhere() -> None:
    def weights_too(q: Any, k: Any) -> Any:
        scores = q @ mnp.swapaxes(k, -1, -2)
        masked = nn.softmax(mnp.where(mnp.tril(mnp.ones((96, 96), bool)), scores, -1e30), -1)
        return masked, mnp.sum(scores, 0)

    assert told(trace(weights_too, *given(96, 96)[:2])) == [None]


def test_all_that_share_a_mask_know_its_edge() -> None:
    scored, mask = attention(-1e30), MASKS["tril"][0]

    def layers(q: Any, k: Any, v: Any) -> Any:
        shared = mask(96, 96)
        for _ in range(5):
            q = scored(shared, q, k, v)
        return q

    assert told(trace(layers, *given(96, 96))) == [0, None] * 5


def short_and_long(short: list[Any], long: list[Any]) -> list[Any]:
    return [*short, *(pytest.param(value, marks=pytest.mark.long) for value in long)]


@pytest.mark.parametrize("fill", short_and_long(FILLS, LONG_FILLS))
@pytest.mark.parametrize("sizes", short_and_long(SIZES, LONG_SIZES), ids=str)
@pytest.mark.parametrize("name", [*MASKS])
def test_a_mask_of_positions_has_the_bits_of_one_that_is_given(
    engine: NativeEngine, name: str, sizes: tuple[int, int], fill: float
) -> None:
    """Also where what is masked is not finite, and in rows that are masked as a whole."""
    mask, arrays, scored = MASKS[name][0], given(*sizes), attention(fill)
    arrays[1][0, -1], arrays[1][1, -2] = np.inf, np.nan
    made = engine.run(engine.compile(trace(lambda: mask(*sizes))), [])[0]
    known = trace(lambda *each: scored(mask(*sizes), *each), *arrays)
    unknown = trace(scored, made, *arrays)
    assert same_bits(engine.run(engine.compile(known), arrays), engine.run(engine.compile(unknown), [made, *arrays]))


def test_derivatives_have_the_bits_of_a_mask_that_is_given(engine: NativeEngine) -> None:
    mask, scored = MASKS["tril"][0], attention(-1e30)

    def derivatives(mask: Any, *arrays: Any) -> Any:
        result, back = vjp(lambda *each: scored(mask, *each), *arrays)
        return [result, *back(result)]

    arrays = given(160, 160)
    made = engine.run(engine.compile(trace(lambda: mask(160, 160))), [])[0]
    known = trace(lambda *each: derivatives(mask(160, 160), *each), *arrays)
    unknown = trace(derivatives, made, *arrays)
    assert 0 in told(known) and 0 not in told(unknown)
    assert same_bits(engine.run(engine.compile(known), arrays), engine.run(engine.compile(unknown), [made, *arrays]))
