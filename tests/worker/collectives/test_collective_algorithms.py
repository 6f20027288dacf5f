"""Every collective's program, played for all its ranks at once by chance: it ends, with few slots, and is right."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from wire.errors import ConfigError
from worker.collectives import algorithms
from worker.collectives.algorithms import (
    ALL_REDUCE,
    BY_RANK,
    COSTS,
    REMOTE,
    SHARED,
    SLOTS_MIN,
    Program,
    Send,
    choose,
    chunk_of,
    shares,
    steps,
)

Values = list[Any]


def play(programs: Sequence[Program], given: Sequence[Values], chunk_max: int, seed: int, slots: int) -> list[Values]:
    """The results of all ranks.  Strings are combined by writing them one after the other in brackets, so a result
    tells the order.  Ranks take turns by chance, and a ring buffer has `slots` slots."""
    chance, n = random.Random(seed), len(programs)
    boxes: dict[tuple[int, int], deque[Values]] = {(i, j): deque() for i in range(n) for j in range(n)}
    made = [[None] * max((stop for _, stop in program.result), default=0) for program in programs]
    counts = [program.chunks(chunk_max) for program in programs]
    todo = [deque(steps(program, count)) for program, count in zip(programs, counts, strict=True)]
    got: list[list[Values]] = [[] for _ in programs]

    def advance(rank: int) -> bool:
        before = len(todo[rank]), len(got[rank])
        while todo[rank] and chance.randrange(8) and perform(rank):
            pass
        return before != (len(todo[rank]), len(got[rank]))

    def perform(rank: int) -> bool:
        step, chunk = todo[rank][0]
        program, chunks = programs[rank], counts[rank]
        if isinstance(step, Send):
            if len(boxes[rank, step.to]) >= slots:
                return False
            start, stop = chunk_of((program.result if step.of_result else program.operand)[step.region], chunk, chunks)
            boxes[rank, step.to].append((made if step.of_result else given)[rank][start:stop])
        else:
            start, stop = chunk_of(program.result[step.region], chunk, chunks)
            while len(got[rank]) < len(step.sources):
                source = step.sources[len(got[rank])]
                if source == rank:
                    from_, to = chunk_of(program.operand[step.own_region], chunk, chunks)
                    got[rank].append(made[rank][start:stop] if step.of_result else given[rank][from_:to])
                elif boxes[source, rank]:
                    got[rank].append(boxes[source, rank].popleft())
                else:
                    return False
            assert {len(chunk) for chunk in got[rank]} == {stop - start}
            made[rank][start:stop] = [combined(values) for values in zip(*got[rank], strict=True)]
            got[rank] = []
        todo[rank].popleft()
        return True

    idle = 0
    while any(todo):
        idle = 0 if advance(chance.randrange(n)) else idle + 1
        assert idle < 100 * n, "all ranks wait"
    assert not any(boxes.values()), "a message that nobody took"
    return made


def combined(values: Sequence[str]) -> str:
    whole = values[0]
    for value in values[1:]:
        whole = f"({whole}{value})"
    return whole


def given(n: int, count: int) -> list[Values]:
    return [[f"{rank}" for _ in range(count)] for rank in range(n)]


@pytest.mark.parametrize("name", ALL_REDUCE)
@pytest.mark.parametrize("n", range(1, 10))
def test_an_all_reduce_combines_every_rank_once_on_every_rank(name: str, n: int) -> None:
    for count in (0, 1, n - 1, n, 40):
        for seed in range(2):
            programs = [ALL_REDUCE[name](rank, n, count, (1,) * n) for rank in range(n)]
            results = play(programs, given(n, count), 3, seed, SLOTS_MIN)
            assert all(result == results[0] for result in results), "ranks have different results"
            letters = [sorted(value.strip("()").replace("(", "").replace(")", "")) for value in results[0]]
            assert letters == [[str(rank) for rank in range(n)]] * count
            if name in BY_RANK:
                assert results[0] == [combined([str(rank) for rank in range(n)])] * count


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("seed", range(2))
def test_the_other_collectives(n: int, seed: int) -> None:
    every = [str(rank) for rank in range(n)]
    order = [combined(every)]
    chance = random.Random(seed)
    pairs = list(zip(range(n), chance.sample(range(n), n), strict=True))[: chance.randrange(n + 1)]
    root = chance.randrange(n)
    cases: list[tuple[Callable[[int], Program], list[Values], list[Values]]] = [
        (lambda r: algorithms.reduce_scatter(r, n, 7 * n), given(n, 7 * n), [order * 7] * n),
        (lambda r: algorithms.all_gather(r, n, 7), given(n, 7), [[x for x in every for _ in range(7)]] * n),
        (
            lambda r: algorithms.all_to_all(r, n, 5 * n),
            [[f"{rank}>{to}" for to in range(n) for _ in range(5)] for rank in range(n)],
            [[f"{source}>{rank}" for source in range(n) for _ in range(5)] for rank in range(n)],
        ),
        (lambda r: algorithms.broadcast(r, n, 11, root), given(n, 11), [[str(root)] * 11] * n),
        (lambda r: algorithms.barrier(r, n), given(n, 0), [[]] * n),
        (
            lambda r: algorithms.permute(r, n, 9, pairs),
            given(n, 9),
            [next(([str(source)] * 9 for source, to in pairs if to == rank), [None] * 9) for rank in range(n)],
        ),
    ]
    for make, values, expected in cases:
        assert play([make(rank) for rank in range(n)], values, 3, seed, SLOTS_MIN) == expected


def test_unequal_shares_change_who_combines_and_nothing_else() -> None:
    for weights in ((1, 0, 2, 0.5), (0, 0, 0, 1), (0.25,) * 4):
        programs = [algorithms.direct(rank, 4, 50, weights) for rank in range(4)]
        assert play(programs, given(4, 50), 3, 1, SLOTS_MIN) == [["(((01)2)3)"] * 50] * 4


def test_shares_are_even_on_equal_links_and_done_together_on_others() -> None:
    assert shares([5.0] * 4) == pytest.approx([0.25] * 4)
    slow = [1.0, 2.0, 2.0, 3.0]
    each = shares(slow)
    assert sum(each) == pytest.approx(1)
    times = [(1 + 2 * share) / link for share, link in zip(each, slow, strict=True) if share]
    assert times == pytest.approx([times[0]] * len(times))
    assert shares([1e9, 1e9, 1.0, 1e9])[2] == 0
    assert shares([1.0, 9.0]) == (0.5, 0.5)
    with pytest.raises(ConfigError, match="positive"):
        shares([1.0, 0.0])


def test_small_tensors_go_at_once_and_large_ones_in_shares() -> None:
    for path in (SHARED, REMOTE):
        assert choose(4, 64, path) == "exchange"
        assert choose(4, 64 << 20, path) in ("direct", "chain")
        for n in (2, 4, 9):
            costs = [COSTS[name](n, 1 << 16, path) for name in ALL_REDUCE]
            assert min(costs) > 0
    assert choose(9, 4, SHARED) in BY_RANK
    assert set(COSTS) == set(ALL_REDUCE)
