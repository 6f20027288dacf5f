"""Which dispatches are submitted together, and what is learned from how long that took."""

from __future__ import annotations

import random
import sys

import pytest

from worker.wgsl.slices import SLICE_S, UNKNOWN_S, Costs, Pass, Piece, learn, sliced


def passed(*seconds: float) -> Pass:
    """Dispatches that are known to take so long."""
    costs = Costs(len(seconds))
    for at, each in enumerate(seconds):
        costs.scale(at, at + 1, each / UNKNOWN_S)
    return Pass(range(len(seconds)), [(None, None, 1, 1, 1)] * len(seconds), costs)


def places(slices: list[list[Piece | str]]) -> list[list[tuple[int, int] | str]]:
    return [[(each.start, each.stop) if isinstance(each, Piece) else each for each in one] for one in slices]


def test_what_fits_is_one_slice_and_what_does_not_is_cut_between_dispatches() -> None:
    third = SLICE_S / 3.01
    assert places(sliced([])) == [[]]
    assert places(sliced([passed(), "copy"])) == [["copy"]], "a program without dispatches"
    assert places(sliced([passed(third, third), "copy", passed(third)])) == [[(0, 2), "copy", (0, 1)]]
    assert places(sliced([passed(*[third] * 7)])) == [[(0, 3)], [(3, 6)], [(6, 7)]]
    assert places(sliced([passed(third), "copy", passed(1.0), "copy", passed(third)])) == [
        [(0, 1), "copy"], [(0, 1), "copy"], [(0, 1)],
    ]  # fmt: skip
    assert places(sliced([passed(1.0, third, 1.0, 1.0)])) == [[(0, 1)], [(1, 2)], [(2, 3)], [(3, 4)]]


def test_dispatches_that_were_never_measured_are_few_in_a_slice() -> None:
    new = Pass(range(10), [(None, None, 1, 1, 1)] * 10, Costs(10))
    assert places(sliced([new])) == [[(0, 4)], [(4, 8)], [(8, 10)]]


@pytest.mark.parametrize("seed", range(20))
def test_slices_are_all_in_order_and_learn_to_take_as_long_as_they_should(seed: int) -> None:
    rng = random.Random(seed)
    real = [rng.choice([0.0001, 0.001, 0.004, 0.05]) for _ in range(rng.randint(1, 80))]
    whole = Pass(range(len(real)), [(None, None, 1, 1, 1)] * len(real), Costs(len(real)))
    for _ in range(30):
        slices = sliced([whole])
        pieces = [piece for one in slices for piece in one if isinstance(piece, Piece)]
        assert [at for piece in pieces for at in range(piece.start, piece.stop)] == list(range(len(real)))
        took_s = [sum(real[piece.start : piece.stop]) for piece in pieces]
        for piece, seconds in zip(pieces, took_s, strict=True):
            learn([piece], seconds)
    assert all(seconds < 2 * SLICE_S or piece.stop - piece.start == 1
               for piece, seconds in zip(pieces, took_s, strict=True))  # fmt: skip
    assert whole.costs.total_s == pytest.approx(sum(real))


def test_what_is_repeated_in_a_submission_teaches_once() -> None:
    turn = passed(0.001)
    (one,) = sliced([turn, "copy", turn, turn])
    learn(one, 0.006)
    assert turn.costs.seconds == [pytest.approx(0.002)]


def test_what_is_learned_costs_no_call_for_each_dispatch() -> None:
    """A run that took longer than a slice is learned from in each replay, and nobody waits for Python."""
    costs, calls = Costs(1_000), list[str]()
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        costs.scale(0, 1_000, 1e-9)
    finally:
        sys.setprofile(None)
    assert len(calls) < 20
    assert costs.seconds == [costs.seconds[0]] * 1_000
    assert 0 < costs.seconds[0] <= 1e-7
