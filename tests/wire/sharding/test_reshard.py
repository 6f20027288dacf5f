"""Ways between layouts: what they send, and that gathering everything never sends less."""

from __future__ import annotations

import pytest
from support.cases.layouts import FOUR, GRIDS, PAIR, SQUARE, layouts
from support.layout_costs import gather_all_bytes

from wire.sharding.layout import Dims, Layout, whole
from wire.sharding.reshard import (
    Cut,
    Exchange,
    Gather,
    Path,
    Permute,
    Reduce,
    ReduceScatter,
    path,
)

F32_BYTES = 4


def _moves(way: Path) -> list[type]:
    return [type(step.move) for step in way.steps]


@pytest.mark.parametrize("shape", [(8, 8), (5, 4), (5, 3), (2, 1), (0, 4)], ids=str)
@pytest.mark.parametrize("grid", GRIDS)
def test_no_way_sends_more_than_gathering_everything(grid: str, shape: tuple[int, ...]) -> None:
    axes = GRIDS[grid]
    for source in map(Layout, layouts(2, axes)):
        most = gather_all_bytes(shape, F32_BYTES, axes, source)
        for target in map(Layout, layouts(2, axes)):
            way = path(shape, F32_BYTES, axes, source, target)
            assert way.sent_bytes <= most
            assert (way.steps[-1].after if way.steps else source) == target


@pytest.mark.parametrize("partial", [("dp",), ("tp",), ("dp", "tp")], ids=str)
def test_nor_where_a_sum_is_due(partial: tuple[str, ...]) -> None:
    for dims in layouts(2, SQUARE):
        source = Layout(dims, partial)
        if {axis for split in dims for axis in split} & set(partial):
            continue
        for target in map(Layout, layouts(2, SQUARE)):
            way = path((4, 8), F32_BYTES, SQUARE, source, target)
            assert way.sent_bytes <= gather_all_bytes((4, 8), F32_BYTES, SQUARE, source)


NONE: Dims = ((), ())
ROWS: Dims = (("tp",), ())
COLUMNS: Dims = ((), ("tp",))


@pytest.mark.parametrize(
    ("source", "target", "moves", "sent_bytes"),
    [
        (Layout(NONE), Layout(ROWS), [Cut], 0),
        (Layout(ROWS), Layout(NONE), [Gather], 3 * 64),
        (Layout(ROWS), Layout(COLUMNS), [Exchange], 3 * 16),
        (Layout(NONE, ("tp",)), Layout(NONE), [Reduce], 2 * 3 * 64),
        (Layout(NONE, ("tp",)), Layout(ROWS), [ReduceScatter], 3 * 64),
    ],
    ids=["cut", "gather", "exchange", "reduce", "reduce-scatter"],
)
def test_one_move_where_one_does(source: Layout, target: Layout, moves: list[type], sent_bytes: int) -> None:
    way = path((8, 8), F32_BYTES, FOUR, source, target)
    assert (_moves(way), way.sent_bytes) == (moves, sent_bytes)


def test_blocks_of_one_size_are_passed_on() -> None:
    turned = path((8, 8), F32_BYTES, SQUARE, Layout((("dp",), ("tp",))), Layout((("tp",), ("dp",))))
    assert _moves(turned) == [Permute]
    assert turned.steps[0].move == Permute(((0, 0), (1, 2), (2, 1), (3, 3)))


def test_blocks_that_do_not_nest_are_gathered_and_cut_anew() -> None:
    assert _moves(path((5,), F32_BYTES, SQUARE, Layout((("dp",),)), Layout((("dp", "tp"),)))) == [Gather, Cut]
    assert _moves(path((6,), F32_BYTES, SQUARE, Layout((("dp",),)), Layout((("dp",),)))) == []
    assert _moves(path((8,), F32_BYTES, SQUARE, Layout((("dp",),)), Layout((("dp", "tp"),)))) == [Cut]


def test_two_sums_are_made_at_once() -> None:
    way = path((8,), F32_BYTES, SQUARE, Layout(((),), ("dp", "tp")), whole(1))
    assert [step.move for step in way.steps] == [Reduce(("dp", "tp"))]
    assert way.sent_bytes == 2 * 3 * 32 // 4


def test_what_does_not_divide_is_padded_before_it_is_scattered() -> None:
    way = path((5, 4), F32_BYTES, PAIR, Layout(NONE, ("tp",)), Layout(ROWS))
    assert (_moves(way), way.sent_bytes) == ([ReduceScatter], 3 * 4 * F32_BYTES)
